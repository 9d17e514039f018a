"""Kata week27/sequence_packing: documents in rows without padding, and what keeps them apart."""

from bisect import bisect_left, insort
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
    # check
    _check_capacity(capacity)
    sizes = [int(length) for length in lengths]
    if any(not 0 <= size <= capacity for size in sizes):
        raise ValueError(f"lengths: expected 0 to {capacity}, found {min(sizes)} to {max(sizes)}")
    # sort by length
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room, bin), sorted
    for sample in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        size = sizes[sample]
        if size == 0:
            break
        # best fit
        at = bisect_left(rooms, (size,))
        if at < len(rooms):
            room, chosen = rooms.pop(at)
        else:
            room, chosen = capacity, len(bins)
            bins.append([])
        bins[chosen].append(sample)
        insort(rooms, (room - size, chosen))
    return bins


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
    # check
    _check_capacity(capacity)
    for index, sample in enumerate(samples):
        if not 0 <= sample.prompt <= len(sample.tokens):
            raise ValueError(
                f"samples: expected a prompt of 0 to {len(sample.tokens)} tokens, "
                f"found {sample.prompt} in sample {index}"
            )
    _check_bins(bins, samples, capacity)
    # lay the documents out
    shape = len(bins), capacity
    position_ids = np.empty(shape, dtype=np.int64)  # tails are numbered, too
    input_ids = np.full_like(position_ids, PAD)
    labels = np.full_like(position_ids, ignore)
    seq_id = np.full_like(position_ids, -1)
    ends = [0]
    for row, held in enumerate(bins):
        begin = 0
        for index in held:
            tokens, prompt = samples[index].tokens, samples[index].prompt
            end = begin + len(tokens)
            input_ids[row, begin:end] = tokens
            # labels within a document
            targets = slice(begin + max(prompt, 1), end)
            labels[row, targets.start - 1 : end - 1] = input_ids[row, targets]
            # positions and segments
            position_ids[row, begin:end] = np.arange(end - begin)
            seq_id[row, begin:end] = index
            ends.append(row * capacity + end)
            begin = end
        if begin < capacity:
            position_ids[row, begin:] = np.arange(capacity - begin)
            ends.append((row + 1) * capacity)
    return Batch(
        input_ids=input_ids,
        labels=labels,
        position_ids=position_ids,
        seq_id=seq_id,
        cu_seqlens=np.array(ends, dtype=np.int32),
        max_seqlen=int(np.diff(ends).max(initial=0)),
    )


def packing_efficiency(
    bins: Sequence[Sequence[int]], lengths: Sequence[int] | np.ndarray, capacity: int
) -> float:
    """The share of the bins' positions that hold a token; 1.0 where there are no bins."""
    used = sum(int(lengths[index]) for held in bins for index in held)
    return used / (len(bins) * capacity) if bins else 1.0


def block_diag_mask(
    seq_id: Int[np.ndarray, "rows t"], causal: bool = True
) -> Bool[np.ndarray, "rows t t"]:
    """Which keys (last axis) a query may see: those of its own segment, none later if `causal`."""
    mask = seq_id[:, :, None] == seq_id[:, None, :]
    return np.tril(mask) if causal else mask


def _check_capacity(capacity: int) -> None:
    if capacity < 1:
        raise ValueError(f"capacity: expected 1 or more, found {capacity}")


def _check_bins(bins: Sequence[Sequence[int]], samples: Sequence[Sample], capacity: int) -> None:
    # check
    seen: set[int] = set()
    for number, held in enumerate(bins):
        used = 0
        for index in held:
            if not 0 <= index < len(samples):
                raise ValueError(f"bins: expected samples 0 to {len(samples) - 1}, found {index}")
            if index in seen:
                raise ValueError(f"bins: expected each sample once, found {index} again")
            seen.add(index)
            used += len(samples[index].tokens)
        if used > capacity:
            raise ValueError(
                f"bins: expected at most {capacity} tokens, found {used} in bin {number}"
            )
