"""Values as PyTorch computes them, compilations and kernels counted, views, syncs and lifetimes."""

from collections import namedtuple
from functools import cached_property

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

Counts = namedtuple("Counts", ["compiles", "cache_hits", "executions", "nodes"])
F64 = torch.float64


class Lazy:
    """`lazy([1.0, 2.0])` is a float64 tensor on a device, made when it is first asked for."""

    def __init__(self, kata):
        self.kata = kata

    @cached_property
    def device(self):
        return self.kata.LazyDevice()

    def __call__(self, values):
        return self.device.to_lazy(torch.as_tensor(values, dtype=F64))

    def step(self, *args):
        self.device.mark_step(*args)

    def counts(self):
        return Counts(*(self.device.metrics()[name] for name in Counts._fields))


@pytest.fixture
def lazy(kata):
    return Lazy(kata)


def kernels(d):
    """How many operators computed something: views and copies apart."""
    return sum(d.count(f"aten.{name}") for name in ("mm", "add", "mul", "relu", "sum", "add_"))


# ---- values --------------------------------------------------------------------------------


WORDS = ("mm", "add", "mul", "relu", "scaled", "shifted", "view", "add_", "drop", "step")


@given(
    script=st.lists(
        st.tuples(
            st.sampled_from(WORDS),
            st.integers(0, 5),
            st.integers(0, 5),
            st.sampled_from([0.0, -0.0, 0.5, -2.0]),
        ),
        min_size=4,
        max_size=14,
    ),
    all_at_once=st.booleans(),
)
@settings(max_examples=25)
def test_any_script_computes_what_pytorch_does(kata, oracle, script, all_at_once):
    device = kata.LazyDevice()
    given_ = [oracle.draw(at, 2, 2) for at in range(3)]
    step = (
        (lambda one: device.mark_step()) if all_at_once else (lambda one: device.mark_step([one]))
    )
    found = oracle.run(script, [device.to_lazy(t) for t in given_], step)
    expected = oracle.run(script, [t.clone() for t in given_], lambda one: None)
    for at, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert repr(ours.cpu()) == repr(theirs), f"tensor {at} of the script {script}"


