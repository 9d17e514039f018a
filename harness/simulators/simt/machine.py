"""The simulated machine: its settings, its indices, and the tally of what it did."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from harness.base.errors import HarnessError, UsageProblem

Order = Literal["forward", "reversed", "random"]


class SimtError(HarnessError):
    """A kernel does what hangs, does not compile, or has no defined result, on a GPU."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    The simulated machine.

    Attributes:
        order: In which order blocks run, and the threads of a block between two barriers.
        seed: Of the permutations, when `order` is "random".
        warp_size: Lanes of a warp: 32, or 64 as on CDNA.
        resident_blocks: How many blocks can be alive at once: the largest grid with a barrier.
    """

    order: Order = "forward"
    seed: int = 0
    warp_size: int = 32
    resident_blocks: int = 64

    def __post_init__(self) -> None:
        """Refuse a machine that is not simulated."""
        if self.order not in get_args(Order):
            known = ", ".join(get_args(Order))
            raise UsageProblem(f"order: expected {known}, found {self.order!r}.")
        if self.warp_size not in (32, 64):
            raise UsageProblem(f"warp_size: expected 32 or 64, found {self.warp_size!r}.")
        if self.resident_blocks < 1:
            raise UsageProblem(
                f"resident_blocks: expected 1 or more, found {self.resident_blocks}."
            )

    def permutation(self, count: int, salt: int) -> Sequence[int]:
        """The numbers below `count` in running order; `salt` tells one shuffle from another."""
        if self.order == "random":
            return random.Random(f"{self.seed}/{salt}").sample(range(count), count)
        return range(count) if self.order == "forward" else range(count)[::-1]


class Dim3(NamedTuple):
    """An index or an extent; `x` varies fastest."""

    x: int
    y: int
    z: int


def unravel(number: int, extent: Dim3) -> Dim3:
    """The index whose place in the order of `extent` is `number`."""
    rest, x = divmod(number, extent.x)
    z, y = divmod(rest, extent.y)
    return Dim3(x, y, z)


@dataclass(slots=True, kw_only=True)
class Tally:
    """
    What a launch did, loads and stores apart.

    Attributes:
        block_barriers: Barriers completed, for each block.
        grid_barriers: Barriers of the whole grid completed.
        warp_calls: Of each warp intrinsic, one for all the lanes that take part.
        atomics: Atomic operations on "global" and "shared" arrays, one for each lane.
        exited_before_barrier: Threads that had returned when a barrier of their block completed.
        shared_bytes: The most shared memory of a block, static and dynamic.
    """

    block_barriers: list[int] = field(default_factory=list)
    grid_barriers: int = 0
    warp_calls: Counter[str] = field(default_factory=Counter)
    atomics: Counter[str] = field(default_factory=Counter)
    exited_before_barrier: int = 0
    shared_bytes: int = 0
