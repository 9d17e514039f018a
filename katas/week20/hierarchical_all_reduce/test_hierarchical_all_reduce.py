"""What is special about two fabrics: what each carries, and how long that takes."""

import copy
import math
import statistics
import time

import pytest
import torch
import torch.distributed as dist

from harness.judge import assert_matches
from harness.meters.collectives import Collectives
from harness.meters.communication import comm_meter
from harness.meters.dispatch import alive_bytes
from harness.meters.late import LateCollectives
from harness.meters.network import Echo
from harness.simulators.ranks import own, rank_device

LIMIT_S = 20.0  # it takes a tenth of a second, but GPUs take seconds to join a group
SHAPES = ((0,), (1,), (7,), (7,), (5, 8), ())


class Fabric(LateCollectives):
    """A fabric at its slowest, with what went over it."""

    def __init__(self, group=None):
        super().__init__(group)
        self.bytes_sent = 0
        self.log = []

    def _start(self, name, *args):
        with comm_meter() as meter:
            pending = super()._start(name, *args)
        self.bytes_sent += meter.bytes_sent
        self.log.append(name)
        return pending


class Cluster:
    """The two groups of a rank, when `nodes` are made of the ranks."""

    def __init__(self, nodes, rank):
        self.nodes = nodes
        self.intra = group_of(nodes, rank)
        self.inter = group_of([*zip(*nodes, strict=True)], rank)

    def turned(self):
        """Make nodes of the ranks that have the same place in theirs."""
        other = copy.copy(self)
        other.nodes = [*map(list, zip(*self.nodes, strict=True))]
        other.intra, other.inter = self.inter, self.intra
        return other

    def reduce(self, kata, x):
        """Reduce `x`; the two fabrics, which everything went over."""
        with comm_meter() as meter, Fabric(self.intra) as intra, Fabric(self.inter) as inter:
            returned = kata.hierarchical_all_reduce(x, intra, inter)
        assert returned is None, f"expected it to return None, found {type(returned).__name__}"
        started = sum(not op.startswith("wait_") for op, *_ in meter.log)
        through = len(intra.log) + len(inter.log)
        assert started == through, f"{started} collectives, expected all of them on intra and inter"
        return intra, inter


def group_of(parts, rank):
    """Make a group of each part; that of this rank, None where it has all ranks."""
    if len(parts) == 1:
        return None
    groups = [dist.new_group([*part]) for part in parts]
    (own,) = (group for group, part in zip(groups, parts, strict=True) if rank in part)
    return own


