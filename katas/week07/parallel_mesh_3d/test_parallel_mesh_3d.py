"""Where ranks lie, what they send, and which split of a cluster is the fastest that fits."""

import dataclasses
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

ROUNDING = 1e-9  # relative: times that are added up in another order

side = st.integers(1, 5)
small = {"layers": 12, "d": 24, "heads": 12, "seq": 10}


# ---- ranks and groups ----------------------------------------------------------------------


def test_megatron_s_sixteen_gpus(kata):
    found = kata.groups(tp=2, pp=4, dp=2)
    assert found["tp"] == [[first, first + 1] for first in range(0, 16, 2)]
    assert found["dp"] == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert found["pp"] == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


@given(tp=side, pp=side, dp=side)
@example(tp=2, pp=3, dp=4)
def test_groups_are_the_axes_of_a_block(kata, oracle, tp, pp, dp):
    assert kata.groups(tp, pp, dp) == oracle.groups(tp, pp, dp)


@given(tp=side, pp=side, dp=side)
@example(tp=2, pp=3, dp=4)
def test_a_rank_has_a_place_on_each_axis(kata, oracle, tp, pp, dp):
    for rank in range(tp * pp * dp):
        assert kata.coords(rank, tp, pp, dp) == oracle.place(rank, tp, pp, dp)


@pytest.mark.parametrize("rank", [-1, 12, 13])
def test_a_rank_outside_the_world_is_refused(kata, rank):
    with pytest.raises(ValueError, match=r"\brank\b"):
        kata.coords(rank, 2, 3, 2)


@pytest.mark.parametrize("size", [0, -2])
@pytest.mark.parametrize("name", ["tp", "pp", "dp"])
def test_a_size_below_one_is_refused(kata, name, size):
    sizes = {"tp": 2, "pp": 2, "dp": 2} | {name: size}
    model = kata.Model(**small)
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        kata.groups(**sizes)
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        kata.coords(0, **sizes)
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        kata.comm_bytes(model, **sizes, micro=1, m=1)


# ---- traffic -------------------------------------------------------------------------------


