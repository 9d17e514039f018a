"""Kata week05/speculative_decode_loop: draft some tokens, check them all at once, roll back.

Per round: k single steps of the draft, one forward of the target over k + 1 positions, and no
token through either model twice, except those that a rejection threw away.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

# Below this a residual is what rounding left of nothing.
TINY = 1e-12


@runtime_checkable
class Cache(Protocol):
    """What a model keeps of the tokens that have been through it."""

    @property
    def length(self) -> int:
        """How many tokens it holds."""
        ...

    def truncate(self, length: int) -> None:
        """Drop all tokens but the first `length`; nothing is copied."""
        ...


@runtime_checkable
class Model(Protocol):
    """A causal language model over tokens 0 to `vocab` - 1."""

    @property
    def vocab(self) -> int:
        """How many tokens there are."""
        ...

    def new_cache(self) -> Cache:
        """Return an empty cache of its own kind."""
        ...

    def forward(self, tokens: Int64[Tensor, " t"], cache: Cache) -> Float64[Tensor, "t v"]:
        """
        Append `tokens`, at least one, to those that `cache` holds.

        Row i of the result is the law of the token that follows the i-th of them.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """
    What a decode took.

    Calls of each model's `forward`, tokens that were drafted, and how many of those the target
    accepted, whether or not they were still wanted.
    """

    target_calls: int
    draft_calls: int
    proposed: int
    accepted: int


def sample(law: Float64[Tensor, " v"], u: float) -> int:
    """Return the first token at which the running sum of `law` exceeds `u`, from [0, 1)."""
    above = torch.nonzero(law.cumsum(0) > u)
    # rounding may leave the whole sum at or below u: then the last token that can come
    return int(above[0] if len(above) else torch.nonzero(law)[-1])


def accept_prob(p: Float64[Tensor, " v"], q: Float64[Tensor, " v"], x: int) -> float:
    """
    Chance that the target, whose law is `p`, accepts token `x`, which was drawn from `q`.

    1 where `q` never draws it.
    """
    raise NotImplementedError  # TODO(kata): accept in order (2 lines)


def residual(p: Float64[Tensor, " v"], q: Float64[Tensor, " v"]) -> Float64[Tensor, " v"]:
    """
    Law of the token that replaces a rejected one: what `q` left uncovered of `p`.

    Where no more than TINY is uncovered, `p` itself. A tensor of its own, in either case.
    """
    raise NotImplementedError  # TODO(kata): one token more (3 lines)


def speculative_decode(
    target: Model,
    draft: Model,
    prompt: Int64[Tensor, " prompt"],
    n_new: int,
    k: int,
    u: Iterator[float],
    eos: int | None = None,
) -> tuple[Int64[Tensor, " n"], Stats]:
    """
    Continue `prompt` with tokens that follow the law of `target`, in rounds of `k` drafted ones.

    Args:
        target: Whose law counts; called once a round.
        draft: Whose guesses are checked; called `k` times a round.
        prompt: At least one token.
        n_new: How many tokens to add. What a round yields beyond them is dropped.
        k: Tokens to draft in every round; with 0 this is plain decoding.
        u: Uniform numbers from [0, 1), read one at a time: each round one for each drafted
            token, one for each of them that is looked at, and one for the last token.
        eos: Token that ends the text; what a round yields after it is dropped.

    Returns:
        The new tokens, with `eos` if it came, and what they took.

    Raises:
        ValueError: `k` is negative, `n_new` below 1, `prompt` empty, or the models differ in
            their `vocab`; the message names which. Nothing has been called or read then.
    """
    # TODO(kata): check, draft k tokens, one forward of the target, accept in order, one token more,
    # roll both caches back (about 45 lines with helpers)
    raise NotImplementedError
