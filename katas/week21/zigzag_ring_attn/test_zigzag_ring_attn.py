"""What is special about the zigzag: who has which rows, who computes how much, what comes home."""

import statistics
import time

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge import assert_matches
from harness.meters.communication import Transfer
from harness.meters.dispatch import alive_bytes
from harness.meters.late import LateRing
from harness.meters.network import network
from harness.meters.ring import RingComm
from harness.simulators.ranks import own, rank_device

LIMIT_S = 10.0  # a test of this size takes a tenth of a second, ranks that miss each other for ever


def leaves(tensors):
    """Make leaves that lie as after most projections: heads before rows."""
    return [
        one.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
        for one in map(own, tensors)
    ]


class Pulled(torch.autograd.Function):
    """A sum of products whose gradient is the given tensor itself, and no copy of it."""

    @staticmethod
    def forward(ctx, out, dout):
        ctx.dout = dout
        return (out * dout).sum()

    @staticmethod
    def backward(ctx, _):
        return ctx.dout, None


# sizes a chunk: one row; heads that share keys, a width that is no power of two; several
# sequences with a scale; half precision
CASES = (
    {"b": 2, "rows": 1, "h": 4, "kv": 1, "d": 16},
    {"b": 1, "rows": 3, "h": 4, "kv": 2, "d": 20},
    {"b": 2, "rows": 5, "h": 4, "kv": 4, "d": 16, "scale": 0.3},
    {"b": 1, "rows": 4, "h": 4, "kv": 2, "d": 16, "dtype": torch.float16},
)


def pulled(oracle, drawn, world):
    """Both passes of each case on one process: the truth, and the same in the dtype given."""
    answers = []
    for whole, scale in drawn:
        truth = oracle.pull(*whole, scale, torch.float64)
        chunk = whole[0].shape[1] // (2 * world)
        similar = oracle.trusted(*whole, scale, whole[0].dtype, chunk)
        answers.append((truth, oracle.least_exact(truth, *similar)))
    return answers


def assert_whole(oracle, by_rank, truth, trusted, who):
    """Put what the ranks have together, and hold it against one process."""
    names = ("out", "the gradient of q", "the gradient of k", "the gradient of v")
    for at, (name, exact, similar) in enumerate(zip(names, truth, trusted, strict=True)):
        whole = torch.empty_like(similar)
        for rank, found in enumerate(by_rank):
            whole[:, oracle.own_rows(whole.shape[1], rank, len(by_rank))] = found[at]
        dtypes = {found[at].dtype for found in by_rank}
        assert dtypes == {whole.dtype}, f"{who}: {name} is {dtypes}, expected {whole.dtype}"
        assert_matches(whole, exact, same_precision=similar, name=f"{who}: {name}")


# alone, two neighbours that are one and the same, a number that divides nothing, the most
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_both_passes_are_those_of_the_whole_sequence(kata, oracle, ranks, seed, world):
    drawn = []
    for at, case in enumerate(CASES):
        shape = {name: value for name, value in case.items() if name != "scale"}
        shape |= {"rows": 2 * world * case["rows"]}
        drawn.append((oracle.sequence(**shape, seed=seed + 4 * at), case.get("scale")))

    def both(rank, world):
        given, before, outs = [], [], []
        for whole, _ in drawn:
            rows = oracle.own_rows(whole[0].shape[1], rank, world)
            given.append(leaves([one[:, rows] for one in whole]))
            before.append([one.detach().clone() for one in given[-1]])
        with network(LateRing) as (ring, _):
            # as layers: forward one after the other, backward in reverse
            for (*mine, _), (_, scale) in zip(given, drawn, strict=True):
                outs.append(kata.zigzag_attn(*mine, ring, scale=scale))
            for (*_, dout), out in zip(given[::-1], outs[::-1], strict=True):
                Pulled.apply(out, dout.detach()).backward()
        for after, was in zip(given, before, strict=True):
            for name, one, kept in zip(("q", "k", "v", "the gradient"), after, was, strict=True):
                assert torch.equal(one, kept), f"{name} was written to"
        return [
            [out.detach(), *[one.grad for one in mine]]
            for out, (*mine, _) in zip(outs, given, strict=True)
        ]

    by_rank = ranks(world, both, timeout_s=LIMIT_S)
    for at, (truth, trusted) in enumerate(ranks.alone(lambda: pulled(oracle, drawn, world))):
        shape = {name: value for name, value in CASES[at].items() if name != "rows"}
        who = f"{CASES[at]['rows']} rows a chunk on {world} ranks, {shape}"
        assert_whole(oracle, [found[at] for found in by_rank], truth, trusted, who)


