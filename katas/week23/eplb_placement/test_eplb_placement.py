"""Copies against the best distribution, packings against the best, placements against the rules."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def test_the_published_example(kata, oracle):
    phy2log, log2phy, count = kata.rebalance(oracle.PUBLISHED_LOAD, 16, 4, 2, 8)
    for layer, want in enumerate(oracle.PUBLISHED):
        assert phy2log[layer] == want, f"layer {layer}: {phy2log[layer]}, expected {want}"
    assert log2phy[0][:6] == [[12], [13, 15], [11], [6], [5, 7], [0, 2]]
    assert count[0] == [1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1]


# ---- copies --------------------------------------------------------------------------------

LOADS = {
    "one expert": ([7], 4),
    "none to spare": ([3, 0, 5], 3),
    "all alike": ([4, 4, 4], 8),
    "all idle": ([0, 0, 0], 7),
    "one has nearly all": ([900, 25, 25, 25, 25], 9),
    "equal shares, other counts": ([6, 3, 12, 3], 10),
    "falling": ([9, 8, 7, 6, 5, 4, 3, 2, 1], 20),
}


@pytest.mark.parametrize("which", LOADS)
def test_whose_replicas_have_most_to_do_gets_one_more(kata, oracle, which):
    load, n_phys = LOADS[which]
    found, want = kata.replicate(load, n_phys), oracle.replicate(load, n_phys)
    assert found == want, f"replicate({load}, {n_phys}): {found}, expected {want}"
    assert [*map(type, found)] == [int] * n_phys, f"expected a list of int, found {found}"


def test_no_way_to_share_replicas_out_is_better(kata, oracle, seed):
    draw = random.Random(seed)
    for _ in range(40):
        load = [draw.randrange(1, 50) ** 2 for _ in range(draw.randrange(1, 5))]
        n_phys = len(load) + draw.randrange(6)
        found = kata.replicate(load, n_phys)
        most = max(one / found.count(e) for e, one in enumerate(load))
        want = float(oracle.least_maximum(load, n_phys))
        assert most == pytest.approx(want), (
            f"replicate({load}, {n_phys}): {found}, at most {most} a replica; {want} is possible"
        )


# ---- packing -------------------------------------------------------------------------------

PACKS = {
    "one bin": ([3, 1, 2], 1),
    "one each": ([3, 9, 5, 9], 4),
    "all alike": ([2] * 6, 3),
    "all idle": ([0] * 6, 2),
    "full bins are passed by": ([9, 1, 1, 1, 1, 1], 2),
    "equal bins": ([5, 5, 3, 3, 2, 2], 3),
    "rising": ([1, 2, 3, 4, 5, 6, 7, 8], 2),
    "next to nothing": ([4e-20, 3e-20, 2e-20, 1e-20], 2),
}


@pytest.mark.parametrize("which", PACKS)
def test_the_largest_goes_where_there_is_least(kata, oracle, which):
    load, n_bins = PACKS[which]
    found, want = kata.balanced_pack(load, n_bins), oracle.pack(load, n_bins)
    assert found == want, f"balanced_pack({load}, {n_bins}): {found}, expected {want}"


@settings(max_examples=25)
@given(bins=st.integers(1, 6), each=st.integers(1, 5), data=st.data())
def test_every_bin_gets_as_many(kata, oracle, bins, each, data):
    size = bins * each
    load = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    found = kata.balanced_pack(tuple(load), bins)
    assert [*map(len, found)] == [each] * bins, f"balanced_pack({load}, {bins}): {found}"
    assert sorted(item for one in found for item in one) == [*range(size)]
    assert found == oracle.pack(load, bins), f"balanced_pack({load}, {bins}): {found}"


def test_a_packing_is_not_far_from_the_best(kata, oracle, cost):
    draw, worst = random.Random(0), 1.0  # other loads may be further from it
    for bins, each in ((2, 2), (2, 3), (3, 2), (2, 4), (3, 3), (4, 2)):
        for _ in range(4):
            load = [draw.randrange(1, 100) for _ in range(bins * each)]
            found = kata.balanced_pack(load, bins)
            largest = max(sum(load[item] for item in one) for one in found)
            worst = max(worst, largest / oracle.least_largest_bin(load, bins))
    cost.check("packing", worst)


# ---- both, on nodes and GPUs ---------------------------------------------------------------

# shared by up to 24 replicas, a multiple of this is a float without rounding: ties are ties
EXACT = math.lcm(*range(1, 25))

# experts, replicas, groups, nodes, GPUs
SHAPES = {
    "one of everything": (1, 1, 1, 1, 1),
    "no copies": (8, 8, 4, 2, 4),
    "one replica a GPU": (6, 8, 2, 2, 8),
    "a group a node": (12, 18, 3, 3, 6),
    "groups of one": (8, 12, 8, 2, 4),
    "groups that do not divide": (12, 16, 3, 2, 8),
    "fewer groups than nodes": (12, 16, 1, 4, 8),
    "many copies": (4, 24, 2, 2, 4),
}


@pytest.mark.parametrize("which", SHAPES)
def test_a_layer_is_placed_by_the_rules(kata, oracle, which, seed):
    experts, n_phys, *shape = SHAPES[which]
    draw = random.Random(seed)
    load = [
        [EXACT * draw.randrange(1000) for _ in range(experts)],
        [EXACT * 7] * experts,
        [EXACT * (10_000 if e == experts // 2 else 10 * e) for e in range(experts)],
    ]
    before = [layer[:] for layer in load]
    phy2log, log2phy, count = kata.rebalance(load, n_phys, *shape)
    assert load == before, f"load has changed: {load}, it was {before}"
    for layer, loads in enumerate(load):
        want = oracle.place(loads, n_phys, *shape)
        found = phy2log[layer]
        assert found == want, (
            f"rebalance([{loads}], {', '.join(map(str, (n_phys, *shape)))}): {found}, "
            f"expected {want}"
        )
        replicas = [[at for at, e in enumerate(want) if e == expert] for expert in range(experts)]
        assert log2phy[layer] == replicas, f"{found}: log2phy {log2phy[layer]}, not {replicas}"
        assert count[layer] == [*map(len, replicas)], f"{found}: count {count[layer]}"


def test_groups_stay_on_one_node(kata, seed):
    draw = random.Random(seed)
    load = [[draw.random() for _ in range(32)] for _ in range(3)]
    phy2log, _, _ = kata.rebalance(load, 48, 8, 4, 8)
    for layer in phy2log:
        homes = {}
        for at, expert in enumerate(layer):
            homes.setdefault(expert // 4, set()).add(at // 12)
        assert all(len(nodes) == 1 for nodes in homes.values()), f"nodes of each group: {homes}"


def test_skewed_loads_become_even(kata, oracle, cost):
    worst = 0.0
    for trace in range(20):
        load = oracle.zipf(256, 1.2, seed=trace)
        (phy2log,), _, _ = kata.rebalance([load], 288, 1, 1, 32)
        worst = max(worst, kata.imbalance(phy2log, load, 32))
    cost.check("imbalance", worst)


def test_nothing_is_looked_through_for_every_copy(kata, oracle, lines, cost):
    load = [oracle.zipf(256, 1.2, seed=trace) for trace in range(3)]
    with lines(limit=200_000) as counted:
        kata.rebalance(load, 288, 1, 1, 32)
    cost.check("lines", counted.lines / len(load))


# ---- bad input -----------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused(kata):
    two = [[1, 2, 3, 4]] * 2
    for name, call, args in (
        ("load", kata.replicate, ([], 0)), ("load", kata.replicate, ([1, -1], 1)),
        ("load", kata.replicate, ([math.nan, 1], 3)), ("n_phys", kata.replicate, ([1, 2], 1)),
        ("load", kata.balanced_pack, ([], 1)), ("load", kata.balanced_pack, ([1, -2, 3], 2)),
        ("n_bins", kata.balanced_pack, ([1, 2, 3], 2)), ("n_bins", kata.balanced_pack, ([1], 0)),
        ("n_bins", kata.balanced_pack, ([1, 2], 4)), ("n_bins", kata.balanced_pack, ([1, 2], -1)),
        ("load", kata.rebalance, ([[1, 2], [3]], 0, 0, 0, 0)),
        ("load", kata.rebalance, ([[1, 2], [3, -4]], 0, 0, 0, 0)),
        ("load", kata.rebalance, ([[], []], 0, 0, 0, 0)),
        ("load", kata.rebalance, ([], 0, 0, 0, 0)),
        ("n_groups", kata.rebalance, (two, 0, 3, 0, 0)),
        ("n_groups", kata.rebalance, (two, 0, 0, 0, 0)),
        ("n_nodes", kata.rebalance, (two, 0, 2, 0, 0)),
        ("n_gpus", kata.rebalance, (two, 0, 2, 2, 3)),
        ("n_gpus", kata.rebalance, (two, 0, 2, 2, 0)),
        ("n_phys", kata.rebalance, (two, 2, 2, 2, 2)),
        ("n_phys", kata.rebalance, (two, 5, 2, 2, 2)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            call(*args)
