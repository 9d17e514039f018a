"""What is special about ZeRO-2: who has which states, what is sent when, what stays behind."""

import math
from contextlib import contextmanager

import pytest
import torch
import torch._dynamo  # by an optimizer, else in each fork anew
import torch.distributed as dist

from harness.judge import assert_matches
from harness.meters.communication import comm_meter
from harness.meters.dispatch import alive_bytes
from harness.meters.network import network
from harness.simulators.ranks import rank_device

STATES = ("master", "exp_avg", "exp_avg_sq")
N = 59  # elements of oracle.SHAPES


@contextmanager
def poisoned(group=None):
    """Yield a comm at its slowest, on a rank whose new memory holds NaN until it is written."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    with network(group=group) as (comm, _):
        yield comm


def own(params):
    """Make leaves of `params` where this rank's tensors belong, every matrix stored by columns."""
    leaves = []
    for param in params:
        leaf = param.to(rank_device(), copy=True)
        if leaf.dim() == 2:
            leaf = leaf.t().contiguous().t()
        leaves.append(leaf.requires_grad_())
    return leaves


def give(params, grads):
    """Set the gradients as a backward pass would, in memory of their own."""
    for param, grad in zip(params, grads, strict=True):
        param.grad = None if grad is None else grad.to(rank_device(), copy=True)


def detached(params):
    """Return what the parameters hold, to be sent to the parent."""
    return [param.detach().clone() for param in params]


def assert_same(found, exact, working, name):
    """Hold the parameters `found` against AdamW in float64 and in float32."""
    flat = [torch.cat([p.flatten() for p in params]) for params in (found, exact, working)]
    assert_matches(flat[0], flat[1], same_precision=flat[2], name=name)


def assert_states(found, exact, working, name):
    """Hold the consolidated states against those of AdamW."""
    truth, similar = exact.state(), working.state()
    for state in STATES:
        assert_matches(
            found[state], truth[state], same_precision=similar[state], name=f"{name}: {state}"
        )


def in_one_process(oracle, ranks, params, steps, *, changed=None, **how):
    """Both of the oracle's after `steps`, and the norms; group 1 has `changed` after the first."""

    def train():
        both, norms = oracle.both(params, **how), []
        for step in steps:
            exact, working = both
            norms.append(exact.step(*step))
            working.step(*step)
            for one in both:
                one.optimizer.param_groups[-1].update(changed or {})
        return *both, norms

    return ranks.alone(train)


# nothing to send, one part each way, sizes that do not divide
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_five_steps_are_those_of_one_process(kata, oracle, ranks, seed, world):
    params = oracle.parameters(seed=seed)
    drawn = oracle.gradients(world=world, steps=5, seed=seed)

    def train(rank, world):
        mine = own(params)
        before = [param.detach() for param in mine]
        with poisoned() as comm:
            optimizer = kata.ZeroAdamW(oracle.groups(mine), comm, **oracle.DEFAULTS)
            for by_rank in drawn:
                give(mine, by_rank[rank])
                optimizer.step()
            for then, now in zip(before, mine, strict=True):
                assert torch.equal(then, now), (
                    f"expected {now.tolist()} where the parameter was before, found {then.tolist()}"
                )
            return detached(mine), optimizer.consolidate()

    exact, working, _ = in_one_process(oracle, ranks, params, [(step,) for step in drawn])
    for rank, (found, state) in enumerate(ranks(world, train)):
        who = f"rank {rank} of {world}"
        assert_same(found, exact.params, working.params, f"{who}: parameters")
        assert_states(state, exact, working, f"{who}: consolidate()")
        assert state["step"] == 5, f"{who}: expected step 5, found {state['step']}"


def test_a_rank_may_own_nothing_but_padding(kata, oracle, ranks, seed):
    world = ranks.world(4)
    shapes = ((2,),)  # parts of one element, for ranks 0 and 1
    params = oracle.parameters(seed=seed, shapes=shapes)
    drawn = oracle.gradients(world=1, steps=1, seed=seed, shapes=shapes)[0]

    def train(rank, world):
        mine = own(params)
        with poisoned() as comm:
            optimizer = kata.ZeroAdamW(mine, comm, **oracle.DEFAULTS)
            give(mine, drawn[0])
            norm = optimizer.clip_grad_norm_(1e9)
            optimizer.step()
            return detached(mine), optimizer.consolidate(), norm

    exact, working, (norm,) = in_one_process(oracle, ranks, params, [(drawn, 1e9)], grouped=False)
    for rank, (found, state, said) in enumerate(ranks(world, train)):
        assert_same(found, exact.params, working.params, f"rank {rank} of {world}")
        assert_states(state, exact, working, f"rank {rank} of {world}: consolidate()")
        assert math.isclose(said, norm, rel_tol=1e-5), f"norm: expected {norm}, found {said}"


