"""How code is judged: correctness, time and thresholds. What a kata's tests may import."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.judge.correctness import assert_matches

__all__ = ["assert_matches"]


def __getattr__(name: str) -> object:
    """`assert_matches`, which brings NumPy: the command line imports this package without it."""
    if name != "assert_matches":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness.judge.correctness import assert_matches

    return assert_matches
