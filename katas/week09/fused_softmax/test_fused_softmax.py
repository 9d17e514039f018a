"""What is special about softmax on chip: masks, extremes, the two paths and what they read."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.judge import assert_matches

INF, NAN = float("inf"), float("nan")
# arguments that choose a path for a row of up to 128 columns: whole, or in pieces of 32
WHOLE, PIECES = {}, {"max_block": 16, "block": 32}
both_paths = pytest.mark.parametrize("path", [WHOLE, PIECES], ids=["whole", "pieces"])


@both_paths
def test_softmax_by_hand(kata, device, path):
    # weights 1, 2, 5: eighths are exact, the logarithms are not
    x = torch.tensor([[1.0, 2.0, 5.0]], dtype=torch.float64, device=device).log().float()
    x = torch.nn.functional.pad(x, (0, 40), value=-INF)
    y = kata.fused_softmax(x, **path)
    assert_matches(y[:, :3], torch.tensor([[0.125, 0.25, 0.625]]))
    assert y[:, 3:].eq(0).all()


@both_paths
def test_large_logits(kata, device, oracle, path):
    x = torch.zeros(3, 70, device=device)
    x[0, 5], x[0, 6], x[1, 69], x[2] = 1e4, -1e4, 1e4, -1e4
    y = kata.fused_softmax(x, **path)
    assert_matches(y, oracle.reference(x=x), same_precision=oracle.same_precision(x=x))


@both_paths
def test_negative_rows_are_not_padded_with_zeros(kata, device, path):
    # a zero among them would be the maximum, and exp(-200) is 0 in float32
    y = kata.fused_softmax(torch.full((2, 50), -200.0, device=device), **path)
    assert_matches(y, torch.full((2, 50), 1 / 50))


@both_paths
def test_nan_and_infinities_are_as_in_torch(kata, device, path):
    x = torch.zeros(4, 50, device=device)
    x[0, 3], x[1, 45], x[2, 20], x[3] = NAN, INF, -INF, -INF
    y = kata.fused_softmax(x, **path)
    assert y[[0, 1, 3]].isnan().all()
    assert y[2, 20] == 0
    assert_matches(y[2].sum(), torch.tensor(1.0))


@both_paths
def test_pieces_of_nothing_but_minus_infinity(kata, device, oracle, path):
    x = torch.randn(2, 128, device=device)
    x[0, :64] = x[1, 64:] = -INF
    y = kata.fused_softmax(x, **path)
    assert_matches(y, oracle.reference(x=x), same_precision=oracle.same_precision(x=x))


@both_paths
def test_float16_is_computed_in_float32(kata, device, oracle, path):
    # x - max is -4.0019, which float16 rounds to -4: the same error for all but one of 128
    x = torch.full((1, 128), -0.0019, dtype=torch.float16, device=device)
    x[0, 0] = 4.0
    assert_matches(kata.fused_softmax(x, **path), oracle.reference(x=x))


@given(cols=st.integers(1, 70), block=st.sampled_from([16, 64]), max_block=st.sampled_from([1, 32]))
def test_any_length_and_pieces(kata, oracle, device, cols, block, max_block):
    x = torch.randn(2, cols + 3, device=device)[:, :cols]
    y = kata.fused_softmax(x, max_block, block)
    assert_matches(y, oracle.reference(x=x), same_precision=oracle.same_precision(x=x))
    for total in y.double().sum(dim=1).tolist():
        # each of the weights is off by a few units of 2^-24 of itself, and so is their sum
        assert math.isclose(total, 1.0, rel_tol=1e-6)


@given(shift=st.integers(-10_000, 10_000), max_block=st.sampled_from([16, 64]))
def test_a_constant_added_to_a_row_changes_nothing(kata, device, shift, max_block):
    # eighths: x + shift is exact, so x - max is the same number either way
    x = torch.randint(-80, 80, (1, 40), device=device) / 8
    y = kata.fused_softmax(x, max_block, 16)
    assert torch.equal(kata.fused_softmax(x + shift, max_block, 16), y)


# ---- which path, and what it costs ---------------------------------------------------------


@pytest.mark.parametrize(("cols", "reads"), [(128, 1), (129, 2)], ids=["fits", "one too long"])
def test_a_row_is_read_again_only_when_it_does_not_fit(kata, traffic, cols, reads):
    x = torch.randn(2, cols)
    with traffic() as moved:
        kata.fused_softmax(x, max_block=128, block=64)
    assert moved.loaded_bytes == reads * 2 * cols * 4
