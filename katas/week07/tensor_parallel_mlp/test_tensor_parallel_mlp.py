"""What is special about a block cut over ranks: what is whole, a part, or a summand."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from harness.judge import assert_matches
from harness.meters.collectives import Collectives
from harness.meters.communication import comm_meter
from harness.simulators.ranks import own, rank_device

LIMIT_S = 10.0  # a test of this size takes a tenth of a second, ranks that miss each other for ever


class Watched:
    """A collective that has something done when it has been waited for."""

    def __init__(self, pending, then):
        self.pending = pending
        self.then = then

    @property
    def waited(self):
        return self.pending.waited

    def wait(self):
        self.pending.wait()
        self.then()


class SlowCollectives(Collectives):
    """A network at its slowest: no sum has arrived before it is waited for."""

    def all_reduce(self, tensor):
        assert tensor.is_contiguous(), "tp.all_reduce: expected a contiguous tensor"
        travelling = tensor.detach().clone()
        tensor.detach().fill_(torch.nan)
        return Watched(super().all_reduce(travelling), lambda: tensor.detach().copy_(travelling))


class ClosedCollectives(Collectives):
    """Four ranks between which nothing may be sent."""

    rank, world = 1, 4

    def all_reduce(self, tensor):
        raise AssertionError("expected a ValueError before anything is sent, found an all-reduce")


@contextmanager
def group():
    """Yield a tp, through which everything must go, and a meter of it."""
    with SlowCollectives() as tp, comm_meter() as meter:
        yield tp, meter
    waits = sum(op.startswith("wait_") for op, *_ in meter.log)
    assert waits == sum(meter.calls.values()), (
        f"expected all communication through tp, found {dict(meter.calls)}, of which tp knows "
        f"{waits}"
    )


def leaf(tensor):
    return tensor.to(rank_device(), copy=True).requires_grad_()


def whole_mlp(oracle, seed, act, d=6, hidden=12, cols=5):
    """Whole weights and biases of two layers, in nn.Linear's layout."""
    shapes = ((hidden, d), (hidden,), (cols, hidden), (cols,))
    return [oracle.numbers(*shape, seed=seed + at) for at, shape in enumerate(shapes)]


def parallel_mlp(kata, weights, tp, act):
    w1, b1, w2, b2 = weights
    column = kata.ColumnParallelLinear(w1, b1, tp)
    row = kata.RowParallelLinear(w2, b2, tp)
    return nn.Sequential(column, act, row)


def parts_of(oracle, weights, rank, world):
    """What a rank should have of the weights, or their gradients, of two layers."""
    w1, b1, w2, b2 = weights
    cut = [oracle.part(one, axis, rank, world) for one, axis in ((w1, 0), (b1, 0), (w2, 1))]
    return [*cut, b2]


def test_two_layers_are_those_of_one_process(kata, oracle, ranks, seed):
    # rows of a batch, sequences, none at all, one alone
    shapes = ((5, 6), (2, 3, 6), (0, 6), (6,))

    def both_passes(rank, world):
        for at, shape in enumerate(shapes):
            weights = [own(one) for one in whole_mlp(oracle, seed, torch.relu)]
            x = own(oracle.numbers(*shape, seed=seed + at))
            dy = own(oracle.numbers(*shape[:-1], 5, seed=seed))
            y, dx, *grads = oracle.pull(
                lambda *leaves: oracle.mlp(*leaves, torch.relu), [x, *weights], dy
            )
            with group() as (tp, _):
                net = parallel_mlp(kata, weights, tp, nn.ReLU())
                given = leaf(x)
                found = net(given)
                (found * dy).sum().backward()
            told = f"rank {rank} of {world}, x of {list(shape)}"
            assert_matches(found.detach(), y, name=f"{told}: y")
            assert_matches(given.grad, dx, name=f"{told}: the gradient of x")
            names = ("first weight", "first bias", "second weight", "second bias")
            wanted = parts_of(oracle, grads, rank, world)
            for name, parameter, want in zip(names, net.parameters(), wanted, strict=True):
                assert_matches(parameter.grad, want, name=f"{told}: the gradient of the {name}")

    for world in range(1, ranks.world(4) + 1):
        if 12 % world == 0:
            ranks(world, both_passes, timeout_s=LIMIT_S)


