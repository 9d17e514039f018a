"""What is special about a ring: what travels when, what is never computed, and what is kept."""

import statistics
import time

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge import assert_matches
from harness.meters.communication import Transfer
from harness.meters.late import LateRing
from harness.meters.network import network
from harness.meters.ring import RingComm
from harness.simulators.ranks import own, rank_device

LIMIT_S = 10.0  # a test of this size takes a tenth of a second, ranks that miss each other for ever


def told(case, rank, world):
    shape = {name: value for name, value in case.items() if name != "seed"}
    return f"rank {rank} of {world}, {shape}"


# one row a rank; heads that share keys, a width that is no power of two; several sequences, more
# rows than columns; scores to 1e4, far apart; half precision; queries that lie strided
CASES = (
    {"b": 1, "rows": 1, "h": 2, "kv": 1, "d": 8, "causal": True},
    {"b": 2, "rows": 5, "h": 4, "kv": 2, "d": 80, "causal": True},
    {"b": 2, "rows": 9, "h": 3, "kv": 3, "d": 4, "causal": False, "scale": 0.25},
    {"rows": 6, "h": 4, "d": 16, "causal": False, "scale": 1.0},
    {"rows": 6, "h": 2, "d": 16, "causal": True, "scale": 1.0},
    {"b": 1, "rows": 33, "h": 2, "kv": 1, "d": 16, "causal": False, "dtype": torch.float16},
)


# alone, two neighbours that are one and the same, a number that divides nothing, the most
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_attention_is_that_of_the_whole_sequence(kata, oracle, ranks, seed, world):
    drawn = []
    for at, case in enumerate(CASES):
        shape = {name: value for name, value in case.items() if name not in ("causal", "scale")}
        draw = oracle.sequence if "kv" in case else oracle.far_apart
        whole = draw(**shape | {"rows": world * case["rows"]}, seed=seed + 3 * at)
        drawn.append((whole, {"causal": case["causal"], "scale": case.get("scale")}))

    def attend(rank, world):
        found = []
        for whole, options in drawn:
            q, k, v = map(own, (oracle.part(one, rank, world) for one in whole))
            # heads before rows in memory, as after most projections
            q, k, v = (one.transpose(1, 2).contiguous().transpose(1, 2) for one in (q, k, v))
            before = [one.clone() for one in (q, k, v)]
            with network(LateRing) as (ring, _):
                found.append(kata.ring_attn_fwd(q, k, v, ring, **options))
            for name, one, was in zip("qkv", (q, k, v), before, strict=True):
                assert torch.equal(one, was), f"{name} was written to"
        return found

    by_rank = ranks(world, attend, timeout_s=LIMIT_S)
    for at, (whole, options) in enumerate(drawn):
        out, lse = oracle.attention(*whole, **options)
        half = whole[0].dtype
        trusted = oracle.attention(*whole, **options, dtype=torch.float32)
        for rank, found in enumerate(by_rank):
            name = told(CASES[at], rank, world)
            mine = [oracle.part(one, rank, world) for one in (out, trusted[0].to(half))]
            assert_matches(found[at][0], mine[0], same_precision=mine[1], name=f"{name}: out")
            mine = [oracle.part(one, rank, world, dim=2) for one in (lse, trusted[1])]
            assert_matches(found[at][1], mine[0], same_precision=mine[1], name=f"{name}: lse")


