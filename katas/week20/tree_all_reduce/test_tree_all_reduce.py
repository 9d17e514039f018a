"""What is special about a tree: its rounds, its bytes, its one order of summing; and its price."""

import random
from collections import Counter

import pytest
import torch

from harness.meters.communication import CountingP2P, comm_meter
from harness.meters.dispatch import alive_bytes
from harness.simulators.ranks import rank_device

LIMIT_S = 5.0  # it takes a tenth of a second; what hangs hangs for ever
WORLDS = (1, 2, 3, 4, 5, 8, 14, 64)
SMALL = 8  # many ranks take time: fewer tensors are enough


def reduced(kata, oracle, tensors, view=lambda x, rank: x):
    """Reduce on ranks that are threads: the network, and what each rank has then."""
    copies = [one.clone() for one in tensors]

    def all_reduce(rank, world, p2p):
        returned = kata.tree_all_reduce(view(copies[rank], rank), rank, world, p2p)
        assert returned is None, f"expected it to return None, found {type(returned).__name__}"

    return oracle.Network(len(tensors)).run(all_reduce), copies


@pytest.mark.parametrize("world", WORLDS)
def test_the_sum_is_left_in_place(kata, oracle, seed, world):
    shapes = ((7,), (0,), (2, 3), ()) if world < SMALL else ((7,),)
    for shape in shapes:
        for dtype in (torch.int64, torch.int32):
            tensors = oracle.tensors(world=world, shape=shape, dtype=dtype, seed=seed)
            want = sum(tensors, torch.zeros(shape, dtype=dtype)).tolist()
            _, found = reduced(kata, oracle, tensors)
            for rank, one in enumerate(found):
                assert one.dtype == dtype
                assert one.tolist() == want, (
                    f"{dtype} of shape {shape}, rank {rank} of {world}: found {one.tolist()}, "
                    f"expected {want}"
                )


@pytest.mark.parametrize("world", WORLDS)
def test_floats_are_added_in_the_order_of_the_tree(kata, oracle, seed, world):
    for dtype in (torch.float32, torch.float16, torch.float64)[: 3 if world < SMALL else 1]:
        tensors = oracle.tensors(world=world, shape=(33,), dtype=dtype, seed=seed)
        want = oracle.tree_sum(tensors)
        for rank, one in enumerate(reduced(kata, oracle, tensors)[1]):
            assert torch.equal(one, want), (
                f"{dtype}, rank {rank} of {world}: {(one != want).sum()} of 33 elements are other "
                f"bits than those of the tree's order"
            )
    zeros = reduced(kata, oracle, [torch.full((3,), -0.0)] * world)[1]
    for rank, one in enumerate(zeros):
        signs = torch.signbit(one).tolist()
        assert signs == [True] * 3, f"-0.0 on rank {rank} of {world}: sign bits {signs}"


def test_strided_tensors_are_summed_where_they_are(kata, oracle, seed):
    wide = oracle.tensors(world=3, shape=(4, 6), dtype=torch.int32, seed=seed)
    views = {
        "x[:, ::2]": lambda x, _: x[:, ::2],
        "x.t()": lambda x, _: x.t(),
        "x[:, 4]": lambda x, _: x[:, 4],
        "x.view(2, 12), on rank 1 strided": lambda x, r: (
            x.view(12, 2).t() if r == 1 else x.view(2, 12)
        ),
    }
    for name, view in views.items():
        total = sum(view(one, r) for r, one in enumerate(wide))
        for rank, found in enumerate(reduced(kata, oracle, wide, view)[1]):
            want = wide[rank].clone()
            view(want, rank).copy_(total)
            assert found.tolist() == want.tolist(), (
                f"{name} reduced, rank {rank}: x is {found.tolist()}, expected {want.tolist()}"
            )


@pytest.mark.parametrize("world", WORLDS)
def test_a_tree_is_as_deep_as_it_must_be(kata, oracle, seed, world, cost):
    tensors = oracle.tensors(world=world, shape=(25,), dtype=torch.float32, seed=seed)
    network, _ = reduced(kata, oracle, tensors)
    if world == 64:
        cost.check("rounds", network.rounds)
        cost.check("comm_bytes", network.bytes_sent)
        cost.check("comm_steps", max(network.messages))
    depth = oracle.rounds(world)
    sent = 2 * (world - 1) * 25 * 4
    assert network.rounds == 2 * depth, (
        f"{world} ranks: {network.rounds} rounds, expected {2 * depth}"
    )
    assert network.bytes_sent == sent, f"{world} ranks: {network.bytes_sent} bytes, expected {sent}"
    for rank, log in enumerate(network.log):
        under_way = 0
        for op, _ in log:
            under_way += {"isend": 1, "wait_isend": -1}.get(op, 0)
            assert under_way <= 1, f"rank {rank} of {world}: two sends at a time, in {log}"


def test_nothing_is_kept(kata, oracle):
    before = alive_bytes()
    for size in (7, 50, 50):
        reduced(kata, oracle, [torch.ones(size)] * 3)
    kept = alive_bytes() - before
    assert kept == 0, f"7, 50 and 50 float32 on 3 ranks: {kept} bytes of tensors kept, expected 0"


