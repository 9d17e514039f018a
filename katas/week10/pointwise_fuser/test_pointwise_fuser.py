"""Groups that are kernels, run in order and compute the same; bytes against every partition."""

import pytest
import torch

aten = torch.ops.aten


def rows(*shape):
    return torch.linspace(-1, 1, max(1, torch.Size(shape).numel())).view(shape)


def fused(kata, oracle, fn, *args):
    """The groups as names, of a graph that computes the same in groups, at the cost foretold."""
    gm = oracle.capture(fn, *args)
    groups = kata.fuse(gm)
    found, launches, moved = oracle.execute(gm, groups, *args)
    want = gm(*args)
    same = torch.utils._pytree.tree_map(torch.equal, found, want)
    assert all(torch.utils._pytree.tree_leaves(same)), f"expected {want}, found {found}"
    assert kata.plan_cost(gm, groups) == (launches, moved)
    return [{oracle.of(node) for node in group.nodes} for group in groups]


def test_a_chain_is_one_kernel(kata, oracle):
    def chain(x):
        return aten.tanh.default(aten.mul.Scalar(aten.exp.default(x), 2.0))

    assert fused(kata, oracle, chain, rows(3, 5)) == [{"exp", "mul", "tanh"}]


def test_a_diamond_is_one_kernel(kata, oracle):
    def diamond(x):
        a = aten.exp.default(x)
        return aten.add.Tensor(aten.relu.default(a), aten.sigmoid.default(a))

    assert fused(kata, oracle, diamond, rows(7)) == [{"exp", "relu", "sigmoid", "add"}]


def test_what_both_return_is_written_and_what_only_one_reads_is_not(kata, oracle):
    def both(x):
        a = aten.exp.default(x)
        return a, aten.relu.default(aten.tanh.default(a))

    gm = oracle.capture(both, rows(3, 5))
    assert fused(kata, oracle, both, rows(3, 5)) == [{"exp", "tanh", "relu"}]
    assert kata.plan_cost(gm, kata.fuse(gm)) == (1, 3 * 60)


def test_two_that_read_the_same_share_the_read(kata, oracle):
    def siblings(x):
        return aten.exp.default(x), aten.tanh.default(x)

    assert fused(kata, oracle, siblings, rows(3, 5)) == [{"exp", "tanh"}]
    # one byte is a saving, too
    one_byte = torch.ones(1, dtype=torch.uint8)
    assert fused(kata, oracle, siblings, one_byte) == [{"exp", "tanh"}]


def test_two_that_read_the_same_in_other_rows_do_not(kata, oracle):
    def siblings(x):
        return aten.exp.default(x), aten.tanh.default(aten.view.default(x, [5, 3]))

    assert len(fused(kata, oracle, siblings, rows(3, 5))) == 2


def test_no_cycle_through_a_matrix_product(kata, oracle):
    def skip(x, w):
        a = aten.exp.default(x)
        return aten.add.Tensor(a, aten.mm.default(a, w))

    assert fused(kata, oracle, skip, rows(4, 6), rows(6, 6)) == [{"exp"}, {"mm"}, {"add"}]


def test_no_cycle_a_few_kernels_long(kata, oracle):
    def long(x, w):
        a = aten.exp.default(x)
        b = aten.tanh.default(aten.mm.default(aten.mm.default(a, w), w))
        return aten.add.Tensor(a, aten.mm.default(b, w))

    want = [{"exp"}, {"mm"}, {"mm"}, {"tanh"}, {"mm"}, {"add"}]
    assert fused(kata, oracle, long, rows(4, 6), rows(6, 6)) == want


def test_no_cycle_of_groups_without_a_cycle_of_nodes(kata, oracle):
    # either pair shares a read, and each waits for one of the other
    def crossed(x, y, w):
        a = aten.exp.default(x)
        b = aten.add.Tensor(y, aten.mm.default(a, w))
        c = aten.tanh.default(y)
        return b, aten.mul.Tensor(x, aten.mm.default(c, w))

    groups = fused(kata, oracle, crossed, rows(4, 6), rows(4, 6), rows(6, 6))
    assert len(groups) == 5


def test_a_softmax_is_one_kernel(kata, oracle):
    def softmax(x):
        e = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, [-1], True)))
        return aten.div.Tensor(e, aten.sum.dim_IntList(e, [-1], True))

    gm = oracle.capture(softmax, rows(4, 6))
    assert fused(kata, oracle, softmax, rows(4, 6)) == [{"amax", "sub", "exp", "sum", "div"}]
    assert kata.plan_cost(gm, kata.fuse(gm)) == (1, 2 * 96)


