"""Digits next to 0, gradients of odds, which tokens count, and what a step costs."""

import math
from decimal import Decimal

import pytest
import torch

from harness.meters.dispatch import flop_meter

LN2 = math.log(2)


def close(expected, rel=1e-5):
    return pytest.approx(expected, rel=rel, abs=1e-30)


def rows(*values, dtype=torch.float32):
    """One response for each value, of a single token."""
    return torch.tensor(values, dtype=dtype)[:, None], torch.ones(len(values), 1, dtype=torch.bool)


# ---- log(1 - exp(x)) ---------------------------------------------------------------------------


def test_no_digits_are_lost(kata, oracle, device, cost, seed):
    x = oracle.make_inputs_log1mexp(n=3000, low=-12, dtype=torch.float64, device=device, seed=seed)
    worst = 0.0
    for given, found in zip(x["x"].tolist(), kata.log1mexp(x["x"]).tolist(), strict=True):
        want = oracle.exactly(given)
        worst = max(worst, float(abs(Decimal(found) - want)) / math.ulp(float(want)))
    cost.check("ulp", worst)


def test_ends_of_the_range(kata):
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([0.0, -0.0, -math.inf, math.nan], dtype=dtype)
        zero, minus_zero, certain, nothing = kata.log1mexp(x).tolist()
        assert (zero, minus_zero, certain) == (-math.inf, -math.inf, 0.0), (
            f"of 0, -0, -inf: {dtype}"
        )
        assert math.isnan(nothing), f"of NaN, {dtype}"
    assert kata.log1mexp(torch.zeros(2, 0, 3)).shape == (2, 0, 3)


def test_slopes_are_finite_on_both_sides(kata):
    values = [-1e-30, -1e-9, -0.01, -LN2, -0.7, -5.0, -80.0, -1e4]
    x = torch.tensor(values, requires_grad=True)  # float32
    kata.log1mexp(x).sum().backward()
    exact = x.detach().double().tolist()
    want = [-1 / math.expm1(-one) if one > -700 else 0.0 for one in exact]
    assert x.grad.tolist() == close(want), f"slopes at {values}"


def test_what_is_no_log_probability_is_refused(kata):
    with pytest.raises(ValueError, match="^x: "):
        kata.log1mexp(torch.tensor([-1.0, 1e-30]))


# ---- the loss ----------------------------------------------------------------------------------


def test_by_hand(kata):
    # probabilities 1/2 and 1/5: odds of 1 and 1/4
    (won, mask_w), (lost, mask_l) = rows(math.log(0.5)), rows(math.log(0.2))
    loss, nll, log_odds = kata.orpo_loss(won, mask_w, lost, mask_l, 0.3)
    assert log_odds.tolist() == close([math.log(4)])
    assert nll.item() == close(LN2)
    assert loss.item() == close(LN2 + 0.3 * math.log(1.25))
    # turned round
    assert kata.orpo_loss(lost, mask_l, won, mask_w, 0.3)[2].tolist() == close([-math.log(4)])
    # one and the same
    found = kata.orpo_loss(won, mask_w, won, mask_w, 10.0)
    assert [one.item() for one in found] == [close(11 * LN2), close(LN2), 0.0]


@pytest.mark.parametrize("sure", [3.0, 1e-6, 200.0], ids=["some", "certain", "hopeless"])
def test_gradients_are_those_derived_by_hand(kata, oracle, device, seed, sure):
    given = oracle.make_inputs(
        pairs=4, cols=7, dtype=torch.float64, device=device, seed=seed, more=2, sure=sure
    )
    want = oracle.gradients(**given)
    leaves = [given[name].requires_grad_() for name in ("logp_w", "logp_l")]
    loss, nll, log_odds = kata.orpo_loss(**given)
    loss.backward()
    for name, leaf, right in zip(("logp_w", "logp_l"), leaves, want, strict=True):
        assert leaf.grad.tolist() == [close(row, rel=1e-7) for row in right.tolist()], name
    assert (leaves[1].grad >= 0).all(), "a step down makes the rejected less likely"
    told = nll.requires_grad, log_odds.requires_grad
    assert told == (False, False), "gradients of the second and third result"


@pytest.mark.parametrize(
    ("dtype", "nearly"), [(torch.float32, 1e-30), (torch.float64, 1e-17), (torch.float64, 1e-300)]
)
def test_certainty_stays_finite(kata, dtype, nearly):
    # probabilities of 1, and of nearly 1; the last pair is hopeless besides
    won, mask = rows(0.0, -nearly, -1e-9, 0.0, -1e-9, dtype=dtype)
    lost, _ = rows(-1.0, -1.0, -1.0, 0.0, -1e4, dtype=dtype)
    won, lost = (one.requires_grad_() for one in (won, lost))
    loss, _, log_odds = kata.orpo_loss(won, mask, lost, mask, 1.0)
    loss.backward()
    rejected = math.log(math.expm1(1.0))
    tiny = 2.0 ** (-126 if dtype == torch.float32 else -1022)
    want = [rejected - math.log(one) for one in (tiny, nearly, 1e-9)]
    assert log_odds[:4].tolist() == close([*want, 0.0])
    assert log_odds[4].item() == close(1e4 - math.log(1e-9))
    assert math.isfinite(loss.item())
    for name, one in (("logp_w", won), ("logp_l", lost)):
        assert one.grad.isfinite().all(), f"gradient of {name}: {one.grad[:, 0].tolist()}"
    # next to certainty the slope of the odds ratio is that of the rejected odds
    odds = 1 / math.expm1(1.0)
    assert won.grad[1:3, 0].tolist() == close([(-1 - odds) / 5] * 2)


