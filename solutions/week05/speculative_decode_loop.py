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
    p_x, q_x = float(p[x]), float(q[x])
    return 1.0 if p_x >= q_x else p_x / q_x


def residual(p: Float64[Tensor, " v"], q: Float64[Tensor, " v"]) -> Float64[Tensor, " v"]:
    """
    Law of the token that replaces a rejected one: what `q` left uncovered of `p`.

    Where no more than TINY is uncovered, `p` itself. A tensor of its own, in either case.
    """
    uncovered = (p - q).clamp(min=0)
    mass = uncovered.sum()
    return uncovered / mass if mass > TINY else p.clone()


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
    # check
    _check(target, draft, prompt, n_new, k)
    tokens = prompt.tolist()
    caches = target_cache, draft_cache = target.new_cache(), draft.new_cache()
    new: list[int] = []
    rounds = accepted = 0
    # draft k tokens
    while len(new) < n_new and eos not in new:
        drafted, q = _draft(draft, draft_cache, tokens, k, u)
        # one forward of the target
        p = _extend(target, target_cache, tokens + drafted)[-(k + 1) :]
        # accept in order
        kept = 0
        while kept < k and next(u) < accept_prob(p[kept], q[kept], drafted[kept]):
            kept += 1
        # one token more
        law = p[k] if kept == k else residual(p[kept], q[kept])
        emitted = [*drafted[:kept], sample(law, next(u))]
        tokens += emitted
        # roll both caches back
        for cache in caches:
            # the last token is new to both; after full acceptance the draft lacks one more
            cache.truncate(min(cache.length, len(tokens) - 1))
        rounds += 1
        accepted += kept
        new += emitted[: emitted.index(eos) + 1] if eos in emitted else emitted
    stats = Stats(
        target_calls=rounds, draft_calls=k * rounds, proposed=k * rounds, accepted=accepted
    )
    return torch.tensor(new[:n_new]), stats


def _check(target: Model, draft: Model, prompt: Tensor, n_new: int, k: int) -> None:
    # check
    if k < 0:
        raise ValueError(f"k: expected 0 or more, found {k}.")
    if n_new < 1:
        raise ValueError(f"n_new: expected 1 or more, found {n_new}.")
    if not len(prompt):
        raise ValueError("prompt: expected a token or more, found none.")
    if target.vocab != draft.vocab:
        raise ValueError(f"vocab: expected {target.vocab} like target, found {draft.vocab}.")


def _extend(model: Model, cache: Cache, tokens: list[int]) -> Float64[Tensor, "t v"]:
    """Put through `model` what `cache` does not hold yet of `tokens`."""
    return model.forward(torch.tensor(tokens[cache.length :]), cache)


def _draft(
    draft: Model, cache: Cache, tokens: list[int], k: int, u: Iterator[float]
) -> tuple[list[int], list[Tensor]]:
    """Draw `k` tokens, each with the law that it was drawn from."""
    # draft k tokens
    drafted: list[int] = []
    laws = []
    for _ in range(k):
        law = _extend(draft, cache, tokens + drafted)[-1]
        drafted.append(sample(law, next(u)))
        laws.append(law)
    return drafted, laws
