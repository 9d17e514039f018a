"""Kata week18/memory_workload_analysis: where bytes are wasted between SM, L1, L2 and DRAM."""

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
    raise NotImplementedError  # TODO(kata): check, chart (about 25 lines with helpers)


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
    raise NotImplementedError  # TODO(kata): check, sectors or wavefronts (about 15 lines)


def misses(patterns: Iterable[Pattern]) -> list[int]:
    """Ids of the patterns that took another count than predicted, in their order."""
    raise NotImplementedError  # TODO(kata): compare (about 6 lines)


def load_efficiency(k: dict[str, int], bytes_requested: int) -> float | None:
    """
    Bytes that lanes asked for over bytes of the sectors that they touched.

    More than 1 where lanes share bytes; None where nothing was loaded.

    Raises:
        ValueError: as `memory_chart`, or `bytes_requested` is negative.
    """
    raise NotImplementedError  # TODO(kata): used and wasted bytes (about 4 lines with helpers)


def waste(chart: Chart, bytes_requested: int, useful_bytes: int) -> dict[str, int]:
    """
    Bytes moved beyond those needed: "SM-L1", "L1-L2", "L2-DRAM"; less than 0 is saved.

    Raises:
        ValueError: a number of bytes is negative; the message names it.
    """
    raise NotImplementedError  # TODO(kata): check, used and wasted bytes (about 7 lines)


def advice(chart: Chart, bytes_requested: int, useful_bytes: int) -> str:
    """
    What to change first: "coalesce", "swizzle", "block for L2", "block for L1" or "none".

    Raises:
        ValueError: a number of bytes is negative; the message names it.
    """
    # TODO(kata): check, first wasteful level (about 15 lines with helpers)
    raise NotImplementedError