def test_each_block_is_computed_while_it_is_sent(
    kata, oracle, ranks, cost, seed, dispatch, monkeypatch
):
    b, rows, h, kv, d, world = 2, 32, 4, 2, 64, ranks.world(4)
    whole = oracle.sequence(b=b, rows=world * rows, h=h, kv=kv, d=d, seed=seed)
    block = 2 * b * rows * kv * d
    runs = ((False, torch.float32), (True, torch.float32), (True, torch.float16))

    def attend(rank, world):
        counted = []
        for causal, dtype in runs:
            q, k, v = map(own, (oracle.part(one.to(dtype), rank, world) for one in whole))
            with network(Watched) as (ring, meter), dispatch() as allocated:
                ring.at_hand = [places(k, v)]
                computed = noted(kata, meter, monkeypatch)
                kata.ring_attn_fwd(q, k, v, ring, causal=causal)
            for what, found in (("posts", ring.posted), ("computes with", computed)):
                own_ones = [one == at for one, at in zip(found, ring.at_hand, strict=False)]
                assert all(own_ones), (
                    f"causal={causal}, {dtype}, rank {rank} of {world}, contiguous k and v: "
                    f"step {own_ones.index(False)} {what} a copy, expected K and V as they are at "
                    "hand"
                )
            log = [one.op for one in meter.log if one.op in ("post", "block_attn", "wait_post")]
            counted.append((meter.bytes_sent, meter.messages, log, allocated.peak_live_bytes))
            monkeypatch.undo()
        return counted

    by_rank = ranks(world, attend, timeout_s=LIMIT_S)
    for rank, by_case in enumerate(by_rank):
        for (causal, dtype), (sent, _, log, _) in zip(runs, by_case, strict=True):
            who = f"causal={causal}, {dtype}, rank {rank} of {world}"
            want = (world - 1) * block * dtype.itemsize
            steps = log
            assert sent == want, (
                f"{who}: {sent} bytes sent, expected K and V once to each other rank, {want}"
            )
            last = rank if causal else world - 1
            for step in range(world):
                expected = ["post", "block_attn", "wait_post"]
                skipped = {"post", "wait_post"} if step == world - 1 else set()
                skipped |= {"block_attn"} if step > last else set()
                step_log, log = split_step(log, [op for op in expected if op not in skipped])
                assert step_log is not None, (
                    f"{who}: step {step} is not post, block_attn, wait_post, less what it has no "
                    f"use for; in order: {', '.join(steps)}"
                )
            assert not log, f"{who}: after the last step {', '.join(log)}, expected nothing"
    if world == 4:
        cost.check("comm_bytes", max(by_case[0][0] for by_case in by_rank))
        cost.check("comm_steps", max(by_case[0][1] for by_case in by_rank))
        cost.check("evaluations", sum(by_case[1][2].count("block_attn") for by_case in by_rank))
        cost.check("peak_memory", max(by_case[0][3] for by_case in by_rank))


def places(*tensors):
    """Say where in memory tensors begin."""
    return {tensor.data_ptr() for tensor in tensors}


class Watched(RingComm):
    """A ring that notes where what is posted lies, and K and V of each step."""

    def __init__(self, group=None):
        super().__init__(group)
        self.posted, self.at_hand = [], []

    def post(self, *tensors):
        self.posted.append(places(*tensors))
        arriving = super().post(*tensors)
        wait = arriving.wait

        def noted_wait():
            arrived = wait()
            self.at_hand.append(places(*arrived))
            return arrived

        arriving.wait = noted_wait
        return arriving


def noted(kata, meter, monkeypatch):
    """Have the meter's log tell when a block is computed; list where the blocks lie."""
    compute, computed = kata.block_attn, []

    def block_attn(q, k, v, **options):
        meter.log.append(Transfer("block_attn", None, 0))
        computed.append(places(k, v))
        return compute(q, k, v, **options)

    monkeypatch.setattr(kata, "block_attn", block_attn)
    return computed


def split_step(log, expected):
    """Cut the first entries off a log, if they are the ones expected."""
    if log[: len(expected)] != expected:
        return None, log
    return expected, log[len(expected) :]


