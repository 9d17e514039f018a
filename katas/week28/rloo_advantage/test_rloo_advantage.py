"""Which rewards an answer is compared with, and what a baseline does to mean and variance."""

import pytest
import torch

ESTIMATORS = ("none", "mean", "loo", "std")
GROUPS = 20_000


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def close(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-12)


# ---- advantages --------------------------------------------------------------------------------


def test_by_hand(kata):
    # others of the first prompt: means 2, 3, 4; of two answers each is the other's baseline
    assert kata.rloo_advantage(numbers(5, 3, 1, 0, 0, 9), 3).tolist() == close(
        [3, 0, -3, -4.5, -4.5, 9]
    )
    assert kata.rloo_advantage(numbers(5, 3, 2, -1), 2).tolist() == close([2, -2, 3, -3])
    # the same two prompts, sample after sample
    mixed = kata.rloo_advantage(numbers(5, 0, 3, 0, 1, 9), 3, interleaved=True)
    assert mixed.tolist() == close([3, -4.5, 0, -4.5, -3, 9])


def test_groups_are_centred_and_their_level_does_not_matter(kata, seed):
    rewards = torch.randint(-40, 40, (35,), generator=torch.Generator().manual_seed(seed)).double()
    adv = kata.rloo_advantage(rewards, 5)
    assert adv.view(7, 5).sum(1).abs().max().item() < 1e-9, "sum of the advantages of a group"
    assert kata.rloo_advantage(rewards + 1000, 5).tolist() == close(adv.tolist())
    # what GRPO has without the deviation, times k / (k - 1)
    centred = (rewards.view(7, 5) - rewards.view(7, 5).mean(1, keepdim=True)).flatten()
    assert adv.tolist() == close((centred * 5 / 4).tolist())


def test_equal_rewards_are_worth_nothing(kata):
    for interleaved in (False, True):
        assert kata.rloo_advantage(numbers(*[0.5] * 12), 4, interleaved).tolist() == [0.0] * 12


def test_no_matrix_of_pairs(kata, dispatch, cost):
    calls = {}
    for groups, k in ((2, 4), (40, 4), (2, 1024)):
        for interleaved in (False, True):
            rewards = torch.ones(groups * k)
            with dispatch() as counted:
                kata.rloo_advantage(rewards, k, interleaved)
            calls.setdefault(interleaved, {})[groups, k] = sum(counted.calls.values())
    for interleaved, found in calls.items():
        told = f"operators by (groups, k), interleaved {interleaved}: expected one number"
        assert len(set(found.values())) == 1, f"{told}, found {found}"
    cost.check("peak", counted.peak_live_bytes / rewards.nbytes)


# ---- the loss ----------------------------------------------------------------------------------


def test_only_log_probabilities_have_a_gradient(kata, oracle, device, seed):
    given = oracle.make_inputs_rloo_loss(
        groups=3, k=4, dtype=torch.float64, device=device, seed=seed, beta=0.3
    )
    leaves = [given[name].requires_grad_() for name in ("seq_logp", "rewards", "kl_seq")]
    kata.rloo_loss(**given).backward()
    shaped = (given["rewards"] - 0.3 * given["kl_seq"]).detach()
    want = -oracle.reference(rewards=shaped, k=4, interleaved=False) / 12
    assert leaves[0].grad.tolist() == close(want.tolist())
    assert [one.grad for one in leaves[1:]] == [None, None], "gradients of rewards and divergence"


# ---- the estimators ----------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_mean_and_variance_are_those_of_all_that_can_be_drawn(kata, oracle, device, estimator):
    bandit = oracle.Bandit(device=device)
    for k in (2, 4):
        mean, variances = bandit.moments(k, estimator)
        found, spread = kata.gradient_moments(bandit.logits, bandit, k, estimator, GROUPS, seed=k)
        assert found.shape == mean.shape
        assert spread.shape == ()
        # six deviations of the mean: no sampler is so unlucky
        limits = (6 * (variances / GROUPS).sqrt()).tolist()
        for at, (one, right, limit) in enumerate(
            zip(found.tolist(), mean.tolist(), limits, strict=True)
        ):
            told = f"{estimator}, k = {k}, logit {at}: found {one}, expected {right} ± {limit}"
            assert abs(one - right) <= limit, told
        assert spread.item() == pytest.approx(variances.sum().item(), rel=0.1), f"{estimator}, {k}"


