"""What is counted and what has a gradient, which tokens count, and what ranks tell each other."""

import math

import pytest
import torch

from harness.judge import assert_matches
from harness.meters.collectives import Collectives
from harness.meters.network import network
from harness.simulators.ranks import rank_device

LIMIT_S = 10.0  # it takes a tenth of a second; ranks that miss each other wait for ever
# tokens, experts, choices: one of each, all experts, Switch's one, sizes that nothing divides
SIZES = ((1, 1, 1), (5, 3, 3), (16, 8, 1), (33, 7, 2), (64, 20, 6))


class ClosedCollectives(Collectives):
    """Four ranks between which nothing may be sent."""

    rank, world = 1, 4

    def all_reduce(self, tensor):
        raise AssertionError("expected a ValueError before anything is sent, found an all-reduce")


def close(expected):
    return pytest.approx(expected, rel=2e-6, abs=1e-7)


# ---- one process -------------------------------------------------------------------------------


def test_perfect_balance_costs_one(kata):
    for k in (1, 2, 3, 6):
        idx = torch.stack([(torch.arange(12) + at) % 6 for at in range(k)], dim=1)
        loss = kata.load_balance_loss(torch.zeros(12, 6), idx)
        assert loss.shape == ()
        assert loss.item() == close(1.0), f"6 experts, {k} of them for each token"


def test_one_expert_for_all_costs_the_number_of_experts(kata):
    logits = torch.zeros(9, 5)
    logits[:, 3] = 1e4
    assert kata.load_balance_loss(logits, torch.full((9, 1), 3)).item() == close(5.0)
    # with two choices only half of them go there
    assert kata.load_balance_loss(logits, torch.tensor([[3, 0]] * 9)).item() == close(2.5)


def test_by_hand(kata):
    # probabilities 1/4, 3/4 and 1/2, 1/2; both tokens choose expert 1
    logits = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]])
    assert kata.load_balance_loss(logits, torch.tensor([[1], [1]])).item() == close(1.25)
    expected = (math.log(4) ** 2 + math.log(2) ** 2) / 2
    assert kata.router_z_loss(logits).item() == close(expected)


@pytest.mark.parametrize(("t", "e", "k"), SIZES)
def test_of_one_batch(kata, oracle, seed, t, e, k):
    logits, idx = oracle.batch(t, e, k, seed)
    told = f"{t} tokens, {e} experts, {k} choices"
    for chosen in (idx, idx.int(), idx.T.contiguous().T):
        found = kata.load_balance_loss(logits, chosen).item()
        assert found == close(oracle.balance(logits, idx)), told
    assert kata.router_z_loss(logits).item() == close(oracle.z_loss(logits)), told


def test_logits_of_half_precision_count_in_float32(kata, oracle, seed):
    logits, idx = oracle.batch(300, 40, 2, seed)
    for dtype in (torch.float16, torch.bfloat16):
        given = logits.to(dtype)
        loss, z = kata.load_balance_loss(given, idx), kata.router_z_loss(given)
        assert (loss.dtype, z.dtype) == (torch.float32, torch.float32)
        assert loss.item() == close(oracle.balance(given, idx)), f"logits in {dtype}"
        assert z.item() == close(oracle.z_loss(given)), f"logits in {dtype}"


def test_large_logits_cost_much_and_stay_finite(kata):
    logits = torch.full((3, 4), 1e4)
    assert kata.router_z_loss(logits).item() == close((1e4 + math.log(4)) ** 2)
    assert kata.router_z_loss(-logits).item() == close((1e4 - math.log(4)) ** 2)
    assert kata.load_balance_loss(logits, torch.tensor([[0], [1], [2]])).item() == close(1.0)


# ---- which tokens count ------------------------------------------------------------------------


def test_padding_does_not_count(kata, oracle, seed):
    logits, idx = oracle.batch(31, 6, 2, seed)
    mask = oracle.some(31, seed)
    padded, chosen = logits.clone(), idx.clone()
    padded[~mask], chosen[~mask] = math.nan, -1
    before = padded.clone(), chosen.clone(), mask.clone()
    found = kata.load_balance_loss(padded, chosen, mask).item()
    assert found == close(oracle.balance(logits[mask], idx[mask]))
    assert kata.router_z_loss(padded, mask).item() == close(oracle.z_loss(logits[mask]))
    for name, now, then in zip(
        ("logits", "idx", "mask"), (padded, chosen, mask), before, strict=True
    ):
        assert torch.equal(now.nan_to_num(7), then.nan_to_num(7)), f"{name} was written to"