def test_gpt3_on_1024_gpus_by_hand(kata, oracle):
    sent = kata.comm_bytes(kata.Model(**oracle.GPT3), tp=8, pp=16, dp=8, micro=1, m=192)
    hidden = 2048 * 12288 * 2  # bytes of a micro-batch between two layers
    assert sent["tp"] == 192 * 6 * 4 * 2 * 7 * hidden // 8
    assert sent["pp"] == 192 * 2 * hidden
    assert sent["dp"] == 2 * 7 * (6 * 12 * 12288**2 // 8 * 2) // 8


@given(
    tp=st.sampled_from([1, 2, 3, 4, 6, 12]),
    pp=st.sampled_from([1, 2, 3, 4, 6, 12]),
    dp=st.integers(1, 7),
    micro=st.integers(1, 3),
    m=st.integers(1, 4),
)
@example(tp=2, pp=2, dp=5, micro=3, m=2)  # 5 divides no number of gradients here
def test_traffic_is_the_sum_of_all_messages(kata, oracle, tp, pp, dp, micro, m):
    model = kata.Model(**small)
    sent = kata.comm_bytes(model, tp, pp, dp, micro, m)
    assert sent == oracle.comm_bytes(model, tp, pp, dp, micro, m)


def test_traffic_is_counted_in_whole_bytes(kata):
    model = kata.Model(layers=999, d=99_999_999, heads=9, seq=99_999)  # past 2**53
    sent = kata.comm_bytes(model, 3, 3, 3, 7, 999)
    assert sent["pp"] == 999 * 2 * 7 * 99_999 * 99_999_999 * 2
    assert sent["tp"] == 999 * 333 * 4 * 4 * (7 * 99_999 * 33_333_333) * 2
    assert sent["dp"] == 4 * (333 * 4 * 99_999_999**2 // 3) * 2


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("name", ["micro", "m"])
def test_no_micro_batches_are_refused(kata, name, size):
    numbers = {"micro": 1, "m": 1} | {name: size}
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        kata.comm_bytes(kata.Model(**small), tp=2, pp=2, dp=2, **numbers)


def test_layers_and_heads_are_split_without_a_rest(kata):
    model = kata.Model(layers=6, d=24, heads=4, seq=8)
    with pytest.raises(ValueError, match=r"\bpp\b"):
        kata.comm_bytes(model, tp=2, pp=4, dp=2, micro=1, m=2)
    with pytest.raises(ValueError, match=r"\btp\b"):
        kata.comm_bytes(model, tp=3, pp=2, dp=2, micro=1, m=2)


# ---- time, and the best split --------------------------------------------------------------


# one GPU; TP that fits no node; a group on a node's edge; a node not full; DP and PP within a node;
# one GPU a node
@pytest.mark.parametrize(
    ("tp", "pp", "dp", "node"),
    [
        (1, 1, 1, 8),
        (3, 2, 4, 8),
        (4, 3, 2, 6),
        (2, 2, 2, 8),
        (3, 1, 2, 8),
        (1, 3, 4, 4),
        (2, 12, 1, 4),
        (2, 3, 1, 1),
    ],
    ids=[
        "alone",
        "tp=3 on 8",
        "tp=4 on 6",
        "one node",
        "6 GPUs of 8",
        "dp a node",
        "long pipe",
        "nodes of 1",
    ],
)
def test_a_step_takes_as_long_as_its_passes(kata, oracle, tp, pp, dp, node):
    model = kata.Model(layers=12, d=768, heads=12, seq=128)
    cluster = kata.Cluster(**(oracle.A100S | {"gpus_per_node": node}))
    config = kata.Config(tp=tp, pp=pp, dp=dp)
    want = oracle.step_time(model, tp, pp, dp, 24, cluster)
    found = kata.step_time(model, config, 24, cluster)
    assert found == pytest.approx(want, rel=ROUNDING), (
        f"{config} of {model}, 24 sequences, nodes of {node}: expected {want} s, found {found}"
    )


def test_gpt3_on_1024_a100s(kata, oracle):
    model, cluster = kata.Model(**oracle.GPT3), kata.Cluster(**oracle.A100S)
    best = kata.best_config(model, 1024, 1536, cluster)
    assert best.tp * best.pp * best.dp == 1024
    assert best.tp <= 8, f"expected TP within a node, found {best}"
    assert kata.memory_bytes(model, best.tp, best.pp, 1536 // best.dp) <= cluster.memory_bytes


def test_tp_stays_in_the_node_where_memory_leaves_a_choice(kata, oracle):
    model = kata.Model(**oracle.GPT3)
    for node in (2, 4, 8):
        roomy = oracle.A100S | {"gpus_per_node": node, "memory_bytes": 1e12}
        best = kata.best_config(model, 512, 1536, kata.Cluster(**roomy))
        assert best.tp <= node, f"nodes of {node}: found {best}"


def test_what_exactly_fits_is_taken(kata, oracle):
    model = kata.Model(layers=4, d=512, heads=8, seq=256)
    needed = min(kata.memory_bytes(model, tp, 4 // tp, 8) for tp in (1, 2, 4))
    cluster = kata.Cluster(**(oracle.A100S | {"memory_bytes": needed}))
    best = kata.best_config(model, 4, 8, cluster)
    assert kata.memory_bytes(model, best.tp, best.pp, 8 // best.dp) == needed
    short = dataclasses.replace(cluster, memory_bytes=math.nextafter(needed, 0))
    with pytest.raises(ValueError, match=r"\bworld\b"):
        kata.best_config(model, 4, 8, short)


def test_a_short_step_holds_fewer_micro_batches_than_stages(kata, oracle):
    model = kata.Model(layers=8, d=512, heads=1, seq=256)  # 16 GPUs and 2 sequences: 8 x 2 alone
    needed = kata.memory_bytes(model, 1, 8, 1)
    cluster = kata.Cluster(**(oracle.A100S | {"memory_bytes": needed}))
    assert kata.best_config(model, 16, 2, cluster) == kata.Config(tp=1, pp=8, dp=2)


def test_a_world_that_nothing_splits_over_is_refused(kata, oracle):
    model = kata.Model(layers=4, d=512, heads=8, seq=256)
    cluster = kata.Cluster(**oracle.A100S)
    with pytest.raises(ValueError, match=r"\bworld\b"):
        kata.best_config(model, 7, 8, cluster)  # 7 divides neither layers, heads nor batch


@pytest.mark.parametrize("name", ["world", "global_batch"])
@pytest.mark.parametrize("size", [0, -8])
def test_no_gpus_or_no_batch_are_refused(kata, oracle, name, size):
    numbers = {"world": 8, "global_batch": 8} | {name: size}
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        kata.best_config(kata.Model(**small), cluster=kata.Cluster(**oracle.A100S), **numbers)


# ---- cost ----------------------------------------------------------------------------------


def test_no_split_is_faster(kata, oracle, cost):
    worst, told = 1.0, ""
    for sizes, machine, world, global_batch in oracle.small_cases(30):
        model, cluster = kata.Model(**sizes), kata.Cluster(**machine)
        times = {
            split: oracle.step_time(model, *split, global_batch, cluster)
            for split in oracle.splits(kata, model, world, global_batch, cluster)
        }
        if not times:
            with pytest.raises(ValueError, match=r"\bworld\b"):
                kata.best_config(model, world, global_batch, cluster)
            continue
        best = kata.best_config(model, world, global_batch, cluster)
        split = best.tp, best.pp, best.dp
        assert split in times, f"{model}, {cluster}, {world} GPUs: {best} does not divide or fit"
        fastest = min(times, key=times.get)
        if times[split] > worst * times[fastest]:
            worst = times[split] / times[fastest]
            told = (
                f"{model}, {cluster}, {world} GPUs, batch {global_batch}: expected "
                f"{kata.Config(**dict(zip(('tp', 'pp', 'dp'), fastest, strict=True)))} in "
                f"{times[fastest]} s, found {best} in {times[split]} s"
            )
    assert worst <= 1 + ROUNDING, told
    cost.check("slower", worst)


def test_the_search_looks_at_splits_that_divide(kata, oracle, lines, cost):
    model, cluster = kata.Model(**oracle.GPT3), kata.Cluster(**oracle.A100S)
    with lines(limit=5_000_000) as counted:
        kata.best_config(model, 1024, 1536, cluster)
    cost.check("instructions", counted.lines)