def test_layers_without_a_bias_have_none(kata, oracle, ranks, seed):
    w1, _, w2, _ = whole_mlp(oracle, seed, torch.relu)
    x = oracle.numbers(5, 6, seed=seed)

    def forward(rank, world):
        with group() as (tp, _):
            net = parallel_mlp(kata, [own(w1), None, own(w2), None], tp, nn.ReLU())
            names = [name for name, _ in net.named_parameters()]
            assert names == ["0.weight", "2.weight"], (
                f"layers made with bias=None: expected two weights as parameters, found {names}"
            )
            return net(own(x)).detach()

    for found in ranks(2, forward, timeout_s=LIMIT_S):
        assert_matches(found, torch.relu(x @ w1.T) @ w2.T)


def test_a_rank_keeps_a_copy_of_its_part(kata, oracle, ranks, cost, seed):
    world = ranks.world(4)
    weights = whole_mlp(oracle, seed, torch.relu)

    def build(rank, world):
        whole = [own(one) for one in weights]
        with group() as (tp, meter):
            net = parallel_mlp(kata, whole, tp, nn.ReLU())
        assert not meter.calls, f"a layer is made without sending, found {dict(meter.calls)}"
        for tensor in whole:
            tensor.fill_(torch.nan)
        wanted = parts_of(oracle, [*map(own, weights)], rank, world)
        names = [name for name, _ in net.named_parameters()]
        assert names == ["0.weight", "0.bias", "2.weight", "2.bias"], (
            f"two layers: expected a weight and a bias each as parameters, found {names}"
        )
        for (name, found), want in zip(net.named_parameters(), wanted, strict=True):
            told = f"rank {rank} of {world}: {name}, the whole one overwritten since"
            assert_matches(found.detach(), want, name=told)
        return sum(layer.weight.untyped_storage().nbytes() for layer in (net[0], net[2]))

    held = ranks(world, build, timeout_s=LIMIT_S)
    share = max(held) / (weights[0].nbytes + weights[2].nbytes)
    assert share == 1 / world, f"weights on {world} ranks: expected 1 / {world}, found {share}"
    if world == 4:
        cost.check("weights", share)


def test_weights_stay_those_of_one_process(kata, oracle, ranks, seed):
    world, steps = ranks.world(3), 3
    weights = whole_mlp(oracle, seed, torch.relu)
    batches = [oracle.numbers(5, 6, seed=seed + at) for at in range(steps)]

    def train(rank, world):
        alone = [leaf(one) for one in weights]
        with group() as (tp, meter):
            net = parallel_mlp(kata, [*map(own, weights)], tp, nn.ReLU())
            for x in batches:
                (net(own(x)) ** 2).sum().backward()
                (oracle.mlp(own(x), *alone, torch.relu) ** 2).sum().backward()
                for parameter in [*net.parameters(), *alone]:  # signSGD keeps whole numbers whole
                    parameter.data -= parameter.grad.sign()
                    parameter.grad = None
        count = meter.calls["all_reduce"]
        assert count == steps, (
            f"{steps} steps on an x that needs no gradient: expected an all-reduce in each, "
            f"forward, found {count}"
        )
        wanted = parts_of(oracle, [one.detach() for one in alone], rank, world)
        for (name, found), want in zip(net.named_parameters(), wanted, strict=True):
            assert_matches(found.detach(), want, name=f"rank {rank}: {name} after {steps} steps")

    ranks(world, train, timeout_s=LIMIT_S)


def pull_block(block, formulas, oracle, x, weights, axes, *, rank, world):
    """Both passes of a block in float32: what came, one process in float64 and float32, the log."""
    dy = oracle.normal(*x.shape, seed=7).to(rank_device())
    x, *weights = map(own, (x, *weights))
    truth = oracle.pull(formulas[0], [x.double(), *[one.double() for one in weights]], dy)
    orders = [*formulas, *map(oracle.backwards, formulas)]
    trusted = oracle.least_exact(truth, *[oracle.pull(one, [x, *weights], dy) for one in orders])
    with group() as (tp, meter):
        shards = [
            leaf(oracle.part(one, axis, rank, world))
            for one, axis in zip(weights, axes, strict=True)
        ]
        given = leaf(x)
        y = block(given, *shards, tp)
        (y * dy).sum().backward()
    found = [y.detach(), given.grad, *[shard.grad for shard in shards]]
    return found, (truth, trusted), (meter.log, meter.bytes_sent, meter.messages)


