"""How code is judged: correctness, time and thresholds. What a kata's tests may import."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.judge.correctness.answer import assert_sound
    from harness.judge.correctness.matching import assert_matches
    from harness.judge.correctness.statistics import ChiSquare, assert_follows, chi_square
    from harness.judge.correctness.unordered import assert_unordered
    from harness.judge.correctness.yardstick import Yardstick, assert_nearest
    from harness.judge.timing.measure import HostClock, Samples

__all__ = [
    "ChiSquare",
    "HostClock",
    "Samples",
    "Yardstick",
    "assert_follows",
    "assert_matches",
    "assert_nearest",
    "assert_sound",
    "assert_unordered",
    "chi_square",
]

# they bring NumPy or torch: the command line imports this package without either
HOMES = {
    "ChiSquare": "harness.judge.correctness.statistics",
    "HostClock": "harness.judge.timing.measure",
    "Samples": "harness.judge.timing.measure",
    "Yardstick": "harness.judge.correctness.yardstick",
    "assert_follows": "harness.judge.correctness.statistics",
    "assert_matches": "harness.judge.correctness.matching",
    "assert_nearest": "harness.judge.correctness.yardstick",
    "assert_sound": "harness.judge.correctness.answer",
    "assert_unordered": "harness.judge.correctness.unordered",
    "chi_square": "harness.judge.correctness.statistics",
}


def __getattr__(name: str) -> object:
    """What katas import, from the module that it lives in."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
