"""Kata week24/minhash_lsh: near-duplicates among n documents without comparing all pairs."""

from collections.abc import Iterable
from hashlib import blake2b

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
    raise NotImplementedError  # TODO(kata): check, shingles (about 6 lines)


def minhash(
    sh: UInt64[np.ndarray, " m"], a: UInt64[np.ndarray, " h"], b: UInt64[np.ndarray, " h"]
) -> UInt64[np.ndarray, " h"]:
    """For each of h hash functions (a x + b) mod PRIME the least hash; EMPTY without shingles."""
    raise NotImplementedError  # TODO(kata): minima (about 15 lines with helpers)


def lsh_candidates(
    sig: UInt64[np.ndarray, "n h"], bands: int, rows: int
) -> Int64[np.ndarray, "p 2"]:
    """
    Pairs i < j of documents that agree in a whole band, in order, each once.

    Raises:
        ValueError: ``bands`` or ``rows`` is below 1, or ``bands`` of them do not fit a signature.
    """
    raise NotImplementedError  # TODO(kata): check, bucket by band (about 15 lines with helpers)


def dedup(
    texts: Iterable[str], bands: int = 14, rows: int = 8, threshold: float = 0.8
) -> Bool[np.ndarray, " n"]:
    """
    Mark the first document of every cluster of near-duplicates.

    Raises:
        ValueError: ``bands`` or ``rows`` is below 1, or ``threshold`` is not in (0, 1].
    """
    # TODO(kata): check, minima, confirm and join (about 20 lines with helpers)
    raise NotImplementedError


def collision_prob(s: float, bands: int, rows: int) -> float:
    """
    Probability that two documents of similarity s are candidates, exact where it is tiny.

    Raises:
        ValueError: ``s`` is not in [0, 1], or ``bands`` or ``rows`` is below 1.
    """
    raise NotImplementedError  # TODO(kata): check, collision probability (about 4 lines)