def test_a_transformer_block_holds_sequences_that_grow_with_the_ranks(
    kata, oracle, ranks, seed, dispatch
):
    d, heads, alone = 32, 2, 160
    weights = oracle.block_weights(d=d, seed=seed)
    # tokens for each world: 1.9 times as many on two ranks, 3.6 times as many on four
    tokens = {1: alone, 2: alone * 19 // 10, 4: alone * 36 // 10}
    worlds = [world for world in tokens if world <= ranks.world(4)]
    peaks = []

    def run(rank, world, x):
        x, *placed = map(own, (oracle.part(x, rank, world), *weights))
        with network(RingComm) as (ring, _), dispatch() as allocated:
            y = oracle.block(
                x,
                placed,
                heads,
                lambda q, k, v: kata.ring_attn_fwd(q, k, v, ring, causal=True)[0],
            )
        return y, allocated.peak_live_bytes

    for world in worlds:
        x = oracle.numbers(1, tokens[world], d, seed=seed + world)
        truth, trusted = (
            oracle.block(
                x.to(dtype),
                weights,
                heads,
                lambda *qkv, dtype=dtype: oracle.attention(*qkv, causal=True, dtype=dtype)[0],
            )
            for dtype in (torch.float64, torch.float32)
        )
        found = ranks(world, run, x, timeout_s=LIMIT_S)
        whole = torch.cat([y for y, _ in found], 1)
        assert_matches(whole, truth, same_precision=trusted, name=f"a block on {world} ranks")
        peaks.append(max(held for _, held in found))
        assert peaks[-1] <= peaks[0], (
            f"{tokens[world]} tokens on {world} ranks: {peaks[-1]} bytes of new memory on a rank, "
            f"expected at most the {peaks[0]} of {alone} tokens on one"
        )


def partial_result(oracle, keys, seed, rows=3):
    """Attention to some keys, in float64: what two of them merge to is known."""
    q, k, v = (
        oracle.numbers(1, n, 2, 4, seed=seed + at).double() for at, n in enumerate((rows, 9, 9))
    )
    scores = 3 * torch.einsum("bqhd,bkhd->bhqk", q, k)
    hidden = torch.ones(9, dtype=torch.bool)
    hidden[list(keys)] = False
    scores = scores.masked_fill(hidden, -torch.inf)
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).nan_to_num(), v)
    return out, scores.logsumexp(-1)