def test_broadcast_sum_and_reshape(lazy):
    x = lazy([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    y = torch.reshape(torch.add(x, lazy([10.0, 20.0, 30.0])), [3, 2])
    total = torch.sum(y)
    assert (y.shape, total.shape, total.dtype) == ((3, 2), (), F64)
    assert y.cpu().tolist() == [[11.0, 22.0], [33.0, 14.0], [25.0, 36.0]]
    assert total.item() == 141.0
    empty = lazy(torch.ones(0, 3))
    assert torch.sum(torch.reshape(torch.add(empty, 1), (3, 0))).item() == 0.0


def test_a_dtype_is_kept(kata):
    device = kata.LazyDevice()
    x = device.to_lazy(torch.ones(2, 3, dtype=torch.float16))
    y = torch.mul(torch.relu(x), 3)
    assert (y.dtype, y.cpu().dtype) == (torch.float16, torch.float16)


def test_a_tensor_is_copied_in_and_out(kata, lazy):
    source = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T  # not contiguous
    x = lazy.device.to_lazy(source)
    y = torch.reshape(x, (4,))
    source.zero_()
    x.cpu().zero_()
    y.cpu().zero_()
    assert y.cpu().tolist() == [1.0, 3.0, 2.0, 4.0]


# ---- a graph is recorded, and runs when it has to --------------------------------------------


def test_recording_runs_nothing(kata, lazy, dispatch, cost):
    x, w = lazy([[1.0, 2.0], [3.0, 4.0]]), lazy([[1.0, 0.0], [0.0, 1.0]])
    with dispatch() as d:
        for _ in range(5):
            h = torch.relu(torch.add(torch.mm(x, w), 1.0))
            loss = torch.sum(torch.reshape(h, (4,)))
            w.add_(torch.mul(w, 0.5))
    assert h.shape == (2, 2)
    assert loss.shape == ()
    cost.check("kernels_while_recording", sum(d.calls.values()))


def test_a_step_computes_what_is_alive(lazy, dispatch):
    x = lazy([1.0, -2.0])
    kept = torch.relu(x)
    dead = torch.mul(torch.mul(x, 3.0), 4.0)
    del dead
    with dispatch() as d:
        lazy.step()
        lazy.step()  # nothing is left to do
    assert kernels(d) == 1
    assert lazy.counts() == (1, 0, 1, 1)
    assert kept.cpu().tolist() == [1.0, 0.0]


def test_a_diamond_is_computed_once(lazy, dispatch):
    x = lazy([1.0, 2.0])
    middle = torch.mul(x, 2.0)
    joined = torch.add(torch.relu(middle), torch.mul(middle, middle))
    with dispatch() as d:
        lazy.step([joined])
    assert (kernels(d), lazy.device.metrics()["nodes"]) == (4, 4)
    assert joined.cpu().tolist() == [6.0, 20.0]


def test_equal_expressions_are_computed_once(lazy, dispatch):
    x = lazy([1.0, 2.0])
    one, other = torch.relu(torch.mul(x, 2.0)), torch.relu(torch.mul(x, 2.0))
    with dispatch() as d:
        lazy.step()
    assert (kernels(d), lazy.device.metrics()["nodes"]) == (2, 2)
    one.add_(1.0)
    assert (one.cpu().tolist(), other.cpu().tolist()) == ([3.0, 5.0], [2.0, 4.0])


def test_what_was_computed_is_data(lazy, dispatch):
    x = lazy([1.0, 2.0])
    first = torch.mul(torch.relu(x), 2.0)
    second = torch.add(first, 1.0)  # recorded before the step
    lazy.step([first])
    with dispatch() as d:
        lazy.step([second, first])
    assert kernels(d) == 1
    assert second.cpu().tolist() == [3.0, 5.0]


def test_roots_alone_are_computed(lazy, dispatch):
    x = lazy([1.0, -2.0])
    one, other = torch.mul(x, 2.0), torch.relu(x)
    with dispatch() as d:
        lazy.step([one])
        lazy.step([])
        lazy.step([one, torch.reshape(one, (2, 1)), x])
    assert kernels(d) == 1
    assert lazy.counts() == (1, 0, 1, 1), (
        f"steps of mul, of nothing, of data and a view of it: {lazy.counts()}, expected 1, 0, 1, 1"
    )
    with dispatch() as d:
        lazy.step([other, other])
    assert kernels(d) == 1
    assert lazy.counts() == (2, 0, 2, 2)
    once = torch.relu(x)
    lazy.step([once])
    assert lazy.counts() == (2, 1, 3, 3), f"relu as a root twice, then once: {lazy.counts()}"


def test_a_graph_may_be_deep(lazy):
    x = lazy([0.0])
    for _ in range(3000):
        x.add_(1.0)
    assert x.item() == 3000.0


def test_a_loop_with_steps_holds_no_history(kata, oracle, lazy):
    w, before = lazy([[0.5]]), oracle.alive(kata.Node)
    held = []
    for _ in range(2):
        for _ in range(50):
            loss = torch.sum(torch.mm(w, w))
            w.add_(torch.mul(w, 0.01))
            lazy.step()
        held.append(oracle.alive(kata.Node) - before)
    assert held[1] == held[0], f"nodes alive after 50 and after 100 steps: {held}"
    assert loss.item() > 0
    assert lazy.counts() == (1, 99, 100, 400)


# ---- one compilation for each structure ------------------------------------------------------


def counted(lazy, calls, *graphs):
    """How many compilations it takes to compute each of these graphs in a step of its own."""
    asked = calls("compile_program")
    for graph in graphs:
        result = graph()
        lazy.step()
        del result
    return asked.calls


def test_new_data_hits_the_cache(lazy, calls):
    graphs = [lambda v=v: torch.relu(torch.mul(lazy([v, -v]), 2.0)) for v in (1.0, 2.0, 3.0)]
    assert counted(lazy, calls, *graphs) == 1
    assert lazy.counts() == (1, 2, 3, 6)


def test_a_new_shape_compiles(lazy, calls):
    graphs = [lambda n=n: torch.relu(lazy([1.0] * n)) for n in (3, 4, 3, 4)]
    assert counted(lazy, calls, *graphs) == 2


def test_a_new_shape_of_a_reshape_compiles(lazy, calls):
    def graph(shape):
        return torch.mul(torch.reshape(torch.relu(lazy([1.0] * 6)), shape), 2.0)

    assert counted(lazy, calls, *(lambda s=s: graph(s) for s in ((2, 3), (3, 2), (2, 3)))) == 2


def test_a_new_dtype_compiles(lazy, calls):
    def graph(dtype):
        return torch.relu(lazy.device.to_lazy(torch.ones(3, dtype=dtype)))

    assert counted(lazy, calls, lambda: graph(F64), lambda: graph(torch.float32)) == 2


def test_a_new_number_compiles_and_counts(lazy, calls):
    x = lazy([1.0, 2.0])
    assert counted(lazy, calls, *(lambda v=v: torch.mul(x, v) for v in (0.5, 2, 0.5, 2.0))) == 2
    assert torch.mul(x, 0.25).cpu().tolist() == [0.25, 0.5]


def test_a_number_as_data_hits_the_cache(lazy, calls):
    x = lazy([1.0, 2.0])
    rates = [lambda v=v: torch.mul(x, lazy(v)) for v in (0.5, 0.25, 0.125)]
    assert counted(lazy, calls, *rates) == 1
    assert torch.mul(x, lazy(3.0)).cpu().tolist() == [3.0, 6.0]


def test_minus_zero_is_another_number(lazy):
    x = lazy([-0.0])
    assert str(torch.add(x, 0.0).item()) == "0.0"
    assert str(torch.add(x, -0.0).item()) == "-0.0"
    together = [torch.add(x, -0.0), torch.add(x, 0.0)]
    lazy.step()
    assert [str(one.item()) for one in together] == ["-0.0", "0.0"]


def test_nan_is_a_number_like_any_other(lazy, calls):
    x = lazy([1.0])
    assert counted(lazy, calls, *[lambda: torch.mul(x, float("nan"))] * 3) == 1


def test_one_tensor_twice_is_not_two_tensors(lazy):
    a, b = lazy([2.0]), lazy([5.0])
    assert torch.mul(a, a).item() == 4.0
    assert torch.mul(a, b).item() == 10.0
    assert torch.mul(b, b).item() == 25.0
    assert lazy.counts() == (2, 1, 3, 3)


def test_what_is_returned_belongs_to_the_structure(lazy):
    x = lazy([3.0, -1.0])
    for wanted in ([1], [0, 1], [1, 0], [1]):
        made = [torch.relu(x)]
        made.append(torch.mul(made[0], 2.0))
        lazy.step([made[at] for at in wanted])
        assert made[1].cpu().tolist() == [6.0, 0.0]
        assert made[0].cpu().tolist() == [3.0, 0.0]
    assert lazy.counts() == (4, 2, 6, 10)  # twice relu alone, to read it


def test_roots_come_in_the_order_in_which_they_were_made(lazy, calls):
    asked, x, held = calls("compile_program"), lazy([3.0, -1.0]), []
    for _ in range(8):  # what is held keeps its place in memory, so that new tensors get others
        held.append([torch.mul(x, float(at)) for at in range(6)])
        held[-1][0].add_(1.0)
        lazy.step()
    assert asked.calls == 1
    for _ in range(2):  # a view comes with the tensor that it is of, whichever of them is held
        first, second = torch.relu(x), torch.add(x, 1.0)
        if asked.calls == 2:
            first = torch.reshape(first, (2, 1))
        lazy.step()
        del first, second
    assert asked.calls == 2, "relu and add, then the same with a view of relu alone held"


def test_metrics_are_a_snapshot_of_one_device(kata, lazy):
    before = lazy.device.metrics()
    lazy([1.0]).add_(1.0).item()
    assert before == dict.fromkeys(Counts._fields, 0)
    other = kata.LazyDevice()
    assert other.metrics() == before
    other.to_lazy(torch.ones(1, dtype=F64)).add_(1.0).item()
    assert other.metrics()["compiles"] == 1, "what another device has compiled is not found here"
    lazy.device.metrics()["compiles"] = 7
    assert lazy.counts() == (1, 0, 1, 1)


def test_five_scripts_compile_and_run_no_more_than_they_must(kata, calls, dispatch, cost):
    asked, found = calls("compile_program"), 0

    def to(device, *shape):
        return device.to_lazy(torch.ones(shape, dtype=F64))

    def training(device):  # one program, 4 kernels: 10 steps
        w = to(device, 3, 3)
        for _ in range(10):
            loss = torch.sum(torch.relu(torch.mm(to(device, 4, 3), w)))
            w.add_(0.5)
            device.mark_step()
        return loss

    def batches(device):  # three programs, 2 kernels: 6 steps
        for rows in (4, 4, 5, 4, 2, 5):
            out = torch.mul(torch.relu(to(device, rows, 3)), 2.0)
            device.mark_step()
        return out

    def schedule(device):  # a program for each rate, 1 kernel: 5 steps; then one for all
        w = to(device, 2)
        for rate in (0.5, 0.4, 0.3, 0.2, 0.1):
            w.add_(rate)
            device.mark_step()
        for rate in (0.5, 0.4, 0.3):
            w.add_(device.to_lazy(torch.tensor(rate, dtype=F64)))
            device.mark_step()
        return w

    def clipping(device):  # two programs a step, cut at `item`: 2 kernels, then 1: 4 steps
        w = to(device, 3)
        for _ in range(4):
            norm = torch.sum(torch.mul(w, w))
            if norm.item() > 0:
                w.add_(-1.0 / 64)
            device.mark_step()
        return w

    def ensemble(device):  # of three members with one expression in common, 4 kernels: 3 steps
        w = to(device, 2, 2)
        for _ in range(3):
            members = [torch.mul(torch.relu(torch.mm(w, w)), 3.0) for _ in range(3)]
            members.append(torch.sum(members[0]))
            device.mark_step()
        return members[-1]

    with dispatch() as d:
        for script in (training, batches, schedule, clipping, ensemble):
            device = kata.LazyDevice()
            script(device)
            found += device.metrics()["nodes"]
    assert found == kernels(d)
    cost.check("compiles", asked.calls)
    cost.check("kernels", kernels(d))


# ---- in place, and views -------------------------------------------------------------------


def test_an_update_is_seen_by_later_reads_only(lazy):
    x = lazy([1.0, 2.0])
    before = torch.mul(x, 10.0)
    assert x.add_(x) is x
    after = torch.mul(x, 10.0)
    lazy.step()
    assert before.cpu().tolist() == [10.0, 20.0]
    assert after.cpu().tolist() == [20.0, 40.0]
    assert x.cpu().tolist() == [2.0, 4.0]


@pytest.mark.parametrize("computed", [False, True], ids=["recorded", "computed"])
def test_a_reshape_is_a_view(lazy, computed):
    x = torch.mul(lazy([[1.0, 2.0], [3.0, 4.0]]), 1.0)
    row = torch.reshape(x, (4,))
    column = torch.reshape(row, (4, 1))
    if computed:
        lazy.step()
    row.add_(10.0)
    column.add_(lazy([[1.0], [0.0], [0.0], [0.0]]))
    x.add_(lazy([[0.0, 0.0], [0.0, 100.0]]))
    expected = [12.0, 12.0, 13.0, 114.0]
    assert row.cpu().tolist() == expected
    assert x.cpu().tolist() == [expected[:2], expected[2:]]
    assert torch.mul(column, 1.0).cpu().tolist() == [[one] for one in expected]
    lazy.step()
    row.add_(-10.0)
    assert x.cpu().tolist() == [[2.0, 2.0], [3.0, 104.0]]


def test_a_view_outlives_its_tensor(lazy):
    x = torch.mul(lazy([1.0, 2.0]), 3.0)
    view = torch.reshape(x, (2, 1))
    del x
    lazy.step()
    assert lazy.counts() == (1, 0, 1, 1), (
        f"a step of mul, of which a view alone is held: {lazy.counts()}, expected 1, 0, 1, 1"
    )
    assert view.cpu().tolist() == [[3.0], [6.0]]


# ---- syncs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda x: x.item(), 4.0),
        (bool, True),
        (repr, "lazy(tensor([4.], dtype=torch.float64))"),
        (lambda x: x.cpu().tolist(), [4.0]),
    ],
    ids=["item", "bool", "repr", "cpu"],
)
def test_reading_computes_one_tensor(lazy, read, expected):
    x, other = torch.mul(lazy([2.0]), 2.0), torch.relu(lazy([1.0]))
    assert read(x) == expected
    assert read(x) == expected
    assert lazy.counts() == (1, 0, 1, 1)
    assert other.item() == 1.0


