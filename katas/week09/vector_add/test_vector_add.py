"""What is special about a block a program: ragged ends, strides, far addresses, machine code."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

BUILD = {"n": 134217728, "dtype": "float32"}  # the case of kata.toml, so that it is built once


@given(
    n=st.integers(0, 300),
    block=st.sampled_from([16, 64, 512]),
    x_step=st.integers(0, 3),
    y_step=st.integers(0, 3),
)
def test_any_length_block_and_stride(kata, device, n, block, x_step, y_step):
    buffer = torch.randn(1 + 3 * n, device=device)
    x, y = (buffer.as_strided((n,), (step,)) for step in (x_step, y_step))
    assert torch.equal(kata.vector_add(x, y, block), x + y)


@pytest.mark.parametrize("block", [64, 2048])
def test_one_program_for_each_block(kata, traffic, block):
    x = torch.randn(2049)
    with traffic() as moved:
        kata.vector_add(x, x, block)
    assert moved.programs == -(-2049 // block)


def test_nan_and_infinities(kata, device):
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([inf, inf, -inf, nan, 1.0, -0.0], device=device)
    y = torch.tensor([1.0, -inf, -inf, 1.0, nan, -0.0], device=device)
    total = kata.vector_add(x, y).tolist()
    assert [str(value) for value in total] == ["inf", "nan", "-inf", "nan", "nan", "-0.0"]


@pytest.mark.parametrize("dtype", ["float16", "int8", "int64"])
def test_result_keeps_the_dtype(kata, device, dtype):
    x = torch.arange(5, device=device).to(getattr(torch, dtype))
    total = kata.vector_add(x, x)
    assert total.dtype == x.dtype
    assert total.tolist() == [0, 2, 4, 6, 8]


def test_more_elements_than_31_bits(kata, device):
    if device == "cpu":
        pytest.skip("two million programs: on a GPU only")
    n = 2**31 + 5
    x = torch.ones(n, dtype=torch.int8, device=device)
    total = kata.vector_add(x, x)
    for end in (total[:9], total[-9:]):
        assert end.tolist() == [2] * 9


# ---- what the compiler makes of it ---------------------------------------------------------


def test_contiguous_operands_move_16_bytes_an_instruction(compiled):
    (kernel,) = compiled(target="sm_90", **BUILD)
    assert kernel.has("ld.global.v4")
    assert kernel.has("st.global.v4")


def test_the_mask_becomes_a_predicate(compiled):
    (kernel,) = compiled(target="sm_90", **BUILD)
    accesses = re.findall(r"^.*\b(?:ld|st)\.global.*$", kernel.ptx, re.MULTILINE)
    assert accesses
    assert all(re.match(r"\s*@%p\d+ ", line) for line in accesses), "an access without a mask"
