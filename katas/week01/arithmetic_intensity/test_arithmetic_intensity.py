"""What an op computes and what it must move: products, views, broadcasts, writes, whole graphs."""

import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.flop_counter import flop_registry

MATMULS = {
    "mm": lambda: meta(5, 7) @ meta(7, 3),
    "addmm": lambda: F.linear(meta(5, 7), meta(3, 7), meta(3)),
    "bmm": lambda: meta(4, 5, 7) @ meta(4, 7, 3),
    "baddbmm": lambda: torch.baddbmm(meta(5, 3), meta(4, 5, 7), meta(4, 7, 3)),
}
CONVOLUTIONS = {
    "strided and padded": lambda: F.conv2d(meta(3, 6, 9, 8), meta(4, 6, 3, 3), stride=2, padding=1),
    "in groups, with a bias": lambda: F.conv1d(meta(2, 6, 9), meta(4, 3, 3), meta(4), groups=2),
    "transposed": lambda: F.conv_transpose2d(meta(2, 6, 5, 4), meta(6, 4, 3, 3), stride=2),
    "transposed, in groups": lambda: F.conv_transpose1d(meta(2, 6, 5), meta(6, 2, 3), groups=3),
}


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def counted(kata, fn):
    with kata.CostMode() as mode:
        fn()
    return mode


def only_op(kata, fn):
    """The one op that moved memory: its name, and its cost."""
    [(name, cost)] = counted(kata, fn).by_op.items()
    assert cost.calls == 1
    return name, cost


# ---- FLOPs and bytes of one op -------------------------------------------------------------


def test_a_matmul_of_4096(kata):
    x = meta(4096, 4096, dtype=torch.float16)
    mode = counted(kata, lambda: x @ x.clone())
    assert mode.by_op["aten.mm"].flops == 137_438_953_472  # 2 · 4096³
    assert mode.by_op["aten.mm"].bytes == 100_663_296  # 3 · 4096² · 2
    assert mode.by_op["aten.clone"].bytes == 67_108_864
    assert mode.flops == 137_438_953_472
    assert mode.bytes == 100_663_296 + 67_108_864


@given(n=st.integers(1, 5000), dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]))
def test_a_square_matmul_has_two_thirds_of_n_over_the_itemsize(kata, n, dtype):
    found = kata.arithmetic_intensity(torch.mm, meta(n, n, dtype=dtype), meta(n, n, dtype=dtype))
    assert found == 2 * n / (3 * dtype.itemsize)


def test_an_addition_has_a_twelfth(kata):
    # one FLOP; two reads and a write of four bytes
    assert kata.arithmetic_intensity(torch.add, meta(1000), meta(1000)) == 1 / 12


def test_one_row_times_a_matrix_has_less_than_one(kata):
    x, w = meta(1, 4096, dtype=torch.float16), meta(4096, 4096, dtype=torch.float16)
    # 2 · 4096² over 2 · (4096² + 2 · 4096)
    assert kata.arithmetic_intensity(torch.mm, x, w) == 4096 / 4098


@pytest.mark.parametrize("name", MATMULS)
def test_flops_of_products_agree_with_pytorch(kata, oracle, name):
    found, cost = only_op(kata, MATMULS[name])
    assert {found: cost.flops} == oracle.library_flops(MATMULS[name])


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_flops_of_convolutions_agree_with_pytorch(kata, oracle, name):
    found, cost = only_op(kata, CONVOLUTIONS[name])
    assert {found: cost.flops} == oracle.library_flops(CONVOLUTIONS[name])


def test_products_are_counted_without_pytorchs_formulas(kata, monkeypatch):
    for op in [*flop_registry]:
        monkeypatch.delitem(flop_registry, op)
    assert only_op(kata, MATMULS["mm"])[1].flops == 2 * 5 * 7 * 3
    # 36 weights at the 7 places where a kernel of 3 fits into 9, in 2 samples
    assert only_op(kata, CONVOLUTIONS["in groups, with a bias"])[1].flops == 2 * 36 * 7 * 2