def test_no_tokens_cost_nothing(kata, ranks):
    nobody = torch.zeros(3, dtype=torch.bool)

    def pull(t, mask):
        logits, idx = torch.randn(t, 4).requires_grad_(), torch.zeros(t, 2, dtype=torch.int64)
        loss, z = kata.load_balance_loss(logits, idx, mask), kata.router_z_loss(logits, mask)
        grads = [torch.autograd.grad(one, logits)[0] for one in (loss, z)]
        return loss.item(), z.item(), torch.stack(grads)

    for t, mask in ((0, None), (3, nobody)):
        loss, z, grad = ranks.alone(lambda t=t, mask=mask: pull(t, mask))
        assert (loss, z) == (0, 0), f"losses of {t} tokens of which none counts"
        assert not grad.any(), f"gradients of {t} tokens of which none counts: {grad}, expected 0"


# ---- gradients ---------------------------------------------------------------------------------


def test_only_probabilities_have_a_gradient(kata, oracle, ranks, seed):
    logits, idx = oracle.batch(23, 6, 2, seed)
    mask = oracle.some(23, seed)

    def pull():
        found = []
        for loss in (
            lambda x: kata.load_balance_loss(x, idx),
            lambda x: kata.load_balance_loss(x, idx, mask),
            lambda x: kata.router_z_loss(x, mask),
        ):
            # but for the first padding counts for nothing, and is NaN
            hidden = ~mask[:, None] if found else torch.tensor(False)
            x = logits.masked_fill(hidden, math.nan).requires_grad_()
            found.append(torch.autograd.grad(loss(x), x)[0])
        return found

    whole, masked, z = ranks.alone(pull)
    assert_gradient(oracle, whole, oracle.balance_gradient, logits, idx, name="the gradient")
    for name, found in (("load_balance_loss", masked), ("router_z_loss", z)):
        rows = found[~mask]
        assert not rows.any(), f"{name}: the gradient of padding that is NaN: {rows}, expected 0"
    rows = logits[mask], idx[mask]
    assert_gradient(
        oracle, masked[mask], oracle.balance_gradient, *rows, name="the gradient with padding"
    )
    assert_gradient(oracle, z[mask], oracle.z_gradient, rows[0], name="the z-loss's gradient")


def assert_gradient(oracle, found, formula, *given, name, times=1):
    """Hold a gradient against its formula, by the error of the formula in float32."""
    truth = formula(*given)
    rounded = times * oracle.rounded(formula, truth, *given)
    assert_matches(found, times * truth, same_precision=rounded, name=name)


# ---- ranks -------------------------------------------------------------------------------------


def shards(oracle, world, seed, e=16, k=2):
    """Batches of different sizes, padding in them; the last rank has no token that counts."""
    found = []
    for rank in range(world):
        t = 5 + 3 * rank
        logits, idx = oracle.batch(t, e, k, seed + rank)
        mask = oracle.some(t, seed + rank)
        if rank == world - 1 and rank:
            mask[:] = False
        found.append((logits, idx, mask))
    return found


def test_the_mean_over_ranks_is_the_loss_of_the_whole_batch(kata, oracle, ranks, cost, seed):
    def step(rank, world):
        found = []
        for round_ in range(2):  # twice, with other tokens
            logits, idx, mask = (
                one.to(rank_device()) for one in shards(oracle, world, seed + 100 * round_)[rank]
            )
            x = logits.requires_grad_()
            with network() as (dp, meter):
                loss = kata.load_balance_loss(x, idx, mask, dp)
                loss.backward()
            found.append((loss.item(), x.grad.cpu(), meter.calls, meter.bytes_sent, meter.messages))
        return found

    for world in range(2, ranks.world(4) + 1):
        by_rank = ranks(world, step, timeout_s=LIMIT_S)
        for round_ in range(2):
            parts = shards(oracle, world, seed + 100 * round_)
            logits, idx = (torch.cat([part[at][part[2]] for part in parts]) for at in (0, 1))
            found = [one[round_] for one in by_rank]
            mean = sum(loss for loss, *_ in found) / world
            told = f"{world} ranks, call {round_ + 1}"
            assert mean == close(oracle.balance(logits, idx)), told
            grads = torch.cat([one[1][part[2]] for one, part in zip(found, parts, strict=True)])
            name = f"{told}: gradients"
            assert_gradient(
                oracle, grads, oracle.balance_gradient, logits, idx, name=name, times=world
            )
            assert [dict(calls) for _, _, calls, *_ in found] == [{"all_reduce": 1}] * world, told
            if world == 4:
                cost.check("comm_bytes", max(sent for *_, sent, _ in found))
                cost.check("comm_steps", max(messages for *_, messages in found))