def test_places_are_those_before_the_cut(kata, oracle, ranks, seed):
    """Angles by place, before the cut and after it, give the same."""
    world = ranks.world(4)
    q, k, v, _ = oracle.sequence(b=1, rows=6 * world, h=2, kv=1, d=8, seed=seed)
    places = torch.arange(6 * world)
    scale = 8**-0.5

    def attend(rank, world):
        mine = [own(kata.zigzag_shard(one, 1, rank, world)) for one in (q, k, v)]
        at = kata.zigzag_positions(6 * world, rank, world)
        with network(LateRing) as (ring, _):
            return kata.zigzag_attn(
                oracle.rotated(mine[0], at), oracle.rotated(mine[1], at), mine[2], ring
            )

    shards = ranks(world, attend, timeout_s=LIMIT_S)
    want, trusted = (
        oracle.attention(
            *(oracle.rotated(one.to(dtype), places) for one in (q, k)), v.to(dtype), scale
        )
        for dtype in (torch.float64, torch.float32)
    )
    assert_matches(
        kata.zigzag_unshard(shards, 1), want, same_precision=trusted, name="out, put together"
    )


@settings(max_examples=20)
@given(world=st.integers(1, 5), size=st.integers(0, 3), dim=st.sampled_from([0, 1, 2, -1, -2]))
def test_shards_are_two_chunks_that_come_together_again(kata, oracle, world, size, dim):
    shape = [3, 2, 5]
    shape[dim] = 2 * world * size
    x = (
        torch.arange(shape[0] * shape[1] * shape[2]).view(shape) + 2**53 + 1
    )  # past what floats hold
    shards = [kata.zigzag_shard(x, dim, rank, world) for rank in range(world)]
    for rank, found in enumerate(shards):
        rows = oracle.own_rows(2 * world * size, rank, world)
        want = x.index_select(dim, torch.tensor(rows, dtype=torch.int64))
        who = f"x of {shape} along {dim}, rank {rank} of {world}"
        assert found.tolist() == want.tolist(), f"{who}: {found.tolist()}, expected {want.tolist()}"
        places = kata.zigzag_positions(2 * world * size, rank, world)
        assert places.tolist() == rows, f"{who}: positions {places.tolist()}, expected {rows}"
        assert places.dtype == torch.int64, f"{who}: positions are {places.dtype}, expected int64"
        found.fill_(-1)
    assert (x >= 0).all(), f"x of {shape}: a shard shares its memory"
    places = [oracle.own_rows(2 * world * size, rank, world) for rank in range(world)]
    shards = [x.index_select(dim, torch.tensor(at, dtype=torch.int64)) for at in places]
    whole = kata.zigzag_unshard(shards, dim)
    assert whole.tolist() == x.tolist(), (
        f"{world} shards along {dim}: {whole.tolist()}, expected {x.tolist()}"
    )


def test_every_rank_computes_as_much_while_it_sends(kata, oracle, ranks, cost, seed, monkeypatch):
    b, rows, h, kv, d, world = 1, 16, 2, 1, 32, ranks.world(4)
    whole = oracle.sequence(b=b, rows=world * rows, h=h, kv=kv, d=d, seed=seed)
    block = 2 * b * rows * kv * d
    dtypes = (torch.float32, torch.float16)

    def both(rank, world):
        return [count(rank, world, dtype) for dtype in dtypes]

    def count(rank, world, dtype):
        at = oracle.own_rows(world * rows, rank, world)
        q, k, v, dout = map(own, (one[:, at].to(dtype) for one in whole))
        # as two parts of one projection: strided, though kv is 1
        mine = [one.requires_grad_() for one in (q, *torch.cat([k, v], -1).chunk(2, -1))]
        before = alive_bytes()
        counted = []
        with network(RingComm) as (ring, meter):
            noted(kata, meter, monkeypatch)
            out = kata.zigzag_attn(*mine, ring)
            kept = alive_bytes() - before
            forward = [*meter.log]
            counted.append((meter.bytes_sent, meter.messages, forward))
            (out * dout).sum().backward()
            counted.append((meter.bytes_sent, meter.messages, meter.log[len(forward) :]))
        monkeypatch.undo()
        return counted, kept

    by_rank = ranks(world, both, timeout_s=LIMIT_S)
    for rank, by_dtype in enumerate(by_rank):
        for dtype, (counted, kept) in zip(dtypes, by_dtype, strict=True):
            who = f"rank {rank} of {world}, {dtype}"
            sent = [counted[0][0], counted[1][0] - counted[0][0]]
            passing = (world - 1) * block * dtype.itemsize
            want = [passing, passing + world * block * 4]  # dK and dV in float32
            most = b * rows * h * (d * dtype.itemsize + 4)
            assert kept <= most, (
                f"{who}: {kept} bytes kept for backward, expected out and lse, {most}"
            )
            assert sent == want, f"{who}: {sent} bytes sent forward and backward, expected {want}"
            for name, (_, _, log) in zip(("block_attn", "block_attn_bwd"), counted, strict=True):
                assert_under_way(log, name, who, world)
    counted = [by_dtype[0][0] for by_dtype in by_rank]
    for at, name in enumerate(("block_attn", "block_attn_bwd")):
        pairs = [sum(one.bytes for one in both[at][2] if one.op == name) for both in counted]
        assert len({*pairs}) == 1, (
            f"{name}: pairs of rows computed by rank: {pairs}, expected all alike"
        )
    cost.check("balance", max(pairs) * world / sum(pairs))
    if world == 4:
        cost.check("evaluations", max(pairs))
        cost.check("comm_bytes", max(both[1][0] for both in counted))
        cost.check("comm_steps", max(both[1][1] for both in counted))
        cost.check("saved_bytes", max(by_dtype[0][1] for by_dtype in by_rank))