def test_the_norm_is_that_of_all_parameters(kata, oracle, ranks, seed):
    world = ranks.world(3)
    params = oracle.parameters(seed=seed)
    drawn = oracle.gradients(world=world, steps=3, seed=seed)
    limits = (0.5, 1e3, 2.0)  # clipped, not clipped, clipped

    def train(rank, world):
        mine = own(params)
        norms = []
        with poisoned() as comm:
            optimizer = kata.ZeroAdamW(oracle.groups(mine), comm, **oracle.DEFAULTS)
            for by_rank, limit in zip(drawn, limits, strict=True):
                give(mine, by_rank[rank])
                norms.append(optimizer.clip_grad_norm_(limit))
                optimizer.step()
            return detached(mine), optimizer.consolidate(), norms

    steps = zip(drawn, limits, strict=True)
    exact, working, norms = in_one_process(oracle, ranks, params, [*steps])
    for rank, (found, state, said) in enumerate(ranks(world, train)):
        who = f"rank {rank} of {world}"
        for got, want in zip(said, norms, strict=True):
            assert math.isclose(got, want, rel_tol=1e-5), f"{who}: norm {want}, found {got}"
        assert_same(found, exact.params, working.params, f"{who}: parameters")
        assert_states(state, exact, working, f"{who}: consolidate()")


def test_no_gradient_at_all_has_norm_0(kata, ranks):
    def train(rank, world):
        (param,) = own([torch.ones(5)])
        with poisoned() as comm:
            optimizer = kata.ZeroAdamW([param], comm, lr=0.5, weight_decay=0.5)
            norm = optimizer.clip_grad_norm_(0.0)
            optimizer.step()
        return norm, param.detach()

    for norm, param in ranks(2, train):
        assert norm == 0.0
        # nothing but decay: 1 - 0.5 x 0.5
        assert param.tolist() == [0.75] * 5


def test_a_norm_near_0_is_not_scaled_up_to_the_limit(kata, ranks):
    # norm 1e-6, so that the 1e-6 beside it halves the gradient
    def train(rank, world):
        (param,) = own([torch.zeros(4)])
        with poisoned() as comm:
            optimizer = kata.ZeroAdamW([param], comm, betas=(0.0, 0.5))
            give([param], [torch.full((4,), 5e-7)])
            norm = optimizer.clip_grad_norm_(1e-6)
            optimizer.step()
            return norm, optimizer.consolidate()["exp_avg"]

    for norm, exp_avg in ranks(2, train):
        assert norm == pytest.approx(1e-6, rel=1e-5)
        # 5e-7 x 1e-6 / 2e-6, and nothing of before
        assert exp_avg.tolist() == pytest.approx([2.5e-7] * 4, rel=1e-5)


def test_half_precision_weights_keep_small_updates(kata, ranks):
    # bfloat16 has nothing between 0.99609375 and 1, so each step of 0.001 alone is lost
    def train(rank, world):
        (param,) = own([torch.ones(3, dtype=torch.bfloat16)])
        with poisoned() as comm:
            optimizer = kata.ZeroAdamW([param], comm, lr=1e-3, weight_decay=0.0)
            for _ in range(8):
                give([param], [torch.ones(3, dtype=torch.bfloat16)])
                optimizer.step()
            kept = optimizer.consolidate()
        return param.detach(), kept

    for param, kept in ranks(2, train):
        assert param.dtype == torch.bfloat16
        assert param.tolist() == [0.9921875] * 3  # the nearest to 0.992
        for name in STATES:
            assert kept[name].dtype == torch.float32, name
        assert kept["master"].tolist() == pytest.approx([0.992] * 3, abs=1e-6)


# of float16 the smallest, half of which is 0, and one that has a norm beyond the largest, 65504
@pytest.mark.parametrize("value", [2.0**-24, 16384.0], ids=["smallest", "large"])
def test_the_mean_of_half_precision_is_float32(kata, ranks, value):
    def norm(rank, world):
        (param,) = own([torch.zeros(25, dtype=torch.float16)])
        with poisoned() as comm:
            optimizer = kata.ZeroAdamW([param], comm)
            give([param], [torch.full((25,), value, dtype=torch.float16)])
            return optimizer.clip_grad_norm_(1.0)

    for found in ranks(2, norm):
        assert found == pytest.approx(5 * value, rel=1e-6)


