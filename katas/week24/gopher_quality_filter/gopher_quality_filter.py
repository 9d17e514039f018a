"""Kata week24/gopher_quality_filter: which pages are worth training on, found out cheaply."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float

STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
BULLETS = ("•", "‣", "◦", "-", "*")
ELLIPSES = ("...", "…")
TOP_NGRAM = {2: 0.20, 3: 0.18, 4: 0.16}  # characters that the most frequent n-gram may have
DUPLICATE_NGRAM = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def gopher_quality(text: str) -> dict[str, bool]:
    """Say for each quality rule whether the text satisfies it."""
    raise NotImplementedError  # TODO(kata): quality rules (about 20 lines with helpers)


def gopher_repetition(text: str) -> dict[str, bool]:
    """Say for each repetition rule whether the text satisfies it."""
    raise NotImplementedError  # TODO(kata): repetition rules (about 25 lines with helpers)


class BigramLM:
    """
    A bigram model of words with add-k smoothing.

    Raises:
        ValueError: ``k`` is not a finite number above 0.
    """

    def __init__(self, k: float = 0.1) -> None:
        raise NotImplementedError  # TODO(kata): check, perplexity (about 6 lines)

    def fit(self, texts: Iterable[str]) -> "BigramLM":
        """Count the bigrams of these texts, and forget those counted before."""
        raise NotImplementedError  # TODO(kata): perplexity (about 7 lines)

    def perplexity(self, text: str) -> float:
        """exp of the mean negative log-probability of the words and of the end after them."""
        raise NotImplementedError  # TODO(kata): perplexity (about 7 lines)


def ccnet_bucket(ppl: float, cutoffs: tuple[float, float]) -> str:
    """
    Name the part of the corpus that a perplexity belongs to: head, middle, tail.

    Raises:
        ValueError: ``ppl`` is NaN or below 1, or ``cutoffs`` are not in order.
    """
    raise NotImplementedError  # TODO(kata): check, perplexity (about 8 lines)


def toxic_ratio(text: str, lexicon: Iterable[str]) -> float:
    r"""
    Share of the text's words (runs of ``\w``, whatever their case) that are in the lexicon.

    Raises:
        ValueError: the ``lexicon`` is empty.
    """
    raise NotImplementedError  # TODO(kata): check, share in the lexicon (about 5 lines)


def order_cascade(cost: Float[np.ndarray, " f"], passes: Bool[np.ndarray, "f n"]) -> list[int]:
    """
    Order filters so that filtering a sample of documents costs little.

    Args:
        cost: Of each filter, for one document.
        passes: Which documents of the sample each filter lets pass.

    Raises:
        ValueError: a ``cost`` is not a finite number above 0, or their number is not that of
            the rows of ``passes``.
    """
    raise NotImplementedError  # TODO(kata): check, best filter for what is left (about 15 lines)
