"""What is special about parameters cut by rows: uneven parts, and when the whole ones are there."""

import pytest
import torch
import torch._dynamo  # by an optimizer, else in each fork anew
import torch.distributed as dist
from torch import nn

from harness.judge import assert_matches
from harness.meters.collectives import Collectives
from harness.meters.communication import comm_meter
from harness.meters.dispatch import alive_bytes
from harness.meters.network import Echo, network
from harness.simulators.ranks import rank_device


def shard_layers(kata, layers, comm):
    """Shard each layer of a copy of `layers`, where this rank's tensors belong."""
    return nn.Sequential(*(kata.ShardedModule(layer, comm) for layer in layers.to(rank_device())))


def values(model, kind="data"):
    """Copies of the parameters, or of their gradients, to be sent to the parent."""
    found = [getattr(param, kind) for param in model.parameters()]
    return [None if one is None else one.detach().clone() for one in found]


def assert_rows(oracle, found, exact, working, name):
    """Hold the shards of all ranks, by rank and parameter, against the whole tensors."""
    for at, (truth, similar) in enumerate(zip(exact, working, strict=True)):
        for rank, shards in enumerate(found):
            who = f"{name} of parameter {at}, rank {rank} of {len(found)}"
            if truth is None:
                assert shards[at] is None, f"{who}: expected none, found {shards[at]}"
                continue
            want = oracle.part(truth, rank, len(found)).shape
            assert shards[at] is not None, f"{who}: expected {want}, found none"
            assert shards[at].shape == want, f"{who}: expected {want}, found {shards[at].shape}"
        if truth is not None:
            joined = torch.cat([shards[at] for shards in found])
            assert_matches(joined, truth, same_precision=similar, name=f"{name} of parameter {at}")


def truths(oracle, ranks, layers, steps, **how):
    """Gradients of the whole model after `steps`, in float64 and in float32."""

    def walk():
        both = [oracle.whole(layers, dtype) for dtype in (torch.float64, torch.float32)]
        for one in both:
            for by_rank in steps:
                oracle.backward(one, by_rank, **how)
        return [values(one, "grad") for one in both]

    return ranks.alone(walk)


# fewer than ranks, one more than that, none, exact; more than 2 ** 53, which no float holds
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 7, 8])
def test_rows_are_cut_as_chunk_does(kata, oracle, rows):
    whole = (torch.arange(3 * rows).view(3, rows) + 2**53).t()
    for world in (1, 2, 3, 4):
        for rank in range(world):
            who = f"{rows} rows, rank {rank} of {world}"
            got, want = kata.shard_dim0(whole, rank, world), oracle.part(whole, rank, world)
            assert got.shape == want.shape, f"{who}: expected {want.shape}, found {got.shape}"
            assert torch.equal(got, want), f"{who}: expected {want.tolist()}, found {got.tolist()}"
            assert got.is_contiguous(), f"{who}: expected contiguous rows, found {got.stride()}"


def test_a_shard_is_a_copy(kata):
    whole = torch.zeros(4, 3, requires_grad=True)
    got = kata.shard_dim0(whole, 0, 1)
    assert got.data_ptr() != whole.data_ptr(), "expected a copy, found the memory of t"
    assert not got.requires_grad, "expected a tensor that autograd does not know of"
    held = kata.shard_dim0(whole, 1, 2).untyped_storage().nbytes()
    assert held == 2 * 3 * 4, f"2 of 4 rows: expected 24 bytes, found {held}"


def test_scalars_and_strange_ranks_are_refused(kata):
    with pytest.raises(ValueError, match="^t: "):
        kata.shard_dim0(torch.tensor(1.0), 2, 2)
    for rank in (-1, 2):
        with pytest.raises(ValueError, match="^rank: "):
            kata.shard_dim0(torch.ones(4), rank, 2)


