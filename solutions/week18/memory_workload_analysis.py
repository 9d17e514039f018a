"""Kata week18/memory_workload_analysis: where bytes are wasted between SM, L1, L2 and DRAM."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SECTOR = 32  # bytes, the unit in which caches are filled
BANKS = 32  # of shared memory, each one word wide
WORD = 4  # bytes
PHASE = {4: 32, 8: 16, 16: 8}  # lanes of a warp that shared memory serves at a time, by width
WASTEFUL = 2  # times what is needed: from here on a level is worth a change

# the counters to use: global loads, what L1 asks of L2 for them, DRAM, shared memory
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
L1_HITS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum"
L2_SECTORS = "lts__t_sectors_srcunit_tex_op_read.sum"
L2_HITS = "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum"
DRAM_READ = "dram__bytes_read.sum"
DRAM_WRITTEN = "dram__bytes_write.sum"
WAVEFRONTS = "memory_l1_wavefronts_shared"
WAVEFRONTS_IDEAL = "memory_l1_wavefronts_shared_ideal"


@dataclass(frozen=True)
class Chart:
    """What the loads of a launch moved, level by level; a hit rate of no sectors is None."""

    requests: int
    sectors: int
    l1_hit: float | None
    l2_sectors: int
    l2_hit: float | None
    dram_read_bytes: int
    dram_written_bytes: int
    shared_wavefronts: int
    shared_ideal: int


@dataclass(frozen=True)
class Pattern:
    """A measured access pattern: `count` is sectors ("global") or wavefronts ("shared")."""

    id: int
    space: str
    op: str
    width: int  # bytes of a lane
    offsets: tuple[int, ...]  # bytes, of each lane
    requests: int
    count: int  # of all requests together


def memory_chart(k: dict[str, int]) -> Chart:
    """
    The memory chart of a launch, from its counters.

    Raises:
        ValueError: a counter is negative, or has more hits than sectors; the message names it.
    """
    # check
    for name in (
        *(REQUESTS, SECTORS, L1_HITS, L2_SECTORS, L2_HITS),
        *(DRAM_READ, DRAM_WRITTEN, WAVEFRONTS, WAVEFRONTS_IDEAL),
    ):
        _check_bytes(name, k[name])
    # chart
    return Chart(
        requests=k[REQUESTS],
        sectors=k[SECTORS],
        l1_hit=_hit_rate(k, L1_HITS, SECTORS),
        l2_sectors=k[L2_SECTORS],
        l2_hit=_hit_rate(k, L2_HITS, L2_SECTORS),
        dram_read_bytes=k[DRAM_READ],
        dram_written_bytes=k[DRAM_WRITTEN],
        shared_wavefronts=k[WAVEFRONTS],
        shared_ideal=k[WAVEFRONTS_IDEAL],
    )


def predicted(offsets: Sequence[int], width: int, space: str) -> int:
    """
    What one request of a warp takes: sectors of global memory, or wavefronts of shared memory.

    Args:
        offsets: Bytes, one for each of the 32 lanes, multiples of `width`.
        width: Bytes of a lane: 4, 8 or 16.
        space: "global" or "shared".

    Raises:
        ValueError: an argument is none of these; the message names it.
    """
    # check
    if width not in PHASE:
        raise ValueError(f"width: expected 4, 8 or 16, found {width}")
    if len(offsets) != 32 or any(offset % width for offset in offsets):
        raise ValueError(f"offsets: expected 32 multiples of {width}, found {offsets}")
    # sectors or wavefronts
    if space == "global":
        return len({offset // SECTOR for offset in offsets})
    if space != "shared":
        raise ValueError(f"space: expected 'global' or 'shared', found {space!r}")
    columns = BANKS * WORD // width  # an aligned access is in one of these, all of its words
    total = 0
    for first in range(0, 32, PHASE[width]):
        # what several lanes want is read once
        wanted = {offset // width for offset in offsets[first : first + PHASE[width]]}
        total += max(Counter(element % columns for element in wanted).values())
    return total


def misses(patterns: Iterable[Pattern]) -> list[int]:
    """Ids of the patterns that took another count than predicted, in their order."""
    return [
        pattern.id
        for pattern in patterns
        if pattern.count
        != pattern.requests * predicted(pattern.offsets, pattern.width, pattern.space)
    ]


def load_efficiency(k: dict[str, int], bytes_requested: int) -> float | None:
    """
    Bytes that lanes asked for over bytes of the sectors that they touched.

    More than 1 where lanes share bytes; None where nothing was loaded.

    Raises:
        ValueError: as `memory_chart`, or `bytes_requested` is negative.
    """
    return _efficiency(memory_chart(k), bytes_requested)


def waste(chart: Chart, bytes_requested: int, useful_bytes: int) -> dict[str, int]:
    """
    Bytes moved beyond those needed: "SM-L1", "L1-L2", "L2-DRAM"; less than 0 is saved.

    Raises:
        ValueError: a number of bytes is negative; the message names it.
    """
    # check
    _check_bytes("bytes_requested", bytes_requested)
    _check_bytes("useful_bytes", useful_bytes)
    # used and wasted bytes
    return {
        "SM-L1": SECTOR * chart.sectors - bytes_requested,
        "L1-L2": SECTOR * chart.l2_sectors - useful_bytes,
        "L2-DRAM": chart.dram_read_bytes - useful_bytes,
    }


def advice(chart: Chart, bytes_requested: int, useful_bytes: int) -> str:
    """
    What to change first: "coalesce", "swizzle", "block for L2", "block for L1" or "none".

    Raises:
        ValueError: a number of bytes is negative; the message names it.
    """
    # check
    efficiency = _efficiency(chart, bytes_requested)
    _check_bytes("useful_bytes", useful_bytes)
    # first wasteful level
    if efficiency is not None and efficiency * WASTEFUL <= 1:
        return "coalesce"
    if _wasteful(chart.shared_wavefronts, chart.shared_ideal):
        return "swizzle"
    if _wasteful(chart.dram_read_bytes, useful_bytes):
        return "block for L2"
    if _wasteful(SECTOR * chart.l2_sectors, useful_bytes):
        return "block for L1"
    return "none"


def _check_bytes(name: str, value: int) -> None:
    if value < 0:
        raise ValueError(f"{name}: expected 0 or more, found {value}")


def _hit_rate(k: dict[str, int], hits: str, sectors: str) -> float | None:
    if k[hits] > k[sectors]:
        raise ValueError(f"{hits}: expected at most {k[sectors]} sectors, found {k[hits]}")
    return k[hits] / k[sectors] if k[sectors] else None


def _efficiency(chart: Chart, bytes_requested: int) -> float | None:
    _check_bytes("bytes_requested", bytes_requested)
    return bytes_requested / (SECTOR * chart.sectors) if chart.sectors else None


def _wasteful(moved: int, needed: int) -> bool:
    return needed > 0 and moved >= WASTEFUL * needed
