"""What is special about rows between two parallel matrices: what is gathered, kept, and summed."""

import pytest
import torch
import torch.distributed as dist

from harness.judge import assert_matches
from harness.meters.collectives import Collectives
from harness.meters.dispatch import alive_bytes, saved_meter
from harness.meters.network import network
from harness.simulators.ranks import own, rank_device

LIMIT_S = 10.0  # a test of this size takes a tenth of a second, ranks that miss each other for ever
NAMES = ("y", "x.grad", "ln_w.grad", "ln_b.grad", "w1.grad", "w2.grad")
AXES = (0, 0, None, None, 0, 1)  # along which a rank has a part of each


def strided(tensor):
    """The same values, batch before rows in memory."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


def leaves(oracle, whole, rank, world):
    """This rank's rows of x and of the gradient of y, and its parts of the weights."""
    x, *weights, dy = whole
    parts = [
        one.clone() if axis is None else oracle.part(one, axis, rank, world)
        for one, axis in zip((x, *weights), AXES[1:], strict=True)
    ]
    x, *weights = (one.requires_grad_() for one in map(own, (strided(parts[0]), *parts[1:])))
    return x, weights, own(strided(oracle.part(dy, 0, rank, world)))


class Pulled(torch.autograd.Function):
    """A sum of products whose gradient is the given tensor itself, and no copy of it."""

    @staticmethod
    def forward(ctx, y, dy):
        ctx.dy = dy
        return (y * dy).sum()

    @staticmethod
    def backward(ctx, _):
        return ctx.dy, None


def both_passes(kata, oracle, wholes, comm, rank, world):
    """As layers: forward one after the other, backward in reverse."""
    given = [leaves(oracle, whole, rank, world) for whole in wholes]
    before = [(x.detach().clone(), dy.clone()) for x, _, dy in given]
    ys = [kata.sp_mlp_block(x, *weights, comm) for x, weights, _ in given]
    for y, (_, weights, dy) in zip(ys[::-1], given[::-1], strict=True):
        Pulled.apply(y, dy).backward()
        kata.finish_grads(iter(weights[:2]), comm)
    for (x, _, dy), (x_before, dy_before) in zip(given, before, strict=True):
        assert torch.equal(x, x_before), "x was written to"
        assert torch.equal(dy, dy_before), "the gradient of y was written to"
    return [
        [y.detach(), x.grad, *[one.grad for one in weights]]
        for y, (x, weights, _) in zip(ys, given, strict=True)
    ]


def assert_block(by_rank, truth, trusted, who):
    """Hold what every rank has whole, and the parts of the others put together."""
    for at, (name, axis) in enumerate(zip(NAMES, AXES, strict=True)):
        found = [one[at] for one in by_rank]
        wholes = found if axis is None else [torch.cat(found, axis)]
        for whole in wholes:
            assert_matches(whole, truth[at], same_precision=trusted[at], name=f"{who}: {name}")


# alone, a neighbour, a number that is no power of two, the most
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_both_passes_are_those_of_one_process(kata, oracle, ranks, seed, world):
    # a row a rank of one sequence; several rows of several sequences
    shapes = ((world, 1, 24), (5 * world, 3, 24))
    wholes = [
        (oracle.normal(*shape, seed=seed + at), *oracle.weights(24, seed=seed + 2),
         oracle.normal(*shape, seed=seed + 9 + at))
        for at, shape in enumerate(shapes)
    ]  # fmt: skip

    def step(rank, world):
        with network() as (comm, _):
            return both_passes(kata, oracle, wholes, comm, rank, world)

    by_rank = ranks(world, step, timeout_s=LIMIT_S)
    known = ranks.alone(lambda: [oracle.answers(*whole) for whole in wholes])
    for at, (truth, trusted) in enumerate(known):
        who = f"x of {[*wholes[at][0].shape]} on {world} ranks"
        assert_block([found[at] for found in by_rank], truth, trusted, who)