# two ranks, and as many as there may be
@pytest.mark.parametrize("most", [2, 4])
def test_it_runs_on_processes_of_their_own(kata, oracle, ranks, seed, most):
    world = ranks.world(most)
    drawn = [
        oracle.tensors(world=world, shape=(size,), dtype=torch.float32, seed=seed + at)
        for at, size in enumerate((5, 5, 4096))
    ]

    def all_reduce(rank, world):
        sums = []
        for tensors in drawn:
            x = tensors[rank].to(rank_device(), copy=True)
            with CountingP2P() as p2p, comm_meter() as meter:
                kata.tree_all_reduce(x, rank, world, p2p)
            sums.append(x)
            logged = sum(not op.startswith("wait_") for op, *_ in p2p.log)
            around = Counter(op for op, *_ in meter.log)
            assert around.total() == logged, f"expected {logged} calls of p2p, found {around}"
        return sums

    for rank, sums in enumerate(ranks(world, all_reduce, timeout_s=LIMIT_S)):
        for one, tensors in zip(sums, drawn, strict=True):
            want = oracle.tree_sum(tensors)
            assert torch.equal(one, want), f"rank {rank} of {world}: {one}, expected {want}"


# ---- how long it takes ---------------------------------------------------------------------

# nothing, latency alone, bandwidth alone, NVLink, InfiniBand
LINKS = ((0, 1e-5, 1e9), (10**6, 1e-5, 1e30), (10**6, 0.0, 1e9), (2**28, 2e-6, 4.5e11), (3, 5, 2))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 64, 1000])
def test_times_are_those_of_their_messages(kata, oracle, n):
    for nbytes, alpha, bw in LINKS:
        link = (nbytes, n, alpha, bw)
        want = float(oracle.ring_seconds(*link))
        found = kata.ring_time(*link)
        assert found == pytest.approx(want, rel=1e-12), f"ring_time{link}: {found}, not {want}"
        for chunks in (1, 2, 100):
            want = float(oracle.tree_seconds(*link, chunks))
            found = kata.tree_time(*link, chunks)
            assert found == pytest.approx(want, rel=1e-12), (
                f"tree_time{(*link, chunks)}: {found}, expected {want}"
            )
        assert kata.tree_time(*link) == kata.tree_time(*link, 1), f"tree_time{link}: chunks is 1"


# a logarithm in floats says 30 for the last
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 64, 1000, 2**29])
def test_below_the_crossover_the_tree_is_faster(kata, oracle, n):
    for _, alpha, bw in LINKS[2:]:
        want = float(oracle.crossover(n, alpha, bw))
        found = kata.crossover(n, alpha, bw)
        assert found == pytest.approx(want, rel=1e-9, abs=1e-12), (
            f"crossover({n}, {alpha}, {bw}): {found}, expected {want}"
        )


def test_latency_and_bandwidth_are_found_again(kata, oracle, seed):
    draw = random.Random(seed)
    sizes = [2.0**power + 1 for power in range(10, 31, 2)] + [1025]
    for alpha, bw, noise in ((42e-6, 3e11, 0), (5e-6, 2.5e10, 0.02), (1e-3, 1e9, 0.2)):
        points = [(size, (alpha + size / bw) * (1 + noise * draw.uniform(-1, 1))) for size in sizes]
        draw.shuffle(points)
        found = kata.fit_alpha_beta(*zip(*points, strict=True))
        want = oracle.fit(points)
        assert found == pytest.approx(want, rel=1e-8), (
            f"latency {alpha}, bandwidth {bw}, noise {noise}: found {found}, expected {want}; "
            f"(bytes, seconds): {points}"
        )


def test_small_sizes_count_as_much_as_large_ones(kata, oracle, cost):
    for ranks in (2, 4):
        points = oracle.measured(ranks)
        sizes, seconds = map(list, zip(*points, strict=True))
        alpha, bw = found = kata.fit_alpha_beta(sizes, seconds)
        want = oracle.fit(points)
        assert found == pytest.approx(want, rel=1e-6), (
            f"NCCL on {ranks} H200s: found {found}, expected {want}"
        )
        squares = [((alpha + s / bw) / t - 1) ** 2 for s, t in points]
        if ranks == 2:
            cost.check("fit_error", (sum(squares) / len(squares)) ** 0.5)


def test_what_makes_no_sense_is_refused(kata):
    nan = float("nan")
    ring, tree = kata.ring_time, kata.tree_time
    for name, call, args in (
        ("nbytes", ring, (-1, 0, -1, 0)), ("nbytes", tree, (-1, 0, -1, 0, 0)),
        ("nbytes", ring, (nan, 1, 0, 1)), ("n", ring, (0, 0, -1, 0)), ("n", tree, (1, 0, -1, 0, 0)),
        ("n", kata.crossover, (0, -1, 0)),
        ("alpha", ring, (1, 2, -1e-9, 0)), ("alpha", tree, (1, 2, nan, 0, 0)),
        ("alpha", kata.crossover, (1, -1, 0)), ("bw", ring, (1, 2, 0, 0)),
        ("bw", tree, (1, 1, 1, -1.0, 0)), ("bw", kata.crossover, (3, 1, nan)),
        ("chunks", tree, (1, 1, 1, 1, 0)),
        ("sizes", kata.fit_alpha_beta, ([8, 8], [1.0, 2.0])),
        ("sizes", kata.fit_alpha_beta, ([], [1.0])),
        ("seconds", kata.fit_alpha_beta, ([8, 9], [1.0])),
        ("seconds", kata.fit_alpha_beta, ([8, 9], [1.0, 2.0, 3.0])),
        ("seconds", kata.fit_alpha_beta, ([8, 9, 9], [1.0, 2.0, 0.0])),
        ("seconds", kata.fit_alpha_beta, ([8, 9], [1.0, nan])),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            call(*args)
