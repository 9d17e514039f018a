"""What is special about a unit: when its weights are there, what is sent for that, what is left."""

from collections import Counter

import pytest
import torch
import torch._dynamo  # by an optimizer, else in each fork anew
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from harness.judge import assert_matches
from harness.meters.collectives import Collectives
from harness.meters.communication import comm_meter
from harness.meters.dispatch import alive_bytes
from harness.meters.network import network
from harness.simulators.ranks import rank_device


def own(tensor):
    """Copy `tensor`, or a model, to where this rank's tensors belong."""
    return tensor.to(rank_device())


def shards(units, kind="data"):
    """Return the shards, or their gradients, to be sent to the parent."""
    return [getattr(unit.shard, kind).detach().clone() for unit in units]


def assert_parts(found, exact, working, name):
    """Hold the parts of all ranks, by rank and unit, against vectors in float64 and float32."""
    for at, (truth, similar) in enumerate(zip(exact, working, strict=True)):
        size = -(-len(truth) // len(found))
        for rank, parts in enumerate(found):
            who = f"{name} of unit {at}, rank {rank} of {len(found)}"
            assert len(parts[at]) == size, f"{who}: expected {size}, found {len(parts[at])}"
        joined = torch.cat([parts[at] for parts in found])[: len(truth)]
        assert_matches(joined, truth, same_precision=similar, name=f"{name} of unit {at}")


def truths(oracle, ranks, layers, steps, **how):
    """Gradients of the whole model after `steps`, in float64 and in float32."""

    def walk():
        both = [oracle.whole(layers, dtype) for dtype in (torch.float64, torch.float32)]
        for one in both:
            for by_rank in steps:
                oracle.backward(one, by_rank, **how)
        return [oracle.flat(one, "grad") for one in both]

    return ranks.alone(walk)


# nothing to send, one part each way, sizes that do not divide
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_three_steps_are_those_of_one_process(kata, oracle, ranks, seed, world):
    layers = oracle.model(seed=seed)
    steps = oracle.batches(world=world, steps=3, seed=seed)
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}

    def train(rank, world):
        model = own(layers)
        with network() as (comm, _):
            units = kata.fully_shard_(model, list(model), comm)
            names = [name for name, _ in model.named_parameters()]
            assert names == [f"{at}.shard" for at in range(len(model))], "parameters of the model"
            optimizer = torch.optim.SGD(model.parameters(), **options)
            for by_rank in steps:
                optimizer.zero_grad()
                oracle.loss(model(own(by_rank[rank]))).backward()
                optimizer.step()
            return shards(units)

    def train_whole():
        both = [oracle.whole(layers, dtype) for dtype in (torch.float64, torch.float32)]
        for one in both:
            optimizer = torch.optim.SGD(one.parameters(), **options)
            for by_rank in steps:
                optimizer.zero_grad()
                oracle.backward(one, by_rank)
                optimizer.step()
        return [oracle.flat(one) for one in both]

    assert_parts(ranks(world, train), *ranks.alone(train_whole), "weights")