# 59 elements: parts of 30, 20 and 15, with 1 element of padding in all
@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_step_sends_what_an_all_reduce_sends(kata, oracle, ranks, cost, seed, world):
    kinds = (torch.float32, torch.float16)

    def train(rank, world, dtype):
        counted = []
        drawn = oracle.gradients(world=world, steps=2, seed=seed, dtype=dtype)
        mine = own(oracle.parameters(seed=seed, dtype=dtype))
        with poisoned() as comm:
            with comm_meter() as none:
                optimizer = kata.ZeroAdamW(oracle.groups(mine), comm, **oracle.DEFAULTS)
                optimizer.state_dict()
                optimizer.zero_grad()
            for clips, by_rank in enumerate(drawn):
                give(mine, by_rank[rank])
                with comm_meter() as meter:
                    if clips:
                        optimizer.clip_grad_norm_(1.0)
                    optimizer.step()
                counted.append((meter.bytes_sent, meter.messages, dict(meter.calls)))
            with comm_meter() as again:
                optimizer.load_state_dict(optimizer.consolidate())
        return dict(none.calls), counted, (again.bytes_sent, dict(again.calls))

    def on_rank(rank, world):
        return [train(rank, world, dtype) for dtype in kinds]

    found = [
        (f"{dtype}, rank {rank} of {world}", dtype, counts)
        for rank, by_dtype in enumerate(ranks(world, on_rank))
        for dtype, counts in zip(kinds, by_dtype, strict=True)
    ]
    for who, dtype, (none, (plain, clipped), (whole, gathers)) in found:
        phase = oracle.phase_bytes(n=N, world=world, itemsize=dtype.itemsize)
        step = 2 * phase, 2 * (world - 1), {"reduce_scatter": 1, "all_gather": 1}
        assert not none, f"{who}: expected nothing to be sent before the first step, found {none}"
        assert plain == step, f"{who}, a step: expected {step}, found {plain}"
        calls = step[2] | {"all_reduce": 1}
        assert clipped[2] == calls, f"{who}, clip and step: expected {calls}, found {clipped[2]}"
        # the sum of squares, one number of at most 8 bytes
        most = 2 * phase + 2 * (world - 1) * 8 // world
        assert clipped[0] <= most, f"{who}, clip and step: {most} bytes, found {clipped[0]}"
        assert gathers == {"all_gather": 3}, f"{who}, consolidate and load: found {gathers}"
        states = 3 * oracle.phase_bytes(n=N, world=world, itemsize=4)
        assert whole == states, f"{who}, consolidate: {states} bytes, found {whole}"
        if world == 4 and dtype == torch.float32:
            cost.check("comm_bytes", plain[0])
            cost.check("comm_steps", plain[1])


def test_between_steps_a_rank_holds_its_part_of_the_states(kata, oracle, ranks, cost, seed):
    world = ranks.world(4)
    params = oracle.parameters(seed=seed)
    drawn = oracle.gradients(world=world, steps=2, seed=seed)

    part = 4 * oracle.part_size(n=N, world=world)
    most = 4 * part + 32  # the reduced gradient, too

    def train(rank, world):
        mine = own(params)
        before = alive_bytes()

        def kept(at_most):
            return alive_bytes(before + at_most) - before

        with poisoned() as comm:
            optimizer = kata.ZeroAdamW(oracle.groups(mine), comm, **oracle.DEFAULTS)
            held = [kept(3 * part + 32)]
            for by_rank in drawn:
                give(mine, by_rank[rank])
                optimizer.clip_grad_norm_(1.0)
                clipped = kept(most)
                dropped = [param.grad is None for param in mine]
                optimizer.step()
                held.append(kept(3 * part + 32))
            give(mine, drawn[0][rank])
            optimizer.step()
            held.append(kept(3 * part + 32))
            dropped += [param.grad is None for param in mine]
            optimizer.load_state_dict(optimizer.consolidate())
            held.append(kept(3 * part + 32))
        return max(held), clipped, dropped

    for rank, (held, clipped, dropped) in enumerate(ranks(world, train)):
        who = f"rank {rank} of {world}"
        if world == 4:
            cost.check("state_bytes", held)
        assert all(dropped), f"{who}: expected .grad None once it is reduced, found one that is not"
        assert clipped <= most, f"{who}: expected {most} bytes after clipping, found {clipped}"