def test_one_number_a_row_joins_where_the_row_is_reduced(kata, oracle):
    def scaled(x):
        m = aten.mean.dim(aten.mul.Tensor(x, x), [-1], True)
        return aten.mul.Tensor(x, aten.rsqrt.default(aten.add.Scalar(m, 1e-5)))

    assert fused(kata, oracle, scaled, rows(4, 6)) == [{"mul", "mean", "add", "rsqrt"}]


def test_one_number_a_row_does_not_join_where_nothing_is_reduced(kata, oracle):
    def gated(x, gate):
        return aten.mul.Tensor(x, aten.sigmoid.default(gate))

    want = [{"sigmoid"}, {"mul"}]
    assert fused(kata, oracle, gated, rows(4, 6), rows(4, 1)) == want

    def gated_later(x, gate):
        return aten.mul.Tensor(aten.exp.default(x), aten.sigmoid.default(gate))

    want = [{"sigmoid"}, {"exp", "mul"}]
    assert fused(kata, oracle, gated_later, rows(4, 6), rows(4, 1)) == want


def test_one_number_a_row_may_come_first(kata, oracle):
    def gated(x, gate):
        y = aten.mul.Tensor(x, aten.sigmoid.default(gate))
        return aten.sub.Tensor(y, aten.mean.dim(y, [-1], True))

    want = [{"sigmoid", "mul", "mean", "sub"}]
    assert fused(kata, oracle, gated, rows(4, 6), rows(4, 1)) == want


@pytest.mark.parametrize("shape", [(4, 6), (6, 6), (1, 6)], ids=["wide", "square", "one row"])
def test_a_vector_of_columns_has_loops_of_its_own(kata, oracle, shape):
    def biased(x, bias):
        y = aten.add.Tensor(x, aten.exp.default(bias))
        return aten.sub.Tensor(y, aten.mean.dim(y, [-1], True))

    alone = fused(kata, oracle, biased, rows(*shape), rows(6))
    want = [{"exp", "add", "mean", "sub"}] if shape == (1, 6) else [{"exp"}, {"add", "mean", "sub"}]
    assert alone == want


def test_rows_of_another_length_are_another_loop(kata, oracle):
    def halves(x):
        a = aten.exp.default(x)
        y = aten.view.default(a, [8, 3])
        return aten.sub.Tensor(y, aten.mean.dim(y, [-1], True)), aten.mean.dim(a, [-1], True)

    assert fused(kata, oracle, halves, rows(4, 6)) == [{"exp", "mean"}, {"mean", "sub"}]


def test_views_that_keep_the_rows_are_free(kata, oracle):
    def through(x):
        a = aten.view.default(aten.exp.default(x), [2, 2, 6])
        m = aten.unsqueeze.default(aten.view.default(aten.mean.dim(a, [-1], True), [2, 2]), -1)
        return aten.view.default(aten.sub.Tensor(a, m), [4, 6])

    assert fused(kata, oracle, through, rows(4, 6)) == [{"exp", "mean", "sub"}]


def test_a_view_there_and_back_is_free(kata, oracle):
    def back(x):
        a = aten.view.default(aten.view.default(aten.exp.default(x), [24]), [4, 6])
        return aten.tanh.default(a)

    assert fused(kata, oracle, back, rows(4, 6)) == [{"exp", "tanh"}]


def test_a_transpose_is_read_from_memory(kata, oracle):
    def symmetric(x):
        a = aten.exp.default(x)
        return aten.add.Tensor(a, aten.t.default(a))

    assert fused(kata, oracle, symmetric, rows(4, 4)) == [{"exp"}, {"add"}]


def test_there_and_back_through_transposes_is_read_from_memory(kata, oracle):
    def twice(x):
        return aten.tanh.default(aten.t.default(aten.t.default(aten.exp.default(x))))

    assert fused(kata, oracle, twice, rows(4, 4)) == [{"exp"}, {"tanh"}]


def test_one_number_a_row_read_as_columns_comes_from_memory(kata, oracle):
    def turned(x):
        m = aten.mean.dim(x, [-1], True)
        return aten.sub.Tensor(x, aten.view.default(m, [4]))

    assert fused(kata, oracle, turned, rows(4, 4)) == [{"mean"}, {"sub"}]


