"""Kata week27/sequence_packing: documents in rows without padding, and what keeps them apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

PAD = 0  # the token, and no target, of positions that hold no document


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A document: its tokens, of which the first `prompt` are given and not to be predicted."""

    tokens: Sequence[int] | np.ndarray
    prompt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """
    Rows of documents, int64, one row for each bin, as wide as the capacity.

    `cu_seqlens`, int32, has where each segment of the flattened rows begins, and where the last
    one ends; `max_seqlen` is the length of the longest segment. The unused end of a row is a
    segment of its own.
    """

    input_ids: Int[np.ndarray, "rows capacity"]
    labels: Int[np.ndarray, "rows capacity"]
    position_ids: Int[np.ndarray, "rows capacity"]
    seq_id: Int[np.ndarray, "rows capacity"]
    cu_seqlens: Int[np.ndarray, " segments_plus_1"]
    max_seqlen: int


def pack(lengths: Sequence[int] | np.ndarray, capacity: int) -> list[list[int]]:
    """
    Best fit decreasing: the indices of the documents in each bin, in the order they went in.

    Longest first, equal ones by index; each into the bin with the least room that is enough, among
    equal ones the one opened first; a bin is opened where none has room. Bins are in the order
    in which they were opened. Documents of length 0 are in none.

    Raises:
        ValueError: `capacity` is below 1, or one of `lengths` is negative or above it; the message
            begins with the argument's name.
    """
    # TODO(kata): check, sort by length, best fit (about 20 lines with helpers)
    raise NotImplementedError


def collate(
    bins: Sequence[Sequence[int]], samples: Sequence[Sample], capacity: int, ignore: int = -100
) -> Batch:
    """
    Lay the documents of each bin out in a row, one after another.

    A label is the token to predict at its position: the next one of the same document, and
    `ignore` where that is of the prompt or where there is none.

    Raises:
        ValueError: `capacity` is below 1; one of `samples` has a `prompt` that is negative or
            longer than its tokens; `bins` has more tokens in a bin than `capacity`, a sample that
            does not exist, or one twice. The message begins with the argument's name.
    """
    # TODO(kata): check, lay the documents out, labels within a document, positions and segments
    # (about 50 lines with helpers)
    raise NotImplementedError


def packing_efficiency(
    bins: Sequence[Sequence[int]], lengths: Sequence[int] | np.ndarray, capacity: int
) -> float:
    """The share of the bins' positions that hold a token; 1.0 where there are no bins."""
    raise NotImplementedError  # TODO(kata): count, divide (2 lines)


def block_diag_mask(
    seq_id: Int[np.ndarray, "rows t"], causal: bool = True
) -> Bool[np.ndarray, "rows t t"]:
    """Which keys (last axis) a query may see: those of its own segment, none later if `causal`."""
    raise NotImplementedError  # TODO(kata): compare segments, cut off what is later (2 lines)