@settings(max_examples=20)
@given(owner=st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_partial_results_merge_in_any_order(kata, oracle, owner):
    """Nine keys in three parts, some of them empty, and some keys that nobody has."""
    parts = [[key for key, has in enumerate(owner) if has == part] for part in range(3)]
    a, b, c = (partial_result(oracle, keys, seed=5) for keys in parts)
    want = partial_result(oracle, [*parts[0], *parts[1], *parts[2]], seed=5)
    before = [one.clone() for one in (*a, *b, *c)]
    orders = {
        "merge(merge(a, b), c)": kata.merge(*kata.merge(*a, *b), *c),
        "merge(a, merge(b, c))": kata.merge(*a, *kata.merge(*b, *c)),
        "merge(merge(c, b), a)": kata.merge(*kata.merge(*c, *b), *a),
    }
    for name, found in orders.items():
        assert found[0].dtype == torch.float64, f"{name} of float64: found {found[0].dtype}"
        for what, one, truth in zip(("out", "lse"), found, want, strict=True):
            same = torch.allclose(one, truth, rtol=1e-9, atol=1e-12)
            assert same, f"{name}, keys {parts}: {what} is {one}, expected {truth}"
            shared = any(one.data_ptr() == other.data_ptr() for other in (*a, *b, *c))
            assert not shared, f"{name}, keys {parts}: {what} is an argument, expected a new tensor"
    for one, was in zip((*a, *b, *c), before, strict=True):
        assert torch.equal(one, was), f"merge wrote to an argument: keys {parts}"


def test_a_merge_of_large_scores_overflows_nothing(kata):
    """Where float32 has no digits below 0.001, and the shares still add up to 1."""
    out = torch.tensor([1.0, 3.0]).view(1, 2, 1, 1)
    for low, high, want in (
        (9_000.0, 10_000.0, 5.0),
        (-10_000.0, -9_000.0, 5.0),
        (1e4, 1e4, None),
        (-torch.inf, -1e4, 5.0),
        (-torch.inf, 1e4, 5.0),
    ):
        lses = [torch.full((1, 1, 2), lse) for lse in (low, high)]
        found, lse = kata.merge(out, lses[0], torch.full_like(out, 5.0), lses[1])
        expected = [3.0, 4.0] if want is None else [want, want]
        assert found.flatten().tolist() == pytest.approx(expected, rel=1e-6), (
            f"out [1, 3] at lse {low} and [5, 5] at {high}: {found.flatten().tolist()}, "
            f"expected {expected}"
        )
        sums = [high + (0.6931472 if want is None else 0.0)] * 2
        assert lse.flatten().tolist() == pytest.approx(sums, rel=1e-6), (
            f"lse {low} and {high}: {lse.flatten().tolist()}, expected {sums}"
        )


def test_a_ring_of_some_ranks_leaves_the_others_alone(kata, oracle, ranks, seed):
    world = ranks.world(3)
    members = [*range(1, world)]
    whole = oracle.sequence(b=1, rows=4 * len(members), h=2, kv=1, d=8, seed=seed)

    def attend(rank, world):
        group = dist.new_group(members)
        if rank not in members:
            return None
        mine = [own(oracle.part(one, rank - 1, len(members))) for one in whole]
        with network(LateRing, group) as (ring, _):
            return kata.ring_attn_fwd(*mine, ring, causal=True)[0]

    want = oracle.attention(*whole, causal=True)[0]
    trusted = oracle.attention(*whole, causal=True, dtype=torch.float32)[0]
    found = torch.cat(
        [one for one in ranks(world, attend, timeout_s=LIMIT_S) if one is not None], 1
    )
    assert_matches(found, want, same_precision=trusted, name=f"a ring of the ranks {members}")


def test_half_precision_is_rounded_once(kata, ranks):
    """The mean of three values that rounding to half after each merge makes another."""
    if ranks.world(3) < 3:
        pytest.skip("a result of two blocks is merged once, and needs a third to show a rounding")
    ulps = (0, 1, 4)  # above 1; their mean, 5 / 3, is nearest to 2

    def attend(rank, world):
        q, v = torch.zeros(1, 1, 1, 8).half(), torch.full((1, 1, 1, 8), 1 + ulps[rank] / 1024)
        q, v = own(q), own(v)
        with network(LateRing) as (ring, _):
            return kata.ring_attn_fwd(q, q, v.half(), ring, causal=False)[0]

    for rank, out in enumerate(ranks(3, attend, timeout_s=LIMIT_S)):
        assert out.dtype == torch.float16, f"q of float16: out is {out.dtype}"
        found = ((out.double() - 1) * 1024).flatten().tolist()
        assert found == [2.0] * 8, (
            f"rank {rank}, equal scores, v = 1 + {ulps} / 1024: out is 1 + {found} / 1024, "
            "expected 1 + 2 / 1024"
        )


class Closed:
    """A ring on which nothing may be sent."""

    rank, world, group = 0, 2, None

    def __init__(self, asked):
        self.asked = asked

    def post(self, *_):
        raise AssertionError(f"{self.asked}: a post, expected a ValueError before anything is sent")


def test_what_makes_no_sense_is_refused(kata):
    q, k = torch.ones(1, 2, 4, 8), torch.ones(1, 2, 3, 8)
    for name, keys, scale in (
        ("q", k, None),
        ("q", k, -1.0),
        ("scale", k[:, :, :2], 0.0),
        ("scale", k[:, :, :2], -0.5),
        ("scale", k[:, :, :2], float("nan")),
    ):
        ring = Closed(f"4 heads, {keys.shape[2]} of k, scale {scale}")
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.ring_attn_fwd(q, keys, keys, ring, causal=False, scale=scale)


class Still:
    """A ring on which nothing moves: each rank computes, and nobody waits."""

    def __init__(self, ring):
        self.rank, self.world = ring.rank, ring.world

    def post(self, *tensors):
        self.posted = tensors
        return self

    def wait(self):
        return self.posted


def test_on_gpus_the_ring_hides_behind_the_blocks(kata, device, ranks):
    if device == "cpu":
        pytest.skip("links of GPUs are needed to be hidden")

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
        rows = 2**16 // world
        draw = {"device": rank_device(), "dtype": torch.bfloat16}
        q, k, v = (torch.randn(1, rows, heads, 128, **draw) for heads in (32, 8, 8))
        ring = RingComm()

        def rotate():
            one = k, v
            for _ in range(world - 1):
                one = ring.post(*one).wait()

        return [
            seconds_of(call)
            for call in (
                lambda: kata.ring_attn_fwd(q, k, v, ring, causal=False),
                lambda: kata.ring_attn_fwd(q, k, v, Still(ring), causal=False),
                rotate,
            )
        ]

    by_rank = ranks(ranks.world(8), compare, timeout_s=60.0)
    found, computing, sending = (max(one) for one in zip(*by_rank, strict=True))
    limit = 1.25 * max(computing, sending)  # modelled
    assert found <= limit, (
        f"65,536 tokens on {len(by_rank)} GPUs: {found} s, expected at most 1.25 x the longer of "
        f"{computing} s of computing and {sending} s of sending"
    )
