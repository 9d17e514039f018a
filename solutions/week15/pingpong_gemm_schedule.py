"""Kata week15/pingpong_gemm_schedule: two warpgroups, one set of tensor cores, who goes when."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

Mode = Literal["cooperative", "pingpong"]
MODES: tuple[Mode, ...] = ("cooperative", "pingpong")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """
    What a tile of the output takes, in cycles.

    A tile is what one warpgroup accumulates. Each step of its mainloop goes `bk` further along `k`:
    the tensor cores take `t_mma` for it, loading its operands takes `t_load`. Two neighbouring
    tiles have an operand in common: loading a step of both together takes `t_load_pair`. Then the
    epilogue takes `t_epi`.
    """

    k: int
    bk: int
    t_mma: int
    t_load: int
    t_load_pair: int
    t_epi: int


class Sm(Protocol):
    """
    A multiprocessor with two warpgroups. Whatever is yielded to it lasts until it is done.

    It has two barriers, `slot` 0 and 1. A phase of a barrier takes one arrival.
    """

    def wait(self, slot: int, parity: int) -> object:
        """Wait until the phase of this parity is over; a new barrier is in phase 0."""

    def arrive(self, slot: int) -> object:
        """End the phase of a barrier."""

    def mainloop(self, tile: int) -> object:
        """Multiply; two mainloops at the same time share the tensor cores fairly."""

    def epilogue(self, tile: int) -> object:
        """Convert and store what the mainloop has accumulated; shares nothing."""


def cooperative(wg: int, tiles: int, sm: Sm) -> Iterator[object]:
    """Run a warpgroup that does its half of each pair of tiles, next to the other warpgroup."""
    for tile in range(wg, tiles, 2):
        yield sm.mainloop(tile)
        yield sm.epilogue(tile)


def pingpong(wg: int, tiles: int, sm: Sm) -> Iterator[object]:
    """
    Run warpgroup `wg`, 0 or 1, which does the tiles wg, wg + 2, … below `tiles`.

    No two mainloops overlap, and they run in the order of the tiles; an epilogue runs while the
    other warpgroup is in its mainloop.

    Source: CUTLASS, OrderedSequenceBarrier; kernel schedule KernelTmaWarpSpecializedPingpong.
    """
    # wait for the turn
    parity = 1 - wg  # nobody has arrived for the first tile, and it need not wait
    for tile in range(wg, tiles, 2):
        yield sm.wait(wg, parity)
        # multiply
        yield sm.mainloop(tile)
        # hand over the tensor cores
        yield sm.arrive(1 - wg)
        yield sm.epilogue(tile)
        parity ^= 1


def period(mode: Mode, gemm: Gemm) -> int:
    """
    Cycles that two tiles take in the long run.

    Raises:
        ValueError: the mode is unknown; `k`, `bk` or `t_mma` is below 1, or another time is
            below 0. The message begins with its name.
    """
    # check
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, found {mode!r}")
    for name, least in _LEAST.items():
        if getattr(gemm, name) < least:
            raise ValueError(f"{name}: expected {least} or more, found {getattr(gemm, name)}")
    # time of two tiles
    if mode == "cooperative":
        return _steps(gemm) * max(2 * gemm.t_mma, gemm.t_load_pair) + gemm.t_epi
    mainloop = _steps(gemm) * max(gemm.t_mma, gemm.t_load)
    return mainloop + max(mainloop, gemm.t_epi)


def utilisation(mode: Mode, gemm: Gemm) -> float:
    """
    Share of the time, in the long run, in which the tensor cores multiply.

    Raises:
        ValueError: what `period` refuses.
    """
    # share of busy cycles
    cycles = period(mode, gemm)
    return 2 * _steps(gemm) * gemm.t_mma / cycles


def choose(gemm: Gemm) -> Mode:
    """
    The mode with the shorter period; of equals "cooperative", which needs no barrier.

    Raises:
        ValueError: what `period` refuses.
    """
    return min(MODES, key=lambda mode: period(mode, gemm))


_LEAST = {"k": 1, "bk": 1, "t_mma": 1, "t_load": 0, "t_load_pair": 0, "t_epi": 0}


def _steps(gemm: Gemm) -> int:
    return -(-gemm.k // gemm.bk)
