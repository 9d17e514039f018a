"""Stubs cut out of references: what stays, what goes, what is left to do."""

import pytest

from harness.authoring.stub import cut_stub, stub_of
from harness.base.errors import MetadataError, UsageProblem
from harness.content.kata import StubMarks, load_kata

WORDS = "words that go on and on and on"

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
        raise NotImplementedError  # TODO(kata): (3 lines with helpers)


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


def test_a_kernel_with_a_docstring_needs_no_pass():
    kernel = '@triton.jit\ndef _row(x_ptr):\n    """Why."""\n'
    assert stub_of(kernel + "    return 1\n", ["f"]) == kernel + "    # TODO(kata): (1 line)\n"


def test_a_kernel_that_is_asked_for_by_name_says_that_it_is_not_there():
    stub = stub_of("@cuda.jit\ndef add(x):\n    x[0] = 1\n", ["add"])
    assert stub == (
        "@cuda.jit\ndef add(x):\n    raise NotImplementedError  # TODO(kata): (1 line)\n"
    )


def test_a_class_may_begin_with_what_goes():
    stub = stub_of("class A:\n    def _in(self):\n        return 1\n\n    x: int\n", ["A"])
    assert stub == "class A:\n\n    x: int\n"


MARKED = '''"""Kata week01/x: the trick."""

import math
from collections import Counter, deque

SIZE = 4
TRICK, TURN = 2, 3
LAST = 5


class Queue:
    """Given, but for one method."""

    def __len__(self):
        return 1

    def _rest(self):
        return 2

    def drop(self):
        """The oldest."""
        return self._rest()


def _check(x):
    if x:
        raise ValueError


def _tile(x):
    """Not seen."""
    return x + TRICK


def asked(x):
    return _tile(x)


def asked_too(x):
    return _tile(x)
'''

MARKED_STUB = '''"""Kata week01/x: what it is about.

In two lines.
"""

import math
from collections import Counter

SIZE = 4
LAST = 5


class Queue:
    """Given, but for one method."""

    def __len__(self):
        return 1

    def drop(self):
        """The oldest."""
        raise NotImplementedError  # TODO(kata): the head moves (3 lines with helpers)


def _check(x):
    if x:
        raise ValueError


def asked(x):
    # TODO(kata): words that go on and on and on, words that go on and on and on, words that go on
    # and on and on (about 4 lines with helpers)
    raise NotImplementedError


def asked_too(x):
    return _tile(x)
'''


def test_an_author_says_what_is_given_what_is_not_seen_and_in_which_words():
    marks = StubMarks(
        give=("_check", "asked_too"),
        leave_out=("deque", "TRICK", "Queue._rest"),
        todo={"Queue.drop": "the head moves", "asked": ", ".join(3 * [WORDS])},
        docstring="Kata week01/x: what it is about.\n\nIn two lines.\n",
    )
    assert stub_of(MARKED, ["asked", "asked_too"], marks) == MARKED_STUB


def test_a_class_is_not_asked_for_as_a_whole():
    marks = StubMarks(todo={"Queue": "all of it"})
    with pytest.raises(MetadataError, match=r"found the class 'Queue', .* Queue\.\w+"):
        stub_of(MARKED, ["asked"], marks)


def test_large_sizes_are_rounded_and_small_ones_not():
    def words(count):
        return stub_of("def f():\n" + "    g()\n" * count, ["f"]).split("TODO(kata): ")[1]

    assert words(10) == "(about 10 lines)\n"
    assert words(12) == "(about 10 lines)\n"
    assert words(13) == "(about 15 lines)\n"


def test_where_a_group_of_imports_begins_stays_apart_when_its_first_goes():
    source = "import os\n\nimport abc\nimport torch\n\n\ndef f():\n    return 1\n"
    stub = stub_of(source, [], StubMarks(leave_out=("abc",)))
    assert stub == "import os\n\nimport torch\n\n\ndef f():\n    return 1\n"


def test_a_reference_that_is_no_python_is_told(mini):
    kata = load_kata(mini / "katas" / "week01" / "doubled")
    kata.solution.write_text("def doubled(:\n")
    with pytest.raises(UsageProblem, match=r"doubled\.py: expected the reference in Python"):
        cut_stub(kata)


CUDA = '''
"""Doc."""

SOURCE = r"""
#define LIMIT 4
__device__ float half_of(float x) { return x / 2; }

extern "C" __global__ void first(const float* x, float* y, int n) {
    // why
    for (int i = 0; i < n; i++) {
        if (x[i] > 0) { y[i] = half_of(x[i]); }
    }
}

template <int N> __global__ void second(float* y) { *y = N; }
"""
NAMES = {"first", "second"}
'''


def test_kernels_in_cuda_keep_their_signatures():
    stub = stub_of(CUDA, ["first"])
    assert 'extern "C" __global__ void first(const float* x, float* y, int n) {' in stub
    assert "template <int N> __global__ void second(float* y) {" in stub
    assert "half_of(float x) { return x / 2; }" in stub
    assert stub.count("// TODO(kata): (about ") == 2
    assert "(about 3 lines)" in stub
    assert "y[i]" not in stub
    assert "*y = N" not in stub
    assert stub.count("{") == stub.count("}")
    assert stub.endswith('"""\nNAMES = {"first", "second"}\n')
