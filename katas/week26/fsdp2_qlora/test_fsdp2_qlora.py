"""What is special about a base in four bits: whole blocks, few bytes, no gradients."""

import pytest
import torch
import torch._dynamo  # by an optimizer, else in each fork anew
from torch import nn

from harness.meters.collectives import Collectives
from harness.meters.communication import comm_meter
from harness.meters.dispatch import alive_bytes
from harness.meters.network import Echo, network
from harness.simulators.ranks import rank_device

NAMES = ("norm", "gain", "up.a", "up.b", "down.a", "down.b")


def on_device(layers):
    """Bring the model to where this rank's tensors belong, four-bit weights too."""
    layers = layers.to(rank_device())
    for layer in layers.modules():
        if hasattr(layer, "s"):
            layer.weight = layer.weight._replace(
                **{
                    name: getattr(layer.weight, name).to(rank_device())
                    for name in ("packed", "codes", "absmax2", "offset")
                }
            )
    return layers


def shard_layers(kata, layers, comm):
    return nn.Sequential(*(kata.ShardedQlora(layer, comm) for layer in on_device(layers)))


def values(model, kind="data"):
    """Copies of the parameters, or of their gradients, to be sent to the parent."""
    found = {name: getattr(param, kind) for name, param in model.named_parameters()}
    return {name: None if one is None else one.detach().clone() for name, one in found.items()}


def assert_close(found, exact, name):
    """Hold against the truth what was computed in float64."""
    assert found.shape == exact.shape, f"{name}: expected {exact.shape}, found {found.shape}"
    off, size = (found - exact).abs().max().item(), exact.abs().max().item()
    assert off <= 1e-9 * size, f"{name}: off by {off:.3g}, where the largest is {size:.3g}"


def assert_parts(oracle, found, exact, name):
    """Hold the flat shards of all ranks against the whole tensors."""
    for key, truth in exact.items():
        block, _, rest = key.partition(".")
        shards = [by_name[f"{block}.module.{rest}"] for by_name in found]
        cuts = oracle.parts(0 if truth is None else truth.numel(), 1, len(found))
        for rank, (shard, (start, stop)) in enumerate(zip(shards, cuts, strict=True)):
            who = f"{name} of {key}, rank {rank} of {len(found)}"
            if truth is None:
                assert shard is None, f"{who}: expected none, found {shard}"
                continue
            assert shard is not None, f"{who}: expected {stop - start} elements, found none"
            shape = tuple(shard.shape)
            assert shape == (stop - start,), f"{who}: expected {(stop - start,)}, found {shape}"
        if truth is not None:
            assert_close(torch.cat(shards), truth.flatten(), f"{name} of {key}")


# ---- cut in whole units --------------------------------------------------------------------


# nothing, less than a unit, a unit, one more, as many as ranks; past 2 ** 53, which no float holds
@pytest.mark.parametrize("numel", [0, 1, 63, 64, 65, 256, 257, 1000, 64 * (2**53 + 1)])
def test_parts_are_whole_units(kata, oracle, numel):
    for unit in (1, 64):
        for world in (1, 2, 3, 4, 7):
            if numel <= 1000:
                assert kata.shard_aligned(numel, unit, world) == oracle.parts(numel, unit, world)
    if numel > 1000:
        middle = 64 * (2**52 + 1)
        assert kata.shard_aligned(numel, 64, 2) == [(0, middle), (middle, numel)]


