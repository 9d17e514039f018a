"""Kata week05/speculation_controller: acceptance from censored rounds, and how much to draft."""

from collections.abc import Callable, Iterable
from math import sqrt

# Seconds of a round for a batch: `round_s(k, batch, ctx)`, with k = 0 a plain step of the target.
RoundTime = Callable[[int, int, int], float]


def expected_tokens(alpha: float, k: int) -> float:
    """
    Tokens that a round of `k` drafted ones yields on average, the target's own included.

    Raises:
        ValueError: `alpha` is outside [0, 1], or `k` is negative.
    """
    raise NotImplementedError  # TODO(kata): check, tokens of a round (about 8 lines)


def speedup(alpha: float, k: int, c: float) -> float:
    """
    How many times faster than the target alone, where checking costs as much as one step of it.

    Args:
        alpha: Chance that the next drafted token is accepted.
        k: Tokens drafted in a round.
        c: Time of a step of the draft, over that of a step of the target.

    Raises:
        ValueError: `alpha` or `k` as in `expected_tokens`, or `c` is negative.
    """
    raise NotImplementedError  # TODO(kata): tokens over steps (3 lines)


def ops_factor(alpha: float, k: int, c_ops: float = 0.0) -> float:
    """
    How many times more arithmetic a token takes than with the target alone.

    Args:
        alpha: Chance that the next drafted token is accepted.
        k: Tokens drafted in a round; the target looks at one more.
        c_ops: Operations of a step of the draft, over those of a step of the target.

    Raises:
        ValueError: `alpha` or `k` as in `expected_tokens`, or `c_ops` is negative.
    """
    raise NotImplementedError  # TODO(kata): operations over tokens (3 lines)


def estimate_alpha(rounds: Iterable[tuple[int, int]]) -> tuple[float, float]:
    """
    Estimate the chance that a token is accepted from `(proposed, accepted)` of each round.

    Returns:
        (successes + 1/2) / (trials + 1), and its standard error.

    Raises:
        ValueError: `rounds` decide nothing, or one is impossible; the message names which.
    """
    # TODO(kata): check, count the trials, estimate (about 10 lines with helpers)
    raise NotImplementedError


class Controller:
    """
    Chooses, before every round, how many tokens to draft for each request of a batch.

    Args:
        k_max: The most that may be drafted in a round.
        round_s: Seconds of a round, as measured on this machine.

    Raises:
        ValueError: `k_max` is negative.
    """

    def __init__(self, k_max: int, round_s: RoundTime) -> None:
        raise NotImplementedError  # TODO(kata): check, count the trials (about 6 lines)

    def next_k(self, batch: int, ctx: int) -> int:
        """Begin a round: tokens to draft for each of `batch` requests at context `ctx`, or 0."""
        # TODO(kata): estimate, let old rounds fade, best k for this round (about 10 lines with
        # helpers)
        raise NotImplementedError

    def observe(self, proposed: int, accepted: int) -> None:
        """
        Hear what became of one request's draft in the round that began last.

        Raises:
            ValueError: `accepted` is negative or more than `proposed`.
        """
        raise NotImplementedError  # TODO(kata): count the trials (2 lines)