def noted(kata, meter, monkeypatch):
    """Have the meter's log tell when blocks are computed, and how many pairs of rows."""

    def wrap(name, at):
        compute = getattr(kata, name)

        def call(*args, causal, **options):
            rows, keys = args[at].shape[1], args[at + 1].shape[1]
            pairs = rows * (rows + 1) // 2 if causal else rows * keys
            meter.log.append(Transfer(name, None, pairs))
            return compute(*args, causal=causal, **options)

        monkeypatch.setattr(kata, name, call)

    wrap("block_attn", 0)
    wrap("block_attn_bwd", 1)


def assert_under_way(log, name, who, world):
    """While a block is computed the next is under way, and backward the last gradients of it."""
    under_way, step = 0, 0
    order = ", ".join(one.op for one in log if one.op in ("post", "wait_post", name))
    for one in log:
        under_way += {"post": 1, "wait_post": -1}.get(one.op, 0)
        if one.op == name:
            want = (step + 1 < world) + (name == "block_attn_bwd" and step > 0)
            assert under_way == want, (
                f"{who}, step {step}: {under_way} posts under way while {name} runs, expected "
                f"{want}; in order: {order}"
            )
            step += 1
    assert step == world, f"{who}: {step} calls of {name}, expected one in each step; {order}"


def test_a_ring_of_some_ranks_leaves_the_others_alone(kata, oracle, ranks, seed):
    world = ranks.world(3)
    members = [*range(1, world)]
    whole = oracle.sequence(b=1, rows=4 * len(members), h=4, kv=2, d=16, seed=seed)

    def both(rank, world):
        group = dist.new_group(members)
        if rank not in members:
            return None
        rows = oracle.own_rows(4 * len(members), rank - 1, len(members))
        *mine, dout = map(own, (one[:, rows] for one in whole))
        mine = [one.requires_grad_() for one in mine]
        with network(LateRing, group) as (ring, _):
            out = kata.zigzag_attn(*mine, ring)
            (out * dout).sum().backward()
        return [out.detach(), *[one.grad for one in mine]]

    by_rank = ranks(world, both, timeout_s=LIMIT_S)[1:]
    ((truth, trusted),) = ranks.alone(lambda: pulled(oracle, [(whole, None)], len(members)))
    assert_whole(oracle, by_rank, truth, trusted, f"a ring of the ranks {members}")