@pytest.mark.parametrize("number", [0.0, -0.0, -2.0, float("nan")], ids=str)
def test_a_number_is_judged_and_shown_as_by_pytorch(lazy, number):
    x, trusted = lazy(number), torch.tensor(number, dtype=F64)
    assert bool(x) == bool(trusted), f"bool of {number}"
    assert repr(x) == f"lazy({trusted!r})"


@pytest.mark.parametrize(
    "read",
    [lambda x: x.item(), bool, repr, lambda x: x.cpu()],
    ids=["item", "bool", "repr", "cpu"],
)
def test_no_sync_refuses_to_compute(kata, lazy, read):
    x = torch.mul(lazy([2.0]), 2.0)
    other = kata.LazyDevice().to_lazy(torch.ones(1))  # where syncs are allowed
    with lazy.device.no_sync():
        with lazy.device.no_sync():
            pass
        with pytest.raises(RuntimeError, match="^no_sync: "):
            read(x)
        assert lazy.device.metrics()["executions"] == 0
        lazy.step([x])
        read(x)
        read(torch.reshape(x, (1, 1)))
        read(torch.relu(other))


def test_no_sync_ends_with_an_exception(lazy):
    x = torch.mul(lazy([2.0]), 2.0)
    with pytest.raises(RuntimeError, match="^no_sync: "), lazy.device.no_sync():
        x.item()
    assert x.item() == 4.0


