"""What the dispatcher meters count, against numbers worked out by hand."""

import math
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as nnf
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode

from harness.meters.calls import counting, evaluations
from harness.meters.dispatch import (
    alive_bytes,
    dispatch_meter,
    flop_meter,
    saved_meter,
)

row_bytes = 16 * 4


def grow_by_cat(steps):
    cache = torch.zeros(0, 16)
    for _ in range(steps):
        cache = torch.cat([cache, torch.ones(1, 16)])
    return cache


def grow_in_place(steps):
    cache = torch.empty(steps, 16)
    for step in range(steps):
        cache[step : step + 1].copy_(torch.ones(1, 16))
    return cache


def test_cat_copies_the_past_again_and_copy_only_the_new_row():
    with dispatch_meter() as by_cat:
        grow_by_cat(8)
    with dispatch_meter() as in_place:
        grow_in_place(8)
    assert by_cat.copied_bytes == (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8) * row_bytes
    assert in_place.copied_bytes == 8 * row_bytes


def test_threads_that_the_block_starts_are_counted_whoever_starts_them():
    started = []

    def double(x):
        return x + x

    def in_turn(x):
        started.append(threading.Thread(target=double, args=(x,)))
        started[-1].start()
        started[-1].join()

    class Own(threading.Thread):
        def run(self):
            double(torch.ones(4))

    start = threading.Thread.start
    with dispatch_meter() as outer, dispatch_meter() as d:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(double, [torch.ones(4)] * 20))
        for thread in (threading.Thread(target=in_turn, args=(torch.ones(4),)), Own()):
            thread.start()
            thread.join()
    assert threading.Thread.start is start
    assert (d.count("aten.add"), outer.count("aten.add")) == (22, 22)
    assert d.allocated_bytes == (22 + 3) * 16  # and the ones, those in a row once


def test_a_thread_that_outlives_the_block_counts_no_further_and_others_never():
    asked, done = threading.Event(), threading.Event()

    def wait_and_add():
        asked.wait(10)
        torch.ones(4) + 1
        done.set()

    before = ThreadPoolExecutor(1)
    before.submit(int).result()
    with dispatch_meter() as d:
        threading.Thread(target=wait_and_add).start()
        before.submit(torch.ones, 4).result()
    asked.set()
    assert done.wait(10)
    before.shutdown()
    assert d.count("aten.add") == d.count("aten.ones") == 0


def test_count_sums_overloads_and_does_not_match_prefixes():
    x = torch.ones(4)
    with dispatch_meter() as meter:
        y = x + 1
        y.add_(1)
        torch.add(x, x, out=y)
    assert meter.calls == {"aten.add.Tensor": 1, "aten.add_.Tensor": 1, "aten.add.out": 1}
    assert meter.count("aten.add") == 2
    assert meter.count("aten.add.out") == 1
    assert meter.count("aten.ad") == 0


def test_views_and_arguments_are_not_allocations():
    x = torch.ones(8, 8)
    with dispatch_meter() as meter:
        x.t().reshape(8, 8)[2:].expand(6, 8)
        x.mul_(2)
    assert meter.allocated_bytes == 0
    assert meter.peak_live_bytes == 0


def test_peak_is_of_what_lives_at_the_same_time():
    with dispatch_meter() as meter:
        a = torch.ones(1000)
        b = a + 1
        view = a[:10]
        del a
        c = b + 1
        del view
        d = c + 1
    assert meter.allocated_bytes == 16_000
    assert meter.peak_live_bytes == 12_000  # a (through its view), b, c; then b, c, d
    assert d[0] == 4


def test_storage_emptied_by_resize_no_longer_lives():
    with dispatch_meter() as meter:
        for _ in range(3):
            unit = torch.ones(1000)
            unit.untyped_storage().resize_(0)
            keep = unit
    assert keep.shape == (1000,)
    assert meter.peak_live_bytes == 4000