# from 3 ranks to one, where nothing is padded, to fewer, to more
@pytest.mark.parametrize("second", [1, 2, 4])
def test_a_run_goes_on_in_a_world_of_another_size(kata, oracle, ranks, seed, second):
    params = oracle.parameters(seed=seed, dtype=torch.float16)
    drawn = oracle.gradients(world=1, steps=6, seed=seed, dtype=torch.float16)

    def train(rank, world, params, steps, loaded):
        mine = own(params)
        with poisoned() as comm:
            optimizer = kata.ZeroAdamW(oracle.groups(mine), comm, **oracle.DEFAULTS)
            if loaded is not None:
                loaded = {k: v.to(rank_device()) if k != "step" else v for k, v in loaded.items()}
                kept = {k: v.clone() for k, v in loaded.items() if k != "step"}
                # of before, reduced and not: they must not count
                give(mine, drawn[0][0])
                optimizer.clip_grad_norm_(1.0)
                give(mine, drawn[0][0])
                optimizer.load_state_dict(loaded)
                assert all(param.grad is None for param in mine), (
                    "a .grad of before the load is left"
                )
            resumed = detached(mine)
            for (grads,) in steps:
                give(mine, grads)
                optimizer.step()
            for name in STATES if loaded is not None else ():
                assert torch.equal(loaded[name], kept[name]), (
                    f"{name}: the loaded state was changed"
                )
            return resumed, detached(mine), optimizer.consolidate()

    _, stopped, state = ranks(ranks.world(3), train, params, drawn[:3], None)[-1]
    fresh = [torch.zeros_like(param) for param in params]
    resumed_, ended, last = ranks(ranks.world(second), train, fresh, drawn[3:], state)[-1]
    for found, want in zip(resumed_, stopped, strict=True):
        assert torch.equal(found, want), "load_state_dict: the parameters are not those saved"
    exact, working, _ = in_one_process(oracle, ranks, params, [(step,) for step in drawn])
    assert_states(last, exact, working, "after six steps")
    assert last["step"] == 6
    rounded = torch.cat([p.flatten() for p in ended])
    assert torch.equal(rounded, last["master"].half()), "parameters: expected the rounded masters"


@pytest.mark.parametrize("world", [1, 3])
def test_a_state_is_a_copy_of_the_own_part(kata, oracle, ranks, seed, world):
    params = oracle.parameters(seed=seed)
    drawn = oracle.gradients(world=world, steps=2, seed=seed)

    def train(rank, world):
        mine = own(params)
        with poisoned() as comm:
            optimizer = kata.ZeroAdamW(oracle.groups(mine), comm, **oracle.DEFAULTS)
            give(mine, drawn[0][rank])
            optimizer.step()
            part, whole = optimizer.state_dict(), optimizer.consolidate()
            before = [
                {k: torch.as_tensor(v).clone() for k, v in one.items()} for one in (part, whole)
            ]
            give(mine, drawn[1][rank])
            optimizer.step()
        for one, then in zip((part, whole), before, strict=True):
            for name, value in then.items():
                assert torch.equal(torch.as_tensor(one[name]), value), f"{name}: changed by a step"
        return part, whole

    for rank, (part, whole) in enumerate(ranks(world, train)):
        assert sorted(part) == sorted(("step", *STATES))
        assert part["step"] == 1
        size = oracle.part_size(n=N, world=world)
        for name in STATES:
            want = whole[name][rank * size : (rank + 1) * size]
            assert len(part[name]) == size, f"{name}: expected {size}, found {len(part[name])}"
            assert torch.equal(part[name][: len(want)], want), f"{name} of rank {rank}"


def test_zero_grad_drops_what_was_reduced(kata, ranks):
    def train(rank, world):
        (param,) = own([torch.ones(5)])
        with poisoned() as comm:
            optimizer = kata.ZeroAdamW([param], comm, lr=0.5, weight_decay=0.5)
            give([param], [torch.ones(5)])
            optimizer.clip_grad_norm_(1.0)
            give([param], [torch.ones(5)])
            optimizer.zero_grad()
            dropped = param.grad is None
            optimizer.step()
        return dropped, param.detach()

    for dropped, param in ranks(2, train):
        assert dropped, "expected .grad None after zero_grad, found a tensor"
        # nothing but decay: 1 - 0.5 x 0.5
        assert param.tolist() == [0.75] * 5