@pytest.mark.parametrize("trained", ["x and w", "w", "x", "w and b"])
@pytest.mark.parametrize(
    ("conv", "shape"),  # 4 channels to 6
    [(F.conv2d, (6, 4, 3, 3)), (F.conv_transpose2d, (4, 6, 3, 3))],
    ids=["conv2d", "conv_transpose2d"],
)
def test_flops_of_a_backward_graph_agree_with_pytorch(kata, oracle, conv, shape, trained):
    def step():
        x = meta(2, 4, 9, 8).requires_grad_("x" in trained)
        w = meta(*shape).requires_grad_("w" in trained)
        b = meta(6).requires_grad_("b" in trained)
        conv(x, w, b, stride=2).sum().backward()

    mode = counted(kata, step)
    expected = oracle.library_flops(step)
    assert {name: mode.by_op[name].flops for name in expected} == expected


@pytest.mark.parametrize(
    ("conv", "x_shape", "w_shape"),  # 36 weights at 7 places in 2 samples
    [(F.conv1d, (2, 6, 9), (4, 3, 3)), (F.conv_transpose1d, (2, 6, 7), (6, 2, 3))],
    ids=["conv1d", "conv_transpose1d"],
)
def test_each_group_has_gradients_of_its_own_channels_only(kata, conv, x_shape, w_shape):
    def step():
        x, w = meta(*x_shape).requires_grad_(), meta(*w_shape).requires_grad_()
        conv(x, w, groups=2).sum().backward()

    # for x and again for w
    assert counted(kata, step).by_op["aten.convolution_backward"].flops == 2 * (2 * 36 * 7 * 2)


@pytest.mark.parametrize(
    ("fn", "name", "flops", "nbytes"),
    [  # float32: bytes are 4 per element
        (lambda: meta(6, 5).sum(dim=1), "aten.sum", 30, 4 * (30 + 6)),
        (lambda: meta(6, 1).exp(), "aten.exp", 6, 4 * 12),
        (lambda: meta(6, 1) * meta(1, 5), "aten.mul", 30, 4 * (6 + 5 + 30)),
        (lambda: meta(6, 5).softmax(dim=1), "aten._softmax", 150, 4 * 60),
        # x, weight and bias; y, and one mean and one deviation per row
        (
            lambda: F.layer_norm(meta(6, 5), (5,), meta(5), meta(5)),
            "aten.native_layer_norm",
            240,
            4 * (30 + 5 + 5 + 30 + 6 + 6),
        ),
        (lambda: meta(6, 5).half(), "aten._to_copy", 0, 30 * 4 + 30 * 2),
        (lambda: torch.cat([meta(6), meta(4)]), "aten.cat", 0, 4 * (6 + 4 + 10)),
        (MATMULS["addmm"], "aten.addmm", 210, 4 * (3 + 35 + 21 + 15)),  # the addend is read
    ],
)
def test_conventions(kata, fn, name, flops, nbytes):
    found, cost = only_op(kata, fn)
    assert (found, cost.flops, cost.bytes) == (name, flops, nbytes)


@pytest.mark.parametrize(
    ("fn", "name", "flops", "nbytes"),
    [  # float32 of 6 x 5: bytes are 4 per element
        (F.relu, "aten.threshold_backward", 30, 4 * 90),
        (F.gelu, "aten.gelu_backward", 30, 4 * 90),
        (F.silu, "aten.silu_backward", 30, 4 * 90),
        (torch.sigmoid, "aten.sigmoid_backward", 30, 4 * 90),
        (torch.tanh, "aten.tanh_backward", 30, 4 * 90),
        (lambda x: x.softmax(dim=1), "aten._softmax_backward_data", 120, 4 * 90),
        # gradient, x, one mean and one deviation per row; the gradient of x
        (
            lambda x: F.layer_norm(x, (5,)),
            "aten.native_layer_norm_backward",
            240,
            4 * (30 + 30 + 6 + 6 + 30),
        ),
        (lambda x: x[1:4], "aten.slice_backward", 0, 4 * (15 + 30)),
    ],
)
def test_conventions_of_the_backward_pass(kata, fn, name, flops, nbytes):
    x = meta(6, 5).requires_grad_()
    mode = counted(kata, lambda: fn(x).sum().backward(meta()))
    # the gradient of a sum is one element, expanded
    whole = nbytes - 4 * (15 if name == "aten.slice_backward" else 30) + 4
    found = mode.by_op[name]
    assert (found.calls, found.flops, found.bytes) == (1, flops, whole)