# nothing to send, one part each way, parts that are empty on the last ranks
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_five_steps_are_those_of_one_process(kata, oracle, ranks, seed, world):
    layers = oracle.model(seed=seed)
    steps = oracle.batches(world=world, steps=5, seed=seed)
    options = {"lr": 0.005, "momentum": 0.9, "weight_decay": 0.1}

    def train(rank, world):
        with network() as (comm, _):
            model = shard_layers(kata, layers, comm)
            optimizer = torch.optim.SGD(model.parameters(), **options)
            for by_rank in steps:
                optimizer.zero_grad()
                oracle.loss(model(by_rank[rank].to(rank_device()))).backward()
                optimizer.step()
            names = [name for name, _ in model.named_parameters()]
            return names, values(model), values(model, "grad")

    def train_whole():
        both = [oracle.whole(layers, dtype) for dtype in (torch.float64, torch.float32)]
        for one in both:
            optimizer = torch.optim.SGD(one.parameters(), **options)
            for by_rank in steps:
                optimizer.zero_grad()
                oracle.backward(one, by_rank)
                optimizer.step()
        return [values(one) for one in both]

    want = [f"{at}.module.{kind}" for at in range(len(layers)) for kind in ("weight", "bias")]
    found = ranks(world, train)
    for rank, (names, *_) in enumerate(found):
        assert names == want, f"rank {rank}, parameters: expected {want}, found {names}"
    assert_rows(oracle, [one[1] for one in found], *ranks.alone(train_whole), "values")
    for rank, (_, shards, grads) in enumerate(found):
        for at, (shard, grad) in enumerate(zip(shards, grads, strict=True)):
            shape = None if grad is None else grad.shape
            assert shape == shard.shape, (
                f"rank {rank} of {world}, gradient of parameter {at}: expected {shard.shape}, "
                f"found {shape}"
            )


def test_a_step_gathers_twice_and_scatters_once(kata, oracle, ranks, cost, seed):
    world = ranks.world(4)
    layers = oracle.model(seed=seed, widths=oracle.WIDTHS)
    (by_rank,) = oracle.batches(world=world, steps=1, seed=seed, width=oracle.WIDTHS[0])

    def step(rank, world):
        x = by_rank[rank].to(rank_device())
        with network(Collectives) as (comm, _):
            with comm_meter() as before:
                model = shard_layers(kata, layers, comm)
            with comm_meter() as meter:
                oracle.loss(model(x)).backward()
            with comm_meter() as inference, torch.no_grad():
                model(x)
        train = meter.bytes_sent, meter.messages, dict(meter.calls)
        return dict(before.calls), train, dict(inference.calls)

    n = len(layers)
    parts = sum(oracle.padded_elements(layers, world)) // world
    calls = {"all_gather": 2 * n, "reduce_scatter": n}
    want = 3 * (world - 1) * parts * 4, 3 * n * (world - 1), calls
    for rank, (before, train, inference) in enumerate(ranks(world, step)):
        who = f"rank {rank} of {world}"
        assert not before, f"{who}: expected nothing to be sent before forward, found {before}"
        assert train == want, f"{who}, a step: expected {want}, found {train}"
        assert inference == {"all_gather": n}, f"{who}, inference: {n} gathers, found {inference}"
        if world == 4:
            cost.check("comm_bytes", train[0])
            cost.check("comm_steps", train[1])


def test_inference_has_one_layer_whole_at_a_time(kata, oracle, cost, dispatch, seed):
    layers = oracle.model(seed=seed, widths=oracle.WIDTHS)
    model = nn.Sequential(*(kata.ShardedModule(layer, Echo(4)) for layer in layers))
    x = torch.ones(1, oracle.WIDTHS[0])
    held = list(model.parameters())
    for layer in model:
        layer.unshard()
        held += layer.parameters()  # whole, and without memory until the next unshard()
        layer.reshard()
    with dispatch(held=held) as counted, torch.no_grad():
        model(x)
    cost.check("peak_memory", counted.peak_live_bytes)


