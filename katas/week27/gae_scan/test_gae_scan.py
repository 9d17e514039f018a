"""What is special about advantages: ends cut, blocks join, the score's place, estimates of KL."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge import assert_matches


def steps(device, rewards, values, done=()):
    """One row."""
    ends = [i in done for i in range(len(rewards))]
    return {
        "rewards": torch.tensor([rewards], dtype=torch.float32, device=device),
        "values": torch.tensor([values], dtype=torch.float32, device=device),
        "done": torch.tensor([ends], device=device),
    }


def test_three_steps_by_hand(kata, device):
    # deltas 1 + 0.5 · 4 - 2, 2 + 0.5 · 6 - 4 and 3 + 0.5 · 8 - 6; decay 0.5 · 0.5
    given = steps(device, [1.0, 2.0, 3.0], [2.0, 4.0, 6.0, 8.0])
    adv, ret = kata.gae_scan(**given, gamma=0.5, lam=0.5)
    assert adv.tolist() == [[1.3125, 1.25, 1.0]]
    assert ret.tolist() == [[3.3125, 5.25, 7.0]]
    assert (adv.dtype, ret.dtype) == (torch.float32, torch.float32)


def test_the_results_are_contiguous(kata, oracle, device, seed):
    inputs = oracle.make_inputs(b=2, t=3, dtype=torch.float32, device=device, seed=seed)
    for name, one in zip(("advantages", "returns"), kata.gae_scan(**inputs), strict=True):
        assert one.stride() == (3, 1), f"{name}: expected strides (3, 1), found {one.stride()}"


def test_an_end_cuts_off_what_follows(kata, device):
    # after the second step neither the next value nor the next advantage count
    given = steps(device, [1.0, 2.0, 3.0], [2.0, 4.0, 6.0, 8.0], done=[1])
    adv, _ = kata.gae_scan(**given, gamma=0.5, lam=0.5)
    assert adv.tolist() == [[0.5, -2.0, 1.0]]
    given["done"][0, 2] = True
    adv, _ = kata.gae_scan(**given, gamma=0.5, lam=0.5)
    assert adv.tolist() == [[0.5, -2.0, -3.0]]


@pytest.mark.parametrize("end", [62, 63, 64])
def test_nothing_leaks_over_an_end_between_blocks(kata, oracle, device, seed, end):
    given = oracle.make_inputs(b=1, t=140, dtype=torch.float32, device=device, seed=seed, ends=0.0)
    given["done"][0, end] = True
    adv, _ = kata.gae_scan(**given)
    given["rewards"][0, end + 1 :] = 1e9
    given["values"][0, end + 1 :] = -1e9
    again, _ = kata.gae_scan(**given)
    assert torch.equal(again[0, : end + 1], adv[0, : end + 1]), f"the end after step {end} leaks"


def test_without_discount_it_is_what_is_still_to_come(kata, device):
    given = steps(device, [1.0] * 150, [0.0] * 151)
    adv, ret = kata.gae_scan(**given, gamma=1.0, lam=1.0)
    assert adv.tolist() == [list(range(150, 0, -1))]
    assert ret.tolist() == adv.tolist()


def test_half_precision_is_summed_in_float32(kata, device):
    # float16 has no odd numbers beyond 2048
    given = steps(device, [1.0] + [16.0] * 130, [0.0] * 132)
    given["rewards"], given["values"] = given["rewards"].half(), given["values"].half()
    adv, _ = kata.gae_scan(**given, gamma=1.0, lam=1.0)
    assert adv.dtype == torch.float32
    assert adv[0, :3].tolist() == [2081.0, 2080.0, 2064.0]


@settings(max_examples=12)
@given(
    t=st.integers(1, 100), seed=st.integers(0, 2**31), gamma=st.floats(0, 1), lam=st.floats(0, 1)
)
def test_any_length_and_discount(kata, oracle, device, t, seed, gamma, lam):
    inputs = oracle.make_inputs(
        b=2, t=t, dtype=torch.float32, device=device, seed=seed, gamma=gamma, lam=lam
    )
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.gae_scan(**inputs), want, same_precision=trusted)


# ---- rewards -------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["right", "left", "holes"])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_rewards_of_rows_with_padding(kata, oracle, device, seed, padding, kind, dtype):
    inputs = oracle.make_inputs_shaped_rewards(
        b=5, t=12, dtype=dtype, device=device, seed=seed, kl=kind, padding=padding
    )
    before = {name: one.clone() for name, one in inputs.items() if torch.is_tensor(one)}
    rewards, kl = kata.shaped_rewards(**inputs)
    want, trusted = (
        of(**inputs)
        for of in (oracle.reference_shaped_rewards, oracle.same_precision_shaped_rewards)
    )
    assert_matches(rewards, want[0], same_precision=trusted[0], name="rewards")
    assert_matches(kl, want[1], same_precision=trusted[1], name="kl")
    assert (rewards.dtype, kl.dtype) == (torch.float32, torch.float32)
    for name, one in before.items():
        assert_matches(inputs[name], one, name=name)


def test_other_estimates_are_refused(kata, device):
    zeros = torch.zeros(1, 2, device=device)
    with pytest.raises(ValueError, match="^kl: "):
        kata.shaped_rewards(zeros[:, 0], zeros, zeros, zeros == 0, 0.1, "k4")


def test_the_score_is_at_the_last_token(kata, device):
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]], device=device) > 0
    zeros, score = torch.zeros(4, 4, device=device), torch.tensor([1.0, 2.0, 3.0, 0.0])
    rewards, kl = kata.shaped_rewards(score.to(device), zeros, zeros, mask, 0.5, "k1")
    assert rewards.tolist() == [[0, 1, 0, 0], [0, 0, 0, 2], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert kl.tolist() == zeros.tolist()


def test_the_last_token_of_a_long_row(kata, device):
    # float16 has no odd positions beyond 2048
    mask = torch.arange(2200, device=device)[None] < 2150
    zeros, score = torch.zeros(1, 2200, device=device).half(), torch.ones(1, device=device)
    rewards, _ = kata.shaped_rewards(score, zeros, zeros, mask, 0.5, "k1")
    assert rewards.nonzero().tolist() == [[0, 2149]]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)], ids=["no rows", "no tokens"])
def test_nothing_is_shaped_and_whitened(kata, device, shape):
    empty = torch.zeros(shape, device=device)
    score = torch.ones(shape[0], device=device)
    results = kata.shaped_rewards(score, empty, empty, empty > 0, 0.5, "k3")
    assert [one.shape for one in results] == [shape, shape]
    assert kata.masked_whiten(empty, empty > 0).shape == shape


def test_a_penalty_by_hand(kata, device):
    logp = torch.tensor([[-1.0, -2.0]], device=device)
    ref = torch.tensor([[-1.5, -1.5]], device=device)
    mask = torch.ones(1, 2, dtype=torch.bool, device=device)
    score = torch.tensor([10.0], device=device)
    rewards, kl = kata.shaped_rewards(score, logp, ref, mask, 0.5, "k1")
    assert (rewards.tolist(), kl.tolist()) == ([[-0.25, 10.25]], [[0.5, -0.5]])
    rewards, kl = kata.shaped_rewards(score, logp, ref, mask, 0.5, "k2")
    assert (rewards.tolist(), kl.tolist()) == ([[-0.0625, 9.9375]], [[0.125, 0.125]])
    _, kl = kata.shaped_rewards(score, logp, ref, mask, 0.5, "k3")
    assert_matches(kl, torch.tensor([[0.1065306597, 0.1487212707]], dtype=torch.float64))


def test_k1_and_k3_estimate_the_divergence(kata, device, seed):
    # four outcomes, each taken with its probability: the mean of both estimates is the KL exactly
    generator = torch.Generator().manual_seed(seed)
    logp, ref = torch.randn(2, 20, 4, generator=generator).log_softmax(-1).to(device)
    mask = torch.ones(20, 4, dtype=torch.bool, device=device)
    want = (logp.double().exp() * (logp.double() - ref.double())).sum(-1).cpu()
    for kind in ("k1", "k3"):
        _, kl = kata.shaped_rewards(torch.zeros(20, device=device), logp, ref, mask, 1.0, kind)
        mean = (logp.double().exp() * kl.double()).sum(-1).cpu()
        off = (mean - want).abs().max().item()
        assert off <= 1e-5, f"{kind}: expected {want.tolist()}, found {mean.tolist()}"


@pytest.mark.parametrize("d", [1e-6, -1e-6, 1e-5, -3e-5, 1e-4, -1e-4, 1e-3, 3e-3, -1e-2], ids=str)
def test_k3_of_small_differences_keeps_its_digits(kata, device, d):
    # about d² / 2, of which nothing is left if exp(-d) is rounded before 1 is subtracted
    logp = torch.tensor([[d]], device=device)
    mask, zeros = torch.ones_like(logp, dtype=torch.bool), torch.zeros_like(logp)
    _, kl = kata.shaped_rewards(zeros[:, 0], logp, zeros, mask, 1.0, "k3")
    exact = logp.item()
    assert kl.item() == pytest.approx(math.expm1(-exact) + exact, rel=0, abs=2**-22 * abs(d))
    assert kl.item() >= 0


def test_ends_at_the_last_token_make_padding_worth_nothing(kata, device):
    # a row of three tokens and its padding: whatever the values there are, tokens do not see them
    mask = torch.tensor([[True, True, True, False, False]], device=device)
    score, zeros = torch.tensor([2.0], device=device), torch.zeros(1, 5, device=device)
    rewards, _ = kata.shaped_rewards(score, zeros, zeros, mask, 0.1, "k1")
    values = torch.tensor([[0.0, 0.0, 0.0, 7.0, 7.0, 7.0]], device=device)
    done = torch.tensor([[False, False, True, False, False]], device=device)
    adv, _ = kata.gae_scan(rewards, values, done, 0.5, 1.0)
    assert adv[0, :3].tolist() == [0.5, 1.0, 2.0]


# ---- whitening -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "share", "dtype"),
    [(0.0, 0.6, torch.float32), (0.5, 0.3, torch.float16)],
    ids=["plain", "half"],
)
def test_what_is_selected_is_whitened(kata, oracle, device, seed, mean, share, dtype):
    inputs = oracle.make_inputs_masked_whiten(
        b=6, t=25, dtype=dtype, device=device, seed=seed, mean=mean, share=share
    )
    before = inputs["x"].clone()
    found = kata.masked_whiten(**inputs)
    want, trusted = (
        of(**inputs) for of in (oracle.reference_masked_whiten, oracle.same_precision_masked_whiten)
    )
    assert_matches(found, want, same_precision=trusted)
    assert_matches(inputs["x"], before, name="x")


def test_a_mean_far_from_zero_costs_no_digits(kata, oracle, device, seed):
    # eighths are exact; a mean of 10,000 is rounded to 5e-4
    draw = torch.Generator().manual_seed(seed)
    x = (1e4 + torch.randint(-24, 25, (4, 30), generator=draw) / 8).to(device)
    mask = torch.ones_like(x, dtype=torch.bool)
    off = (kata.masked_whiten(x, mask) - oracle.reference_masked_whiten(x=x, mask=mask)).abs().max()
    assert off <= 2e-3, f"deviations up to 3 around 10,000: off by {off}, expected at most 2e-3"


def test_more_numbers_than_float16_counts(kata, device):
    # 70,000 of them, half -1 and half 3: mean 1, deviation 2
    x = torch.tensor([-1.0, 3.0], dtype=torch.float16, device=device).repeat(7, 5000)
    found = kata.masked_whiten(x, torch.ones_like(x, dtype=torch.bool))
    assert (found.min().item(), found.max().item()) == pytest.approx((-1.0, 1.0))


def test_nothing_selected_is_all_zero(kata, device):
    x = torch.full((2, 3), float("nan"), device=device)
    assert kata.masked_whiten(x, torch.zeros_like(x, dtype=torch.bool)).tolist() == [[0.0] * 3] * 2


def test_a_number_alone_is_its_own_mean(kata, device):
    x = torch.tensor([[float("nan"), 5.0]], device=device)
    mask = torch.tensor([[False, True]], device=device)
    assert kata.masked_whiten(x, mask).tolist() == [[0.0, 0.0]]


def test_whitening_by_hand(kata, device):
    # 1 and 5: mean 3, deviation 2
    x = torch.tensor([[1.0, 100.0], [5.0, float("nan")]], device=device)
    mask = torch.tensor([[True, False], [True, False]], device=device)
    want = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert_matches(kata.masked_whiten(x, mask), want)


def test_the_floor_is_added_to_the_variance(kata, device):
    # deviations of 1e-4: a variance of 1e-8, and as much again
    x = torch.tensor([[1e-4, -1e-4]], device=device)
    mask = torch.ones(1, 2, dtype=torch.bool, device=device)
    want = torch.tensor([[0.5**0.5, -(0.5**0.5)]], dtype=torch.float64)
    assert_matches(kata.masked_whiten(x, mask), want)


def test_numbers_that_are_all_the_same_become_zero(kata, device):
    x = torch.full((2, 3), 0.1, device=device)
    mask = torch.ones(2, 3, dtype=torch.bool, device=device)
    off = kata.masked_whiten(x, mask).abs().max().item()
    assert off <= 1e-3, f"expected 0, found {off}"