def test_what_the_masks_leave_out_may_be_anything(kata, device):
    mask = torch.tensor([[False, True, True, False]], device=device)
    won = torch.tensor([[math.nan, -1.0, -3.0, 5.0]], device=device).requires_grad_()
    lost = torch.tensor([[7.0, -1.0, -1.0, -math.inf]], device=device).requires_grad_()
    loss, nll, log_odds = kata.orpo_loss(won, mask, lost, mask, 1.0)
    loss.backward()
    want = math.log(math.expm1(1.0)) - math.log(math.expm1(2.0))
    assert (nll.item(), log_odds.item()) == (2.0, close(want))
    for one in (won, lost):
        assert one.grad[0, [0, 3]].tolist() == [0.0, 0.0], "gradient where nothing counts"


def test_length_does_not_matter(kata, oracle, seed):
    """Each token twice: the same losses, and half the gradient for each."""
    given = oracle.make_inputs(pairs=3, cols=5, dtype=torch.float64, device="cpu", seed=seed)
    twice = {name: one if name == "lam" else one.repeat(1, 2) for name, one in given.items()}
    for one, other in zip(kata.orpo_loss(**given), kata.orpo_loss(**twice), strict=True):
        assert other.tolist() == close(one.tolist(), rel=1e-12)


REFUSED = {
    "nothing chosen": ("mask_w", (0, 0), False),
    "nothing rejected": ("mask_l", (0, 0), False),
    "chosen above 0": ("logp_w", (1, 0), 1e-3),
    "rejected above 0": ("logp_l", (1, 0), 1e-3),
}


@pytest.mark.parametrize(("name", "at", "value"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(kata, name, at, value):
    (won, mask_w), (lost, mask_l) = rows(-1.0, -2.0), rows(-1.0, -2.0)
    given = {"logp_w": won, "mask_w": mask_w, "logp_l": lost, "mask_l": mask_l}
    given[name][at] = value
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.orpo_loss(**given, lam=0.1)


# ---- a step ------------------------------------------------------------------------------------


def test_a_step_is_three_quarters_of_dpo(kata, oracle, device, cost, seed):
    policy, reference = (oracle.Policy(seed + at).to(device) for at in range(2))
    tokens, mask = oracle.batch(6, 9, seed, device=device)
    with flop_meter() as dpo:
        oracle.dpo_step(policy, reference, tokens, mask, 0.1).backward()
    policy.calls = 0
    with flop_meter() as orpo:
        loss, _, log_odds = kata.orpo_step(policy, tokens, mask, 0.5)
        loss.backward()
    cost.check("forwards", policy.calls)
    cost.check("flops_of_dpo", orpo.flops / dpo.flops)
    with torch.no_grad():
        logp = policy(tokens)
    want = oracle.reference(
        logp_w=logp[:6], mask_w=mask[:6], logp_l=logp[6:], mask_l=mask[6:], lam=0.5
    )
    assert loss.item() == close(want[0].item())
    assert log_odds.tolist() == pytest.approx(want[2].tolist(), abs=1e-4)


def test_training_learns_and_prefers(kata, oracle, one_thread):
    policy = oracle.Policy(3)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    history = []
    for step in range(30):
        tokens, mask = oracle.batch(8, 6, step % 4)
        optimizer.zero_grad()
        loss, nll, log_odds = kata.orpo_step(policy, tokens, mask, 0.5)
        loss.backward()
        optimizer.step()
        history.append((nll.item(), log_odds.mean().item()))
    (nll_before, _), (nll_after, _) = history[0], history[-1]
    assert nll_after < 0.7 * nll_before, f"nll of the chosen over training: {history[::5]}"
    with torch.no_grad():
        *_, log_odds = kata.orpo_step(policy, *oracle.batch(16, 6, 99), 0.5)
    assert (log_odds > 0).double().mean().item() >= 0.9, f"log-odds of held-out pairs: {log_odds}"


def test_half_a_pair_is_refused(kata, oracle):
    policy = oracle.Policy(0)
    tokens, mask = oracle.batch(2, 4, 0)
    for count in (3, 0):
        with pytest.raises(ValueError, match="^tokens: "):
            kata.orpo_step(policy, tokens[:count], mask[:count], 0.5)
    assert policy.calls == 0, "forward passes for what is refused"