def test_variance_of_two_groups_is_that_of_a_sample(kata, oracle):
    bandit = oracle.Bandit()
    want = bandit.moments(2, "none")[1].sum().item()
    found = [
        kata.gradient_moments(bandit.logits, bandit, 2, "none", 2, seed)[1].item()
        for seed in range(300)
    ]
    # over `groups` in place of `groups` - 1 it would be half
    assert sum(found) / 300 == pytest.approx(want, rel=0.35), "mean variance of 2 groups, 300 times"


def test_bias_of_each(kata, oracle):
    """None and "loo" meet the gradient; "mean" has 3/4 of it, "std" another direction."""
    bandit = oracle.Bandit()
    exact = bandit.gradient()
    found = {
        estimator: kata.gradient_moments(bandit.logits, bandit, 4, estimator, GROUPS, 7)[0]
        for estimator in ESTIMATORS
    }
    share = {name: (one @ exact / (exact @ exact)).item() for name, one in found.items()}
    assert share["none"] == pytest.approx(1, abs=0.1)
    assert share["loo"] == pytest.approx(1, abs=0.1)
    assert share["mean"] == pytest.approx(0.75, abs=0.08)
    rest = found["std"] - share["std"] * exact
    assert rest.norm().item() > 0.05 * found["std"].norm().item(), "direction of std"


def test_a_baseline_takes_away_variance(kata, oracle, cost):
    for offset, name in ((0.0, "variance"), (5.0, "variance_offset")):
        bandit = oracle.Bandit(offset)
        spread = [
            kata.gradient_moments(bandit.logits, bandit, 4, estimator, GROUPS, 3)[1].item()
            for estimator in ("loo", "none")
        ]
        cost.check(name, spread[0] / spread[1])
    # where rewards are around 0 already there is nothing to take away
    bandit = oracle.Bandit(-1.75)
    loo, none = (
        kata.gradient_moments(bandit.logits, bandit, 4, estimator, GROUPS, 3)[1].item()
        for estimator in ("loo", "none")
    )
    assert loo / none == pytest.approx(1.5, abs=0.15), "rewards around 0: ratio of the variances"


def test_each_sample_is_asked_for_once(kata, oracle, cost):
    bandit = oracle.Bandit()
    first = kata.gradient_moments(bandit.logits, bandit, 4, "loo", 500, 11)[0]
    cost.check("samples", bandit.samples)
    again = kata.gradient_moments(bandit.logits, bandit, 4, "loo", 500, 11)[0]
    other = kata.gradient_moments(bandit.logits, bandit, 4, "loo", 500, 12)[0]
    assert torch.equal(first, again), "the same seed twice"
    assert not torch.equal(first, other), "seeds 11 and 12"


def test_the_seed_is_of_these_samples_alone(kata, oracle):
    bandit = oracle.Bandit()
    before = torch.get_rng_state()
    kata.gradient_moments(bandit.logits, bandit, 2, "loo", 5, 11)
    assert torch.equal(torch.get_rng_state(), before), "expected the global generator as it was"


def test_moments_refuse(kata, oracle):
    bandit = oracle.Bandit()
    for name, k, estimator, groups in (
        ("k", 1, "loo", 5),
        ("k", 1, "none", 5),
        ("groups", 2, "loo", 1),
        ("estimator", 2, "LOO", 5),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.gradient_moments(bandit.logits, bandit, k, estimator, groups, 0)


def test_small_deviations_are_damped(kata, device, seed):
    logits = torch.zeros(2, dtype=torch.float64, device=device)
    slopes = {}
    for unit in (1.0, 1e-4):  # one of two is worth a unit, so deviations are unit / sqrt(2), or 0
        mean, _ = kata.gradient_moments(
            logits, lambda a, unit=unit: unit * a.double(), 2, "std", 50, seed
        )
        slopes[unit] = mean[1].item() * (unit * 0.5**0.5 + 1e-4) / unit
    assert slopes[1e-4] == pytest.approx(slopes[1.0], rel=1e-9), f"slopes by unit: {slopes}"
