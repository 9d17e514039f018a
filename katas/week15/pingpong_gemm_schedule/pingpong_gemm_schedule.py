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
    # TODO(kata): wait for the turn, multiply, hand over the tensor cores (about 7 lines)
    raise NotImplementedError


def period(mode: Mode, gemm: Gemm) -> int:
    """
    Cycles that two tiles take in the long run.

    Raises:
        ValueError: the mode is unknown; `k`, `bk` or `t_mma` is below 1, or another time is
            below 0. The message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): check, time of two tiles (about 10 lines with helpers)


def utilisation(mode: Mode, gemm: Gemm) -> float:
    """
    Share of the time, in the long run, in which the tensor cores multiply.

    Raises:
        ValueError: what `period` refuses.
    """
    raise NotImplementedError  # TODO(kata): share of busy cycles (2 lines)


def choose(gemm: Gemm) -> Mode:
    """
    The mode with the shorter period; of equals "cooperative", which needs no barrier.

    Raises:
        ValueError: what `period` refuses.
    """
    raise NotImplementedError  # TODO(kata): (1 line)


_LEAST = {"k": 1, "bk": 1, "t_mma": 1, "t_load": 0, "t_load_pair": 0, "t_epi": 0}
