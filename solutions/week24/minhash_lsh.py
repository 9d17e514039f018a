"""Kata week24/minhash_lsh: near-duplicates among n documents without comparing all pairs."""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from hashlib import blake2b
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Int64, UInt64

PRIME = 2**61 - 1  # a Mersenne prime: 2**61 is 1, so the bits above are added to those below
EMPTY = 2**64 - 1  # the minimum over no shingles; no hash is as large


def hash64(text: str) -> int:
    """64 bits of BLAKE2b, the same in every process."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def permutations(
    h: int, seed: int = 0
) -> tuple[UInt64[np.ndarray, " h"], UInt64[np.ndarray, " h"]]:
    """Draw the constants of h hash functions, a from 1 and b from 0 to PRIME - 1."""
    draw = np.random.default_rng(seed)
    a = draw.integers(1, PRIME, h, dtype=np.uint64)
    return a, draw.integers(0, PRIME, h, dtype=np.uint64)


def jaccard(x: UInt64[np.ndarray, " mx"], y: UInt64[np.ndarray, " my"]) -> float:
    """Shared share of two sorted sets of shingles; of two empty ones 0."""
    common = len(np.intersect1d(x, y, assume_unique=True))
    return common / max(1, len(x) + len(y) - common)


def shingles(text: str, n: int = 5) -> UInt64[np.ndarray, " m"]:
    """
    Hash every n consecutive words; sorted, each once. A shorter text is one shingle.

    Raises:
        ValueError: ``n`` is below 1.
    """
    # check
    if n < 1:
        raise ValueError(f"n: expected 1 or more, found {n}")
    # shingles
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    starts = range(max(1, len(words) - n + 1)) if words else ()
    hashes = {hash64(" ".join(words[start : start + n])) for start in starts}
    return np.array(sorted(hashes), dtype=np.uint64)


def minhash(
    sh: UInt64[np.ndarray, " m"], a: UInt64[np.ndarray, " h"], b: UInt64[np.ndarray, " h"]
) -> UInt64[np.ndarray, " h"]:
    """For each of h hash functions (a x + b) mod PRIME the least hash; EMPTY without shingles."""
    # minima
    hashes = _affine(sh % PRIME, a[:, None], b[:, None])  # [h, m]
    return hashes.min(axis=1, initial=EMPTY)


def lsh_candidates(
    sig: UInt64[np.ndarray, "n h"], bands: int, rows: int
) -> Int64[np.ndarray, "p 2"]:
    """
    Pairs i < j of documents that agree in a whole band, in order, each once.

    Raises:
        ValueError: ``bands`` or ``rows`` is below 1, or ``bands`` of them do not fit a signature.
    """
    # check
    _check_bands(bands, rows)
    if bands * rows > sig.shape[1]:
        raise ValueError(f"bands: expected {rows} rows each of {sig.shape[1]}, found {bands}")
    # bucket by band
    filled = np.flatnonzero((sig != EMPTY).any(axis=1)).tolist()
    pairs: set[tuple[int, int]] = set()
    for first in range(0, bands * rows, rows):
        buckets = defaultdict(list)
        for doc in filled:
            buckets[sig[doc, first : first + rows].tobytes()].append(doc)
        for docs in buckets.values():
            pairs.update(combinations(docs, 2))
    return np.array(sorted(pairs), dtype=np.int64).reshape(len(pairs), 2)


def dedup(
    texts: Iterable[str], bands: int = 14, rows: int = 8, threshold: float = 0.8
) -> Bool[np.ndarray, " n"]:
    """
    Mark the first document of every cluster of near-duplicates.

    Raises:
        ValueError: ``bands`` or ``rows`` is below 1, or ``threshold`` is not in (0, 1].
    """
    # check
    _check_bands(bands, rows)
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold: expected more than 0 and at most 1, found {threshold}")
    # minima
    a, b = permutations(bands * rows)
    documents = [shingles(text) for text in texts]
    sig = np.array([minhash(each, a, b) for each in documents], dtype=np.uint64)
    sig = sig.reshape(len(documents), bands * rows)
    first = list(range(len(documents)))  # an earlier document of the same cluster, or itself
    # confirm and join
    for pair in lsh_candidates(sig, bands, rows).tolist():
        early, late = sorted(_root(first, doc) for doc in pair)
        if early != late and jaccard(*(documents[doc] for doc in pair)) >= threshold:
            first[late] = early
    return np.array([early == doc for doc, early in enumerate(first)], dtype=bool)


def collision_prob(s: float, bands: int, rows: int) -> float:
    """
    Probability that two documents of similarity s are candidates, exact where it is tiny.

    Raises:
        ValueError: ``s`` is not in [0, 1], or ``bands`` or ``rows`` is below 1.
    """
    # check
    _check_bands(bands, rows)
    if not 0 <= s <= 1:
        raise ValueError(f"s: expected 0 to 1, found {s}")
    # collision probability
    return -math.expm1(bands * math.log1p(-(s**rows))) if s < 1 else 1.0


def _check_bands(bands: int, rows: int) -> None:
    for name, number in (("bands", bands), ("rows", rows)):
        if number < 1:
            raise ValueError(f"{name}: expected 1 or more, found {number}")


def _affine(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(a x + b) mod PRIME in 64 bits, from products of halves of 32."""
    # minima
    low = 2**32 - 1
    a_high, a_low, x_high, x_low = a >> 32, a & low, x >> 32, x & low
    middle = a_high * x_low + a_low * x_high  # stands 32 bits higher: 2**61 is its bit 29
    total = (
        (a_high * x_high << 3)  # 2**64 is 8
        + (middle >> 29)
        + ((middle & 2**29 - 1) << 32)
        + _fold(a_low * x_low)
        + b
    )
    total = _fold(total)
    return np.where(total >= PRIME, total - PRIME, total)


def _fold(x: np.ndarray) -> np.ndarray:
    return (x & PRIME) + (x >> 61)


def _root(first: list[int], doc: int) -> int:
    while first[doc] != doc:
        first[doc] = first[first[doc]]
        doc = first[doc]
    return doc