def test_partial_results_are_rounded_once(kata, ranks):
    """What is rounded to half between the steps ends elsewhere, forward and backward."""
    if ranks.world(3) < 3:
        pytest.skip("a result of two blocks is added up once, and needs a third to show a rounding")
    # equal scores: each row has the mean of v so far, of row 3 1 + 9 / 1024, of row 5 8.67
    values = 1 + torch.tensor([10.0, 9, 8, 9, 9, 7]) / 1024
    # signs that add up to 0 where dq is judged, and keys of which little is left in the sum
    signs = torch.tensor([1.0, -1, 1, -1, 1, -1])
    keys = torch.tensor([6008.0, 6004, 0, 0, 0, 0])
    gradients = torch.tensor([0.0, 0, -3000, 0, 0, 6004])

    def both(rank, world):
        rows = [rank, 5 - rank]
        q, k, v, signed, dout = (own(torch.zeros(1, 2, 1, 8, dtype=torch.half)) for _ in range(5))
        v[..., 0], k[..., 0], signed[..., 0] = (
            one[rows].view(1, 2, 1) for one in (values, keys, signs)
        )
        dout[..., 0], dout[..., 1] = 1.0, gradients[rows].view(1, 2, 1)
        leaves = [one.requires_grad_() for one in (q, k, signed)]
        with network(LateRing) as (ring, _):
            out = kata.zigzag_attn(q.detach(), q.detach(), v, ring)
            (kata.zigzag_attn(*leaves, ring, scale=1 / 3) * dout).sum().backward()
        return [one.flatten(1)[0].double().view(2, 8) for one in (out, q.grad, signed.grad)]

    by_rank = ranks(3, both, timeout_s=LIMIT_S)
    for what, rank, row, place, channel, want in (
        ("out", 0, 5, 0, 0, 1 + 9 / 1024),
        ("out", 2, 3, 0, 0, 1 + 9 / 1024),
        ("the gradient of q", 0, 5, 1, 0, (6008 - 6004) / 6 / 3),
        ("the gradient of q", 2, 3, 1, 0, (6008 - 6004) / 4 / 3),
        ("the gradient of v", 0, 0, 2, 1, 6004 / 6 - 3000 / 3),
    ):
        found = by_rank[rank][place][int(row > 2), channel].item()
        assert found == pytest.approx(want, rel=5e-4), (
            f"row {row} of 6 on rank {rank} of 3, float16, q = 0: {what} is {found}, expected "
            f"{want} within a rounding to half"
        )


class Closed:
    """A ring on which nothing may be sent."""

    rank, world, group = 0, 2, None

    def __init__(self, asked):
        self.asked = asked

    def post(self, *_):
        raise AssertionError(f"{self.asked}: a post, expected a ValueError before anything is sent")


def test_what_makes_no_sense_is_refused(kata):
    q, k = torch.ones(1, 2, 4, 8), torch.ones(1, 2, 2, 8)
    for name, queries, keys, scale in (
        ("q: .*rows", torch.ones(1, 3, 4, 8), torch.ones(1, 3, 3, 8), None),
        ("q: .*heads", q, torch.ones(1, 2, 3, 8), -1.0),
        ("q: .*heads", torch.ones(1, 2, 6, 8), torch.ones(1, 2, 4, 8), None),
        ("scale: ", q, k, 0.0),
        ("scale: ", q, k, float("nan")),
    ):
        ring = Closed(f"q {[*queries.shape]}, k {[*keys.shape]}, scale {scale}")
        with pytest.raises(ValueError, match=f"^{name}"):
            kata.zigzag_attn(queries, keys, keys, ring, scale=scale)
    with pytest.raises(ValueError, match="^x: "):
        kata.zigzag_shard(torch.ones(4, 6), 1, 0, 2)
    with pytest.raises(ValueError, match="^rows: "):
        kata.zigzag_positions(9, 0, 3)
    with pytest.raises(ValueError, match="^rows: "):
        kata.zigzag_positions(6, 1, 2)
    with pytest.raises(ValueError, match="^shards: "):
        kata.zigzag_unshard([torch.ones(3, 2), torch.ones(3, 2)], 0)
    with pytest.raises(ValueError, match="^shards: "):
        kata.zigzag_unshard([torch.ones(4, 2), torch.ones(3, 2)], 0)


def test_on_gpus_it_is_faster_than_parts_in_a_row(kata, oracle, device, ranks):
    if device == "cpu":
        pytest.skip("a busy rank and an idle one show on GPUs of their own")

    def seconds_of(call):
        taken = []
        for _ in range(8):
            dist.barrier()
            torch.cuda.synchronize()
            began = time.perf_counter()
            call()
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        return statistics.median(taken[3:])

    def compare(rank, world):
        draw = {"device": rank_device(), "dtype": torch.bfloat16}
        q, k, v = (torch.randn(1, 2**16 // world, heads, 128, **draw) for heads in (32, 8, 8))
        ring = RingComm()
        return [
            seconds_of(call)
            for call in (
                lambda: kata.zigzag_attn(q, k, v, ring),
                lambda: oracle.contiguous_ring(kata, q, k, v, ring),
            )
        ]

    by_rank = ranks(ranks.world(8), compare, timeout_s=60.0)
    found, contiguous = (max(one) for one in zip(*by_rank, strict=True))
    ideal = (2 * len(by_rank) - 1) / len(by_rank)
    assert contiguous >= 0.85 * ideal * found, (  # modelled
        f"65,536 tokens on {len(by_rank)} GPUs: {found} s, expected at most {contiguous} s of the "
        f"contiguous ring / (0.85 x {ideal})"
    )
