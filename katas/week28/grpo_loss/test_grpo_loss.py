"""What the loss pulls at, what a token weighs, and which sequences are run."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.meters.dispatch import flop_meter

WAYS = {"grpo": None, "dapo": None, "dr_grpo": 16}
# rewards of eight groups of eight; three of them tell something
SOME = [*[1.0] * 8, *[1.0] * 3, *[0.0] * 5, *[0.0] * 16, *[0.1] * 8]
SOME += [0.0] * 7 + [1.0] + [0.0] * 8 + [1.0, 0.0] * 4


def close(expected, rel=1e-5):
    return pytest.approx(expected, rel=rel, abs=1e-7)


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


# ---- the loss of a token -----------------------------------------------------------------------


def test_by_hand(kata):
    # ratios of 2 and 1/2 in a row of two tokens, of 1 in a row of one: advantages 1 and -2
    logp = torch.tensor([[math.log(2), -math.log(2)], [0.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, False]])
    given = (logp, torch.zeros_like(logp), None, torch.tensor([1.0, -2.0]).double(), mask)
    assert kata.grpo_loss(*given).item() == close((-(1.2 + 0.5) / 2 + 2) / 2)
    assert kata.grpo_loss(*given, agg="dapo").item() == close((-1.7 + 2) / 3)
    assert kata.grpo_loss(*given, agg="dr_grpo", max_len=10).item() == close((-1.7 + 2) / 20)
    # a reference at 0 besides: 1/2 + log 2 - 1, 2 - log 2 - 1, and 0
    found = kata.grpo_loss(logp, *given[1:2], 0 * logp, *given[3:], beta=0.1, agg="dapo").item()
    assert found == close((0.3 + 0.1 * 0.5) / 3)


def test_the_smaller_surrogate_counts(kata):
    """Clipped where a step would go too far, and nowhere else, up and down by different amounts."""
    ratio = column(0.5, 0.85, 1.25, 1.4, 0.5, 0.85, 1.25, 1.4)
    adv = column(*[1.0] * 4, *[-1.0] * 4)[:, 0]
    mask = torch.ones(8, 1, dtype=torch.bool)
    logp = ratio.log().requires_grad_()
    one = {"clip_low": 0.2, "clip_high": 0.3, "agg": "dapo"}
    loss = kata.grpo_loss(logp, torch.zeros_like(ratio), None, adv, mask, **one)
    loss.backward()
    # the gradient is -adv * ratio / 8, or 0 where the ratio is clipped
    want = [-0.5, -0.85, -1.25, 0, 0, 0.85, 1.25, 1.4]
    assert [8 * slope for slope in logp.grad[:, 0].tolist()] == close(want)
    assert 8 * loss.item() == close(-0.5 - 0.85 - 1.25 - 1.3 + 0.8 + 0.85 + 1.25 + 1.4)


@pytest.mark.parametrize("agg", WAYS)
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_gradients_are_those_derived_by_hand(kata, oracle, device, seed, agg, beta):
    given = oracle.make_inputs(
        rows=6, cols=9, dtype=torch.float64, device=device, seed=seed,
        clip_high=0.3, beta=beta, agg=agg, max_len=WAYS[agg],
    )  # fmt: skip
    leaves = [given[name] for name in ("logp", "old_logp", "ref_logp", "adv")]
    leaves = [one.requires_grad_() for one in leaves if one is not None]
    kata.grpo_loss(**given).backward()
    want = oracle.scalar(**given)[1].tolist()
    assert leaves[0].grad.tolist() == [close(row, rel=1e-9) for row in want], f"{agg}, β {beta}"
    assert all(one.grad is None for one in leaves[1:]), "more than logp has a gradient"


def test_padding_may_be_anything(kata, oracle, device, seed):
    for agg, max_len in WAYS.items():
        given = oracle.make_inputs(
            rows=5, cols=9, dtype=torch.float64, device=device, seed=seed, beta=0.1, agg=agg,
            max_len=max_len,
        )  # fmt: skip
        want, gradient = oracle.scalar(**given)
        for name, filler in (("logp", 1e4), ("old_logp", -math.inf), ("ref_logp", math.nan)):
            given[name] = given[name].masked_fill(~given["mask"], filler)
        logp = given["logp"].requires_grad_()
        loss = kata.grpo_loss(**given)
        loss.backward()
        assert loss.item() == close(want), f"{agg}: padding of 10000, -inf and NaN"
        assert logp.grad.tolist() == [close(row) for row in gradient.tolist()], agg


def test_without_beta_nobody_looks_at_the_reference(kata, oracle, device, seed):
    given = oracle.make_inputs(rows=4, cols=5, dtype=torch.float64, device=device, seed=seed)
    given["ref_logp"] = torch.full_like(given["logp"], math.nan)
    assert kata.grpo_loss(**given).item() == close(oracle.scalar(**given)[0])


def test_rows_without_tokens_weigh_nothing(kata):
    logp, adv = torch.zeros(3, 4), torch.tensor([1.0, 1.0, 4.0])
    mask = torch.tensor([[True, True, False, False], [False] * 4, [True] * 4])
    for agg, want in {"grpo": -5 / 3, "dapo": -18 / 6, "dr_grpo": -18 / 48}.items():
        found = kata.grpo_loss(logp, logp, None, adv, mask, agg=agg, max_len=WAYS[agg]).item()
        assert found == close(want), agg
        none = kata.grpo_loss(logp, logp, None, adv, mask & False, agg=agg, max_len=WAYS[agg])
        assert none.item() == 0, f"{agg}: no tokens at all"
        nobody = kata.loss_divisor(mask[:0], agg, WAYS[agg])
        assert nobody == 1, f"{agg}: the divisor of no rows"
        assert type(kata.loss_divisor(mask, agg, WAYS[agg])) is int, f"{agg}: type of the divisor"
    assert kata.loss_divisor(mask, "dr_grpo", 1) == 3, "three rows, max_len = 1"


# ---- what a token weighs -----------------------------------------------------------------------


def test_longer_answers_are_diluted_in_one_way_only(kata):
    """The same answer at twice the length: a token weighs half with "grpo", as before else."""
    short = torch.tensor([[True] * 4 + [False] * 4, [True] * 8])
    long = torch.ones(2, 8, dtype=torch.bool)
    weigh = {}
    for agg, max_len in WAYS.items():
        for mask in (short, long):
            logp = torch.zeros(2, 8, requires_grad=True)
            kata.grpo_loss(
                logp, torch.zeros(2, 8), None, torch.tensor([1.0, -1.0]), mask,
                agg=agg, max_len=max_len,
            ).backward()  # fmt: skip
            weigh.setdefault(agg, []).append(-logp.grad[0, 0].item())
    assert weigh["grpo"] == close([1 / 8, 1 / 16])
    assert weigh["dapo"] == close([1 / 12, 1 / 16])
    assert weigh["dr_grpo"] == close([1 / 32, 1 / 32])


@given(cuts=st.lists(st.integers(0, 7), max_size=4), agg=st.sampled_from(list(WAYS)))
def test_parts_of_any_size_add_up(kata, oracle, cuts, agg):
    given = oracle.make_inputs(
        rows=7, cols=6, dtype=torch.float64, device="cpu", seed=len(cuts), beta=0.2, agg=agg,
        max_len=WAYS[agg],
    )  # fmt: skip
    want, gradient = oracle.scalar(**given)
    given["divisor"] = kata.loss_divisor(given["mask"], agg, WAYS[agg])
    logp = given["logp"].requires_grad_()
    total, edges = 0.0, [0, *sorted(cuts), 7]
    for start, end in pairwise(edges):
        rows = ("logp", "old_logp", "ref_logp", "adv", "mask")
        part = {name: one[start:end] if name in rows else one for name, one in given.items()}
        loss = kata.grpo_loss(**part)
        loss.backward()
        total += loss.item()
    assert total == close(want), f"{agg}, cut at {cuts}"
    assert logp.grad.tolist() == [close(row) for row in gradient.tolist()], f"{agg}, cut at {cuts}"


# ---- groups ------------------------------------------------------------------------------------


def test_equal_rewards_are_worth_exactly_nothing(kata):
    # the mean of three times 0.1 is not 0.1; and 0 is -0
    rewards = torch.tensor([0.1] * 3 + [0.0, -0.0, 0.0] + [7.0, 7.0, 7.5])
    for eps in (1e-4, 0.0):
        for scale in ("std", "none"):
            found = kata.group_advantages(rewards, 3, scale, eps)
            assert found[:6].tolist() == [0.0] * 6, f"scale {scale}, eps {eps}"
            assert found[8] > 0
    assert kata.informative_groups(rewards, 3).tolist() == [False, False, True]


def test_rewards_by_hand(kata):
    # one right answer of eight: mean 1/8, deviation of the sample sqrt(1/8)
    rewards = torch.tensor([0.0] * 7 + [1.0], dtype=torch.float64)
    want = [-(0.125**0.5)] * 7 + [7 * 0.125**0.5]
    assert kata.group_advantages(rewards, 8, eps=0.0).tolist() == close(want)
    pairs = torch.tensor([3.0, 1.0, -1.0, 4.0], dtype=torch.float64)
    half = 0.5**0.5
    assert kata.group_advantages(pairs, 2, eps=0.0).tolist() == close([half, -half, -half, half])
    assert kata.group_advantages(pairs, 2, "none").tolist() == [1.0, -1.0, -2.5, 2.5]


def test_units_of_the_reward_do_not_matter(kata, seed):
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 9, (24,), generator=generator).double()
    rewards[::4] += 20  # so that every group tells something
    once = kata.group_advantages(rewards, 4, eps=0.0)
    units = kata.group_advantages(3 * rewards - 7, 4, eps=0.0)
    assert units.tolist() == close(once.tolist(), rel=1e-9)


# ---- a step ------------------------------------------------------------------------------------


def full_step(kata, oracle, model, rollout, settings):
    """The loss and the gradients of the batch in one piece, from the formula derived by hand."""
    logp = model(rollout.tokens)
    adv = kata.group_advantages(rollout.rewards, settings.group, settings.scale)
    loss, gradient = oracle.scalar(
        logp=logp, old_logp=logp if rollout.old_logp is None else rollout.old_logp,
        ref_logp=rollout.ref_logp, adv=adv, mask=rollout.mask, clip_low=settings.clip_low,
        clip_high=settings.clip_high, beta=settings.beta, agg=settings.agg,
        max_len=settings.max_len, divisor=None,
    )  # fmt: skip
    parameters = list(model.parameters())
    return loss, torch.autograd.grad((logp * gradient.to(logp)).sum(), parameters)


@pytest.mark.parametrize("agg", WAYS)
def test_a_step_is_that_of_the_whole_batch(kata, oracle, device, seed, agg):
    for beta, old in ((0.0, False), (0.0, True), (0.2, True)):
        model = oracle.Policy(seed).to(device)
        shape = (len(SOME), 9)
        known = -2 - torch.rand(2, *shape, generator=torch.Generator().manual_seed(seed))
        known = {"old_logp": known[0], "ref_logp": known[1]} if old else {}
        rollout = oracle.rollout_of(kata.Rollout, seed, rewards=SOME, device=device, **known)
        settings = kata.Settings(8, clip_high=0.3, beta=beta, agg=agg, max_len=WAYS[agg])
        want, gradients = full_step(kata, oracle, model, rollout, settings)
        adv = kata.group_advantages(rollout.rewards, 8)
        found = kata.grpo_step(model, rollout, settings, rows=23)  # 24 tell something: one is left
        told = f"{agg}, beta = {beta}, {'later' if old else 'first'} epoch"
        assert found.requires_grad is False
        # advantages cancel, so that the error is that of terms of their size
        error = 8 * torch.finfo(torch.float32).eps * adv.abs().max().item()
        assert found.item() == pytest.approx(want, rel=1e-4, abs=error), told
        for name, one, right in zip(
            ("words", "inner", "outer"), model.parameters(), gradients, strict=True
        ):
            worst = (one.grad - right).abs().max().item()
            most = right.abs().max().item()
            assert worst <= 1e-4 * most, f"{told}: gradient of {name} off by {worst} of {most}"
        if agg == "grpo":
            kata.grpo_step(model, rollout, settings, rows=64)
            twice = next(model.parameters()).grad
            worst = (twice - 2 * gradients[0]).abs().max().item()
            assert worst <= 2e-4 * gradients[0].abs().max().item(), "gradients add up"


def test_groups_that_tell_nothing_are_not_run(kata, oracle, device, cost, seed):
    model = oracle.Policy(seed).to(device)
    rollout = oracle.rollout_of(kata.Rollout, seed, rewards=SOME, device=device)
    with flop_meter() as whole:
        model(rollout.tokens).sum().backward()
    model.calls = model.sequences = model.largest = 0
    with flop_meter() as step:
        kata.grpo_step(model, rollout, kata.Settings(8, agg="dapo"), rows=10)
    cost.check("forwards", model.calls)
    cost.check("flops", step.flops / (whole.flops * 3 / 8))
    assert (model.sequences, model.largest) == (24, 10), "sequences run, and the most at a time"


def test_a_divergence_needs_all_groups(kata, oracle, device, seed):
    model = oracle.Policy(seed).to(device)
    known = torch.full((64, 9), -2.0)
    rollout = oracle.rollout_of(
        kata.Rollout, seed, rewards=SOME, device=device, old_logp=known, ref_logp=known
    )
    kata.grpo_step(model, rollout, kata.Settings(8, beta=0.1), rows=64)
    assert model.sequences == 64, "sequences run with beta = 0.1"


def test_nothing_to_learn_costs_nothing(kata, oracle, device):
    model = oracle.Policy(0).to(device)
    rollout = oracle.rollout_of(kata.Rollout, 0, rewards=[0.1] * 12, device=device)
    assert kata.grpo_step(model, rollout, kata.Settings(3), rows=1).item() == 0
    assert model.calls == 0, "forward passes for groups of equal rewards"


def test_no_critic_is_needed(kata, oracle, device, dispatch, cost, seed):
    rewards, peaks = [0.0, 1.0] * 4, []
    rollout = oracle.rollout_of(
        kata.Rollout, seed, rewards=rewards, cols=5, vocab=96, device=device,
        old_logp=torch.full((8, 5), -4.0),
    )  # fmt: skip
    policy, critic = (oracle.Policy(at, vocab=96, width=96).to(device) for at in range(2))
    values = torch.nn.Parameter(torch.ones((), device=device))
    with dispatch(held=list(policy.parameters())) as counted:
        kata.grpo_step(policy, rollout, kata.Settings(4), rows=8)
    peaks.append(counted.peak_live_bytes)
    policy.zero_grad()
    with dispatch(held=[*policy.parameters(), *critic.parameters(), values]) as counted:
        oracle.ppo_step(policy, critic, values, rollout)
    peaks.append(counted.peak_live_bytes)
    cost.check("peak_of_ppo", peaks[0] / peaks[1])


def test_one_part_is_in_memory_at_a_time(kata, oracle, device, dispatch, cost, seed):
    rollout = oracle.rollout_of(
        kata.Rollout, seed, rewards=[0.0, 1.0] * 32, cols=30, vocab=96, device=device
    )
    peaks = []
    for rows in (8, 64):
        policy = oracle.Policy(seed, vocab=96).to(device)
        with dispatch() as counted:
            kata.grpo_step(policy, rollout, kata.Settings(8), rows)
        peaks.append(counted.peak_live_bytes)
    cost.check("peak_of_parts", peaks[0] / peaks[1])


def test_a_policy_learns(kata, oracle, one_thread):
    """It is to write 3 as often as it can; rewards are shares of 3 in its answers."""
    model, generator = oracle.Policy(1), torch.Generator().manual_seed(7)
    optimizer, means = torch.optim.Adam(model.parameters(), lr=0.02), []
    settings = kata.Settings(8, agg="dr_grpo", max_len=6)
    for _ in range(30):
        tokens = torch.full((32, 1), 8)
        with torch.no_grad():
            for _ in range(6):
                chances = model.scores(tokens[:, -1]).softmax(1)
                drawn = torch.multinomial(chances, 1, generator=generator)
                tokens = torch.cat([tokens, drawn], dim=1)
        tokens = tokens[:, 1:].contiguous()
        rewards = (tokens == 3).float().mean(1)
        means.append(rewards.mean().item())
        rollout = kata.Rollout(tokens, torch.ones_like(tokens, dtype=torch.bool), rewards)
        optimizer.zero_grad()
        kata.grpo_step(model, rollout, settings, rows=16)
        optimizer.step()
    assert means[-1] >= 0.8, f"mean rewards over training: {[round(one, 2) for one in means]}"


def test_a_step_refuses(kata, oracle):
    model = oracle.Policy(0)
    rollout = oracle.rollout_of(kata.Rollout, 0, rewards=[0.0, 1.0, 1.0, 0.0])
    with pytest.raises(ValueError, match="^rows: "):
        kata.grpo_step(model, rollout, kata.Settings(2), rows=0)
    with pytest.raises(ValueError, match="^rewards: "):
        kata.grpo_step(model, rollout, kata.Settings(3), rows=4)
    for name, settings in {
        "max_len": {"agg": "dr_grpo"}, "agg": {"agg": "mean"}, "scale": {"scale": "mad"},
        "beta": {"beta": -0.1}, "clip_low": {"clip_low": -0.1}, "clip_high": {"clip_high": -0.1},
        "ref_logp": {"beta": 0.1},
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.grpo_step(model, rollout, kata.Settings(2, **settings), rows=4)
    assert model.calls == 0, "forward passes for what is refused"
