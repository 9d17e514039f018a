"""What is special about a fused map: strided rows, no copies, extremes, and the bytes it saves."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.judge import assert_matches


def test_extreme_values(kata, device):
    values = [1e4, -1e4, 0.0, float("inf"), float("-inf"), float("nan"), -20.0, 88.8]
    x = torch.tensor([values], device=device)
    y = torch.nn.functional.silu(x)
    assert_matches(kata.fused_silu(x), torch.nn.functional.silu(x.double()), same_precision=y)


def test_float16_is_computed_in_float32(kata, device):
    x = torch.linspace(-17, 17, 3001, device=device).to(torch.float16).reshape(1, -1)
    truth = x.double() * torch.sigmoid(x.double())
    assert_matches(kata.fused_silu(x), truth)


@given(rows=st.integers(1, 4), cols=st.integers(1, 70), gap=st.integers(0, 9))
def test_any_row_stride(kata, device, rows, cols, gap):
    x = torch.randn(rows, cols + gap, device=device)[:, :cols]
    y = kata.fused_silu(x)
    assert_matches(y, x.double() * torch.sigmoid(x.double()), same_precision=x * torch.sigmoid(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_strided_rows_are_read_in_place(kata, traffic, dispatch, dtype):
    # longer than one block of the interpreter, so that each row takes several programs
    x = torch.randn(3, 5000).to(dtype)[:, :4900]
    with dispatch() as ops, traffic() as moved:
        y = kata.fused_silu(x)
    nbytes = x.numel() * x.element_size()
    assert moved.loaded_bytes == nbytes, "x must be read once, in place, by the kernel"
    assert ops.allocated_bytes == nbytes, "more was allocated than the result"
    assert moved.launches == 1, "one launch does for all rows"
    assert_matches(y, x.double() * torch.sigmoid(x.double()))


def test_the_result_is_contiguous_and_stays(kata, device):
    x = torch.randn(3, 9, device=device)[:, :5]
    first = kata.fused_silu(x)
    kept = first.clone()
    assert first.is_contiguous()
    kata.fused_silu(x + 1)
    assert torch.equal(first, kept), "a second call wrote over the first result"


def test_traffic_counts_passes(kata):
    assert kata.traffic(16384, 8192, 2, fused=True) == 2 * 16384 * 8192 * 2
    assert kata.traffic(16384, 8192, 4, fused=False) == 5 * 16384 * 8192 * 4


@pytest.mark.parametrize("share", [0.25, 1.0, 1.6])
def test_bandwidth_utilization_is_the_share_of_the_profile(kata, profile, share):
    seconds = 2 * 1000 * 4096 * 4 / profile.bandwidth / share
    found = kata.bandwidth_utilization(1000, 4096, 4, seconds, profile)
    assert found == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_other_dtypes_are_refused(kata, device, dispatch, dtype):
    x = torch.ones(2, 2, dtype=dtype, device=device)
    with dispatch() as ops, pytest.raises(ValueError, match=r"\bx\b"):
        kata.fused_silu(x)
    assert ops.allocated_bytes == 0, "allocated before it checked"