SHAPES = (
    (161, 321),  # 3.15 units, half a block, half a byte
    (64, 256),  # one unit
    (128, 384),  # three units
    (3, 5),
    (1, 1),
    (77, 1024),  # 4.8 units: with four ranks two each, one short, one empty
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gathered_weights_are_the_whole_ones_bit_for_bit(kata, oracle, seed, shape):
    draw = torch.Generator().manual_seed(seed)
    whole = oracle.quantised(kata, torch.randn(shape, generator=draw))
    want = oracle.whole(whole)
    for world in (1, 2, 3, 4):
        given = whole._replace(offset=whole.offset.clone())
        shards = [kata.Nf4Shard(given, rank, world) for rank in range(world)]
        given.offset.add_(1.0)  # theirs are copies
        sent = [one.fsdp_pre_all_gather() for one in shards]
        for rank, (outputs, _) in enumerate(sent):
            found = sum(one.nbytes for one in outputs)
            who = f"rank {rank} of {world}"
            assert found == oracle.sent(shape, world), f"{who}: bytes that are sent: {found}"
        gathered = tuple(map(torch.cat, zip(*(outputs for outputs, _ in sent), strict=True)))
        for shard, (_, metadata) in zip(shards, sent, strict=True):
            got = shard.fsdp_post_all_gather(gathered, metadata, torch.float32)
            assert torch.equal(got, want), f"{world} ranks: {(got != want).sum()} elements differ"
        out = torch.empty(shape, dtype=torch.float64)
        assert shards[-1].fsdp_post_all_gather(gathered, metadata, torch.float64, out=out) is out
        assert torch.equal(out, want.double())
        narrow = shards[0].fsdp_post_all_gather(gathered, metadata, torch.bfloat16)
        assert torch.equal(narrow, want.bfloat16())


def test_a_shard_has_memory_for_its_units_alone(kata, oracle):
    before = alive_bytes()
    whole = oracle.quantised(kata, torch.randn(161, 321))
    total = sum(one.nbytes for one in whole[:4])
    shards = [kata.Nf4Shard(whole, rank, 3) for rank in range(3)]
    del whole
    kept = alive_bytes() - before
    assert len(shards) == 3
    # an offset each, two more than the whole has
    assert total - 4 <= kept <= total + 8, f"expected {total + 8} bytes, found {kept}"


# ---- trained -------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 3, 4])
def test_five_steps_are_those_of_one_process(kata, oracle, ranks, seed, world):
    layers = oracle.model(kata, seed=seed)
    steps = oracle.batches(world=world, steps=5, seed=seed)
    options = {"lr": 1e-3, "weight_decay": 0.1}

    def train(rank, world):
        with network() as (comm, _):
            model = shard_layers(kata, layers, comm)
            trained = [param for param in model.parameters() if param.requires_grad]
            optimizer = torch.optim.Adam(trained, **options)
            for by_rank in steps:
                optimizer.zero_grad()
                oracle.loss(model(by_rank[rank].to(rank_device()))).backward()
                optimizer.step()
            return values(model), values(model, "grad")

    def train_whole():
        model = oracle.plain(layers)
        trained = [param for param in model.parameters() if param.requires_grad]
        optimizer = torch.optim.Adam(trained, **options)
        for by_rank in steps:
            optimizer.zero_grad()
            (sum(oracle.loss(model(x)) for x in by_rank) / world).backward()
            optimizer.step()
        return values(model), values(model, "grad")

    wanted = ranks.alone(train_whole)
    found = ranks(world, train)
    names = [f"{at}.module.{name}" for at in range(2) for name in NAMES]
    for rank, (own, _) in enumerate(found):
        assert list(own) == names, f"rank {rank}, parameters: expected {names}, found {list(own)}"
    assert_parts(oracle, [one for one, _ in found], wanted[0], "values")
    assert_parts(oracle, [one for _, one in found], wanted[1], "gradients")


def test_backward_passes_add_up_and_frozen_adapters_are_not_sent(kata, oracle, ranks, seed):
    layers = oracle.model(kata, seed=seed)
    for param in layers[0].parameters():
        param.requires_grad_(False)
    layers[1].up.a.requires_grad_(False)
    steps = oracle.batches(world=2, steps=2, seed=seed)

    def on_rank(rank, world):
        with network() as (comm, meter):
            model = shard_layers(kata, layers, comm)
            trained = [param.requires_grad for param in model.parameters()]
            for by_rank in steps:
                oracle.loss(model(by_rank[rank].to(rank_device()))).backward()
        return values(model, "grad"), trained, dict(meter.calls), meter.bytes_sent

    def alone():
        model = oracle.plain(layers)
        for mine, given in zip(model.parameters(), layers.parameters(), strict=True):
            mine.requires_grad_(given.requires_grad)
        for by_rank in steps:
            (sum(oracle.loss(model(x)) for x in by_rank) / 2).backward()
        return values(model, "grad")

    wanted, found = ranks.alone(alone), ranks(2, on_rank)
    assert_parts(oracle, [one[0] for one in found], wanted, "gradients")
    want = [param.requires_grad for param in layers.parameters()]
    parts = {name: -(-one.numel() // 2) for name, one in layers[1].named_parameters()}
    gathered = 2 * oracle.sent((161, 321), 2) + 8 * sum(parts.values())
    scattered = 8 * sum(parts[name] for name in ("gain", "up.b", "down.a", "down.b"))
    # the first block has nothing to train and is not gathered for a backward pass
    bytes_sent = 2 * (3 * gathered + scattered)
    for rank, (_, trained, calls, sent) in enumerate(found):
        assert trained == want, f"rank {rank}: which shards require a gradient"
        assert calls == {"all_gather": 6, "reduce_scatter": 2}, f"rank {rank}: found {calls}"
        assert sent == bytes_sent, f"rank {rank}: expected {bytes_sent} bytes, found {sent}"


# ---- what it costs -------------------------------------------------------------------------


def test_a_step_sends_four_bits_and_adapters(kata, oracle, ranks, cost, seed):
    world = ranks.world(4)
    layers = oracle.model(kata, seed=seed, d=512, f=384, dtype=torch.bfloat16)
    (by_rank,) = oracle.batches(world=world, steps=1, seed=seed, d=512, dtype=torch.bfloat16)

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

    parts = {name: 2 * -(-one.numel() // world) for name, one in layers[0].named_parameters()}
    gathered = 2 * oracle.sent((512, 384), world) + sum(parts.values())
    scattered = sum(parts.values()) - parts["norm"]
    want = (
        2 * (world - 1) * (2 * gathered + scattered),
        2 * 3 * (world - 1),
        {"all_gather": 4, "reduce_scatter": 2},
    )
    for rank, (before, train, inference) in enumerate(ranks(world, step)):
        who = f"rank {rank} of {world}"
        assert not before, f"{who}: expected nothing to be sent before forward, found {before}"
        assert train == want, f"{who}, a step: expected {want}, found {train}"
        assert inference == {"all_gather": 2}, f"{who}, inference: 2 gathers, found {inference}"
        if world == 4:
            cost.check("comm_bytes", train[0])
            cost.check("comm_steps", train[1])


def test_inference_has_one_block_whole_at_a_time(kata, oracle, cost, dispatch, seed):
    layers = oracle.model(kata, seed=seed, dtype=torch.float32)
    model = nn.Sequential(*(kata.ShardedQlora(layer, Echo(4)) for layer in layers))
    x = torch.ones(1, oracle.D)
    held = list(model.parameters())
    for block in model:
        for layer in (block.module.up, block.module.down):
            outputs, _ = layer.weight.fsdp_pre_all_gather()
            held += outputs  # as long as the shard and its padding
        block.unshard()
        held += [*block.parameters(), block.module.up.weight, block.module.down.weight]
        block.reshard()
    with dispatch(held=held) as counted, torch.no_grad():
        model(x)
    cost.check("peak_memory", counted.peak_live_bytes)


def test_whole_weights_are_there_only_while_they_are_used(kata, oracle, ranks, seed):
    def on_rank(_rank, _world):
        empty = alive_bytes()
        layers = oracle.model(kata, seed=seed)
        seen, noted = {}, []

        def there():
            return [at for at, all_of in sorted(seen.items()) if any(
                one.untyped_storage().nbytes() for one in all_of
            )]  # fmt: skip

        model = nn.Sequential(*(kata.ShardedQlora(layer, Echo(2)) for layer in layers))
        sharded = alive_bytes() - empty
        for at, layer in enumerate(layers):

            def watch(block, x, at=at):
                seen[at] = [block.up.weight, block.down.weight, block.up.a.detach()]
                assert not block.up.weight.requires_grad, "the frozen weight asks for a gradient"
                noted.append((f"forward of {at}", [at], there()))
                if x.requires_grad:
                    x.register_hook(lambda _: noted.append((f"backward of {at}", [at], there())))

            layer.watch = watch
        x = torch.ones(3, oracle.D, dtype=torch.float64)
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
        own = sum(8 * one.numel() for one in model.parameters() if one.requires_grad)
        held = sum(8 * one.numel() for one in model.parameters())
        held += 4 * oracle.sent((161, 321), 2)
        return noted, grads, left, own, sharded, held

    ((noted, grads, left, own, sharded, held),) = ranks(1, on_rank)
    assert sharded <= held + 4 * 16, f"shards: expected {held} bytes, found {sharded}"
    for when, want, found in noted:
        assert found == want, f"{when}: expected the weights of blocks {want}, found {found}"
    assert grads <= own, f"left by backward: expected {own} bytes, found {grads}"
    assert left <= own, f"left by inference: expected {own} bytes, found {left}"


def test_places_hold_shards_of_the_base_or_all_of_it(kata, oracle):
    (layer,) = oracle.model(kata, seed=0, blocks=1)
    whole = {name: one.detach().clone() for name, one in layer.named_parameters()}
    weight = oracle.whole(layer.up.weight).double()
    comm = Echo(1)
    block = kata.ShardedQlora(layer, comm)
    shards = dict(layer.named_parameters())
    assert type(layer.up.weight) is kata.Nf4Shard
    assert all(type(one) is kata.Shard for one in shards.values())
    assert list(block.state_dict()) == [f"module.{name}" for name in whole]
    for at in range(2):
        block.unshard()
        first = layer.up.weight
        block.unshard()
        assert comm.calls["all_gather"] == at + 1
        assert layer.up.weight is first
        assert torch.equal(first, weight)
        for name, one in layer.named_parameters():
            assert torch.equal(one, whole[name]), f"{name} is not what it was"
        block.reshard()
        block.reshard()
        assert all(one is shards[name] for name, one in layer.named_parameters())
        assert first.untyped_storage().nbytes() == 0
    block.unshard()
    block.post_backward()
    assert comm.calls["reduce_scatter"] == 0, "sent although no parameter has a gradient"


def test_a_matrix_alone_is_a_module(kata, oracle):
    (block,) = oracle.model(kata, seed=0, blocks=1, d=3, f=5)
    a, weight = block.up.a.detach().clone(), oracle.whole(block.up.weight).double()
    sharded = kata.ShardedQlora(block.up, Echo(1))
    sharded.unshard()
    assert torch.equal(block.up.weight, weight)
    assert torch.equal(block.up.a, a)


# ---- bad input -----------------------------------------------------------------------------


def test_impossible_cuts_are_refused(kata, oracle):
    for arguments, named in (((5, 0, 0), "unit"), ((5, -1, 2), "unit"), ((5, 1, 0), "world")):
        with pytest.raises(ValueError, match=f"^{named}: "):
            kata.shard_aligned(*arguments)
    whole = oracle.quantised(kata, torch.ones(130, 3))
    for rank in (-1, 2):
        with pytest.raises(ValueError, match="^rank: "):
            kata.Nf4Shard(whole, rank, 2)
    for spoiled in (
        whole._replace(packed=whole.packed[:-1]),
        whole._replace(codes=whole.codes[:-1]),
        whole._replace(absmax2=torch.ones(2)),
        whole._replace(shape=(130, 4)),
    ):
        with pytest.raises(ValueError, match="^whole: "):
            kata.Nf4Shard(spoiled, 2, 2)


def test_what_is_sharded_is_not_sharded_again(kata, oracle):
    (layer,) = oracle.model(kata, seed=0, blocks=1)
    kata.ShardedQlora(layer, Echo(2))
    shards = list(layer.parameters())
    with pytest.raises(ValueError, match="^module: "):
        kata.ShardedQlora(layer, Echo(2))
    assert all(map(lambda mine, one: mine is one, layer.parameters(), shards))
    (layer,) = oracle.model(kata, seed=0, blocks=1)
    kata.ShardedQlora(layer.down, Echo(2))  # a part of it
    params, weight = list(layer.parameters()), layer.up.weight
    with pytest.raises(ValueError, match="^module: "):
        kata.ShardedQlora(layer, Echo(2))
    assert layer.up.weight is weight, "the module is not as it was"
    assert all(map(lambda mine, one: mine is one, layer.parameters(), params))
