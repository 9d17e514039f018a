"""What is special about swapping the cut: which element goes where, both ways, and how much."""

import pytest
import torch
import torch.distributed as dist

from harness.judge import assert_matches
from harness.meters.collectives import Collectives
from harness.meters.network import network
from harness.simulators.ranks import own

LIMIT_S = 10.0  # a test of this size takes a tenth of a second, ranks that miss each other for ever


def assert_same(found, want, who):
    """Hold a tensor against another, bit by bit: NaN is NaN, and -0.0 is not 0.0."""
    assert found.shape == want.shape, f"{who}: shape {[*found.shape]}, expected {[*want.shape]}"
    assert found.dtype == want.dtype, f"{who}: {found.dtype}, expected {want.dtype}"
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[want.itemsize]
    off = (found.contiguous().view(kind) != want.contiguous().view(kind)).nonzero().tolist()
    if off:
        at = tuple(off[0])
        pytest.fail(
            f"{who}: element {list(at)} is {found[at].item()}, expected {want[at].item()}; "
            f"{len(off)} of {want.numel()} are wrong"
        )


# sequences, rows of a rank, heads of a rank, columns: one of each; several of each, an odd width;
# more sequences than rows
SHAPES = ((1, 1, 1, 1), (2, 3, 2, 5), (3, 1, 4, 2))


# alone, a neighbour, a number that is no power of two, the most
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_element_goes_where_its_head_is(kata, oracle, ranks, world):
    wholes = [oracle.told_apart(b, s * world, h * world, d) for b, s, h, d in SHAPES]
    wholes += [wholes[1].half(), wholes[1].double()]

    def swap(rank, world):
        found = []
        for whole in wholes:
            rows, heads = map(own, (oracle.part(whole, axis, rank, world) for axis in (1, 2)))
            with network() as (comm, _):
                # strided, as after a projection, and as attention leaves it
                strided = [
                    one.transpose(1, 2).contiguous().transpose(1, 2) for one in (rows, heads)
                ]
                pair = kata.seq_to_head(strided[0], comm), kata.head_to_seq(strided[1], comm)
            for name, one, was in zip(("rows", "heads"), strided, (rows, heads), strict=True):
                assert_same(one, was, f"x, {name} of rank {rank}, after the call")
            found.append(pair)
        return found

    for rank, found in enumerate(ranks(world, swap, timeout_s=LIMIT_S)):
        for whole, (by_head, by_row) in zip(wholes, found, strict=True):
            who = f"whole x of {[*whole.shape]}, rank {rank} of {world}"
            assert_same(by_head, oracle.part(whole, 2, rank, world), f"{who}: seq_to_head")
            assert_same(by_row, oracle.part(whole, 1, rank, world), f"{who}: head_to_seq")


class Pulled(torch.autograd.Function):
    """A sum of products whose gradient is the given tensor itself, and no copy of it."""

    @staticmethod
    def forward(ctx, y, dy):
        ctx.dy = dy
        return (y * dy).sum()

    @staticmethod
    def backward(ctx, _):
        return ctx.dy, None