def test_whole_weights_are_there_only_while_they_are_used(kata, oracle, ranks, seed):
    def on_rank(_rank, _world):
        layers = oracle.model(seed=seed)
        weights, noted = {}, []

        def there():
            return [at for at, one in sorted(weights.items()) if one.untyped_storage().nbytes()]

        before = alive_bytes()
        # the last of two ranks: with fewer rows than the parts that are sent
        model = nn.Sequential(*(kata.ShardedModule(layer, Echo(2, 1)) for layer in layers))
        freed = before - alive_bytes()
        for at, layer in enumerate(layers):

            def watch(weight, x, at=at):
                weights[at] = weight.detach()
                noted.append((f"forward of {at}", [at], there()))
                if x.requires_grad:
                    x.register_hook(lambda _: noted.append((f"backward of {at}", [at], there())))

            layer.watch = watch
        x = torch.ones(3, oracle.SMALL[0])
        loss = oracle.loss(model(x))
        noted.append(("after forward", [], there()))
        held = alive_bytes()
        loss.backward()
        noted.append(("after backward", [], there()))
        grads = alive_bytes() - held
        with torch.no_grad():
            model(x)
        noted.append(("after inference", [], there()))
        left = alive_bytes() - held
        own = sum(4 * param.numel() for param in model.parameters())
        storages = [param.grad.untyped_storage() for param in model.parameters()]
        padded = sum({one.data_ptr(): one.nbytes() for one in storages}.values())
        return noted, freed, grads, padded, left, own

    ((noted, freed, grads, padded, left, own),) = ranks(1, on_rank)
    want = sum(4 * one.numel() for one in oracle.model(seed=seed).parameters()) - own
    assert freed == want, f"freed by sharding: expected {want} bytes, found {freed}"
    for when, want, found in noted:
        assert found == want, f"{when}: expected the weights of layers {want}, found {found}"
    assert grads <= own, f"left by backward: expected {own} bytes, found {grads}"
    assert padded == own, f"storages of the gradients: expected {own} bytes, found {padded}"
    assert left <= own, f"left by inference: expected {own} bytes, found {left}"


def gradients(kata, oracle, ranks, layers, steps, run=lambda layers, x: layers(x), world=2):
    """Run backward passes on ranks; return the gradients of the shards and what was called."""

    def on_rank(rank, world):
        want = [param.requires_grad for param in layers.parameters()]
        with network() as (comm, _):
            model = shard_layers(kata, layers, comm)
            trained = [param.requires_grad for param in model.parameters()]
            assert trained == want, f"shards that require a gradient: {trained}, expected {want}"
            with comm_meter() as meter:
                for by_rank in steps:
                    oracle.loss(run(model, by_rank[rank].to(rank_device()))).backward()
        return values(model, "grad"), dict(meter.calls), meter.bytes_sent

    found = ranks(world, on_rank)
    return [grads for grads, *_ in found], [rest for _, *rest in found]


