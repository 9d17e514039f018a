"""How code is judged: correctness, time and thresholds. What a kata's tests may import."""

from harness.judge.correctness import assert_matches

__all__ = ["assert_matches"]
