"""The tolerance rule: honest answers pass, each kind of wrong one does not. The form of answers."""

from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from harness.judge import assert_matches
from harness.judge.correctness.answer import assert_sound, copied, differences
from harness.judge.correctness.memory import NAN
from harness.judge.guarded import GuardedCall


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


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (16777217.0, 16777216.0),  # float32 has no such number
        (1.0000004, 1.0),
        (1e45, 1e40),  # nor any of these
        (2**70 + 1, 2**70),  # and int64 not these
    ],
)
def test_numbers_of_python_have_its_own_precision(got, want):
    assert_matches(want, want)
    with pytest.raises(AssertionError, match=r"values? off|expected 1180591620717411303424, found"):
        assert_matches(got, want)


# the largest norm error of an honest answer, and units of rounding that an element of a map has
LIMITS = {
    torch.float64: (1e-12, 4.0),
    torch.float32: (1e-5, 4.0),
    torch.float16: (1e-3, 0.6),
    torch.bfloat16: (3e-3, 0.6),
    torch.float8_e4m3fn: (5e-2, 0.6),
    torch.float8_e5m2: (1e-1, 0.6),
}


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_each_dtype_has_its_norm_limit(dtype):
    limit, _ = LIMITS[dtype]
    found = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    far = (found.double() + 8).to(dtype)  # so that no element is over its own limit
    assert_matches(found, found.double() / (1 + 0.7 * limit), same_precision=far)
    with pytest.raises(AssertionError, match="norm error"):
        assert_matches(found, found.double() / (1 + 1.5 * limit), same_precision=far)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_each_dtype_has_its_units_of_rounding(dtype):
    _, ulps = LIMITS[dtype]
    found, unit = torch.ones(1000).to(dtype), torch.finfo(dtype).eps
    truth = torch.ones(1000, dtype=torch.float64)
    truth[7] = 1 + 0.7 * ulps * unit
    assert_matches(found, truth)
    truth[7] = 1 + 1.5 * ulps * unit
    with pytest.raises(AssertionError, match=r"1 of 1000 values off; worst at \(7,\)"):
        assert_matches(found, truth)


def test_an_element_may_be_off_by_twice_the_trusted_formulas_worst():
    """Twice 1e-4, one unit of the largest (1.2e-7) and four of the element itself (4.8e-7)."""
    truth = torch.ones(4096, dtype=torch.float64)
    trusted, found = torch.ones(4096), torch.ones(4096)
    trusted[5] += 1e-4
    found[9] += 1.99e-4
    assert_matches(found, truth, same_precision=trusted)
    found[9] += 0.03e-4
    with pytest.raises(AssertionError, match=r"1 of 4096 values off; worst at \(9,\)"):
        assert_matches(found, truth, same_precision=trusted)


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
    with pytest.raises(AssertionError, match=r"expected dtype torch.int32, found torch.int64"):
        assert_matches(torch.arange(3), torch.arange(3), same_precision=torch.arange(3).int())
    ones = torch.ones(3, dtype=torch.int64)
    for found, want in ((ones, x.double()), (x, ones)):
        with pytest.raises(AssertionError, match="expected a dtype like"):
            assert_matches(found, want)


def test_integers_and_tuples_are_compared_exactly():
    assert_matches((np.array([1, 2]), 3), (np.array([1, 2]), 3))
    with pytest.raises(AssertionError, match=r"result\[0\]: 1 of 2 values differ; first at \(1,\)"):
        assert_matches((np.array([1, 3]), 3), (np.array([1, 2]), 3))


def test_an_empty_answer_can_be_right():
    assert_matches(torch.ones(0), torch.ones(0, dtype=torch.float64))


def test_float8_may_round_but_not_drift():
    x = torch.rand(1000, dtype=torch.float64) + 0.5
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        assert_matches(x.to(dtype), x)
        with pytest.raises(AssertionError):
            assert_matches((x * 1.2).to(dtype), x)


