"""Stubs cut out of references: what stays, what goes, what is left to do."""

import re
from pathlib import Path

import pytest

from harness.authoring.scaffold import cut_stub
from harness.authoring.stub import stub_of
from harness.base.errors import UsageProblem
from harness.content.catalog import load_curriculum
from harness.content.kata import load_kata

ROOT = Path(__file__).parents[1]

REFERENCE = '''"""Kata week01/x: in a line."""

import triton
from numba import cuda

SIZE = 4  # of a block


@triton.jit
def _kernel(x_ptr, N: tl.constexpr):
    # an inner comment
    x = tl.load(x_ptr)

    tl.store(x_ptr, x)


@cuda.jit(device=True)
def _part(x):
    return x


def given(x):
    """Ready made."""
    return x  # why


class Cache:
    """Given whole."""

    def _rows(self):
        return 1


class Table:
    size: int

    def __init__(self, size):
        # remembered
        self.size = size

    def rows(self):
        """How many."""
        return self._all()

    def _all(self):
        return [1]


# a comment on what follows
def asked(
    x: int,
) -> int:
    """
    Twice.

    Raises:
        ValueError: never.
    """
    a = x
    b = x
    # why
    c = a + b
    return c


def _helper():
    return 1
'''

STUB = '''"""Kata week01/x: in a line."""

import triton
from numba import cuda

SIZE = 4  # of a block


@triton.jit
def _kernel(x_ptr, N: tl.constexpr):
    # TODO(kata): (2 lines)
    pass


def given(x):
    """Ready made."""
    return x  # why


class Cache:
    """Given whole."""

    def _rows(self):
        return 1


class Table:
    size: int

    def __init__(self, size):
        raise NotImplementedError  # TODO(kata): (1 line)

    def rows(self):
        """How many."""
        raise NotImplementedError  # TODO(kata): (1 line)


# a comment on what follows
def asked(
    x: int,
) -> int:
    """
    Twice.

    Raises:
        ValueError: never.
    """
    raise NotImplementedError  # TODO(kata): (about 4 lines)
'''


def test_what_is_asked_for_is_blank_and_the_rest_as_it_was():
    assert stub_of(REFERENCE, ["asked", "Table"]) == STUB


def test_a_kernel_that_is_asked_for_by_name_says_that_it_is_not_there():
    stub = stub_of("@cuda.jit\ndef add(x):\n    x[0] = 1\n", ["add"])
    assert stub == (
        "@cuda.jit\ndef add(x):\n    raise NotImplementedError  # TODO(kata): (1 line)\n"
    )


def test_a_class_may_begin_with_what_goes():
    stub = stub_of("class A:\n    def _in(self):\n        return 1\n\n    x: int\n", ["A"])
    assert stub == "class A:\n\n    x: int\n"


@pytest.mark.parametrize("name", ["fused_silu", "gqa_attention", "ring_collectives"])
def test_real_stubs_are_what_is_cut_out_and_what_their_authors_said(name):
    kata = load_curriculum(ROOT).kata(name)

    def without_words(stub):
        return re.sub(r"TODO\(kata\).*", "", stub)

    assert without_words(cut_stub(kata)) == without_words(kata.file.read_text())


def test_a_reference_that_is_no_python_is_told(mini):
    kata = load_kata(mini / "katas" / "week01" / "doubled")
    kata.solution.write_text("def doubled(:\n")
    with pytest.raises(UsageProblem, match=r"doubled\.py: expected the reference in Python"):
        cut_stub(kata)