# freed after forward, and kept
@pytest.mark.parametrize(("reshard", "gathers"), [(True, 2), (False, 1)], ids=["freed", "kept"])
def test_a_step_gathers_and_scatters_each_unit(
    kata, oracle, ranks, cost, dispatch, seed, reshard, gathers
):
    world = ranks.world(4)
    layers = oracle.model(seed=seed, widths=oracle.WIDTHS)
    (by_rank,) = oracle.batches(world=world, steps=1, seed=seed, width=oracle.WIDTHS[0])

    def step(rank, world):
        model = own(layers)
        with network(Collectives) as (comm, _):
            with comm_meter() as before:
                units = kata.fully_shard_(model, list(model), comm, reshard_after_forward=reshard)
            weights, _ = follow(model)
            with comm_meter() as meter:
                oracle.loss(model(own(by_rank[rank]))).backward()
            held = [*(unit.shard for unit in units), *weights.values()]
            x = own(by_rank[rank][:1])
            with (
                comm_meter() as inference,
                dispatch(held=held) as counted,
                torch.no_grad(),
            ):
                model(x)
        train = meter.bytes_sent, meter.messages, dict(meter.calls)
        return before.calls, train, dict(inference.calls), counted.peak_live_bytes

    phase = oracle.phase_bytes(sizes=oracle.sizes(layers), world=world)
    n = len(layers)
    calls = {"all_gather": gathers * n, "reduce_scatter": n}
    want = (gathers + 1) * phase, (gathers + 1) * n * (world - 1), calls
    for rank, (before, train, inference, peak) in enumerate(ranks(world, step)):
        who = f"rank {rank} of {world}"
        assert not before, f"{who}: expected nothing to be sent before forward, found {before}"
        assert train == want, f"{who}, a step: expected {want}, found {train}"
        assert inference == {"all_gather": n}, f"{who}, inference: {n} gathers, found {inference}"
        if world == 4:
            if reshard:
                cost.check("comm_bytes", train[0])
                cost.check("comm_steps", train[1])
            cost.check("peak_memory", peak)


def follow(model, meter=None):
    """
    Note, whenever a layer runs, forward or backward, what is gathered, and what is under way.

    A weight is there while its storage has memory.
    """
    weights, noted = {}, []

    def note(phase, at):
        there = [one for one, size in enumerate(storage_bytes(weights)) if size]
        log = Counter(one.op for one in meter.log) if meter else {}
        under_way = log["all_gather"] - log["wait_all_gather"] if meter else 0
        noted.append((phase, at, there, under_way))

    for at, layer in enumerate(model):

        def watch(weight, x, at=at):
            weights[at] = weight.detach()
            note("forward", at)
            if x.requires_grad:
                x.register_hook(lambda grad: note("after", at) or grad)

        layer.watch = watch
    return weights, noted


def storage_bytes(weights):
    """Bytes that each unit which has run has in memory."""
    return [weight.untyped_storage().nbytes() for _, weight in sorted(weights.items())]


def test_weights_are_there_only_while_they_are_used(kata, oracle, ranks, seed):
    layers = oracle.model(seed=seed)
    (by_rank,) = oracle.batches(world=2, steps=1, seed=seed)

    def step(rank, world, reshard):
        model = own(layers)
        before = alive_bytes()
        with network(Collectives) as (comm, _), comm_meter() as meter:
            _units = kata.fully_shard_(model, list(model), comm, reshard_after_forward=reshard)
            freed = before - alive_bytes()
            weights, noted = follow(model, meter)
            loss = oracle.loss(model(own(by_rank[rank])))
            forward = storage_bytes(weights)
            during = len(noted)
            loss.backward()
            backward = storage_bytes(weights)
            with torch.no_grad():
                model(own(by_rank[rank]))
            inference = storage_bytes(weights)
        return forward, backward, inference, noted[:during], noted[during:], freed

    n = len(layers)
    whole = [4 * n for n in oracle.sizes(layers)]
    less = sum(whole) - sum(4 * oracle.part_size(n=n, world=2) for n in oracle.sizes(layers))
    for rank, (forward, backward, inference, before, after, freed) in enumerate(
        ranks(2, step, True)
    ):
        who = f"rank {rank}, bytes of each unit"
        assert freed == less, f"rank {rank}: expected {less} bytes freed by sharding, found {freed}"
        assert forward == [0] * n, f"{who} after forward: expected none, found {forward}"
        assert backward == [0] * n, f"{who} after backward: expected none, found {backward}"
        assert inference == [0] * n, f"{who} after inference: expected none, found {inference}"
        for _, at, there, under_way in before:
            assert at in there, f"rank {rank}: unit {at} runs and is not gathered"
            assert len(there) == 1, (
                f"rank {rank}: unit {at} runs, {there} of those before are there"
            )
            want = int(at < n - 1)
            assert under_way == want, (
                f"rank {rank}, forward of unit {at}: expected {want} gathers under way, "
                f"found {under_way}"
            )
        for _, at, there, _ in after:
            assert len(there) <= 2, f"rank {rank}, backward of unit {at}: {there} are there"
    for rank, (forward, backward, inference, *_) in enumerate(ranks(2, step, False)):
        who = f"rank {rank}, bytes of each unit, kept after forward"
        assert all(forward), f"{who}: expected all until backward, found {forward}"
        assert backward == [0] * n, f"{who}: expected none after backward, found {backward}"
        assert inference == [0] * n, f"{who}: expected none after inference, found {inference}"