# ---- the form of an answer -----------------------------------------------------------------


def test_an_answer_of_its_own_is_sound():
    x = torch.ones(4, 3)
    for answer in (x.clone(), (x + 1, 2.5), [np.ones(3), np.float32(1)], x.clone().T, None):
        assert_sound(answer, {"x": x}, writes=())


@pytest.mark.parametrize("alias", ["x", "x[1:]", "x.T", "x.view(-1)", "x.detach()"])
def test_an_answer_in_the_inputs_memory_is_refused(alias):
    x = torch.ones(4, 3)
    with pytest.raises(AssertionError, match=r"result\[1\] shares memory with the input x"):
        assert_sound((1.0, eval(alias)), {"x": x}, writes=())
    assert_sound((1.0, eval(alias)), {"x": x}, writes=("x",))


def test_the_memory_of_arrays_and_of_nested_inputs_is_known():
    a = np.ones((4, 3))
    with pytest.raises(AssertionError, match="memory with the input a"):
        assert_sound(a[2:], {"a": a}, writes=())
    assert_sound(a[:0], {"a": a}, writes=())
    tensors = [torch.ones(3), torch.ones(3)]
    with pytest.raises(AssertionError, match=r"memory with the input pair\[1\]"):
        assert_sound(tensors[1], {"pair": tensors}, writes=())
    assert_sound(tensors[1], {"pair": tensors}, writes=("pair",))


def test_an_answer_belongs_where_the_inputs_are():
    found = torch.ones(3, device="meta")
    with pytest.raises(AssertionError, match="expected it on cpu, where the inputs are, found it"):
        assert_sound(found, {"x": torch.ones(3), "n": 3}, writes=())
    assert_sound(found, {"n": 3}, writes=())


def test_a_sparse_answer_is_refused():
    with pytest.raises(AssertionError, match="expected a strided tensor"):
        assert_sound(torch.eye(3).to_sparse(), {}, writes=())


def test_a_copy_tells_what_changed_later():
    answer = (torch.tensor([1.0, float("nan")]), np.zeros((2, 3)), 4)
    copy = copied(answer)
    assert not any(differences(answer, copy))
    answer[1][1, 2] = -0.0
    assert [bool(differs) for differs in differences(answer, copy)] == [False, True]


# ---- repeats -------------------------------------------------------------------------------


def guarded(entry, **inputs):
    kata = SimpleNamespace(forbidden=(), writes=(), backend="torch")
    trial = SimpleNamespace(
        submission=SimpleNamespace(kata=kata),
        entry=entry,
        launchable=lambda given: given,
        callable=lambda fn: fn,
        oracle=ModuleType("oracle"),
        answers=(),
        ordered=lambda order, policy, seed: nullcontext(),
        operators=nullcontext,
        failures=lambda: nullcontext([]),
        device="cpu",
    )
    return GuardedCall(trial, inputs)


def test_the_same_bits_fifty_times():
    calls = []

    def counted(x):
        calls.append(1)
        return x.cumsum(0), float(x.sum())

    guarded(counted, x=torch.randn(100)).assert_repeats()
    assert len(calls) == 50


def test_an_answer_that_varies_does_not_repeat():
    noise = iter([0.0] * 6 + [1e-6] + [0.0] * 50)
    call = guarded(lambda x: x + next(noise), x=torch.ones(8))
    with pytest.raises(AssertionError, match=r"run 7 of 50 .*: 8 of 8 values .* rounding only"):
        call.assert_repeats()


def test_in_place_answers_repeat_from_the_same_inputs():
    guarded(lambda x: x.mul_(2).clone(), x=torch.randn(8)).assert_repeats(times=5)


def test_a_kernel_may_not_fail_unnoticed():
    call = guarded(lambda x: x * 2, x=torch.ones(3))
    call.trial.failures = lambda: nullcontext(["ValueError: grid"])
    with pytest.raises(AssertionError, match="the failure was hidden: ValueError: grid"):
        call.run(pattern=NAN)