def test_a_step_reads_the_options_of_its_group(kata, oracle, ranks, seed):
    changed = {"lr": 0.005, "betas": (0.6, 0.8), "eps": 0.1, "weight_decay": 0.7}
    params = oracle.parameters(seed=seed)
    drawn = oracle.gradients(world=2, steps=2, seed=seed)

    def train(rank, world):
        mine = own(params)
        with poisoned() as comm:
            optimizer = kata.ZeroAdamW(oracle.groups(mine), comm, **oracle.DEFAULTS)
            for by_rank in drawn:
                give(mine, by_rank[rank])
                optimizer.step()
                optimizer.param_groups[1].update(changed)
        return detached(mine)

    exact, working, _ = in_one_process(
        oracle, ranks, params, [(step,) for step in drawn], changed=changed
    )
    for rank, found in enumerate(ranks(2, train)):
        assert_same(found, exact.params, working.params, f"rank {rank}")


def test_two_optimizers_of_some_of_the_ranks_keep_apart(kata, oracle, ranks, seed):
    world = ranks.world(3)
    halves = [oracle.parameters(seed=seed + at) for at in range(2)]
    drawn = [oracle.gradients(world=2, steps=2, seed=seed + at) for at in range(2)]

    def train(rank, world):
        members = [world - 2, world - 1]
        group = dist.new_group(members)
        if rank not in members:
            return None
        mine = [own(params) for params in halves]
        with poisoned(group) as comm:
            optimizers = [
                kata.ZeroAdamW(oracle.groups(params), comm, **oracle.DEFAULTS) for params in mine
            ]
            for step in range(2):
                for params, steps, optimizer in zip(mine, drawn, optimizers, strict=True):
                    give(params, steps[step][members.index(rank)])
                    optimizer.clip_grad_norm_(1.0)
                for optimizer in optimizers:
                    optimizer.step()
        return [detached(params) for params in mine]

    for at, (params, steps) in enumerate(zip(halves, drawn, strict=True)):
        exact, working, _ = in_one_process(oracle, ranks, params, [(step, 1.0) for step in steps])
        for found in ranks(world, train)[-2:]:
            assert_same(found[at], exact.params, working.params, f"optimizer {at}")


class Alone:
    """A world of one in which nothing may be sent."""

    rank, world = 0, 1


TWICE = torch.ones(2)


@pytest.mark.parametrize(
    ("params", "options", "argument"),
    [
        ([], {}, "params"),
        ([{"params": []}], {}, "params"),
        ([torch.ones(2), torch.ones(2, device="meta")], {}, "params"),
        ([torch.ones(2), torch.ones(2).half()], {}, "params"),
        ([TWICE, torch.ones(1), TWICE], {}, "params"),
        ([{"params": [TWICE]}, {"params": [TWICE]}], {}, "params"),
        ([TWICE], {"lr": -1e-3}, "lr"),
        ([{"params": [TWICE], "lr": -1e-3}], {}, "lr"),
        ([TWICE], {"weight_decay": -0.1}, "weight_decay"),
        ([TWICE], {"betas": (0.9, 1.0)}, "betas"),
        ([TWICE], {"betas": (-0.1, 0.9)}, "betas"),
        ([{"params": [TWICE], "weight_decay": -0.1}], {}, "weight_decay"),
        ([{"params": [TWICE], "betas": (0.9, 1.0)}], {}, "betas"),
    ],
    ids=[
        "none",
        "an-empty-group",
        "two-devices",
        "two-dtypes",
        "one-twice",
        "one-in-two-groups",
        "lr",
        "lr-of-a-group",
        "weight-decay",
        "beta-of-1",
        "beta-below-0",
        "weight-decay-of-a-group",
        "betas-of-a-group",
    ],
)
def test_what_cannot_be_trained_is_refused(kata, params, options, argument):
    with pytest.raises(ValueError, match=rf"\b{argument}\b"):
        kata.ZeroAdamW(params, Alone(), **options)


# each of the three, and one element too many or too few
@pytest.mark.parametrize("wrong", [(name, n) for name in STATES for n in (4, 6)], ids=str)
def test_a_state_of_another_model_is_refused(kata, wrong):
    name, n = wrong
    optimizer = kata.ZeroAdamW([torch.ones(5)], Alone())
    state = {"step": 1} | {name: torch.ones(5) for name in STATES} | {name: torch.ones(n)}
    with pytest.raises(ValueError, match=r"\bstate\b"):
        optimizer.load_state_dict(state)