# ---- what must be moved --------------------------------------------------------------------


def test_views_are_free(kata):
    x = meta(8, 6)

    def views():
        x.t(), x.view(2, 24), x[2:5, ::2], x.permute(1, 0), x.detach()
        x[0].expand(3, 6), x.chunk(2), torch.empty_like(x)

    assert counted(kata, lambda: (views(), x + x)).by_op.keys() == {"aten.add"}


def test_an_expanded_bias_is_read_once(kata):
    x, bias = meta(4096, 4096, dtype=torch.float16), meta(4096, dtype=torch.float16)
    _, cost = only_op(kata, lambda: x + bias.expand(4096, 4096))
    assert cost.bytes == 2 * 33_554_432 + 8192


def test_only_the_slice_of_a_large_storage_is_read(kata):
    _, cost = only_op(kata, lambda: meta(4096, 4096)[::2, :10].neg())
    assert cost.bytes == 2 * (2048 * 10 * 4)


@given(
    sizes=st.lists(st.integers(0, 4), max_size=4),
    steps=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    copies=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    turn=st.randoms(use_true_random=False),
)
@example(sizes=[4, 1], steps=[2] * 4, copies=[3] * 4, turn=random.Random(0))  # gaps and repeats
def test_bytes_agree_with_every_address(kata, oracle, sizes, steps, copies, turn):
    x = torch.empty(sizes, dtype=torch.float16)
    x = x[tuple(slice(None, None, step) for step in steps[: x.ndim])]
    shape = [copy if size == 1 else size for size, copy in zip(x.shape, copies, strict=False)]
    axes = turn.sample(range(x.ndim), x.ndim)
    x = x.expand(shape).permute(axes)
    assert kata.compulsory_bytes(x) == oracle.touched_bytes(x)


def test_in_place_ops_read_what_they_write(kata):
    name, cost = only_op(kata, lambda: meta(10).add_(meta(10)))
    assert (name, cost.flops, cost.bytes) == ("aten.add_", 10, 3 * 40)


@pytest.mark.parametrize(
    ("fn", "written"),
    [(lambda x: x * x, 40), (lambda x: torch.cat([x, x]), 80)],
    ids=["arguments", "in a list"],
)
def test_an_operand_given_twice_is_read_once(kata, fn, written):
    x = meta(10)
    assert only_op(kata, lambda: fn(x))[1].bytes == 40 + written


@pytest.mark.parametrize(
    ("fn", "nbytes"),
    [(lambda x: x[0] + x[1], 3 * 16), (lambda x: x @ x.t(), 3 * 64)],
    ids=["apart", "overlapping"],
)
def test_two_views_of_a_storage_are_two_operands(kata, fn, nbytes):
    assert only_op(kata, lambda: fn(meta(4, 4)))[1].bytes == nbytes


@pytest.mark.parametrize(
    ("fn", "nbytes"),
    [
        (lambda: torch.add(meta(10), meta(10), out=meta(10)), 3 * 40),
        (lambda: meta(10).copy_(meta(1)), 4 + 40),
        (lambda: meta(10).zero_(), 40),
        (lambda: meta(3, 1).expand(3, 4).zero_(), 12),  # three elements, however often they show
        (lambda: torch.ones_like(meta(10)), 40),  # asks for the shape, not for the elements
    ],
    ids=["out", "copy_", "zero_", "zero_ expanded", "ones_like"],
)
def test_what_is_only_written_is_not_read(kata, fn, nbytes):
    assert only_op(kata, fn)[1].bytes == nbytes


def test_empty_tensors_cost_nothing(kata):
    name, cost = only_op(kata, lambda: meta(0, 4) + meta(1, 4).expand(0, 4))
    assert (name, cost.flops, cost.bytes) == ("aten.add", 0, 0)


def test_a_sum_over_nothing_still_writes(kata):
    # K = 0: no FLOPs, nothing to read, 15 zeros to write
    assert kata.arithmetic_intensity(torch.mm, meta(5, 0), meta(0, 3)) == 0
    assert only_op(kata, lambda: meta(5, 0) @ meta(0, 3))[1].bytes == 15 * 4


