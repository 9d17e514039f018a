"""
Sizes at the edges of the tiles that the code under test chose for itself.

Whoever writes a kernel picks its tiles, so no list of cases can sit on their edges. How far one
block of the grid reaches along an axis is found by asking the launcher for ever longer inputs,
while kernels do nothing; the other tiles are seen when the kernels run.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, zip_longest
from typing import TYPE_CHECKING

from harness.content.functions import arguments_of, function_of
from harness.content.kata import Case
from harness.judge import kernels

if TYPE_CHECKING:
    from harness.judge.trial import Trial

LARGEST = 4096  # no tile is looked for beyond
MOST_LAUNCHES = 8  # of one call while kernels do nothing
MOST_WORK = 40  # programs that the runs from one case may come to: about a second

Sizes = Mapping[str, int]
Tiles = Mapping[str, Sequence[int]]
Launches = tuple[kernels.Launch, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """A case at the edge of a tile of extent `tile`, and the sizes in it that are swept."""

    case: Case
    sizes: Sizes
    tile: int

    def __str__(self) -> str:
        return ", ".join(f"{axis} = {size}" for axis, size in self.sizes.items())


def edges_of(case: Case, tiles: Tiles) -> list[Edge]:
    """
    The cases to try, the most telling first.

    Args:
        case: Where every other argument comes from.
        tiles: For each swept axis the extents its tiles may have, the likeliest first.
    """
    # short otherwise, which is cheap: the cases have several tiles along every axis
    small = {axis: min(case[axis], *extents[:1]) for axis, extents in tiles.items() if extents}
    alone = [_alone(axis, tile) for axis, extents in tiles.items() for tile in extents]
    together = [
        _together(x, y, tile)
        for x, y in combinations(small, 2)
        for tile in dict.fromkeys((*tiles[x], *tiles[y]))
    ]
    found: dict[tuple[int, ...], Edge] = {}
    # the first of every list, then the second: what is cut off for its cost is the end of each
    for sizes, tile in filter(None, chain(*zip_longest(*alone, *together))):
        swept = {**small, **sizes}
        if min(swept.values()) > 0:
            found.setdefault(tuple(swept.values()), Edge({**case, **swept}, swept, tile))
    return list(found.values())


def _alone(axis: str, tile: int) -> list[tuple[Sizes, int]]:
    """One tile, then two: an element past them, an element short of them, and whole."""
    sizes = [count * tile + step for count in (1, 2) for step in (1, -1, 0)]
    return [({axis: size}, tile) for size in sizes]


def _together(x: str, y: str, tile: int) -> list[tuple[Sizes, int]]:
    """
    Lengths whose difference puts a diagonal on the edge of a tile.

    A causal mask counts what a query sees, or names the last key that it sees, which is one less.
    """
    steps = [count * tile + step for step in (1, -2, -1, 0) for count in (0, 1, -1)]
    return [({x: 2 * tile, y: 2 * tile + step}, tile) for step in steps]


def least_launched(trial: "Trial", cases: Sequence[Case]) -> Case:
    """The case with the fewest blocks beside those along what is swept; the first of several."""
    axes = arguments_of(trial.submission.kata.edges, function_of(cases[0]))

    def blocks(case: Case) -> float:
        grids = _grids(trial, {**case, **dict.fromkeys(axes, 1)})
        return sum(math.prod(launch.grid) for launch in grids or ()) or math.inf

    return min(cases, key=blocks)


def tiles_of(trial: "Trial", case: Case, seen: Iterable[int]) -> Tiles:
    """For each axis the extents its tiles may have: the grid's along it, then those `seen`."""
    axes = arguments_of(trial.submission.kata.edges, function_of(case))
    lengths = [value for name, value in case.items() if name not in axes]  # or lists of them
    # as large as the size of something else, it need not be a tile; the largest one is outermost
    usual = sorted({one for one in seen if 1 < one <= LARGEST}, key=lambda n: (n in lengths, -n))
    return {axis: tuple(dict.fromkeys((*_reach(trial, case, axis), *usual))) for axis in axes}


def _reach(trial: "Trial", case: Case, axis: str) -> tuple[int, ...]:
    """How much of `axis` the first blocks of the grid take, before there are more of them."""

    def grids(length: int) -> Launches | None:
        return _grids(trial, {**case, axis: length})

    first, most = grids(1), 2
    while first and most <= LARGEST and grids(most) == first:
        most *= 2
    if not first or most > LARGEST:
        return ()
    lengths = range(most // 2, most)
    return (lengths[bisect_left(lengths, True, key=lambda length: grids(length + 1) != first)],)


def _grids(trial: "Trial", case: Case) -> Launches | None:
    """What would be launched on which grids; None where the launcher needs its kernels' work."""
    backend = trial.submission.kata.backend
    arguments = trial.launchable(trial.inputs(case))
    try:
        with kernels.left_out(backend, at_most=MOST_LAUNCHES) as launches:
            trial.of(function_of(case)).entry(**arguments)
    except NotImplementedError:
        raise
    except Exception:  # noqa: BLE001 -- whatever it is, the runs that count will show it
        return None
    return tuple(launches)