def test_cross_entropy_peaks_at_three_logits():
    n, v = 32, 500
    hidden = torch.randn(n, 8, requires_grad=True)
    weight = torch.randn(v, 8, requires_grad=True)
    labels = torch.arange(n)
    with dispatch_meter() as meter:
        nnf.cross_entropy(hidden @ weight.t(), labels).backward()
    # log-probabilities, their gradient and the logits' gradient; loss and weight sum are scalars
    assert meter.peak_live_bytes == 3 * n * v * 4 + 8


def test_tensor_literals_count_as_allocations():
    with dispatch_meter() as meter:
        torch.tensor([1.0, 2.0, 3.0])
    assert meter.allocated_bytes == 12


def test_meta_tensors_are_allocated_but_not_real():
    with dispatch_meter() as meter:
        torch.ones(1000, 1000, device="meta") @ torch.ones(1000, 10, device="meta")
        torch.ones(25)
    assert meter.allocated_bytes == 4 * (1_000_000 + 10_000 + 10_000 + 25)
    assert meter.real_bytes == 100


@pytest.mark.parametrize(
    ("write", "copied"),
    [
        (lambda x: x.clone(), 6 * row_bytes),
        (lambda x: x.t().contiguous(), 6 * row_bytes),
        (lambda x: x.contiguous(), 0),
        (lambda x: x.to(torch.float64), 12 * row_bytes),
        (lambda x: torch.stack([x, x]), 12 * row_bytes),
        (lambda x: x[torch.tensor([0, 4])], 2 * row_bytes),
        (lambda x: x.index_put_((torch.tensor([0, 4]),), torch.ones(16)), 2 * row_bytes),
        (lambda x: x.index_put_((x[:, 0] > 0,), torch.ones(16)), 6 * row_bytes),
        (lambda x: x.index_copy_(0, torch.tensor([1]), torch.ones(1, 16)), row_bytes),
        (lambda x: x.scatter_(0, torch.zeros(1, 16, dtype=torch.int64), x + 1), row_bytes),
        (lambda x: torch.t_copy(x), 6 * row_bytes),
        (lambda x: torch.slice_copy(x, 0, 1, 3), 2 * row_bytes),
        (lambda x: torch._foreach_copy_([x, x[:1]], [x.clone(), x[:1]]), 13 * row_bytes),
        (lambda x: x + x, 0),
    ],
)
def test_copied_bytes_are_those_written(write, copied):
    with dispatch_meter() as meter:
        write(torch.ones(6, 16))
    assert meter.copied_bytes == copied


@pytest.mark.parametrize(
    ("ask", "syncs"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: bool(x.any()), 1),
        (lambda x: torch.equal(x, x), 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: x[x > 1], 1),
        (lambda x: x.index_put_((x > 1,), torch.ones(2)), 1),
        (lambda x: x.masked_fill_(x > 1, 0.0), 0),
        (lambda x: x.index_put_((x > 1,), torch.tensor(0.0)), 0),
        (lambda x: x[torch.tensor([0, 2])], 0),
        (lambda x: x.repeat_interleave(torch.tensor([2, 1, 1, 1])), 1),
        (lambda x: x.repeat_interleave(torch.tensor([2, 1, 1, 1]), output_size=5), 0),
        (lambda x: x.to(torch.float64), 0),
        (lambda x: x.sum() + 1, 0),
    ],
)
def test_host_syncs_are_reads_the_host_waits_for(ask, syncs):
    with dispatch_meter() as meter:
        ask(torch.arange(4.0))
    assert meter.host_syncs == syncs


@pytest.mark.parametrize(
    ("copy", "syncs"),
    [
        (lambda host, device: device.to("cpu"), 1),
        (lambda host, device: device.to("cpu", non_blocking=True), 0),
        (lambda host, device: host.copy_(device), 1),
        (lambda host, device: host.copy_(device, non_blocking=True), 0),
        (lambda host, device: device.to(torch.float64), 0),
    ],
)
def test_a_copy_to_the_host_is_waited_for_unless_it_says_not_to(copy, syncs):
    with FakeTensorMode():  # "cuda" would set up the GPU of a machine that has one
        host, device = torch.empty(4), torch.empty(4, device="mps")
        with dispatch_meter() as meter:
            copy(host, device)
    assert meter.host_syncs == syncs