def test_the_unit_before_is_gathered_during_backward(kata, oracle, ranks, seed):
    layers = oracle.model(seed=seed)
    (by_rank,) = oracle.batches(world=2, steps=1, seed=seed)

    def step(rank, world):
        model = own(layers)
        with network(Collectives) as (comm, _):
            kata.fully_shard_(model, list(model), comm)
            loss = oracle.loss(model(own(by_rank[rank])))
            with comm_meter() as meter:
                loss.backward()
        return [one.op for one in meter.log]

    one = ["all_gather", "wait_reduce_scatter"]
    for rank, log in enumerate(ranks(2, step)):
        order = [op for op in log if op in one]
        # the last and the one before it, then one each time that a unit is done
        want = [one[0], *(len(layers) - 1) * one, one[1]]
        assert order == want, f"rank {rank}, backward: expected {want}, found {order}"


def gradients(kata, oracle, ranks, layers, steps, run=lambda layers, x: layers(x), **how):
    """Run backward passes on two ranks; return the gradients of the shards and what was called."""

    def on_rank(rank, world):
        model = own(layers)
        want = [next(layer.parameters()).requires_grad for layer in model]
        with network() as (comm, _):
            units = kata.fully_shard_(model, list(model), comm, **how)
            with comm_meter() as meter:
                for by_rank in steps:
                    oracle.loss(run(model, own(by_rank[rank]))).backward()
            held = [unit.shard.grad for unit in units]
            trained = [unit.shard.requires_grad for unit in units]
            assert trained == want, "which of the shards require a gradient"
        return [None if one is None else one.clone() for one in held], dict(meter.calls)

    found = ranks(2, on_rank)
    return [grads for grads, _ in found], [calls for _, calls in found]


def test_a_unit_used_twice_is_scattered_once(kata, oracle, ranks, seed):
    layers = oracle.model(seed=seed, widths=(5, 5, 3))
    steps = oracle.batches(world=2, steps=1, seed=seed, width=5)

    def twice(model, x):
        return model[1](model[0](model[0](x)))

    found, calls = gradients(kata, oracle, ranks, layers, steps, run=twice)
    assert_parts(found, *truths(oracle, ranks, layers, steps, run=twice), "gradients")
    for one in calls:
        assert one["reduce_scatter"] == 2, f"expected one of each unit, found {one}"


# one after the other, each added to what is there
def test_backward_passes_add_up(kata, oracle, ranks, seed):
    layers = oracle.model(seed=seed)
    steps = oracle.batches(world=2, steps=3, seed=seed)
    found, _ = gradients(kata, oracle, ranks, layers, steps)
    assert_parts(found, *truths(oracle, ranks, layers, steps), "gradients")


def test_a_group_may_have_some_of_the_ranks(kata, oracle, ranks, seed):
    layers = oracle.model(seed=seed)
    (by_rank,) = oracle.batches(world=2, steps=1, seed=seed)

    def on_rank(rank, world):
        members = [world - 2, world - 1]
        group = dist.new_group(members)
        if rank not in members:
            return None
        model = own(layers)
        with network(group=group) as (comm, _):
            units = kata.fully_shard_(model, list(model), comm)
            oracle.loss(model(own(by_rank[members.index(rank)]))).backward()
        return shards(units, "grad")

    found = ranks(ranks.world(3), on_rank)[-2:]
    assert_parts(found, *truths(oracle, ranks, layers, [by_rank]), "gradients")