def test_the_function_runs_once_on_what_it_is_given(kata):
    x = torch.zeros(3)
    kata.arithmetic_intensity(lambda x: x.add_(1), x)
    assert x.tolist() == [1, 1, 1]


# ---- a whole layer -------------------------------------------------------------------------


def test_a_layer_of_llama_70b_is_counted_without_computing_it(
    kata, oracle, dispatch, host_memory, cost
):
    x, weights = oracle.llama_layer(batch=8, length=8192)
    counted(kata, lambda: x + x)  # the first op of a session imports and caches
    with dispatch() as ops, host_memory() as held:
        mode = counted(kata, lambda: oracle.llama_forward(x, weights))
    parameters = 2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672
    assert mode.by_op["aten.mm"].flops == 2 * 65536 * parameters
    assert mode.by_op["aten.bmm"].flops == 4 * 8 * 64 * 8192**2 * 128
    moving = {name: found.calls for name, found in mode.by_op.items()}
    assert moving == {name: ops.count(name) for name in moving}
    views = ("view", "_unsafe_view", "transpose", "expand", "slice", "select", "unsqueeze", "split")
    others = sum(ops.calls.values()) - sum(ops.count(f"aten.{name}") for name in views)
    assert sum(moving.values()) >= others, "an op went unseen"
    cost.check("evaluations", sum(moving.values()), ideal=others)
    cost.check("allocated_bytes", ops.real_bytes)
    cost.check("peak_memory", held.peak_bytes)


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [lambda x: x.t(), lambda x: x[:0] + 1], ids=["view", "empty"])
def test_no_traffic_has_no_intensity(kata, fn):
    with pytest.raises(ValueError, match="no memory traffic"):
        kata.arithmetic_intensity(fn, meta(3, 3))


def test_a_large_real_tensor_is_refused(kata):
    large = torch.empty(2**30 + 1, dtype=torch.int8)  # address space: nothing touches it
    with pytest.raises(ValueError, match="use the meta device"):
        kata.arithmetic_intensity(lambda x: x[:4] + 1, large)
    # on the meta device the same is counted: 4 FLOPs, 4 bytes read and 4 written
    assert kata.arithmetic_intensity(lambda x: x[:4] + 1, large.to("meta")) == 0.5


@pytest.mark.parametrize(
    "fn",
    [
        lambda: torch.empty(9, dtype=torch.float64) + 1,  # 72 bytes, though only 9 elements
        lambda: torch.empty(1).expand(17).abs(),  # 68, though only 4 in memory
        lambda: torch.cat([torch.empty(1), torch.empty(17)]),
        lambda: torch.mul(torch.empty(5, 1), torch.empty(5), out=torch.empty(5, 5)),
    ],
    ids=["wide", "expanded", "in a list", "out"],
)
def test_no_large_real_tensor_goes_unseen(kata, monkeypatch, fn):
    monkeypatch.setattr(kata, "LARGEST_REAL_BYTES", 64)
    assert kata.arithmetic_intensity(lambda: torch.empty(16) + 1) == 1 / 8  # 64 bytes are allowed
    with pytest.raises(ValueError, match="use the meta device"):
        kata.arithmetic_intensity(fn)


def test_a_large_tensor_is_refused_before_it_is_written(kata, monkeypatch):
    monkeypatch.setattr(kata, "LARGEST_REAL_BYTES", 64)
    x = torch.zeros(17)
    with pytest.raises(ValueError, match="use the meta device"):
        kata.arithmetic_intensity(lambda x: x.add_(1), x)
    assert x.sum() == 0


def test_an_op_that_raises_is_not_counted(kata):
    def one_of_two():
        meta(3) + meta(3)
        with pytest.raises(RuntimeError):
            meta(2, 3) @ meta(2, 3)

    assert counted(kata, one_of_two).by_op.keys() == {"aten.add"}


def test_an_op_without_a_convention_is_refused(kata):
    with pytest.raises(ValueError, match=r"aten\.cumsum"):
        kata.arithmetic_intensity(lambda x: x.cumsum(0), meta(10))