def test_a_reduction_over_reduced_rows_is_another_loop(kata, oracle):
    def of_means(x):
        return aten.sum.dim_IntList(aten.mean.dim(x, [-1], True), [-1], True)

    assert fused(kata, oracle, of_means, rows(4, 6)) == [{"mean"}, {"sum"}]


def test_nothing_to_compute(kata, oracle):
    gm = oracle.capture(lambda x: aten.view.default(x, [6]), rows(2, 3))
    assert kata.fuse(gm) == []
    assert kata.plan_cost(gm, []) == (0, 0)


def test_nodes_in_another_order_than_they_are_needed(kata, oracle):
    # the sum that joins the first kernel is made last, what it waits for in between
    def late(x, y, w):
        a = aten.exp.default(y)
        b = aten.mm.default(a, w)
        c = aten.tanh.default(x)
        return aten.mul.Tensor(aten.relu.default(x), b), c

    fused(kata, oracle, late, rows(4, 6), rows(4, 6), rows(6, 6))


def test_a_group_waits_for_all_that_it_reads(kata, oracle):
    def joined(x, w):
        a = aten.tanh.default(x)
        return aten.add.Tensor(aten.add.Tensor(a, aten.mm.default(w, w)), aten.mm.default(w, x))

    want = [{"mm"}, {"mm"}, {"tanh", "add"}]
    assert fused(kata, oracle, joined, rows(4, 4), rows(4, 4)) == want


@pytest.mark.parametrize("fuse_first", [True, False], ids=["fused", "each by itself"])
def test_cost_of_any_groups(kata, oracle, seed, fuse_first):
    for at in range(5):
        gm, args = oracle.drawn(torch.Generator().manual_seed(seed + at), 8)
        alone = [kata.Group((node,)) for node in oracle.runs(gm)]
        groups = kata.fuse(gm) if fuse_first else alone
        _, launches, moved = oracle.execute(gm, groups, *args)
        assert kata.plan_cost(gm, groups) == (launches, moved), f"of {gm.code}"


def test_a_tensor_read_twice_or_in_parts_counts_once_and_whole(kata, oracle):
    def parts(x):
        low, high = aten.slice.Tensor(x, 0, 0, 1), aten.slice.Tensor(x, 0, 1, 2)
        return aten.mul.Tensor(aten.add.Tensor(low, high), low)

    gm = oracle.capture(parts, rows(4, 6).half())
    assert kata.plan_cost(gm, kata.fuse(gm)) == (1, 48 + 12)


def test_a_node_that_nobody_reads_is_run_and_not_written(kata, oracle):
    def dead(x):
        aten.exp.default(x)
        return aten.tanh.default(x)

    gm = oracle.capture(dead, rows(3, 5))
    assert kata.plan_cost(gm, [kata.Group((node,)) for node in oracle.runs(gm)]) == (2, 3 * 60)
    assert fused(kata, oracle, dead, rows(3, 5)) == [{"exp", "tanh"}]


def test_any_graph_computes_the_same_in_groups(kata, oracle, seed):
    for at in range(20):
        gm, args = oracle.drawn(torch.Generator().manual_seed(seed + at), 12, square=at % 2 == 0)
        before = str(gm.graph)
        found, _, _ = oracle.execute(gm, kata.fuse(gm), *args)
        want = gm(*args)
        assert all(map(torch.equal, found, want)), f"{gm.code}: expected {want}, found {found}"
        assert str(gm.graph) == before


@pytest.mark.parametrize(
    ("op", "name"),
    [
        (lambda x: aten.cumsum.default(aten.exp.default(x), 0), "cumsum"),
        (lambda x: aten.sum.dim_IntList(x, [0], True), "sum"),
        (lambda x: aten.mul_.Tensor(aten.exp.default(x), x), "mul_"),
    ],
    ids=["a scan", "a sum of columns", "in place"],
)
def test_an_operator_of_no_class_is_refused(kata, oracle, op, name):
    gm = oracle.capture(op, rows(3, 5))
    node = next(node for node in gm.graph.nodes if oracle.of(node) == name)
    with pytest.raises(ValueError, match=f"^{node.name}: "):
        kata.fuse(gm)


# ---- against the best, and against Inductor ------------------------------------------------


def test_twenty_graphs_move_as_few_bytes_as_any_partition(kata, oracle, cost):
    moved = least = 0
    for at in oracle.SEEDS:
        for square in (False, True):
            gm, args = oracle.drawn(torch.Generator().manual_seed(at), 7, square)
            moved += oracle.execute(gm, kata.fuse(gm), *args)[2]
            least += oracle.least_bytes(gm)
    cost.check("over_the_best", moved / least)