# ---- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("sin", lambda x: torch.sin(x)),
        ("matmul", lambda x: torch.matmul(x, x)),
        ("sum", lambda x: torch.sum(x, dim=0)),
        ("sum", lambda x: torch.sum(x, 0)),
        ("add", lambda x: torch.add(x, x, alpha=2)),
        ("add", lambda x: torch.add(x, torch.ones(2, 2, dtype=F64))),
        ("add", lambda x: x.add_(torch.ones(2, 2, dtype=F64))),
        ("mm", lambda x: torch.mm(torch.ones(2, 2, dtype=F64), x)),
    ],
    ids=["sin", "matmul", "dim", "positional dim", "alpha", "eager", "eager add_", "eager first"],
)
def test_unsupported_calls_are_named(lazy, name, call):
    with pytest.raises(TypeError, match=f"^{name}: "):
        call(lazy([[1.0, 2.0], [3.0, 4.0]]))


def test_shapes_are_refused_while_recording(lazy):
    x, y = lazy([[1.0, 2.0, 3.0]]), lazy([[1.0], [2.0]])
    for name, call in (
        ("mm", lambda: torch.mm(x, x)),
        ("reshape", lambda: torch.reshape(x, (2, 2))),
        ("mul", lambda: torch.mul(x, lazy([1.0, 2.0]))),
        ("add", lambda: torch.add(x, lazy.device.to_lazy(torch.ones(3)))),
        ("add_", lambda: x.add_(y)),  # the sum is larger than x
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()
    assert x.cpu().tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_floats_alone_are_taken(lazy, dtype):
    with pytest.raises(TypeError, match="^t: "):
        lazy.device.to_lazy(torch.ones(2, dtype=dtype))


def test_two_devices_are_refused(kata, lazy):
    x, other = lazy([1.0]), kata.LazyDevice().to_lazy(torch.ones(1, dtype=F64))
    with pytest.raises(ValueError, match="^mul: "):
        torch.mul(x, other)
    with pytest.raises(ValueError, match="^add: "):
        x.add_(other)
    with pytest.raises(ValueError, match="^roots: "):
        lazy.step([other])
