"""How far a kata is owned, from the attempts that were kept."""

from collections.abc import Iterable

from harness.kata import Kata
from harness.progress import Attempt

UNTRIED, ATTEMPTED, CORRECT, FAST = "untried", "attempted", "correct", "fast"


def status_of(kata: Kata, attempt: Attempt | None) -> str:
    """
    Where one attempt of the learner's own leaves a kata.

    "correct" when every check passed; "fast" when, besides, every threshold on the clock was met
    on some device. A verdict keeps the thresholds it was given under.
    """
    if attempt is None:
        return UNTRIED
    if attempt.status != "passed":
        return ATTEMPTED
    timed = {threshold.name for threshold in kata.speed}
    met = {found.name for found in attempt.measurements if found.passed}
    return FAST if timed and timed <= met else CORRECT


def best_status(kata: Kata, attempts: Iterable[Attempt]) -> str:
    """The furthest that any of these attempts reached."""
    order = (UNTRIED, ATTEMPTED, CORRECT, FAST)
    reached = (status_of(kata, attempt) for attempt in attempts)
    return max(reached, key=order.index, default=UNTRIED)