def assert_block(by_rank, names, axes):
    """Hold y and the gradient of x of each rank, and the parts of the others put together."""
    truth, trusted = by_rank[0][1]
    for rank, (found, *_) in enumerate(by_rank):
        for at, name in enumerate(("y", "the gradient of x")):
            told = f"rank {rank} of {len(by_rank)}: {name}"
            assert_matches(found[at], truth[at], same_precision=trusted[at], name=told)
    for at, (name, axis) in enumerate(zip(names, axes, strict=True), 2):
        whole = torch.cat([found[at] for found, *_ in by_rank], axis)
        told = f"{len(by_rank)} ranks: the gradient of {name}, put together"
        assert_matches(whole, truth[at], same_precision=trusted[at], name=told)


def test_swiglu_is_that_of_one_process(kata, oracle, ranks, cost, seed):
    sequences = oracle.normal(2, 5, 24, seed=seed)
    shapes, axes = ((36, 24), (36, 24), (24, 36)), (0, 0, 1)
    weights = [oracle.weight(*shape, seed=seed + at) for at, shape in enumerate(shapes, 1)]

    def block(rank, world):
        x = sequences.flatten(0, 1) if world == 2 else sequences
        return pull_block(
            kata.parallel_swiglu_mlp, [oracle.swiglu], oracle, x, weights, axes,
            rank=rank, world=world,
        )  # fmt: skip

    for world in range(2, ranks.world(4) + 1):
        by_rank = ranks(world, block, timeout_s=LIMIT_S)
        assert_block(by_rank, ("wg", "wu", "wd"), axes)
        for *_, (log, sent, messages) in by_rank:
            assert_one_a_pass(oracle, log, sequences, world)
            if world == 4:
                cost.check("comm_bytes", sent)
                cost.check("comm_steps", messages)


def assert_one_a_pass(oracle, log, x, world):
    """One all-reduce of the size of `x` forward, and one backward; nothing else."""
    size = oracle.all_reduce_bytes(x.numel(), 4, world)
    found = [(op, sent) for op, _, sent in log if not op.startswith("wait_")]
    assert found == 2 * [("all_reduce", size)], (
        f"{world} ranks, both passes: expected two all-reduces of {size} bytes, found {found}"
    )


# a head a rank, two query heads that share a key head, two such groups a rank
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 4), (16, 8)])
def test_attention_is_that_of_one_process(kata, oracle, ranks, seed, heads, kv_heads):
    world, width, dim, axes = ranks.world(4), 4, 24, (0, 0, 0, 1)
    x = oracle.normal(2, 5, dim, seed=seed)
    sizes = (heads * width, kv_heads * width, kv_heads * width)
    weights = [oracle.weight(size, dim, seed=seed + at) for at, size in enumerate(sizes, 1)]
    weights.append(oracle.weight(dim, heads * width, seed=seed + 9))
    formulas = [
        lambda *tensors, formula=formula: formula(*tensors, heads, kv_heads)
        for formula in (oracle.attention, oracle.library_attention)
    ]

    def parallel(x, wq, wk, wv, wo, tp):
        return kata.parallel_attention(x, wq, wk, wv, wo, heads, kv_heads, tp)

    def block(rank, world):
        return pull_block(parallel, formulas, oracle, x, weights, axes, rank=rank, world=world)

    by_rank = ranks(world, block, timeout_s=LIMIT_S)
    assert_block(by_rank, ("wq", "wk", "wv", "wo"), axes)
    for *_, (log, _, _) in by_rank:
        assert_one_a_pass(oracle, log, x, world)


def test_what_lies_before_a_block_has_whole_gradients(kata, oracle, ranks, seed):
    """A gain that every rank has, a block beside a residual path, the block used twice."""
    weights = whole_mlp(oracle, seed, torch.relu, cols=6)
    x, gain, dy = (oracle.numbers(*shape, seed=seed) for shape in ((5, 6), (6,), (5, 6)))

    def twice(block, x, gain):
        once = x * gain + block(x * gain)
        return once + block(once)

    def step(rank, world):
        want = oracle.pull(
            lambda x, gain: twice(lambda x: oracle.mlp(x, *map(own, weights), torch.relu), x, gain),
            [own(x), own(gain)],
            own(dy),
        )
        with group() as (tp, _):
            net = parallel_mlp(kata, [*map(own, weights)], tp, nn.ReLU())
            given = [leaf(x), leaf(gain)]
            y = twice(net, *given)
            (y * dy.to(y.device)).sum().backward()
        found = (y.detach(), *[one.grad for one in given])
        for name, one, truth in zip(("y", "x.grad", "gain.grad"), found, want, strict=True):
            assert_matches(one, truth, name=f"rank {rank}: {name}")

    ranks(2, step, timeout_s=LIMIT_S)