def test_half_precision_is_sent_as_it_is(kata, oracle, ranks, seed):
    layers = oracle.model(seed=seed).half()
    (by_rank,) = oracle.batches(world=2, steps=1, seed=seed)

    def on_rank(rank, world):
        model = own(layers)
        with network() as (comm, _):
            units = kata.fully_shard_(model, list(model), comm)
            with comm_meter() as meter:
                oracle.loss(model(own(by_rank[rank].half()))).backward()
        return meter.bytes_sent, {unit.shard.grad.dtype for unit in units}

    want = 3 * oracle.phase_bytes(sizes=oracle.sizes(layers), world=2, itemsize=2)
    for rank, (sent, dtypes) in enumerate(ranks(2, on_rank)):
        assert sent == want, f"rank {rank}, a step: expected {want} bytes, found {sent}"
        assert dtypes == {torch.float16}, f"rank {rank}, gradients of the shards: found {dtypes}"


def test_the_same_graph_can_be_walked_twice(kata, oracle, ranks, seed):
    layers = oracle.model(seed=seed)
    (by_rank,) = oracle.batches(world=2, steps=1, seed=seed)

    def on_rank(rank, world):
        model = own(layers)
        with network() as (comm, _):
            units = [kata.FSDPUnit(layer, comm) for layer in model]  # no neighbours
            loss = oracle.loss(model(own(by_rank[rank])))
            loss.backward(retain_graph=True)
            loss.backward()
        return shards(units, "grad")

    want = truths(oracle, ranks, layers, [by_rank, by_rank])
    assert_parts(ranks(2, on_rank), *want, "gradients")


# the last one is gathered ahead by nobody in backward
@pytest.mark.parametrize("frozen", [0, 1, 3])
def test_a_frozen_unit_is_gathered_and_not_scattered(kata, oracle, ranks, seed, frozen):
    layers = oracle.model(seed=seed)
    layers[frozen].requires_grad_(False)
    steps = oracle.batches(world=2, steps=2, seed=seed)
    found, calls = gradients(kata, oracle, ranks, layers, steps)
    layers.requires_grad_(True)
    wants = truths(oracle, ranks, layers, steps)
    assert all(grads.pop(frozen) is None for grads in found), "the frozen shard has a gradient"
    for want in wants:
        want.pop(frozen)
    assert_parts(found, *wants, "gradients")
    for one in calls:
        # in front nothing needs its weights in backward
        want = {"all_gather": 2 * (8 - (frozen == 0)), "reduce_scatter": 2 * 3}
        assert one == want, f"expected {want}, found {one}"


# as far as what was saved, which is before the forward hook, to the end, and in a graph of its own
@pytest.mark.parametrize(
    ("reentrant", "stops"),
    [(False, True), (False, False), (True, False)],
    ids=["in-part", "whole", "reentrant"],
)
def test_a_unit_may_be_recomputed(kata, oracle, ranks, seed, reentrant, stops):
    layers = oracle.model(seed=seed)
    steps = oracle.batches(world=2, steps=2, seed=seed)

    def recomputed(model, x):
        x = x.requires_grad_()
        with set_checkpoint_early_stop(stops):
            for layer in model:
                x = checkpoint(layer, x, use_reentrant=reentrant)
        return x

    found, calls = gradients(kata, oracle, ranks, layers, steps, run=recomputed)
    assert_parts(found, *truths(oracle, ranks, layers, steps), "gradients")
    for one in calls:
        most = 2 * (3 if reentrant else 2) * len(layers)
        assert one["all_gather"] <= most, f"expected {most} gathers, found {one['all_gather']}"
        assert one["reduce_scatter"] == 2 * len(layers), f"found {one}"