def test_a_transformer_block_is_the_nine_kernels_of_inductor(kata, oracle, cost):
    block, shapes = oracle.block_of(2, 8, 16)
    args = [torch.sin(torch.arange(torch.Size(s).numel()) * 0.7).view(s) for s in shapes]
    gm = oracle.capture(block, *args)
    found, launches, moved = oracle.execute(gm, kata.fuse(gm), *args)
    assert torch.equal(found, gm(*args))
    cost.check("launches", launches)
    cost.check("over_inductor", moved / oracle.inductor_bytes(2, 8, 16, 4))


# ---- Inductor's code -----------------------------------------------------------------------


def test_the_captured_block_is_read(kata, oracle):
    found = [(k.name, k.kind, k.aten_ops) for k in kata.read_inductor(oracle.inductor())]
    norm, add, view = "aten.native_layer_norm", "aten.add", "aten.view"
    addmm, sdpa = "extern_kernels.addmm", "aten._scaled_dot_product_cudnn_attention"
    assert found == [
        ("triton_per_fused_native_layer_norm_0", "persistent_reduction", (norm,)),
        (addmm, "extern", (norm, view, "aten.t", "aten.addmm")),
        (
            f"torch.ops.{sdpa}.default",
            "extern",
            (view, "aten.split", "aten.transpose", sdpa),
        ),
        (addmm, "extern", ("aten.transpose", view, "aten.t", "aten.addmm")),
        (
            "triton_per_fused_add_native_layer_norm_view_1",
            "persistent_reduction",
            (view, add, norm),
        ),
        (addmm, "extern", (view, add, norm, "aten.t", "aten.addmm")),
        ("triton_poi_fused_gelu_view_2", "pointwise", (view, "aten.gelu")),
        (addmm, "extern", (view, "aten.gelu", "aten.t", "aten.addmm")),
        ("triton_poi_fused_add_view_3", "pointwise", (view, add)),
    ]


RUN = "            triton_poi_fused_add_view_3.run("


def test_a_kernel_is_read_as_often_as_it_is_launched(kata, oracle):
    code = oracle.inductor()
    launch = next(line + "\n" for line in code.splitlines() if line.startswith(RUN))
    assert len(kata.read_inductor(code.replace(launch, launch * 3))) == 11
    assert len(kata.read_inductor(code.replace(launch, ""))) == 8


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("triton_red_fused_sum_9", "reduction"),
        ("triton_poi_fused_per_red_9", "pointwise"),
        ("triton_tem_fused_mm_9", "extern"),
        ("multi_kernel_9", "extern"),
    ],
)
def test_a_kernel_is_of_the_kind_its_name_begins_with(kata, oracle, name, kind):
    code = oracle.inductor().replace(RUN, f"            {name}.run(")
    last = kata.read_inductor(code)[-1]
    assert (last.name, last.kind, last.aten_ops) == (name, kind, ("aten.view", "aten.add"))


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ("prims.convert_element_type, aten.add", ("prims.convert_element_type", "aten.add")),
        ("", ()),
    ],
    ids=["prims too", "none"],
)
def test_operators_are_named_as_they_are(kata, oracle, told, names):
    code = oracle.inductor().replace("ATen: [aten.view, aten.add]", f"ATen: [{told}]")
    assert kata.read_inductor(code)[-1].aten_ops == names


def test_the_call_ends_where_the_class_does(kata, oracle):
    code = oracle.inductor() + f"\n\ndef benchmark():\n{RUN}buf18)\n"
    assert len(kata.read_inductor(code)) == 9


def test_the_call_is_that_of_the_last_class(kata, oracle):
    code = oracle.inductor()
    at = code.index("class Runner")
    before = f"class Runner:\n    def call(self, args):\n{RUN}buf0)\n\nNAME = 1\n\n"
    assert len(kata.read_inductor(code[:at] + before + code[at:])) == 9


def test_an_operator_of_ones_own_is_a_launch(kata, oracle):
    own = "torch.ops.mylib.attend.default("
    code = oracle.inductor()
    launch = "torch.ops.aten._scaled_dot_product_cudnn_attention.default("
    found = kata.read_inductor(code.replace(launch, own))[2]
    assert (found.name, found.kind) == (own[:-1], "extern")


def test_code_without_a_call_is_refused(kata, oracle):
    code = oracle.inductor()
    with pytest.raises(ValueError, match="^code"):
        kata.read_inductor(code[: code.index("class Runner")])
