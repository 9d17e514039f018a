"""Kata week24/gopher_quality_filter: which pages are worth training on, found out cheaply."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float

STOP_WORDS = {"the", "be", "to", "of", "and", "that", "have", "with"}
BULLETS = ("•", "‣", "◦", "-", "*")
ELLIPSES = ("...", "…")
TOP_NGRAM = {2: 0.20, 3: 0.18, 4: 0.16}  # characters that the most frequent n-gram may have
DUPLICATE_NGRAM = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def gopher_quality(text: str) -> dict[str, bool]:
    """Say for each quality rule whether the text satisfies it."""
    words, lines = text.split(), _lines(text)
    ellipses = sum(text.count(each) for each in ELLIPSES)
    with_letters = sum(any(char.isalpha() for char in word) for word in words)
    bullets = sum(line.startswith(BULLETS) for line in lines)
    trailing = sum(line.endswith(ELLIPSES) for line in lines)
    return {
        "words": 50 <= len(words) <= 100_000,
        "mean_length": 3 <= _ratio(sum(map(len, words)), len(words)) <= 10,
        "hashes": _ratio(text.count("#"), len(words)) <= 0.1,
        "ellipses": _ratio(ellipses, len(words)) <= 0.1,
        "bullets": _ratio(bullets, len(lines)) <= 0.9,
        "ellipsis_lines": _ratio(trailing, len(lines)) <= 0.3,
        "letters": _ratio(with_letters, len(words)) >= 0.8,
        "stop_words": len(STOP_WORDS.intersection(word.lower() for word in words)) >= 2,
    }


def gopher_repetition(text: str) -> dict[str, bool]:
    """Say for each repetition rule whether the text satisfies it."""
    words, lines = text.split(), _lines(text)
    repeats = [line for line, count in Counter(lines).items() for _ in range(count - 1)]
    total = sum(map(len, words))
    kept = {
        "lines": _ratio(len(repeats), len(lines)) <= 0.3,
        "line_characters": _ratio(sum(map(len, repeats)), sum(map(len, lines))) <= 0.2,
    }
    for n, most in TOP_NGRAM.items():
        kept[f"top_{n}"] = _ratio(_top_characters(words, n), total) <= most
    for n, most in DUPLICATE_NGRAM.items():
        later = [start for starts in _starts(words, n).values() for start in starts[1:]]
        kept[f"dup_{n}"] = _ratio(_covered(words, later, n), total) <= most
    return kept


class BigramLM:
    """
    A bigram model of words with add-k smoothing.

    Raises:
        ValueError: ``k`` is not a finite number above 0.
    """

    def __init__(self, k: float = 0.1) -> None:
        # check
        if not 0 < k < math.inf:
            raise ValueError(f"k: expected a finite number above 0, found {k}")
        # perplexity
        self._k = k
        self._vocabulary: set[str] = set()
        self._pairs: Counter[tuple[str | None, str | None]] = Counter()
        self._contexts: Counter[str | None] = Counter()

    def fit(self, texts: Iterable[str]) -> "BigramLM":
        """Count the bigrams of these texts, and forget those counted before."""
        self._vocabulary, self._pairs, self._contexts = set(), Counter(), Counter()
        for text in texts:
            # None is what is before the first word and what is behind the last: no word can be it
            words = [None, *text.split(), None]
            self._vocabulary.update(words[1:-1])
            self._pairs.update(pairwise(words))
            self._contexts.update(words[:-1])
        return self

    def perplexity(self, text: str) -> float:
        """exp of the mean negative log-probability of the words and of the end after them."""
        # the end and the unknown word are predicted, too
        spread = self._k * (len(self._vocabulary) + 2)
        words = [None, *text.split(), None]
        # a word that was never seen was counted nowhere: all of them are one unknown word
        log_likelihood = sum(
            math.log((self._pairs[pair] + self._k) / (self._contexts[pair[0]] + spread))
            for pair in pairwise(words)
        )
        return math.exp(-log_likelihood / (len(words) - 1))


def ccnet_bucket(ppl: float, cutoffs: tuple[float, float]) -> str:
    """
    Name the part of the corpus that a perplexity belongs to: head, middle, tail.

    Raises:
        ValueError: ``ppl`` is NaN or below 1, or ``cutoffs`` are not in order.
    """
    # check
    low, high = cutoffs
    if not low <= high:
        raise ValueError(f"cutoffs: expected the lower one first, found {cutoffs}")
    if not ppl >= 1:
        raise ValueError(f"ppl: expected 1 or more, found {ppl}")
    # perplexity
    if ppl < low:
        return "head"
    return "middle" if ppl < high else "tail"


def toxic_ratio(text: str, lexicon: Iterable[str]) -> float:
    r"""
    Share of the text's words (runs of ``\w``, whatever their case) that are in the lexicon.

    Raises:
        ValueError: the ``lexicon`` is empty.
    """
    # check
    toxic = {word.casefold() for word in lexicon}
    if not toxic:
        raise ValueError("lexicon: expected at least one word, found none")
    # share in the lexicon
    words = re.findall(r"\w+", text.casefold())
    return _ratio(sum(word in toxic for word in words), len(words))


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
    # check
    if not all(0 < each < math.inf for each in cost):
        raise ValueError(f"cost: expected finite numbers above 0, found {cost}")
    if len(cost) != len(passes):
        raise ValueError(f"passes: expected {len(cost)} rows, found {len(passes)}")
    # best filter for what is left
    order: list[int] = []
    left, price = list(range(len(cost))), cost.tolist()
    alive = np.ones(passes.shape[1], dtype=bool)
    while left:
        rejected = {each: (alive & ~passes[each]).sum().item() for each in left}
        prices = {each: price[each] / n if n else math.inf for each, n in rejected.items()}
        best = min(left, key=prices.__getitem__)
        left.remove(best)
        order.append(best)
        alive &= passes[best]
    return order


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _lines(text: str) -> list[str]:
    """Lines without the space around them, and without those that are empty then."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def _starts(words: list[str], n: int) -> dict[tuple[str, ...], list[int]]:
    """Where each n-gram begins."""
    starts = defaultdict(list)
    shifted = (words[skip:] for skip in range(n))
    for start, gram in enumerate(zip(*shifted, strict=False)):
        starts[gram].append(start)
    return starts


def _covered(words: Sequence[str], starts: Iterable[int], n: int) -> int:
    """Characters of the words in these n-grams, each word once."""
    covered = {at for start in starts for at in range(start, start + n)}
    return sum(len(words[at]) for at in covered)


def _top_characters(words: list[str], n: int) -> int:
    """Characters of the n-gram that occurs most often; of several the one that has the most."""
    again = [each for each in _starts(words, n).values() if len(each) > 1]
    return max((len(each), _covered(words, each, n)) for each in again)[1] if again else 0