def test_the_two_functions_are_conjugate(kata, oracle, ranks, seed):
    world = ranks.world(3)
    large = 2**30 + 1  # whole numbers that float32 has no room for
    x, dy = (
        [large * oracle.numbers(4, 3, seed=at + rank) for rank in range(world)]
        for at in (seed, seed + 10)
    )

    def both(rank, world):
        found = {}
        for name in ("copy_to_tp", "reduce_from_tp"):
            for strided in (False, True):
                given, upstream = (
                    leaf(x[rank].t().contiguous() if strided else x[rank]),
                    own(dy[rank]),
                )
                with group() as (tp, meter):
                    y = getattr(kata, name)(given.t() if strided else given, tp)
                    forward = meter.calls["all_reduce"]
                    (y * upstream).sum().backward()
                read = given.detach().t() if strided else given.detach()
                assert torch.equal(read.cpu(), x[rank]), f"{name}: x was written to"
                calls = forward, meter.calls["all_reduce"] - forward
                dx = given.grad.t() if strided else given.grad
                found[name, strided] = y.detach(), dx, calls
        return found

    wanted = {"copy_to_tp": (x, [sum(dy)] * world), "reduce_from_tp": ([sum(x)] * world, dy)}
    for rank, found in enumerate(ranks(world, both, timeout_s=LIMIT_S)):
        for (name, strided), (y, dx, calls) in found.items():
            told = f"{name} of a {'strided' if strided else 'contiguous'} x"
            assert_matches(y, wanted[name][0][rank], name=told)
            assert_matches(dx, wanted[name][1][rank], name=f"{told}: the gradient of x")
            want = (0, 1) if name == "copy_to_tp" else (1, 0)
            assert calls == want, (
                f"{name}: expected {want} all-reduces forward and backward, found {calls}"
            )


def test_a_gradient_without_memory_of_its_own_is_summed(kata, oracle, ranks, seed):
    def step(rank, world):
        with group() as (tp, _):
            x = leaf(oracle.numbers(4, 3, seed=seed))
            kata.copy_to_tp(x, tp).sum().backward()  # an expanded 1
            residual, inside = leaf(oracle.numbers(3, seed=1)), leaf(oracle.numbers(3, seed=2))
            # one gradient for both summands; the later one has it first
            beside = residual * 3
            ((beside + kata.copy_to_tp(inside, tp)) * own(torch.ones(3))).sum().backward()
        return x.grad, residual.grad, inside.grad

    for whole, residual, inside in ranks(2, step, timeout_s=LIMIT_S):
        assert_matches(whole, torch.full((4, 3), 2.0).double(), name="x.grad")
        assert_matches(residual, torch.full((3,), 3.0).double(), name="the other summand's grad")
        assert_matches(inside, torch.full((3,), 2.0).double(), name="the grad behind copy_to_tp")


def test_gradients_are_not_changed_by_later_ones(kata, ranks):
    def step(rank, world):
        with group() as (tp, _):
            leaves = [leaf(torch.zeros(3)) for _ in range(2)]
            first, second = (kata.copy_to_tp(one, tp) for one in leaves)
            return torch.autograd.grad((2 * first + 3 * second).sum(), leaves)

    for found in ranks(2, step, timeout_s=LIMIT_S):
        for name, grad, want in zip(("first", "second"), found, (4.0, 6.0), strict=True):
            assert_matches(grad, torch.full((3,), want), name=f"the gradient of the {name} x")


def test_what_the_ranks_do_not_divide_is_refused(kata, ranks):
    def build(rank, world):
        tp = ClosedCollectives()
        with pytest.raises(ValueError, match=r"\bweight\b"):
            kata.ColumnParallelLinear(torch.ones(6, 8), torch.ones(6), tp)
        with pytest.raises(ValueError, match=r"\bweight\b"):
            kata.RowParallelLinear(torch.ones(8, 6), torch.ones(8), tp)
        x, wq, wo = torch.ones(1, 2, 8), torch.ones(6, 8), torch.ones(8, 6)
        for heads, kv_heads, name in ((6, 4, "heads"), (8, 2, "kv_heads")):
            with pytest.raises(ValueError, match=rf"\b{name}\b"):
                kata.parallel_attention(x, wq, wq, wq, wo, heads, kv_heads, tp)

    ranks(1, build, timeout_s=LIMIT_S)
