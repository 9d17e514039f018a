"""Kata week04/online_softmax: statistics that merge, so every pass is a fold over blocks."""

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float64]


class State(NamedTuple):
    """
    What is known of softmax over some elements x, each with a value v.

    `largest` is max(x), m in the papers; `total` the sum of exp(x - largest), their d or l;
    `weighted` the sum of exp(x - largest)·v, not yet divided by `total`: a number or an array.
    """

    largest: float
    total: float
    weighted: float | Row


EMPTY = State(largest=-np.inf, total=0.0, weighted=0.0)  # no elements, or all of them -inf


class Reader(Protocol):
    """A row in slow memory, whose elements are counted as often as they are read; see oracle.py."""

    def __len__(self) -> int:
        """Elements of the row."""

    def read(self, start: int, stop: int) -> Row:
        """Fetch a copy of elements start to stop, or to the end of the row if that comes first."""


class Writer(Protocol):
    """A row in slow memory to fill, whose elements are counted as often as they are written."""

    def write(self, start: int, values: Row) -> None:
        """Store `values` from element `start` on."""


def stats(chunk: Row) -> tuple[float, float]:
    """
    Maximum m of `chunk`, and the sum of exp(x - m) over its elements.

    An empty chunk, or one of -inf only, gives (-inf, 0.0).
    """
    # state of a chunk
    largest = float(np.max(chunk, initial=-np.inf))
    if largest == -np.inf:
        return EMPTY.largest, EMPTY.total
    return largest, float(np.exp(chunk - largest).sum())


def merge(a: State, b: State) -> State:
    """
    State of the elements of `a` and `b` together.

    Associative and commutative up to rounding, with `EMPTY` as its identity.
    """
    # merge two states
    largest = max(a.largest, b.largest)
    scale_a, scale_b = _rescale(a.largest, largest), _rescale(b.largest, largest)
    return State(
        largest=largest,
        total=a.total * scale_a + b.total * scale_b,
        weighted=a.weighted * scale_a + b.weighted * scale_b,
    )


def _rescale(old: float, new: float) -> float:
    """Return what sums taken at maximum `old` are multiplied by once the maximum is `new`."""
    # nothing seen yet: the sums are 0, and -inf - (-inf) would make them NaN
    return 0.0 if old == -np.inf else math.exp(old - new)


def online_softmax(reader: Reader, writer: Writer, block: int) -> None:
    """
    Write the softmax of the row in `reader` to `writer`, at most `block` elements at a time.

    As in torch, the result is NaN throughout if the row holds NaN or inf, or nothing but -inf.
    Two reads and one write for each element; fast memory holds one block.

    Raises:
        ValueError: `block` is below 1.
    """
    # fold the blocks
    state = EMPTY
    for _, chunk in _blocks(reader, block):
        state = merge(state, State(*stats(chunk), weighted=0.0))
    # normalise
    for start, chunk in _blocks(reader, block):
        writer.write(start, np.exp(chunk - state.largest) / state.total)


def softmax_topk(reader: Reader, k: int, block: int) -> tuple[Row, NDArray[np.int64]]:
    """
    Return the `k` largest probabilities of the row's softmax, in descending order, and where.

    Among equal elements the one with the lower index comes first. The row is read once, at most
    `block` elements at a time. Rows with NaN, inf or nothing but -inf are out of scope.

    Raises:
        ValueError: `block` or `k` is below 1, or `k` exceeds the length of the row.
    """
    # check
    if not 1 <= k <= len(reader):
        raise ValueError(f"k: expected 1 to {len(reader)}, the length of the row, found {k}")
    # fold the blocks
    state = EMPTY
    top = np.empty(0)
    where = np.empty(0, dtype=np.int64)
    for start, chunk in _blocks(reader, block):
        state = merge(state, State(*stats(chunk), weighted=0.0))
        # keep k candidates
        top = np.concatenate([top, chunk])
        where = np.concatenate([where, np.arange(start, start + len(chunk))])
        # a stable sort leaves equals in the order they came, and indices only rise
        best = np.argsort(-top, kind="stable")[:k]
        top, where = top[best], where[best]
    # normalise
    return np.exp(top - state.largest) / state.total, where


def _blocks(reader: Reader, block: int) -> Iterator[tuple[int, Row]]:
    """Yield the row block by block, each with the index of its first element."""
    # check
    if block < 1:
        raise ValueError(f"block: expected 1 or more, found {block}")
    for start in range(0, len(reader), block):
        yield start, reader.read(start, start + block)
