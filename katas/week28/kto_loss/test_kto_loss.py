"""What an answer is worth, where the reference point comes from, and what is sent and run."""

import math

import pytest
import torch

from harness.meters.communication import comm_meter
from harness.meters.dispatch import flop_meter
from harness.meters.late import LateCollectives
from harness.simulators.ranks import rank_device

LIMIT_S = 10.0  # it takes a tenth of a second; ranks that miss each other wait for ever


def close(expected, rel=1e-5):
    return pytest.approx(expected, rel=rel, abs=1e-7)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def bools(*values):
    return torch.tensor(values, dtype=torch.bool)


# ---- the loss of an answer ---------------------------------------------------------------------


def test_by_hand(kata):
    # 1 and 3 above the reference point with beta = 1/2, less the point: 0.5 and 1.5
    given = (numbers(-8.0, -5.0), numbers(-10.0, -9.0), bools(True, False), numbers(1.0)[0])
    want = (1 / (1 + math.exp(0.5)) + 2 / (1 + math.exp(-1.5))) / 2
    assert kata.kto_loss(*given, beta=0.5, w_u=2.0).item() == close(want)
    # at the reference point everything is worth half
    at = (numbers(-1.0, -2.0), numbers(-3.0, -4.0), bools(True, False), numbers(2.0)[0])
    assert kata.kto_loss(*at, beta=7.0, w_d=3.0).item() == close((1.5 + 0.5) / 2)


def test_far_away_no_digits_are_lost(kata, ranks):
    p, r = torch.tensor([30.0, -30.0]), torch.zeros(2)
    found = kata.kto_loss(p, r, bools(True, False), torch.zeros(()), beta=1.0)
    assert found.item() == pytest.approx(math.exp(-30.0), rel=1e-4, abs=0), (
        "30 above for the liked, 30 below for the other"
    )

    def far():
        p = torch.tensor([1e4, -1e4, 1e4, -1e4], requires_grad=True)
        zeros, desirable = torch.zeros(4), bools(True, True, False, False)
        found = kata.kto_loss(p, zeros, desirable, zeros[0], beta=1.0)
        found.backward()
        return found.item(), p.grad.tolist()

    loss, slopes = ranks.alone(far)
    assert loss == 0.5, "four answers at ±10000: 0, 1, 1, 0"
    assert slopes == [0.0] * 4, "gradients of four answers at ±10000"


def test_gradients_are_those_derived_by_hand(kata, oracle, ranks, seed):
    def pull():
        given = oracle.make_inputs(
            b=11, dtype=torch.float64, device="cpu", seed=seed, w_d=1.5, w_u=0.7
        )
        want = oracle.gradient(**given)
        leaves = [given[name].requires_grad_() for name in ("p", "r", "z0")]
        kata.kto_loss(**given).backward()
        return want, [leaf.grad for leaf in leaves]

    want, (p, r, z0) = ranks.alone(pull)
    assert p.tolist() == pytest.approx(want.tolist(), rel=1e-9, abs=1e-15)
    assert (r, z0) == (None, None), "gradients of reference and reference point"


# ---- the reference point -----------------------------------------------------------------------


def test_each_prompt_gets_the_next_answer(kata):
    e = kata.Example
    three = [e((1,), (2, 3), True), e((4, 5), (6,), False), e((1,), (7,), True)]
    want = [e((1,), (6,), True), e((4, 5), (7,), False), e((1,), (2, 3), True)]
    before = list(three)
    for given in (three, tuple(three)):
        assert kata.mismatch(given) == want
    assert three == before, "the examples that were given"
    for few in ([], three[:1]):
        with pytest.raises(ValueError, match="^examples: "):
            kata.mismatch(few)


def test_the_anchor_is_not_below_zero(kata):
    for p, r, want in (
        (numbers(-1.0, -2.0, -3.0), numbers(-4.0, -2.0, -3.0), 1.0),
        (numbers(-4.0, -2.0), numbers(-1.0, -2.0), 0.0),
        (numbers(-1.0), numbers(-3.0), 2.0),
        # float32 has no odd numbers there
        (numbers(1 - 1e8), numbers(-1e8), 1.0),
        # the mean is clamped, not what it is the mean of
        (numbers(-9.0, 0.0), numbers(-1.0, -2.0), 0.0),
        (numbers(), numbers(), 0.0),
    ):
        found = kata.kl_anchor(p, r)
        assert (found.item(), found.shape, found.dtype) == (want, (), torch.float64)


