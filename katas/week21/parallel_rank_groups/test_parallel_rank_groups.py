"""Groups against printed examples and rank by rank; two decompositions; bytes that leave nodes."""

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

ORDER = "tp-cp-ep-dp-pp"


def sized(**sizes):
    return math.prod(sizes.values()), sizes


def call(world, sizes, order, axes):
    return f"rank_groups({world}, {sizes}, {order!r}, {axes!r})"


# ---- groups --------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", ["tp", "pp", "dp", "tp-pp", "pp-tp"])
def test_the_groups_that_megatron_prints(kata, oracle, axes):
    world, sizes = sized(tp=2, dp=2, pp=4)
    found = kata.rank_groups(world, sizes, "tp-dp-pp", axes)
    expected = oracle.MEGATRON["tp-pp" if axes == "pp-tp" else axes]
    asked = call(world, sizes, "tp-dp-pp", axes)
    assert found == expected, f"{asked}: {found}, expected {expected}"


@st.composite
def meshes(draw):
    names = draw(st.permutations(["tp", "cp", "dp", "pp"]))[: draw(st.integers(1, 4))]
    sizes = {name: draw(st.integers(1, 4)) for name in names}
    order = "-".join(draw(st.permutations(names)))
    axes = "-".join(draw(st.permutations(names))[: draw(st.integers(1, len(names)))])
    return sizes, order, axes


@given(meshes())
@example(({"tp": 1}, "tp", "tp"))
@example(({"tp": 1, "dp": 1}, "dp-tp", "tp"))
@example(({"tp": 2, "cp": 3, "dp": 1, "pp": 4}, "cp-pp-tp-dp", "dp-pp"))
@example(({"tp": 2, "cp": 3, "dp": 2, "pp": 2}, "tp-cp-dp-pp", "pp-tp"))
def test_groups_are_the_ranks_that_differ_on_these_axes(kata, oracle, mesh):
    sizes, order, axes = mesh
    before, world = dict(sizes), math.prod(sizes.values())
    found = kata.rank_groups(world, sizes, order, axes)
    expected = oracle.groups(world, sizes, order, axes)
    assert found == expected, f"{call(world, sizes, order, axes)}: {found}, expected {expected}"
    assert sizes == before, f"sizes was {before}, is {sizes}"


def test_groups_are_lists_of_int(kata):
    found = kata.rank_groups(4, {"tp": 2, "dp": 2}, "tp-dp", "tp")
    kinds = {type(found), *map(type, found)}, {type(rank) for group in found for rank in group}
    assert kinds == ({list}, {int}), f"found {kinds}, expected lists of lists of int"


