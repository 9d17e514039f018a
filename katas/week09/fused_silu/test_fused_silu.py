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


def test_strided_rows_are_read_in_place(kata, traffic, dispatch):
    x = torch.randn(5, 96)[:, :64]
    with dispatch() as ops, traffic() as moved:
        kata.fused_silu(x)
    assert moved.loaded_bytes == 5 * 64 * 4
    assert ops.allocated_bytes <= 5 * 96 * 4, "more was allocated than the result"


def test_traffic_counts_passes(kata):
    assert kata.traffic(16384, 8192, 2, fused=True) == 2 * 16384 * 8192 * 2
    assert kata.traffic(16384, 8192, 2, fused=False) == 5 * 16384 * 8192 * 2


def test_bandwidth_utilization_of_a_perfect_kernel_is_one(kata, profile):
    nbytes = 2 * 1000 * 4096 * 4
    share = kata.bandwidth_utilization(1000, 4096, 4, nbytes / profile.bandwidth, profile)
    assert share == pytest.approx(1.0, rel=1e-12)


def test_integers_are_refused(kata, device):
    with pytest.raises(ValueError, match="x"):
        kata.fused_silu(torch.ones(2, 2, dtype=torch.int32, device=device))


def test_strided_columns_are_refused(kata, device):
    with pytest.raises(ValueError, match="contiguous"):
        kata.fused_silu(torch.ones(4, 8, device=device)[:, ::2])
