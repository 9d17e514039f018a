"""The tolerance rule: honest answers pass, each kind of wrong one does not."""

import numpy as np
import pytest
import torch

from harness.judge import assert_matches


def matmul_inputs(seed=0, k=512):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(64, k, generator=generator), torch.randn(k, 64, generator=generator)]


def test_an_honest_float32_matmul_passes():
    for seed in range(5):
        a, b = matmul_inputs(seed)
        blocked = a[:, :256] @ b[:256] + a[:, 256:] @ b[256:]
        assert_matches(blocked, a.double() @ b.double(), same_precision=a @ b)


def test_bfloat16_inputs_into_a_float32_matmul_fail():
    a, b = matmul_inputs()
    low = a.bfloat16().float() @ b.bfloat16().float()
    with pytest.raises(AssertionError):
        assert_matches(low, a.double() @ b.double(), same_precision=a @ b)


def test_a_dropped_k_fails():
    a, b = matmul_inputs()
    with pytest.raises(AssertionError, match="values off"):
        assert_matches(a[:, 1:] @ b[1:], a.double() @ b.double(), same_precision=a @ b)


def test_zeros_for_a_wide_softmax_fail():
    x = torch.randn(4, 8192)
    truth = torch.softmax(x.double(), dim=1)
    with pytest.raises(AssertionError):
        assert_matches(torch.zeros_like(x), truth, same_precision=torch.softmax(x, dim=1))


def test_one_wrong_tile_is_found_and_located():
    x = torch.randn(64, 64)
    wrong = x.clone()
    wrong[16:32, 48:64] += 0.01
    with pytest.raises(AssertionError, match=r"256 of 4096 .* within \[16:32, 48:64\]"):
        assert_matches(wrong, x.double(), same_precision=x)


def test_a_map_may_round_but_not_drift():
    x = torch.rand(1000, dtype=torch.float64) + 0.5
    assert_matches(x.half(), x)
    with pytest.raises(AssertionError):
        assert_matches((x * (1 + 3e-3)).half(), x)


def test_a_low_precision_everywhere_fails_by_its_norm():
    x = torch.randn(4096)
    rough = x * (1 + 2e-5)
    with pytest.raises(AssertionError, match="norm error"):
        assert_matches(rough, x.double(), same_precision=x + 0.01)


def test_nan_is_no_wildcard():
    truth = torch.tensor([1.0, float("nan"), float("inf")], dtype=torch.float64)
    assert_matches(truth.float(), truth)
    for place, value in ((0, float("nan")), (1, 1.0), (2, float("-inf")), (2, 1e30)):
        wrong = truth.float()
        wrong[place] = value
        with pytest.raises(AssertionError, match=rf"first at \({place},\)"):
            assert_matches(wrong, truth)


def test_a_truth_past_the_dtypes_range_rounds_to_infinity():
    assert_matches(torch.tensor([float("inf")]).half(), torch.tensor([1e6], dtype=torch.float64))


def test_dtype_and_shape_are_part_of_the_answer():
    x = torch.ones(3)
    with pytest.raises(AssertionError, match="dtype"):
        assert_matches(x.double(), x.double(), same_precision=x)
    with pytest.raises(AssertionError, match="shape"):
        assert_matches(x[:2], x.double())


def test_integers_and_tuples_are_compared_exactly():
    assert_matches((np.array([1, 2]), 3), (np.array([1, 2]), 3))
    with pytest.raises(AssertionError, match=r"result\[0\]: 1 of 2 values differ; first at \(1,\)"):
        assert_matches((np.array([1, 3]), 3), (np.array([1, 2]), 3))


def test_an_empty_answer_can_be_right():
    assert_matches(torch.ones(0), torch.ones(0, dtype=torch.float64))