def test_16384_ranks_take_no_more_than_one_look_each(kata, oracle, cost, lines):
    # Llama 3 405B at 131,072 tokens: nodes of 8 GPUs
    world, sizes = sized(tp=8, cp=16, dp=8, pp=16)
    with lines(limit=2_200_000) as counted:
        tp = kata.rank_groups(world, sizes, "tp-cp-dp-pp", "tp")
        both = kata.rank_groups(world, sizes, "tp-cp-dp-pp", "dp-cp")
    assert all(group[0] // 8 == group[-1] // 8 for group in tp), "a TP group leaves its node"
    assert both[3] == list(range(3, 1024, 8)), f"dp-cp group 3: {both[3]}"
    cost.check("lines_a_rank", counted.lines / (2 * world))


# ---- experts -------------------------------------------------------------------------------


def test_experts_fold_over_the_same_ranks_by_hand(kata):
    found = kata.moe_groups(8, tp=2, cp=1, pp=2, ep=2, etp=1, order=ORDER)
    pairs, apart = [[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 2], [1, 3], [4, 6], [5, 7]]
    expected = {
        "tp": pairs, "cp": [[rank] for rank in range(8)], "dp": apart,
        "pp": [[0, 4], [1, 5], [2, 6], [3, 7]],
        "etp": [[rank] for rank in range(8)], "ep": pairs, "edp": apart,
    }  # fmt: skip
    assert found == expected, f"found {found}, expected {expected}"


FOLDS = [
    # world, tp, cp, pp, ep, etp, order
    (1, 1, 1, 1, 1, 1, ORDER),
    (24, 2, 3, 2, 4, 1, ORDER),  # EP over tp and a part of dp
    (16, 4, 2, 2, 8, 1, ORDER),  # EP over tp and cp
    (16, 2, 1, 1, 4, 4, ORDER),  # ETP is larger than TP
    (32, 2, 2, 2, 4, 2, "tp-cp-pp-ep-dp"),  # pp in the middle: does it agree?
    (12, 2, 1, 3, 2, 2, "tp-dp-pp-ep-cp"),
    (12, 2, 1, 3, 2, 1, "tp-dp-ep-pp-cp"),  # and here it does
    (16, 2, 2, 1, 4, 1, "ep-dp-pp-cp-tp"),
]


@pytest.mark.parametrize("fold", FOLDS, ids=str)
def test_attention_and_experts_divide_all_ranks(kata, oracle, fold):
    world, tp, cp, pp, ep, etp, order = fold
    dense = {"tp": tp, "cp": cp, "ep": 1, "dp": world // (tp * cp * pp), "pp": pp}
    expert = {"tp": etp, "cp": 1, "ep": ep, "dp": world // (etp * ep * pp), "pp": pp}
    expected = {name: oracle.groups(world, dense, order, name) for name in ("tp", "cp", "dp", "pp")}
    for key, name in (("etp", "tp"), ("ep", "ep"), ("edp", "dp")):
        expected[key] = oracle.groups(world, expert, order, name)
    if oracle.groups(world, expert, order, "pp") != expected["pp"]:
        with pytest.raises(ValueError, match="^order: "):
            kata.moe_groups(*fold)
        return
    found = kata.moe_groups(*fold)
    assert found == expected, f"moe_groups{fold}: {found}, expected {expected}"


# ---- nodes ---------------------------------------------------------------------------------

CLUSTERS = [
    # sizes, gpus_per_node, bytes
    (sized(tp=8, cp=2, dp=2, pp=4), 8, {"tp": 900, "cp": 200, "dp": 40, "pp": 3}),
    (sized(tp=2, cp=4, dp=4, pp=2), 8, {"tp": 10, "cp": 900, "dp": 40, "pp": 3}),
    (sized(tp=3, cp=2, dp=4, pp=1), 8, {"tp": 9, "cp": 5, "dp": 6, "pp": 100}),  # across a node
    (sized(dp=4, pp=6), 4, {"dp": 1, "pp": 1}),
    (sized(dp=8, pp=3, tp=2), 6, {"dp": 7, "pp": 9, "tp": 6}),  # the chattiest axis is no start
    (sized(tp=2, cp=2, ep=2, dp=2, pp=2), 4, {"tp": 5, "cp": 4, "ep": 3, "dp": 2, "pp": 1}),
    (sized(dp=5), 2, {"dp": 1.5}),
    (sized(dp=1, tp=1), 1, {"dp": 1, "tp": 0}),
    (sized(dp=2, tp=2), 1, {"dp": 1, "tp": 2}),
    (sized(dp=2, tp=2), 2, {"dp": 0.5, "tp": 0.9}),  # averages: less than a byte
]


def test_the_fewest_bytes_leave_a_node(kata, oracle, cost):
    worst = 0
    for (_, sizes), gpus, traffic in CLUSTERS:
        for turned in itertools.islice(itertools.permutations(sizes), 0, 24, 5):
            given_ = {name: sizes[name] for name in turned}  # whatever order they are given in
            order = kata.place(given_, gpus, traffic)
            assert sorted(order.split("-")) == sorted(sizes), f"{sizes}: order {order!r}"
            found = oracle.leaving(sizes, order, gpus, traffic)
            least = oracle.least_leaving(sizes, gpus, traffic)
            assert found <= least * (1 + 1e-9), (
                f"place({given_}, {gpus}, {traffic}): {order!r} lets {found} bytes leave nodes, "
                f"{least} are possible"
            )
            worst = max(worst, found / least if least else 1)
    cost.check("leaving", worst)


# ---- bad input -----------------------------------------------------------------------------

TWO = {"tp": 2, "dp": 2}
REFUSED = [
    ("rank_groups", (0, {"tp": 0}, "tp", "tp"), "world|sizes"),
    ("rank_groups", (8, TWO, "tp-dp", "tp"), "sizes"),
    ("rank_groups", (4, {"tp": -2, "dp": -2}, "tp-dp", "tp"), "sizes"),
    ("rank_groups", (4, {"tp": -2, "dp": 1, "pp": -2}, "tp-dp-pp", "tp"), "sizes"),
    ("rank_groups", (1, {}, "tp", "tp"), "sizes|order"),
    ("rank_groups", (4, TWO, "tp-pp", "tp"), "order"),
    ("rank_groups", (4, TWO, "tp", "tp"), "order"),
    ("rank_groups", (4, TWO, "tp-dp-tp", "tp"), "order"),
    ("rank_groups", (4, TWO, "tp-dp", "pp"), "axes"),
    ("rank_groups", (4, TWO, "tp-dp", "tp-tp"), "axes"),
    ("rank_groups", (4, TWO, "tp-dp", ""), "axes"),
    ("moe_groups", (8, 0, 1, 1, 1, 1, ORDER), "tp"),
    ("moe_groups", (8, 1, 0, 1, 1, 1, ORDER), "cp"),
    ("moe_groups", (8, 1, 1, 0, 1, 1, ORDER), "pp"),
    ("moe_groups", (8, 1, 1, 1, 0, 1, ORDER), "ep"),
    ("moe_groups", (8, 1, 1, 1, 1, 0, ORDER), "etp"),
    ("moe_groups", (0, 1, 1, 1, 1, 1, ORDER), "world"),
    ("moe_groups", (-8, 1, 1, 1, 1, 1, ORDER), "world"),
    ("moe_groups", (8, -1, -2, 1, 1, 1, ORDER), "tp|cp"),  # their product divides the world
    ("moe_groups", (8, 1, 1, 1, -2, -1, ORDER), "ep|etp"),
    ("moe_groups", (8, 3, 1, 1, 1, 1, ORDER), "world"),
    ("moe_groups", (8, 1, 1, 2, 4, 2, ORDER), "world"),
    ("moe_groups", (8, 1, 1, 1, 1, 1, "tp-cp-dp-pp"), "order"),
    ("moe_groups", (8, 2, 1, 2, 2, 1, "tp-pp-cp-ep-dp"), "order"),  # stages 2 apart, and 1
    ("place", ({}, 8, {}), "sizes"),
    ("place", ({"tp": 0}, 8, {"tp": 1}), "sizes"),
    ("place", ({"tp": 2, "dp": 0}, 8, {"tp": 1, "dp": 1}), "sizes"),
    ("place", (TWO, 0, {"tp": 1, "dp": 1}), "gpus_per_node"),
    ("place", (TWO, 2, {"tp": 1}), "bytes_per_axis"),
    ("place", (TWO, 2, {"tp": 1, "dp": 1, "pp": 1}), "bytes_per_axis"),
]


@pytest.mark.parametrize(("function", "args", "named"), REFUSED, ids=str)
def test_impossible_arguments_are_refused(kata, function, args, named):
    with pytest.raises(ValueError, match=f"^({named}): "):
        getattr(kata, function)(*args)