class ManyAlike(Collectives):
    """So many ranks that all have the same batch: their sum is a multiple."""

    rank, world = 0, 2**27

    def all_reduce(self, tensor):
        tensor *= self.world
        return self

    def wait(self):
        pass


def test_choices_of_all_ranks_pass_31_bits(kata, device):
    logits = torch.tensor([[0.0, math.log(3), 0.0]] * 8, device=device)
    idx = torch.tensor([[0, 1, 2]] * 8, device=device)  # 8 * 3 * 2**27 choices
    found = kata.load_balance_loss(logits, idx, dp=ManyAlike())
    assert found.item() == close(1.0)


def test_specialised_batches_are_balanced_together(kata, ranks):
    """Each rank's tokens all want an expert of their own: bad for one batch, ideal for all."""

    def step(rank, world):
        logits = torch.zeros(4, world, device=rank_device())
        logits[:, rank] = 1e4
        idx = torch.full((4, 1), rank, device=rank_device())
        with network(Collectives) as (dp, meter):
            alone = kata.load_balance_loss(logits, idx).item()
            silent = not meter.calls
            return alone, silent, kata.load_balance_loss(logits, idx, dp=dp).item()

    world = ranks.world(2)
    for alone, silent, together in ranks(world, step, timeout_s=LIMIT_S):
        assert alone == close(float(world)), "without dp: the loss of the rank's own batch"
        assert silent, "without dp: expected that nothing is sent"
        assert together == close(1.0), "with dp: the load of all ranks, this rank's probabilities"


# ---- what it takes -----------------------------------------------------------------------------


def test_no_choice_is_spelled_out(kata, oracle, dispatch, cost, seed):
    t, e, k = 64, 256, 2
    logits, idx = oracle.batch(t, e, k, seed)
    with dispatch() as counted:
        kata.load_balance_loss(logits, idx)
    cost.check("peak", counted.peak_live_bytes / (t * e * 4))


def test_work_is_not_cut_by_expert_or_token(kata, oracle, dispatch, seed):
    found = []
    for t, e in ((6, 4), (60, 24)):
        logits, idx = oracle.batch(t, e, 2, seed)
        with dispatch() as counted:
            kata.load_balance_loss(logits, idx)
            kata.router_z_loss(logits)
        found.append(sum(counted.calls.values()))
    assert found[0] == found[1], "operators for 6 tokens and 4 experts, for 60 and 24"


# ---- what is refused ---------------------------------------------------------------------------

X, IDX = torch.zeros(4, 3), torch.zeros(4, 2, dtype=torch.int64)
REFUSED = {
    "an expert too many": ((X, IDX + 3), "idx"),
    "an expert below 0": ((X, IDX - 1), "idx"),
    "another number of tokens": ((X, IDX[:3]), "idx"),
    "more rows than tokens": ((X, torch.zeros(5, 2, dtype=torch.int64)), "idx"),
    "a choice for each token": ((X, IDX[:, 0]), "idx"),
    "more choices than experts": ((X, torch.zeros(4, 4, dtype=torch.int64)), "idx"),
    "no choices": ((X, IDX[:, :0]), "idx"),
    "one row": ((X[0], IDX), "logits"),
    "no experts": ((X[:, :0], IDX), "logits"),
    "a short mask": ((X, IDX, torch.ones(3, dtype=torch.bool)), "mask"),
    "a mask of numbers": ((X, IDX, torch.ones(4)), "mask"),
}


@pytest.mark.parametrize(("given", "name"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(kata, given, name):
    mask = given[2] if len(given) == 3 else None
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.load_balance_loss(*given[:2], mask, ClosedCollectives())
    if name != "idx":
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.router_z_loss(given[0], mask)