def test_backward_is_counted_too():
    x = torch.ones(2, 3, requires_grad=True)
    w = torch.ones(3, 4, requires_grad=True)
    with dispatch_meter() as meter:
        (x @ w).sum().backward()
    assert meter.count("aten.mm") == 3


def test_wrapper_subclasses_count_as_the_tensors_inside():
    pair = TwoTensor(torch.ones(10), torch.ones(10))
    with dispatch_meter() as meter:
        pair + pair
    assert meter.calls["aten.add.Tensor"] == 2
    assert meter.allocated_bytes == 80


def test_saved_bytes_leave_parameters_out_and_count_a_storage_once():
    layer = nn.Linear(8, 4)
    x = torch.ones(5, 8)
    with saved_meter() as saved:
        layer(x.requires_grad_()).sum()
    assert saved.bytes == x.nbytes
    with saved_meter() as twice:
        x * x
        x[:2].exp()  # saves its own result
    assert twice.bytes == x.nbytes + 2 * 8 * 4


def test_saved_bytes_leave_out_weights_named_as_excluded():
    x = torch.ones(5, 8, requires_grad=True)
    w = torch.ones(8, 4, requires_grad=True)
    with saved_meter() as everything:
        x @ w
    with saved_meter(exclude=[w]) as activations:
        x @ w
    assert everything.bytes == x.nbytes + w.nbytes
    assert activations.bytes == x.nbytes


def test_flops_of_a_product_and_its_backward():
    x = torch.ones(5, 8, requires_grad=True)
    w = torch.ones(8, 4, requires_grad=True)
    with flop_meter() as meter:
        (x @ w).sum().backward()
    assert meter.flops == 3 * (2 * 5 * 8 * 4)


@pytest.mark.parametrize(
    "inference", [False, True], ids=["recorded for the backward pass", "in inference mode"]
)
def test_flops_are_those_of_pytorchs_own_counter(inference):
    def work():
        x = torch.ones(2, 3, 8, 8)
        y = torch.nn.functional.conv2d(x, torch.ones(4, 3, 3, 3), padding=1)
        y = torch.nn.functional.scaled_dot_product_attention(y, y, y)
        y = torch.nn.functional.linear(y, torch.ones(5, 8)).relu()
        return torch.einsum("bchw,bchv->bwv", y, y).sum()

    def counted(meter):
        with torch.inference_mode(inference), meter:
            work()
        return meter

    theirs = counted(FlopCounterMode(display=False)).get_total_flops()
    assert counted(flop_meter()).flops == theirs > 0


@pytest.mark.parametrize(
    "product",
    [
        lambda a, b, out: out.addmm_(a, b),
        lambda a, b, out: torch.mm(a, b, out=out),
        lambda a, b, out: out[None].baddbmm_(a[None], b[None]),
        lambda a, b, out: torch.addmm(out, a, b, out=out),
    ],
    ids=["addmm_", "mm, out", "baddbmm_", "addmm, out"],
)
def test_a_product_into_memory_that_is_there_counts_as_any(product):
    a, b, out = torch.ones(5, 8), torch.ones(8, 4), torch.zeros(5, 4)
    with flop_meter() as meter:
        product(a, b, out)
    assert meter.flops == 2 * 5 * 8 * 4


def test_one_thread_is_asked_for_and_given_back(mini, judged):
    with (mini / "katas/week01/doubled/test_doubled.py").open("a") as tests:
        tests.write(
            "\n\ndef test_two(kata):\n    torch.set_num_threads(2)\n"
            "\n\ndef test_within(kata, one_thread):\n    assert torch.get_num_threads() == 1\n"
            "\n\ndef test_without(kata):\n    assert torch.get_num_threads() == 2\n"
        )
    only = [f"--only=test_{name}" for name in ("two", "within", "without")]
    assert [one["outcome"] for one in judged("--impl=solution", *only)] == ["passed"] * 3