def test_the_two_operators_are_conjugate(kata, oracle, ranks, seed):
    world = ranks.world(3)
    xs = [oracle.numbers(2, 3, 4, seed=seed + rank) for rank in range(world)]
    ws = [oracle.numbers(5, 4, seed=seed + 10 + rank) for rank in range(world)]
    hidden = [oracle.numbers(2 * world, 3, 5, seed=seed + 20 + rank) for rank in range(world)]
    sums = [oracle.numbers(2 * world, 3, 4, seed=seed + 30 + rank) for rank in range(world)]

    def pull(rank, world):
        found = []
        for dtype in (torch.float64, torch.float16):
            for needs in ((True, True), (True, False), (False, True)):
                parts = (strided(xs[rank]), ws[rank], strided(hidden[rank]))
                x, w, dy = (own(one).to(dtype) for one in parts)
                given = [one.requires_grad_(need) for one, need in zip((x, w), needs, strict=True)]
                with network() as (comm, meter):
                    y = kata.gathered_linear(*given, comm)
                    forward = dict(meter.calls)
                    Pulled.apply(y, dy).backward()
                calls = forward, dict(meter.calls), meter.bytes_sent
                found.append((dtype, needs, (y.detach(), x.grad, w.grad), calls))
            x, dy = (own(one).to(dtype) for one in (strided(sums[rank]), strided(xs[rank])))
            x.requires_grad_()
            with network() as (comm, meter):
                y = kata.reduce_scatter_to_sp(x, comm)
                forward = dict(meter.calls)
                Pulled.apply(y, dy).backward()
            calls = forward, dict(meter.calls), meter.bytes_sent
            found.append((dtype, None, (y.detach(), x.grad, None), calls))
        return found

    whole = torch.cat(xs)
    dx = sum(dy @ w for dy, w in zip(hidden, ws, strict=True))
    for rank, found in enumerate(ranks(world, pull, timeout_s=LIMIT_S)):
        for dtype, needs, results, calls in found:
            who = f"{dtype}, rank {rank} of {world}"
            if needs is None:
                who = f"reduce_scatter_to_sp, {who}"
                wanted = oracle.part(sum(sums), 0, rank, world), whole, None
                want = {"reduce_scatter": 1}, {"reduce_scatter": 1, "all_gather": 1}
            else:
                who = f"gathered_linear, {who}, gradients of (x, w) needed: {needs}"
                mine = oracle.part(dx, 0, rank, world) if needs[0] else None
                dw = torch.einsum("sbp,sbh->ph", hidden[rank], whole) if needs[1] else None
                wanted = whole @ ws[rank].T, mine, dw
                both = {"all_gather": 1 + needs[1]} | ({"reduce_scatter": 1} if needs[0] else {})
                want = {"all_gather": 1}, both
            for name, one, exact in zip(("y", "x.grad", "w.grad"), results, wanted, strict=True):
                if exact is not None:
                    assert one.dtype == dtype, f"{who}: {name} is {one.dtype}"
                    assert_matches(one, exact, name=f"{who}: {name}")
            rows = (world - 1) * xs[rank].numel() * dtype.itemsize
            want = (*want, sum(want[1].values()) * rows)
            assert calls == want, (
                f"{who}: collectives forward, in both passes, and bytes: {calls}, expected {want}"
            )


