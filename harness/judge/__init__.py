"""How code is judged: correctness, time and thresholds. What a kata's tests may import."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.judge.correctness.answer import assert_sound
    from harness.judge.correctness.matching import assert_matches
    from harness.judge.timing.measure import HostClock, Samples

__all__ = ["HostClock", "Samples", "assert_matches", "assert_sound"]

# they bring NumPy or torch: the command line imports this package without either
HOMES = {
    "HostClock": "harness.judge.timing.measure",
    "Samples": "harness.judge.timing.measure",
    "assert_matches": "harness.judge.correctness.matching",
    "assert_sound": "harness.judge.correctness.answer",
}


def __getattr__(name: str) -> object:
    """What katas import, from the module that it lives in."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)