def test_bytes_alive_are_those_of_each_storage_once_and_of_gradients():
    before = alive_bytes()
    weight = torch.ones(100, requires_grad=True)
    rows = torch.ones(50, 2, dtype=torch.float64)
    views = [rows[:3], rows.T]
    assert alive_bytes() - before == 100 * 4 + 100 * 8
    weight.sum().backward()
    assert alive_bytes() - before == 2 * 100 * 4 + 100 * 8
    del rows
    assert alive_bytes() - before == 2 * 100 * 4 + 100 * 8
    del views
    weight.grad = None
    assert alive_bytes() - before == 100 * 4


def test_counting_flops_imports_no_compiler():
    code = (
        "import sys, torch\nfrom harness.meters.dispatch import flop_meter\n"
        "with flop_meter() as meter:\n    torch.ones(3, 4) @ torch.ones(4, 5)\n"
        "print(meter.flops, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "120 False\n"


class Solver:
    def step(self, x):
        return x + 1

    @staticmethod
    def cost(x):
        return 2 * x

    @classmethod
    def named(cls):
        return cls.__name__


class FastSolver(Solver):
    pass


def test_evaluations_count_and_restore_a_module_function():
    original = math.sqrt
    with evaluations(math, "sqrt") as seen:
        assert [math.sqrt(4.0), math.sqrt(9.0)] == [2.0, 3.0]
    assert seen.count == 2
    assert math.sqrt is original


def test_evaluations_keep_methods_bound():
    solver = FastSolver()
    with (
        evaluations(Solver, "step") as steps,
        evaluations(Solver, "cost") as costs,
        evaluations(Solver, "named") as names,
    ):
        assert solver.step(1) == 2
        assert solver.cost(3) == Solver.cost(3) == 6
        assert Solver.named() == "Solver"
    assert (steps.count, costs.count, names.count) == (1, 2, 1)
    assert solver.cost(3) == 6
    assert isinstance(vars(Solver)["cost"], staticmethod)


def test_evaluations_of_an_inherited_method_leave_nothing_behind():
    solver = FastSolver()
    with pytest.raises(ZeroDivisionError), evaluations(solver, "step"):
        solver.step(1 // 0)
    with evaluations(FastSolver, "step") as seen:
        solver.step(1)
        Solver().step(1)
    assert seen.count == 1
    assert "step" not in vars(FastSolver)
    assert "step" not in vars(solver)


def test_counting_wraps_a_plain_callable():
    double = counting(lambda x: 2 * x)
    assert [double(1), double(x=2)] == [2, 4]
    assert double.calls == 2


def test_calls_past_a_limit_are_stopped():
    root = counting(math.sqrt, limit=2)
    assert [root(4.0), root(9.0)] == [2.0, 3.0]
    with pytest.raises(AssertionError, match="expected at most 2 calls of sqrt, found more"):
        root(16.0)


def test_calls_of_a_katas_function_are_counted_until_the_test_ends(mini, judged):
    with (mini / "katas/week01/doubled/test_doubled.py").open("a") as tests:
        tests.write(
            "\n\ndef test_counts(kata, calls):\n    asked = calls('doubled', limit=3)\n"
            "    assert [kata.doubled(torch.ones(2)).sum() for _ in range(3)] == [4, 4, 4]\n"
            "    assert asked.calls == 3\n    kata.doubled(torch.ones(2))\n"
            "\n\ndef test_does_not(kata):\n    assert not hasattr(kata.doubled, 'calls')\n"
        )
    counts, does_not = judged("--impl=solution", "--only=test_counts", "--only=test_does_not")
    assert "expected at most 3 calls of doubled, found more" in counts["message"]
    assert does_not["outcome"] == "passed"