def test_ranks_of_any_size_share_one_anchor(kata, ranks, cost):
    """Means of ranks are no mean; one rank has nothing, and the last is far below."""

    def step(rank, world):
        sizes = [3 * at for at in range(world)]
        found = []
        for round_ in range(2):  # twice, with other values
            apart = torch.full((sizes[rank],), 5.0 - 8.0 * (rank == world - 1) + 12 * round_)
            apart = apart.double().to(rank_device())  # sent as float32
            p, r = (apart - 1).requires_grad_(), torch.full_like(apart, -1.0)
            with comm_meter() as meter, LateCollectives() as dp:
                z0 = kata.kl_anchor(p, r, dp)
            sent = meter.calls, meter.bytes_sent, meter.messages
            found.append((z0.item(), z0.requires_grad, *sent))
        return found

    for world in range(2, ranks.world(4) + 1):
        by_rank = ranks(world, step, timeout_s=LIMIT_S)
        counts = [3 * at for at in range(world)]
        for round_ in range(2):
            total = sum(counts) * (5 + 12 * round_) - 8 * counts[-1]
            want = max(0.0, total / sum(counts))
            for rank, one in enumerate(by_rank):
                z0, graph, calls, sent, messages = one[round_]
                told = f"rank {rank} of {world}, which have {counts} answers, call {round_ + 1}"
                assert z0 == close(want), told
                assert graph is False, f"{told}: a gradient"
                assert dict(calls) == {"all_reduce": 1}, told
                if world == 4:
                    cost.check("comm_bytes", sent)
                    cost.check("comm_steps", messages)


# ---- weights of the two kinds ------------------------------------------------------------------


@pytest.mark.parametrize("n_d", [1, 3, 4, 5, 40])
def test_the_two_kinds_are_balanced(kata, n_d):
    for n_u in (1, 3, 4, 29, 30, 31):
        w_d, w_u = kata.class_weights(n_d, n_u)
        ratio, told = w_d * n_d / (w_u * n_u), f"{n_d} liked, {n_u} not: weights {w_d}, {w_u}"
        assert 1 - 1e-9 <= ratio <= 4 / 3 + 1e-9, f"{told}: ratio {ratio}, expected 1 to 4/3"
        # no weight below 1, and none above it without need
        if n_u <= n_d <= 4 / 3 * n_u:
            assert (w_d, w_u) == (1, 1), told
        else:
            assert min(w_d, w_u) == 1, told
            assert ratio == close(1.0 if n_d < n_u else 4 / 3), told


def test_weights_need_both_kinds(kata):
    for name, given in (("n_d", (0, 3)), ("n_u", (3, 0))):
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.class_weights(*given)


# ---- a step ------------------------------------------------------------------------------------


def test_a_step_takes_its_anchor_from_other_answers(kata, oracle, ranks, seed):
    def step(rank, world):
        # the first one has an equal prompt beside it, which changes nothing
        batches = [oracle.batch(kata.Example, 3 + at, seed + at) for at in range(world)]
        for one in batches:
            one[1] = kata.Example(one[0].prompt, one[1].response, one[1].desirable)
        policy, reference = (oracle.Policy(9 + at).to(rank_device()) for at in range(2))
        cache = {}
        for one in batches:
            cache |= oracle.known(reference, one)
        # so that the point is above 0
        cache = {text: logp - 6 for text, logp in cache.items()}
        mine = batches[rank]
        z0 = oracle.anchor(policy, cache, batches)
        settings = {"beta": 0.2, "w_d": 1.5, "w_u": 0.5}
        p = torch.stack([oracle.answer_logp(policy, one.prompt, one.response) for one in mine])
        given = {
            "p": p.double(), "z0": torch.tensor(z0).double(),
            "r": numbers(*[cache[one.prompt, one.response] for one in mine]),
            "desirable": bools(*[one.desirable for one in mine]),
        }  # fmt: skip
        given = {name: one.to(p.device) for name, one in given.items()}
        want = oracle.reference(**given, **settings).item()
        slope = oracle.gradient(**given, **settings).detach().to(p)
        right = torch.autograd.grad((p * slope).sum(), list(policy.parameters()))
        policy.calls = policy.graphs = policy.trained = 0
        with comm_meter() as meter, LateCollectives() as dp:
            loss, rewards, found = kata.kto_step(policy, mine, cache, dp=dp, **settings)
            loss.backward()
        worst = max(
            ((one.grad - exact).abs().max() / exact.abs().max()).item()
            for one, exact in zip(policy.parameters(), right, strict=True)
        )
        apart = 0.2 * (given["p"] - given["r"])
        return {
            "loss": (loss.item(), want), "z0": (found.item(), z0),
            "rewards": (rewards.tolist(), apart.tolist()), "gradient": worst,
            "passes": (policy.calls, policy.graphs), "calls": dict(meter.calls),
            "graphs": (rewards.requires_grad, found.requires_grad),
            "training": (policy.trained, policy.training),
        }  # fmt: skip

    for rank, told in enumerate(ranks(ranks.world(3), step, timeout_s=LIMIT_S)):
        for name in ("z0", "loss", "rewards"):
            found, want = told[name]
            assert found == pytest.approx(want, rel=1e-4, abs=1e-5), f"rank {rank}: {name}"
        assert told["gradient"] < 1e-3, f"rank {rank}: error of the gradient, relative"
        assert told["passes"] == (2, 1), f"rank {rank}: forward passes, and those with a graph"
        assert told["calls"] == {"all_reduce": 1}, f"rank {rank}: collectives"
        assert told["graphs"] == (False, False), f"rank {rank}: graphs of rewards and z0"
        assert told["training"] == (2, True), (
            f"rank {rank}: passes in training mode, and whether the policy is in it afterwards"
        )


