"""What is special about a token's log-probability: extremes, rows that do not count, memory."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge import assert_matches

NAN, INF = float("nan"), float("inf")


def rows(device, logits, labels):
    return torch.tensor(logits, device=device), torch.tensor(labels, device=device)


def test_a_row_by_hand(kata, device):
    # weights 1, 2, 5 of 8; at temperature 1/2 their squares, of 30
    logits, labels = rows(device, [[0.0, math.log(2), math.log(5)]] * 2, [1, 2])
    logp, lse = kata.token_logprob(logits, labels)
    want = torch.tensor([math.log(2 / 8), math.log(5 / 8)], dtype=torch.float64)
    assert_matches(logp, want)
    assert_matches(lse, torch.full((2,), math.log(8), dtype=torch.float64))
    logp, lse = kata.token_logprob(logits, labels, 0.5)
    want = torch.tensor([math.log(4 / 30), math.log(25 / 30)], dtype=torch.float64)
    assert_matches(logp, want)
    assert_matches(lse, torch.full((2,), math.log(30), dtype=torch.float64))


@pytest.mark.parametrize(("size", "temperature"), [(1e4, 1.0), (-1e4, 1.0), (1e4, 0.7)], ids=str)
def test_large_logits_keep_their_digits(kata, device, size, temperature):
    # 1e4 + log 7 in float32 has steps of 1e-3; differences of logits are exact
    logits = torch.full((1, 150), size, device=device)
    logits[0, 140] += 2.0
    logp, _ = kata.token_logprob(logits, torch.tensor([3], device=device), temperature)
    want = torch.tensor([-math.log(149 + math.exp(2 / temperature))], dtype=torch.float64)
    assert_matches(logp, want)


def test_the_lowest_logits_are_numbers(kata, device):
    logits = torch.full((1, 100), torch.finfo(torch.float32).min, device=device)
    logp, _ = kata.token_logprob(logits, torch.tensor([70], device=device))
    assert_matches(logp, torch.tensor([-math.log(100)], dtype=torch.float64))


def test_columns_of_minus_infinity(kata, device):
    logits, labels = torch.full((4, 150), -INF, device=device), [149, 0, 5, 5]
    logits[0, 149] = logits[1, 149] = 2.0
    logits[2] = 0.0
    logits[2, 5] = -INF
    logp, lse = kata.token_logprob(logits, torch.tensor(labels, device=device))
    assert logp[:3].tolist() == [0.0, -INF, -INF]
    assert bool(logp[3].isnan()), f"nothing but -inf: expected logp NaN, found {logp[3]}"
    assert (lse[0].item(), lse[1].item(), lse[3].item()) == (2.0, 2.0, -INF)


@pytest.mark.parametrize("ignore", [0, 2**32 + 1], ids=["a column", "1 in 32 bits"])
def test_any_label_can_be_the_ignored_one(kata, device, ignore):
    # row 0 is not read, row 1 counts
    logits, labels = rows(device, [[NAN, NAN], [0.0, 0.0]], [ignore, 1])
    logp, lse = kata.token_logprob(logits, labels, ignore=ignore)
    half = [0.0, math.log(2)]
    assert (logp[0].item(), lse[0].item()) == (0.0, 0.0)
    assert_matches(torch.stack([-logp[1], lse[1]]), torch.tensor(half[1:] * 2).double())
    dlogp = torch.tensor([NAN, 1.0], device=device)
    found = kata.token_logprob_bwd(dlogp, logits, labels, lse, ignore=ignore)
    assert_matches(found, torch.tensor([[0.0, 0.0], [-0.5, 0.5]], dtype=torch.float64))


@pytest.mark.parametrize("ignore", [-100, 5])
def test_rows_that_do_not_count_are_not_read(kata, oracle, traffic, seed, ignore):
    inputs = oracle.make_inputs_token_logprob_bwd(
        n=4, v=100, dtype=torch.float32, device="cpu", seed=seed
    )
    inputs |= {"labels": torch.tensor([ignore] * 3 + [7]), "ignore": ignore}
    with traffic() as forward:
        kata.token_logprob(inputs["logits"], inputs["labels"], ignore=ignore)
    with traffic() as backward:
        kata.token_logprob_bwd(**inputs)
    found = [moved.of(inputs["logits"][:3]).loads_per_element for moved in (forward, backward)]
    assert found == [0, 0], f"forward and backward load logits of ignored rows {found} times each"


@settings(max_examples=12)
@given(shift=st.integers(-5000, 5000), v=st.integers(1, 80), seed=st.integers(0, 2**31))
def test_a_constant_added_to_a_row_changes_nothing(kata, device, shift, v, seed):
    # eighths: logits and their shifts are exact
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-40, 40, (2, v), generator=generator).to(device) / 8
    labels = torch.randint(v, (2,), generator=generator).to(device)
    logp, _ = kata.token_logprob(logits, labels)
    again, _ = kata.token_logprob(logits + shift, labels)
    assert again.tolist() == logp.tolist()


def test_the_gradient_may_take_the_logits_place(kata, oracle, device, dispatch, seed):
    inputs = oracle.make_inputs_token_logprob_bwd(
        n=5, v=150, dtype=torch.float32, device=device, seed=seed, padding=10, ignored=True
    )
    want = kata.token_logprob_bwd(**inputs)
    with dispatch() as ops:
        found = kata.token_logprob_bwd(**inputs, inplace=True)
    assert ops.allocated_bytes == 0
    assert found is inputs["logits"], "expected logits themselves, found another tensor"
    assert found.tolist() == want.tolist()


def test_the_gradient_sums_to_nothing(kata, device, seed):
    logits = torch.randn(3, 130, generator=torch.Generator().manual_seed(seed)).to(device)
    labels = torch.tensor([0, 129, 64], device=device)
    _, lse = kata.token_logprob(logits, labels)
    found = kata.token_logprob_bwd(torch.ones(3, device=device), logits, labels, lse)
    off = found.double().sum(1).abs().max().item()
    assert off <= 1e-5, f"expected sums of 0, found {found.sum(1).tolist()}"
    assert bool((found.gather(1, labels[:, None]) > 0).all())


def test_the_gradient_of_a_likely_token_is_rounded_once(kata, device):
    # a probability of 0.99966, which float16 takes to 0.9995 or to 1
    logits, labels = rows(device, [[0.0, -8.0]], [0])
    lse = torch.tensor([math.log1p(math.exp(-8))], device=device)
    dlogp = torch.ones(1, device=device)
    found = kata.token_logprob_bwd(dlogp, logits.half(), labels, lse).tolist()
    p = 1 / (1 + math.exp(8))
    off = max(abs(found[0][0] - p), abs(found[0][1] + p))
    assert off <= 1e-6, f"logits 0, -8, label 0: expected [[{p}, {-p}]], found {found}"


def test_a_half_gradient_is_the_nearest_one(kata, oracle, device, seed):
    # to round (1 at the label - p) first, or its product with dlogp, takes up to a unit, not a half
    inputs = oracle.make_inputs_token_logprob_bwd(
        n=4, v=100, temperature=0.7, dtype=torch.float16, device=device, seed=seed
    )
    found = kata.token_logprob_bwd(**inputs).cpu().double()
    exact = oracle.reference_token_logprob_bwd(**inputs).cpu()
    exponent = exact.abs().clamp(min=2**-14).log2().floor()
    off = (found - exact).abs() / (exponent - 11).exp2()  # in halves of a unit in the last place
    at = off.argmax().item()
    assert off.max() <= 1.02, (
        f"expected {exact.flatten()[at]}, rounded to the nearest; found {found.flatten()[at]}, "
        f"{off.max():.2f} halves of a unit in the last place away"
    )


@pytest.mark.parametrize("label", [-1, 7, -99, 2**40])
def test_in_debug_mode_labels_are_columns(kata, device, label):
    logits = torch.zeros(3, 7, device=device)
    kata.token_logprob(logits, torch.tensor([0, 6, -100], device=device), debug=True)
    kata.token_logprob(logits, torch.tensor([0, 6, 7], device=device), ignore=7, debug=True)
    with pytest.raises(ValueError, match="^labels: "):
        kata.token_logprob(logits, torch.tensor([0, label, 6], device=device), debug=True)


def test_nothing_of_the_size_of_the_logits_is_allocated(kata, oracle, device, dispatch, cost, seed):
    inputs = oracle.make_inputs(n=64, v=1000, dtype=torch.float32, device=device, seed=seed)
    inputs["labels"][:60] = -100
    with dispatch() as ops:
        kata.token_logprob(**inputs)
    assert ops.host_syncs == 0
    cost.check("row_bytes", ops.allocated_bytes / 64)