# alone, one neighbour, sizes that do not divide, nodes of several
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_sum_is_left_in_place(kata, oracle, ranks, seed, world):
    drawn = [
        oracle.tensors(world=world, shape=shape, dtype=dtype, seed=seed + at)
        for at, shape in enumerate(SHAPES)
        for dtype in ((torch.int32, torch.int64) if shape == (7,) else (torch.int64,))
    ]

    def all_reduce(rank, world):
        found = []
        for nodes in {1, world // 2} if world == 4 else {1}:
            cluster = Cluster(oracle.places(nodes, world // nodes), rank)
            for one in (cluster, cluster.turned()):
                for tensors in drawn:
                    x = own(tensors[rank])
                    one.reduce(kata, x)
                    found.append((one.nodes, x))
        return found

    for rank, found in enumerate(ranks(world, all_reduce, timeout_s=LIMIT_S)):
        for at, (nodes, x) in enumerate(found):
            want = oracle.total(drawn[at % len(drawn)]).tolist()
            assert x.tolist() == want, (
                f"{x.dtype} of shape {tuple(x.shape)} on nodes {nodes}, rank {rank}: "
                f"found {x.tolist()}, expected {want}"
            )


def test_floats_are_the_same_bits_on_every_rank(kata, oracle, ranks, seed):
    world = ranks.world(4)
    g = world // 2
    drawn = [
        oracle.tensors(world=world, shape=(101,), dtype=dtype, seed=seed)
        for dtype in (torch.float64, torch.float32, torch.float16)
    ]

    def all_reduce(rank, world):
        cluster = Cluster(oracle.places(2, g), rank)
        mine = [own(tensors[rank]) for tensors in drawn]
        library = [own(tensors[rank]) for tensors in drawn]
        zeros = own(torch.full((7,), -0.0))
        for x in (*mine, zeros):
            cluster.reduce(kata, x)
        for trusted in library:
            dist.all_reduce(trusted)
        return mine, library, torch.signbit(zeros).tolist()

    (first, library, _), *others = found = ranks(world, all_reduce, timeout_s=LIMIT_S)
    for mine, trusted, tensors in zip(first, library, drawn, strict=True):
        assert mine.dtype == trusted.dtype
        assert_matches(mine, oracle.total(tensors), same_precision=trusted)
    for rank, (mine, _, _) in enumerate(others, start=1):
        for one, other in zip(first, mine, strict=True):
            assert torch.equal(one, other), f"ranks 0 and {rank} hold different sums"
    for rank, (_, _, signs) in enumerate(found):
        assert signs == [True] * 7, f"rank {rank}: -0.0 + -0.0: sign bits {signs}, expected -0.0"


def test_strided_tensors_are_summed_where_they_are(kata, oracle, ranks, seed):
    wide = oracle.tensors(world=2, shape=(6, 10), dtype=torch.int32, seed=seed)
    views = {
        "x[:, 1::2]": lambda x, _: x[:, 1::2],
        "x.t()": lambda x, _: x.t(),
        "x[:, 4]": lambda x, _: x[:, 4],
        "x[1:4, 2:5]": lambda x, _: x[1:4, 2:5],
        "x[5]": lambda x, _: x[5],
        "x.view(2, 30), on rank 1 strided": lambda x, r: x.view(30, 2).t() if r else x.view(2, 30),
    }

    def all_reduce(rank, world):
        cluster = Cluster([[0, 1]], rank)
        sums = []
        for view in views.values():
            x = own(wide[rank])
            cluster.reduce(kata, view(x, rank))
            sums.append(x)
        return sums

    for rank, sums in enumerate(ranks(2, all_reduce, timeout_s=LIMIT_S)):
        for (name, view), x in zip(views.items(), sums, strict=True):
            want = wide[rank].clone()
            view(want, rank).copy_(oracle.total([view(one, r) for r, one in enumerate(wide)]))
            assert x.tolist() == want.tolist(), (
                f"{name} reduced, rank {rank}: x is {x.tolist()}, expected {want.tolist()}"
            )


def test_nodes_send_each_other_shards_alone(kata, oracle, ranks, cost, seed, dispatch):
    shapes = {4099: torch.float32, 4000: torch.float16, 5: torch.int32}
    drawn = [
        oracle.tensors(world=4, shape=(size,), dtype=dtype, seed=seed)
        for size, dtype in shapes.items()
    ]

    def all_reduce(rank, world):
        pair = Cluster(oracle.places(2, 2), rank)
        counted = []
        for tensors in drawn:
            fabrics = pair.reduce(kata, own(tensors[rank]))
            counted.append([one.bytes_sent for one in fabrics])
        x, intra, inter = own(drawn[1][rank]), Collectives(pair.intra), Collectives(pair.inter)
        with dispatch() as allocated:
            kata.hierarchical_all_reduce(x, intra, inter)
        return counted, allocated.peak_live_bytes

    found = ranks(4, all_reduce, timeout_s=LIMIT_S)
    cost.check("inter_bytes", max(counted[0][1] for counted, _ in found))
    cost.check("intra_bytes", max(counted[0][0] for counted, _ in found))
    for rank, (counted, peak) in enumerate(found):
        for (size, dtype), sent in zip(shapes.items(), counted, strict=True):
            shard = -(-size // 2) * dtype.itemsize
            want = [2 * shard, shard]
            assert sent == want, (
                f"{size} {dtype} on 2 nodes of 2, rank {rank}: {sent} bytes inside and between, "
                f"expected {want}"
            )
        assert peak <= 4000, f"4000 float16 on 2 nodes of 2: {peak} bytes of new memory, not 4000"


def test_nothing_is_kept(kata, ranks):
    def kept(rank, world):
        alone = [dist.new_group([one]) for one in range(world)][rank]
        intra, inter = Echo(world, rank), Echo(1, 0, alone)
        before = alive_bytes()
        for size in (1, 51, 51):
            kata.hierarchical_all_reduce(own(torch.ones(size)), intra, inter)
        return alive_bytes() - before

    found = ranks(2, kept, timeout_s=LIMIT_S)
    assert found == [0, 0], f"1, 51 and 51 float32: {found} bytes of tensors kept, expected 0"


class Closed(Collectives):
    """A fabric on which nothing may be sent."""

    def _start(self, name, *_):
        raise AssertionError(f"expected a ValueError before anything is sent, found {name}")


def test_groups_that_are_no_grid_are_refused(kata, ranks):
    def refused(rank, world):
        groups = [dist.new_group(half) for half in ([0, 1], [2, 3], [0, 1], [2, 3])]
        half, same_half = (Closed(group) for group in groups[rank // 2 :: 2])
        everybody = Closed()
        alone = [Closed(dist.new_group([one])) for one in range(world)][rank]
        for name, intra, inter in (
            ("intra", everybody, everybody),
            ("intra", everybody, half),
            ("intra", half, everybody),
            ("intra", half, alone),
            ("intra", alone, half),
            ("inter", half, half),
            ("inter", half, same_half),
        ):
            for x in (torch.ones(3), torch.ones(0)):
                with pytest.raises(ValueError, match=f"^{name}: "):
                    kata.hierarchical_all_reduce(x, intra, inter)

    ranks(4, refused, timeout_s=LIMIT_S)


# ---- how long it takes ---------------------------------------------------------------------


def test_nvlink_has_doubled_and_doubled(kata):
    both_ways = {1: 160e9, 2: 300e9, 3: 600e9, 4: 900e9, 5: 1800e9}
    for gen, want in both_ways.items():
        found = kata.nvlink_bandwidth(gen)
        assert found == pytest.approx(want, rel=1e-12), f"generation {gen}: {found}, not {want}"


def test_a_switch_spares_the_second_hop(kata, oracle):
    loads = oracle.cube_mesh_loads(kata.CUBE_MESH)
    for nbytes, gpu_bw in ((8e9, 80e9), (0, 1.0), (12_345, 150e9)):
        for n in (1, 2, 8, 72):
            want = (n - 1) * nbytes / n / gpu_bw
            found = kata.nvswitch_all_to_all_s(nbytes, n, gpu_bw)
            assert found == pytest.approx(want, rel=1e-12), (
                f"nvswitch_all_to_all_s({nbytes}, {n}, {gpu_bw}): {found}, expected {want}"
            )
        want = max(loads.values()) * (nbytes / 8) / (gpu_bw / 4)
        found = kata.cube_mesh_all_to_all_s(nbytes, gpu_bw)
        assert found == pytest.approx(want, rel=1e-12), (
            f"cube_mesh_all_to_all_s({nbytes}, {gpu_bw}): {found}, expected {want}"
        )


# H100s on NDR; latency counts; the NIC is the faster one; bytes are free; nothing to send
FABRICS = (
    (2**30, 450e9, 50e9, 2e-6, 5e-6),
    (4096, 450e9, 50e9, 2e-6, 5e-6),
    (2**20, 25e9, 50e9, 9e-6, 5e-6),
    (2**20, 1e30, 1e30, 1e-6, 7e-6),
    (0, 1e9, 1e9, 3e-6, 1e-6),
)


@pytest.mark.parametrize(("nodes", "g"), [(1, 1), (1, 8), (2, 1), (2, 2), (3, 5), (16, 2)], ids=str)
def test_predictions_are_those_of_every_step(kata, oracle, nodes, g):
    for nbytes, intra_bw, nic_bw, intra_alpha, nic_alpha in FABRICS:
        args = (nbytes, nodes, g, intra_bw, nic_bw, intra_alpha, nic_alpha)
        want = oracle.predictions(*args)
        found = kata.predict(*args)
        assert found == pytest.approx(want, rel=1e-9, abs=0), (
            f"predict{args}: found {found}, expected {want}"
        )


def test_the_hierarchy_pays_on_four_nodes(kata, cost):
    found = kata.predict(2**30, 4, 8, 450e9, 50e9, 0.0, 0.0)
    cost.check("speedup", found["flat_ring"] / found["hierarchical"])


def test_what_makes_no_sense_is_refused(kata):
    nan, switch, mesh, predict = (
        math.nan,
        kata.nvswitch_all_to_all_s,
        kata.cube_mesh_all_to_all_s,
        kata.predict,
    )
    for name, call, args in (
        ("gen", kata.nvlink_bandwidth, (0,)), ("gen", kata.nvlink_bandwidth, (6,)),
        ("nbytes", switch, (-1, 0, 0)), ("n", switch, (0, 0, 0)), ("gpu_bw", switch, (0, 1, 0)),
        ("nbytes", mesh, (nan, 0)), ("nbytes", mesh, (-1e-9, 1)),
        ("gpu_bw", mesh, (1, -1)),
        ("nbytes", predict, (-1, 0, 0, 0, 0, -1, -1)), ("nodes", predict, (0, 0, 0, 0, 0, -1, -1)),
        ("g", predict, (0, 1, 0, 0, 0, -1, -1)), ("intra_bw", predict, (0, 1, 1, 0, 0, -1, -1)),
        ("nic_bw", predict, (0, 1, 1, 1, nan, -1, -1)),
        ("intra_alpha", predict, (0, 1, 1, 1, 1, -1, -1)),
        ("nic_alpha", predict, (0, 1, 1, 1, 1, 0, -1e-9)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            call(*args)


def test_on_gpus_it_keeps_up_with_the_library(kata, device, oracle, ranks):
    if device == "cpu":
        pytest.skip("links of GPUs are needed to be compared on")

    def seconds(rank, world):
        cluster = Cluster(oracle.places(2, 2), rank)
        intra, inter = Collectives(cluster.intra), Collectives(cluster.inter)
        x = torch.zeros(2**26, device=rank_device())
        return [
            time_of(call)
            for call in (
                lambda: dist.all_reduce(x),
                lambda: kata.hierarchical_all_reduce(x, intra, inter),
            )
        ]

    library, found = ranks(4, seconds, timeout_s=60.0)[0]
    # modelled from the times of its three collectives on two H200s: 0.76 of the library's
    assert found <= library / 0.6, f"256 MiB: {found} s, expected at most {library} s / 0.6"


def time_of(call):
    """Median seconds of a call that all ranks begin together."""
    taken = []
    for _ in range(13):
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[3:])