def test_rows_are_kept_and_gathered_again(kata, oracle, ranks, cost, seed):
    world, s, b, h = ranks.world(4), 8, 2, 32
    x, dy = (oracle.normal(s * world, b, h, seed=at) for at in (seed, seed + 1))
    whole = (x, *oracle.weights(h, seed=seed + 2), dy)

    def step(rank, world):
        x, weights, dy = leaves(oracle, whole, rank, world)
        x = x.detach().contiguous().requires_grad_()
        before = alive_bytes()
        with network(Collectives) as (comm, meter):
            with saved_meter(exclude=weights) as saved:
                y = kata.sp_mlp_block(x, *weights, comm)
            most = before + saved.bytes - x.nbytes + y.nbytes
            aside = max(alive_bytes(most) - most, 0)
            forward = len(meter.log)
            (y * dy).sum().backward()
            backward = [one.op for one in meter.log[forward:]]
            kata.finish_grads(weights[:2], comm)
            kata.finish_grads([torch.ones(3)], comm)
        return meter.bytes_sent, meter.messages, backward, saved.bytes, aside, dict(meter.calls)

    for rank, (sent, messages, log, kept, aside, calls) in enumerate(
        ranks(world, step, timeout_s=LIMIT_S)
    ):
        who = f"rank {rank} of {world}"
        rows, sums = (world - 1) * s * b * h * 4, 2 * (world - 1) * 2 * h * 4 // world
        assert sent == 5 * rows + sums, (
            f"{who}: {sent} bytes sent, expected rows five times and one sum of two vectors, "
            f"{5 * rows + sums}"
        )
        assert not aside, (
            f"{who}: {aside} bytes kept between the passes beside autograd, expected 0"
        )
        want = {"all_gather": 3, "reduce_scatter": 2, "all_reduce": 1}
        assert calls == want, f"{who}: collectives {calls}, expected {want}"
        inner = log[log.index("wait_all_gather") + 1 :]
        assert inner[:2] == ["all_gather", "reduce_scatter"], (
            f"{who}: backward of gathered_linear: {', '.join(inner)}; expected both collectives "
            "to be started before either is waited for, the all_gather first"
        )
        if world == 4:
            cost.check("comm_bytes", sent)
            cost.check("comm_steps", messages)
            cost.check("saved_bytes", kept)


def test_a_group_of_some_ranks_leaves_the_others_alone(kata, oracle, ranks, seed):
    world = ranks.world(3)
    members = [*range(1, world)]
    x, dy = (oracle.normal(4 * len(members), 2, 24, seed=at) for at in (seed, seed + 1))
    whole = (x, *oracle.weights(24, seed=seed + 2), dy)

    def step(rank, world):
        group = dist.new_group(members)
        if rank not in members:
            return None
        with network(group=group) as (comm, _):
            return both_passes(kata, oracle, [whole], comm, rank - 1, len(members))[0]

    by_rank = ranks(world, step, timeout_s=LIMIT_S)[1:]
    truth, trusted = ranks.alone(lambda: oracle.answers(*whole))
    assert_block(by_rank, truth, trusted, f"a group of the ranks {members}")


def test_gradients_of_what_every_rank_has_are_summed(kata, oracle, ranks, seed):
    """In place, of any shape, those without a gradient left alone; nothing is sent for none."""

    def finish(rank, world):
        draw = {"device": rank_device(), "dtype": torch.float64}
        params = [torch.zeros(shape, **draw) for shape in ((2, 3), (4,), ())]
        kept = torch.full((3, 2), rank + 1.0 + 2**-40, **draw).t()
        params[0].grad, params[2].grad = kept, torch.tensor(10.0 * rank, **draw)
        with network() as (comm, meter):
            kata.finish_grads(iter(params), comm)
        assert params[0].grad is kept, "the gradient of the first is another tensor"
        assert params[1].grad is None, "the second had no gradient, and has one"
        return kept, params[2].grad, dict(meter.calls)

    for rank, (first, last, calls) in enumerate(ranks(2, finish, timeout_s=LIMIT_S)):
        found = first.tolist(), last.item(), calls
        want = [[3.0 + 2**-39] * 3] * 2, 10.0, {"all_reduce": 1}
        assert found == want, f"rank {rank}: gradients and calls {found}, expected {want}"


class Closed:
    """Three ranks between which nothing may be sent."""

    rank, world, group = 0, 3, None

    def reduce_scatter(self, _, tensor):
        raise AssertionError(
            f"{[*tensor.shape]} sent between 3 ranks, expected a ValueError before anything is sent"
        )

    all_gather = all_reduce = reduce_scatter


def test_rows_that_the_ranks_do_not_divide_are_refused(kata):
    for rows in (4, 5):
        with pytest.raises(ValueError, match="^x: "):
            kata.reduce_scatter_to_sp(torch.ones(rows, 1, 2), Closed())