def test_the_anchor_costs_a_forward_pass(kata, oracle, ranks, cost, seed):
    def count():
        examples = oracle.batch(kata.Example, 6, seed, fixed=4)
        policy = oracle.Policy(seed)
        cache = oracle.known(oracle.Policy(seed + 1), examples)
        tokens, mask = kata.padded(examples, torch.device("cpu"))
        with flop_meter() as both:
            policy(tokens)[mask].sum().backward()
        with flop_meter() as step:
            kata.kto_step(policy, examples, cache, 0.1)[0].backward()
        return step.flops / both.flops

    cost.check("flops", ranks.alone(count))


def test_training_likes_what_was_liked(kata, oracle, ranks):
    beta = 0.3

    def train():
        policy, reference = oracle.Policy(4), oracle.Policy(4)
        batches = [oracle.batch(kata.Example, 8, at) for at in range(3)]
        caches = [oracle.known(reference, one) for one in batches]
        optimizer, history = torch.optim.Adam(policy.parameters(), lr=0.02), []
        for step in range(24):
            examples, cache = batches[step % 3], caches[step % 3]
            optimizer.zero_grad()
            loss, rewards, _ = kata.kto_step(policy, examples, cache, beta)
            loss.backward()
            optimizer.step()
            liked = bools(*[one.desirable for one in examples])
            history.append(
                (loss.item(), rewards[liked].mean().item(), rewards[~liked].mean().item())
            )
        return history, max(abs(logp) for logp in caches[0].values())

    history, size = ranks.alone(train)
    # differences of two log-probabilities of that size, each the sum of a few in float32
    error = beta * 8 * torch.finfo(torch.float32).eps * size
    start = pytest.approx((0.5, 0.0, 0.0), rel=1e-6, abs=error)
    assert history[0] == start, "loss and rewards at the start"
    loss, liked, other = history[-1]
    assert loss < 0.3, f"loss, rewards of liked and others: {history[::5]}"
    assert liked > 0.3 + other, f"loss, rewards of liked and others: {history[::5]}"


class Closed:
    """Ranks between which nothing may be sent."""

    rank, world, group = 0, 4, None

    def all_reduce(self, tensor):
        raise AssertionError("expected a ValueError before anything is sent, found an all-reduce")


@pytest.mark.parametrize(
    ("name", "b", "settings"),
    [("beta", 3, {"beta": 0.0}), ("w_d", 3, {"beta": 1.0, "w_d": 0.0}),
     ("w_u", 3, {"beta": 1.0, "w_u": -1.0}), ("w_u", 3, {"beta": 1.0, "w_u": math.nan}),
     ("examples", 1, {"beta": 1.0})],
    ids=["beta", "w_d", "w_u", "w_u of NaN", "one example"],
)  # fmt: skip
def test_a_step_refuses(kata, oracle, name, b, settings):
    policy, examples = oracle.Policy(0), oracle.batch(kata.Example, b, 0)
    cache = oracle.known(policy, examples)
    policy.calls = 0
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.kto_step(policy, examples, cache, dp=Closed(), **settings)
    assert policy.calls == 0, "forward passes for what is refused"