class Fork(nn.Module):
    """A unit with its outputs in a dict; its weight is tied to that of a layer inside."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.twin = layer.weight

    def forward(self, x):
        return {"used": [self.layer(x)], "unused": (x @ self.twin.t(), None, 3)}


def test_outputs_may_be_nested_and_parameters_tied_within(kata, oracle, ranks, seed):
    layers = nn.Sequential(Fork(oracle.model(seed=seed, widths=(5, 3))[0]))
    steps = oracle.batches(world=2, steps=1, seed=seed, width=5)

    def run(model, x):
        out = model(x.requires_grad_())
        return torch.cat([out["used"][0], out["unused"][0]])

    for how in (run, lambda model, x: model(x.requires_grad_())["used"][0]):
        found, calls = gradients(kata, oracle, ranks, layers, steps, run=how)
        assert_parts(found, *truths(oracle, ranks, layers, steps, run=how), "gradients")
        assert [one["reduce_scatter"] for one in calls] == [1, 1]


def test_a_unit_that_is_not_run_costs_no_memory(kata, oracle, ranks, seed):
    layers = oracle.model(seed=seed, widths=(5, 5, 5))
    steps = oracle.batches(world=2, steps=1, seed=seed, width=5)

    def on_rank(rank, world):
        model = nn.Sequential(*own(layers))
        model.forward = lambda x: model[0](x)
        with network() as (comm, _):
            units = kata.fully_shard_(model, list(model), comm)
            before = alive_bytes()
            with torch.no_grad():
                model(own(steps[0][rank]))
            held = alive_bytes(before) - before
            oracle.loss(model(own(steps[0][rank]))).backward()
        return units[0].shard.grad.clone(), units[1].shard.grad, held

    exact, working = truths(oracle, ranks, layers[:1], steps)
    found = ranks(2, on_rank)
    for rank, (_, unused, held) in enumerate(found):
        assert unused is None, f"rank {rank}: expected no gradient of what did not run"
        assert held <= 0, f"rank {rank}: expected nothing left by inference, found {held} bytes"
    assert_parts([[used] for used, *_ in found], exact, working, "gradients")


def test_a_unit_whose_output_is_unused_is_freed(kata, oracle, ranks, seed):
    layers = oracle.model(seed=seed, widths=(5, 5, 5))
    steps = oracle.batches(world=2, steps=1, seed=seed, width=5)
    runs = [lambda one, two, x: (one(x), two(x))[1], lambda one, two, x: two(x)]
    runs.append(lambda one, two, x: two(one(x)))

    def on_rank(rank, world):
        model = nn.Sequential(*own(layers))
        weights, _ = follow(model)
        gathers, left = [], []
        with network() as (comm, _):
            units = kata.fully_shard_(model, list(model), comm)
            for run in runs:
                model.forward = lambda x, run=run: run(*model, x)
                with comm_meter() as meter:
                    oracle.loss(model(own(steps[0][rank]))).backward()
                gathers.append(meter.calls["all_gather"])
                left.append(storage_bytes(weights))
        return gathers, left, shards(units, "grad")

    def all_steps(layers, x):
        return torch.cat([layers[1](x), layers[1](x), layers[1](layers[0](x))])

    found = ranks(2, on_rank)
    for rank, (gathers, left, _) in enumerate(found):
        # forward of both and backward of one, with the other ahead; one alone; both
        assert gathers[1:] == [2, 4], f"rank {rank}: expected 2 and 4 gathers, found {gathers[1:]}"
        assert left == [[0, 0]] * 3, f"rank {rank}: expected no bytes after backward, found {left}"
    want = truths(oracle, ranks, layers, steps, run=all_steps)
    assert_parts([grads for *_, grads in found], *want, "gradients")


class Alone:
    """A world of one in which nothing may be sent."""

    rank, world = 0, 1


def test_a_parameter_has_one_unit(kata):
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    with pytest.raises(ValueError, match=r"\bb\.weight\b"):
        kata.fully_shard_(model, [model["a"]], Alone())
    model["b"].weight = model["a"].weight
    with pytest.raises(ValueError, match=r"\ba\.weight\b"):
        kata.fully_shard_(model, [model["a"], model["b"]], Alone())
    assert isinstance(model["a"].weight, nn.Parameter), "the model was changed"


def test_a_unit_is_frozen_or_not(kata):
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    for one in (module, nn.Identity()):
        with pytest.raises(ValueError, match=r"\bmodule\b"):
            kata.FSDPUnit(one, Alone())