def test_frozen_parameters_are_gathered_and_not_scattered(kata, oracle, ranks, seed):
    layers = oracle.model(seed=seed)
    layers[1].requires_grad_(False)
    layers[2].weight.requires_grad_(False)
    steps = oracle.batches(world=2, steps=2, seed=seed)
    found, sent = gradients(kata, oracle, ranks, layers, steps)
    assert_rows(oracle, found, *truths(oracle, ranks, layers, steps), "gradients")
    scattered = (layers[0], layers[3], nn.ParameterList([layers[2].bias]))
    parts = 2 * sum(oracle.padded_elements(layers, 2)) + sum(oracle.padded_elements(scattered, 2))
    want = [{"all_gather": 2 * 8, "reduce_scatter": 2 * 3}, 2 * 4 * parts // 2]
    for rank, one in enumerate(sent):
        assert one == want, f"rank {rank}: expected calls and bytes {want}, found {one}"


def test_backward_passes_add_up(kata, oracle, ranks, seed):
    layers = oracle.model(seed=seed)
    (once, again) = oracle.batches(world=2, steps=2, seed=seed)

    def on_rank(rank, world):
        with network() as (comm, _):
            model = shard_layers(kata, layers, comm)
            loss = oracle.loss(model(once[rank].to(rank_device())))
            loss.backward(retain_graph=True)
            loss.backward()
            oracle.loss(model(again[rank].to(rank_device()))).backward()
        return values(model, "grad")

    want = truths(oracle, ranks, layers, [once, once, again])
    assert_rows(oracle, ranks(2, on_rank), *want, "gradients")


class Fork(nn.Module):
    """A weight in two places, a parameter that forward does not use, outputs in a dict."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.twin = layer.weight
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return {"used": [self.layer(x)], "other": (x @ self.twin.t(), None, 3)}


def test_tied_parameters_stay_tied(kata, oracle, ranks, seed):
    layers = nn.Sequential(Fork(oracle.model(seed=seed, widths=(5, 3))[0]))
    steps = oracle.batches(world=2, steps=2, seed=seed, width=5)

    def run(model, x):
        out = model(x.requires_grad_())
        return torch.cat([out["used"][0], out["other"][0]])

    found, sent = gradients(kata, oracle, ranks, layers, steps, run=run)
    assert_rows(oracle, found, *truths(oracle, ranks, layers, steps, run=run), "gradients")
    # 3 x 5, 3 and 3 with a row more are 28, without the unused one 24; two steps, half of each
    want = [{"all_gather": 4, "reduce_scatter": 2}, 2 * 4 * (2 * 28 + 24) // 2]
    for rank, one in enumerate(sent):
        assert one == want, f"rank {rank}: expected calls and bytes {want}, found {one}"


# in half precision, in a group that lacks the first rank of the job
def test_unshard_and_reshard_by_hand(kata, oracle, ranks, seed):
    layer = oracle.model(seed=seed, widths=(4, 5))[0].half()
    with torch.no_grad():
        layer.weight[0, 0] = -0.0
    want = [param.detach().clone() for param in layer.parameters()]

    def on_rank(rank, world):
        members = list(range(1, world)) or [0]
        group = dist.new_group(members)
        if rank not in members:
            return None
        layer.to(rank_device())
        with network(group=group) as (comm, _), comm_meter() as meter:
            sharded = kata.ShardedModule(layer, comm)
            shards = list(sharded.parameters())
            sharded.unshard()
            sharded.unshard()
            whole = values(layer)
            sharded.reshard()
            sharded.reshard()
            kept = [one is other for one, other in zip(shards, layer.parameters(), strict=True)]
            with torch.no_grad():
                for shard in shards:
                    shard.mul_(2)
            sharded.unshard()
            doubled = values(layer)
            sharded.reshard()
        return whole, doubled, kept, dict(meter.calls), meter.bytes_sent

    world = ranks.world(4)
    for rank, found in enumerate(ranks(world, on_rank)):
        if found is None:
            continue
        who = f"rank {rank} of {world}"
        whole, doubled, kept, calls, sent = found
        for one, twice, truth in zip(whole, doubled, want, strict=True):
            assert torch.equal(one.view(torch.int16), truth.view(torch.int16)), (
                f"{who}, whole: expected {truth.tolist()}, found {one.tolist()}"
            )
            assert torch.equal(twice, 2 * truth), (
                f"{who}, shards doubled: expected {(2 * truth).tolist()}, found {twice.tolist()}"
            )
        assert all(kept), f"{who}: expected the same shards after reshard(), found others"
        assert calls == {"all_gather": 2}, f"{who}: expected 2 all-gathers, found {calls}"
        if world == 4:
            # two rows of 4 and of 1 to two others, of 2 bytes each, twice
            assert sent == 2 * 2 * 10 * 2, f"{who}: expected 80 bytes, found {sent}"


def test_what_others_hold_stays_as_it_was(kata):
    module = nn.Linear(3, 4)
    module.weight = nn.Parameter(torch.arange(12.0).view(3, 4).t())
    held = module.weight
    before = held.detach().clone()
    sharded = kata.ShardedModule(module, Echo(1))
    sharded.unshard()
    whole = module.weight
    assert whole is not held, "the whole weight is the parameter that was released"
    assert whole.is_contiguous(), f"whole of a strided weight: strides {whole.stride()}"
    assert whole.tolist() == before.tolist(), "whole, of a strided weight"
    sharded.reshard()
    assert held.tolist() == before.tolist(), "the weight that the module had, held by another"


def test_what_is_frozen_later_is_frozen(kata):
    module = nn.Linear(3, 4)
    sharded = kata.ShardedModule(module, Echo(1))
    for wanted in (False, True):
        sharded.get_parameter("module.weight").requires_grad_(wanted)
        sharded.unshard()
        found = [param.requires_grad for param in module.parameters()]
        sharded.reshard()
        assert found == [wanted, True], (
            f"whole weight and bias require a gradient: {found}, expected {[wanted, True]}, as "
            "their shards do now"
        )


def test_scalars_and_shards_are_refused(kata):
    module = nn.Linear(2, 2)
    module.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ValueError, match="^scale: "):
        kata.ShardedModule(module, Echo(1))
    assert type(module.weight) is nn.Parameter, "the module was changed"
    del module.scale
    sharded = kata.ShardedModule(module, Echo(1))
    with pytest.raises(ValueError, match="^weight: "):
        kata.ShardedModule(module, Echo(1))
    with pytest.raises(ValueError, match=r"^module\.weight: "):
        kata.ShardedModule(sharded, Echo(1))
