"""
A target and a draft language model as tables: every probability of speculative decoding is exact.

    pair = ngram_pair(seed, vocab=5)
    pair.target[a, b]                     # the law of the token after ..., a, b
    pair.law(pair.target, (a, b), 2)      # [V, V]: the joint law of the next two tokens
    pair.acceptance()                     # [V, V]: 1 - TV of draft and target after each context

What a decoder emits is held against `law` by enumeration, where its uniforms can be enumerated,
or by `harness.judge.chi_square`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from harness.base.errors import UsageProblem

# Shape and scale of the sharpness of a context's logits: some contexts are certain, others flat.
SHARPNESS = (1.0, 3.0)
# Spread of the normal noise that sets the draft's log-probabilities apart from the target's.
DRAFT_NOISE = 1.0

Table = Float64[ndarray, "v v v"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NgramPair:
    """Two order-2 Markov models: `table[a, b]` is the law of the token after a, then b."""

    target: Table
    draft: Table

    @property
    def vocab(self) -> int:
        """How many tokens there are."""
        return len(self.target)

    def rows(self, table: Table, tokens: Sequence[int]) -> Float64[ndarray, "t v"]:
        """
        Return what a forward over `tokens` gives: row i is the law of the token after the i-th.

        Before the first token stands token 0.
        """
        padded = np.array([0, *tokens])
        rows: Float64[ndarray, "t v"] = table[padded[:-1], padded[1:]]
        return rows

    def law(
        self, table: Table, context: tuple[int, int], length: int
    ) -> Float64[ndarray, "*tokens v"]:
        """Return the joint law of the `length` tokens after `context`, with one axis for each."""
        if length < 1:
            raise UsageProblem(f"law: expected a length of at least 1, found {length}.")
        joint: Float64[ndarray, "*tokens v"] = table[context]
        if length == 1:
            return joint
        # the law of the token at axis n is that after the tokens at axes n - 2 and n - 1
        joint = joint[:, None] * table[context[1]]
        for _ in range(length - 2):
            joint = joint[..., None] * table
        return joint

    def acceptance(self) -> Float64[ndarray, "v v"]:
        """Return the chance that the target accepts a token of the draft, for each context."""
        shared: Float64[ndarray, "v v"] = np.minimum(self.target, self.draft).sum(-1)
        return shared


def ngram_pair(seed: int, vocab: int = 32, noise: float = DRAFT_NOISE) -> NgramPair:
    """
    Draw a target P = softmax(sharpness * normal) and a draft Q = softmax(log P + noise * normal).

    The sharpness is Gamma, one for each context, so that confidence varies; `noise` 0 makes the
    draft the target. The same seed draws the same tables on every machine.
    """
    if vocab < 2 or noise < 0:
        raise UsageProblem(
            f"ngram_pair: expected vocab >= 2 and noise >= 0, found {vocab} and {noise}."
        )
    random = np.random.Generator(np.random.PCG64(seed))
    shape, scale = SHARPNESS
    sharpness = scale * random.standard_gamma(shape, (vocab, vocab, 1))
    logits = sharpness * random.standard_normal((vocab, vocab, vocab))
    target = _softmax(logits)
    draft = _softmax(logits + noise * random.standard_normal(logits.shape))
    return NgramPair(target=target, draft=draft)


def _softmax(logits: Table) -> Table:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities: Table = weights / weights.sum(-1, keepdims=True)
    return probabilities