def test_the_gradient_of_one_swap_is_the_other(kata, oracle, ranks):
    world = ranks.world(3)
    whole = oracle.told_apart(2, 2 * world, 3 * world, 3)

    def pull(rank, world):
        found = []
        rows, heads = map(own, (oracle.part(whole, axis, rank, world) for axis in (1, 2)))
        for swap, x, dy in ((kata.seq_to_head, rows, heads), (kata.head_to_seq, heads, rows)):
            for wanted in (True, False):
                given = torch.zeros_like(x).requires_grad_(wanted)
                # a gradient that is strided, as attention's is
                strided = dy.transpose(1, 2).contiguous().transpose(1, 2)
                with network() as (comm, meter):
                    y = swap(given, comm)
                    if not wanted:
                        y = y * torch.ones_like(dy).requires_grad_()
                    Pulled.apply(y, strided).backward()
                assert_same(strided, dy, f"the gradient of the result, rank {rank}, after the call")
                found.append((given.grad, dict(meter.calls)))
        return found

    for rank, found in enumerate(ranks(world, pull, timeout_s=LIMIT_S)):
        for at, (grad, calls) in enumerate(found):
            who = f"{('seq_to_head', 'head_to_seq')[at // 2]}, rank {rank} of {world}"
            want = {"all_to_all": 1 if at % 2 else 2}
            assert calls == want, (
                f"{who}, x needs {'no ' if at % 2 else 'a '}gradient: both passes call {calls}, "
                f"expected {want}"
            )
            if at % 2 == 0:
                assert_same(grad, oracle.part(whole, 1 + at // 2, rank, world), f"{who}: x.grad")


# heads by rank: one each; key heads that are cut; an odd width, all rows alike; half precision.
# Causal ones have rows enough that the gradient of the first, which sees a single key and cancels
# but for rounding, is a small part of them
CASES = (
    {"b": 2, "rows": 4, "h": 1, "kv": 1, "d": 16, "causal": False},
    {"b": 1, "rows": 5, "h": 4, "kv": 2, "d": 24, "causal": True},
    {"b": 2, "rows": 3, "h": 2, "kv": 2, "d": 17, "causal": False},
    {"b": 1, "rows": 12, "h": 2, "kv": 1, "d": 16, "causal": True, "dtype": torch.float16},
)


def wholes(oracle, world, seed):
    """Draw the cases of a world; where it has a divisor, also fewer key heads than ranks."""
    cases = [case | {"kv": case["kv"] * world} for case in CASES]
    cases.append(CASES[1] | {"kv": 1})
    if world == 4:
        cases.append(CASES[2] | {"kv": 2})
    drawn = []
    for at, case in enumerate(cases):
        shape = {name: value for name, value in case.items() if name != "causal"}
        # with a single key the gradients of q and k are nothing but rounding
        shape |= {"rows": max(2, case["rows"] * world), "h": case["h"] * world}
        drawn.append((oracle.sequence(**shape, seed=seed + 4 * at), case["causal"]))
    return drawn


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_both_passes_are_those_of_the_whole_sequence(kata, oracle, ranks, seed, world):
    drawn = wholes(oracle, world, seed)

    def both(rank, world):
        found = []
        for whole, causal in drawn:
            *mine, dout = map(own, (oracle.part(one, 1, rank, world) for one in whole))
            mine = [one.requires_grad_() for one in mine]
            with network() as (comm, _):
                out = kata.ulysses_attn(*mine, comm, causal=causal)
                (out * dout).sum().backward()
            found.append([out.detach(), *[one.grad for one in mine]])
        return found

    by_rank = ranks(world, both, timeout_s=LIMIT_S)
    known = ranks.alone(lambda: [oracle.answers(*whole, causal) for whole, causal in drawn])
    names = ("out", "the gradient of q", "the gradient of k", "the gradient of v")
    for at, (truth, trusted) in enumerate(known):
        q, k = drawn[at][0][:2]
        who = f"whole q of {[*q.shape]}, {k.shape[2]} key heads, {q.dtype}, {world} ranks"
        for name, *found, exact, similar in zip(
            names, *(rank[at] for rank in by_rank), truth, trusted, strict=True
        ):
            whole = torch.cat(found, 1)
            assert_matches(whole, exact, same_precision=similar, name=f"{who}: {name}")


def test_a_rank_sends_its_rows_once(kata, oracle, ranks, cost, seed):
    world, b, s, d = ranks.world(4), 2, 8, 16
    single, half = torch.float32, torch.float16
    # as many key heads, as many as ranks, fewer; half precision
    cases = [(8, single), (4, single), (1, single), (2, single), (4, half)]
    cases = [(kv, dtype) for kv, dtype in cases if kv % world == 0 or world % kv == 0]
    drawn = [
        oracle.sequence(b=b, rows=s * world, h=8, kv=kv, d=d, seed=seed, dtype=dtype)
        for kv, dtype in cases
    ]

    def count(rank, world):
        counted = []
        for whole in drawn:
            *mine, dout = map(own, (oracle.part(one, 1, rank, world) for one in whole))
            with network(Collectives) as (comm, gathering), torch.no_grad():
                oracle.gathered_attn(*mine, comm, causal=True)
            mine = [one.requires_grad_() for one in mine]
            with network(Collectives) as (comm, meter):
                out = kata.ulysses_attn(*mine, comm, causal=True)
                forward, calls = meter.bytes_sent, sum(meter.calls.values())
                (out * dout).sum().backward()
            backward = meter.bytes_sent - forward, sum(meter.calls.values()) - calls
            counted.append((forward, calls, *backward, gathering.bytes_sent, meter.messages))
        return counted

    for rank, by_case in enumerate(ranks(world, count, timeout_s=LIMIT_S)):
        for (kv, dtype), counts in zip(cases, by_case, strict=True):
            forward, calls, backward, back_calls, *_ = counts
            who = f"8 heads, {kv} key heads, {dtype}, rank {rank} of {world}"
            size = {"b": b, "s": s, "h": 8, "kv": kv, "d": d, "itemsize": dtype.itemsize}
            want = oracle.forward_bytes(**size, world=world)
            assert (forward, backward) == (want, want), (
                f"{who}: {forward} bytes forward and {backward} backward, expected {want} each"
            )
            assert max(calls, back_calls) <= 4, (
                f"{who}: {calls} collectives forward and {back_calls} backward, expected at most 4"
            )
        forward, _, backward, _, gathering, messages = by_case[0]
        if world == 4:
            cost.check("comm_bytes", forward + backward)
            cost.check("comm_steps", messages)
            cost.check("of_gathering", forward / gathering)


def test_a_group_of_some_ranks_leaves_the_others_alone(kata, oracle, ranks, seed):
    world = ranks.world(3)
    members = [*range(1, world)]
    n = len(members)
    whole = oracle.sequence(b=1, rows=4 * n, h=4 * n, kv=2 * n, d=16, seed=seed)

    def attend(rank, world):
        group = dist.new_group(members)
        if rank not in members:
            return None
        mine = [own(oracle.part(one, 1, rank - 1, n)) for one in whole[:3]]
        with network(group=group) as (comm, _):
            return kata.ulysses_attn(*mine, comm, causal=True)

    found = torch.cat(ranks(world, attend, timeout_s=LIMIT_S)[1:], 1)
    truth, trusted = ranks.alone(lambda: oracle.answers(*whole, True))
    name = f"a group of the ranks {members}: out"
    assert_matches(found, truth[0], same_precision=trusted[0], name=name)


def test_bfloat16_stays_bfloat16(kata, oracle, ranks, device, seed):
    if device == "cpu":
        pytest.skip("bfloat16 is judged on GPUs")
    world = ranks.world(4)
    whole = oracle.sequence(
        b=1, rows=32 * world, h=2 * world, kv=world, d=64, seed=seed, dtype=torch.bfloat16
    )

    def attend(rank, world):
        mine = [own(oracle.part(one, 1, rank, world)) for one in whole[:3]]
        with network() as (comm, _):
            return kata.ulysses_attn(*mine, comm, causal=True)

    found = torch.cat(ranks(world, attend, timeout_s=LIMIT_S), 1)
    truth, trusted = ranks.alone(lambda: oracle.answers(*whole, True))
    assert_matches(found, truth[0], same_precision=trusted[0], name="out in bfloat16")


class Closed:
    """Six ranks between which nothing may be sent."""

    rank, world, group = 0, 6, None

    def all_to_all(self, _, tensor):
        raise AssertionError(
            f"{[*tensor.shape]} sent between 6 ranks, expected a ValueError before anything is sent"
        )

    all_gather = all_reduce = reduce_scatter = broadcast = all_to_all


def test_what_the_ranks_do_not_divide_is_refused(kata):
    comm = Closed()
    with pytest.raises(ValueError, match="^x: .*heads"):
        kata.seq_to_head(torch.ones(1, 6, 4, 4), comm)
    with pytest.raises(ValueError, match="^x: .*rows"):
        kata.head_to_seq(torch.ones(1, 4, 6, 4), comm)
    for heads, kv, name in ((4, 4, "q"), (6, 4, "q"), (12, 4, "k"), (36, 9, "k")):
        q, k = torch.ones(1, 2, heads, 4), torch.ones(1, 2, kv, 4)
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.ulysses_attn(q, k, k, comm, causal=True)
