"""Kata week04/online_softmax: softmax while its row streams by, a block at a time.

Traffic: the row is read twice and written once; softmax + top-k reads it once.
"""

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
    raise NotImplementedError  # TODO(kata): state of a chunk (about 4 lines)


def merge(a: State, b: State) -> State:
    """
    State of the elements of `a` and `b` together.

    Associative and commutative up to rounding, with `EMPTY` as its identity.
    """
    raise NotImplementedError  # TODO(kata): merge two states (about 9 lines with helpers)


def online_softmax(reader: Reader, writer: Writer, block: int) -> None:
    """
    Write the softmax of the row in `reader` to `writer`, at most `block` elements at a time.

    As in torch, the result is NaN throughout if the row holds NaN or inf, or nothing but -inf.
    Two reads and one write for each element; fast memory holds one block.

    Raises:
        ValueError: `block` is below 1.
    """
    # TODO(kata): check, fold the blocks, normalise (about 10 lines with helpers)
    raise NotImplementedError


def softmax_topk(reader: Reader, k: int, block: int) -> tuple[Row, NDArray[np.int64]]:
    """
    Return the `k` largest probabilities of the row's softmax, in descending order, and where.

    Among equal elements the one with the lower index comes first. The row is read once, at most
    `block` elements at a time. Rows with NaN, inf or nothing but -inf are out of scope.

    Raises:
        ValueError: `block` or `k` is below 1, or `k` exceeds the length of the row.
    """
    # TODO(kata): check, fold the blocks, normalise, keep k candidates (about 10 lines)
    raise NotImplementedError
