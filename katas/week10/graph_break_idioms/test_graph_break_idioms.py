"""Logs read as they were captured; rewrites equal, in one graph, compiled twice at most."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.judge import assert_matches

NAMES = ["clip_norm", "mean_of_positive", "reported", "binned", "sorted_rows", "smoothed"]


def told(breaks):
    return [(b.cause, b.line) for b in breaks]


def wanted(oracle, name, args):
    """What the original gives for these, as a tuple; of `reported`, also what it prints."""
    energy = (args[0].detach().square().sum(),) if name == "reported" else ()
    return (getattr(oracle, name)(*args), *energy)


def trained(fn, *args):
    """Results, and the gradients of a loss that weighs every element of the first of them."""
    # x, and the table of `binned`
    before = args
    args = [one.clone().requires_grad_() if at in (0, 2) else one for at, one in enumerate(args)]
    found = fn(*args)
    assert [torch.equal(one, was) for one, was in zip(args[::2], before[::2], strict=True)] == [
        True for _ in args[::2]
    ], f"{before}: expected arguments left as they are, found {args}"
    found = found if isinstance(found, tuple) else (found,)
    weights = torch.linspace(-1, 1.5, found[0].numel()).to(found[0])
    (found[0] * weights.view_as(found[0])).sum().backward()
    grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in args[::2]]
    return tuple(one.detach() for one in (*found, *grads))


def in_float64(args):
    return [one.double() if isinstance(one, torch.Tensor) else one for one in args]


def assert_like_the_original(oracle, name, fn, args, what):
    """Results and gradients, `what` it was for in the message."""
    got = trained(fn, *args)
    similar = trained(lambda *given: wanted(oracle, name, given), *args)
    truth = trained(lambda *given: wanted(oracle, name, given), *in_float64(args))
    dtypes = [one.dtype for one in got]
    assert dtypes == [one.dtype for one in similar], f"{name}, {what}: found {dtypes}"
    assert_matches(got, truth, same_precision=similar, name=f"{name}, {what}: result, gradient")


# ---- logs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["graph_breaks", "recompiles"])
def test_a_captured_log_is_read_whole(kata, oracle, which):
    own = [(text, want) for text, want in oracle.records() if text in oracle.text(which)]
    want = [one for _, many in own for one in many]
    found = kata.classify(oracle.text(which))
    assert told(found) == want
    assert {b.file for b in found} == {oracle.OWN}


@given(data=st.data())
def test_records_come_in_any_order_between_other_lines(kata, oracle, data):
    noise = st.sampled_from(
        [
            "step 3: loss 2.31",
            "",
            "[__graph_breaks]",
            "Graph break in user code at /home/ada/gpt/layers.py:1",
            'V1122 12:00:00 1 torch/_dynamo/guards.py:1] [0/0] [__guards]   File "a", line 1, in f',
        ]
    )
    picked = data.draw(st.lists(st.sampled_from(oracle.records()), min_size=1, max_size=6))
    lines = [data.draw(noise)]
    for text, _ in picked:
        for line in text.splitlines():
            lines.append(line)
            if data.draw(st.integers(0, 9)) == 0:
                lines.append(data.draw(noise))
    found = kata.classify("\n".join(lines))
    assert told(found) == [one for _, want in picked for one in want]


@pytest.mark.parametrize("prefix", ["[rank3]:", "2026-11-22T12:00:01Z worker-0 | "])
def test_what_stands_before_the_tag_means_nothing(kata, oracle, prefix):
    text, want = oracle.records()[0]
    found = kata.classify("".join(prefix + line for line in text.splitlines(keepends=True)))
    assert told(found) == want


@pytest.mark.parametrize("which", ["graph_breaks", "recompiles"])
def test_paths_may_hold_blanks_and_colons(kata, oracle, which):
    path = "/srv/what in file: 3/net, line 5.py"
    found = kata.classify(oracle.text(which).replace(oracle.OWN, path))
    assert [b.file for b in found] == [path] * len(found)
    assert told(found) == told(kata.classify(oracle.text(which)))


@pytest.mark.parametrize("which", ["graph_breaks", "recompiles"])
def test_phrases_in_hints_and_paths_mean_nothing(kata, oracle, which):
    text = oracle.text(which)
    want = told(kata.classify(text))
    text = text.replace("  Hint: ", "  Hint: Tensor.item() ")
    assert told(kata.classify(text)) == want
    # a reason that ends in a colon says only what was going on
    text = text.replace("a function call, e.g. f(x, y):", "a function call, e.g. Tensor.tolist():")
    assert told(kata.classify(text)) == want
    assert told(kata.classify(text.replace(oracle.OWN, "/srv/Tensor.item()/dtype.py"))) == want


def test_lines_before_the_first_head_belong_to_no_record(kata, oracle):
    text, want = oracle.records()[0]
    cut = 'V1122 1 a.py:1] [0/0] [__graph_breaks]   File "other.py", line 99, in it\n'
    assert told(kata.classify(cut + text)) == want
    with pytest.raises(ValueError, match="^log"):
        kata.classify(cut)


def test_only_the_failed_guard_is_read_not_the_code_behind_it(kata, oracle):
    text, want = next(part for part in oracle.records() if part[1] == [("value", 99)])
    text = text.replace("# return x.reshape(n, -1)", "# return x.size()[0] * G['dtype mismatch']")
    assert told(kata.classify(text)) == want


@pytest.mark.parametrize("blanks", [0, 2], ids=["none", "two"])
def test_any_number_of_blank_lines_stands_before_what_names_the_cause(kata, oracle, blanks):
    text, want = next(part for part in oracle.records() if part[1] == [("scalar", 57)])
    lines = text.splitlines()
    assert lines[1].endswith(":")
    assert lines[2].endswith("[__graph_breaks] ")
    found = kata.classify("\n".join(lines[:2] + lines[2:3] * blanks + lines[3:]))
    assert told(found) == want


def test_frames_and_graphs_of_any_number_are_read(kata, oracle):
    text, want = next(part for part in oracle.records() if part[1] == [("value", 99)])
    assert told(kata.classify(text.replace("- 0/0:", "- 12/10:"))) == want


@pytest.mark.parametrize(
    "code",
    [
        "# [__graph_breaks] Graph break in user code at other.py:1",
        "# [__recompiles] Recompiling function f in other.py:1",
        "# Graph break in user code at other.py:1",
        "- 0/0: G['dtype mismatch'],",
    ],
    ids=["tag and head", "the other tag and head", "head", "guard"],
)
def test_quoted_code_is_no_head_and_no_guard(kata, oracle, code):
    text, want = oracle.records()[0]
    text = text.replace("if x.norm().item() > limit:", code)
    assert told(kata.classify(text)) == want
    text, want = next(part for part in oracle.records() if part[1] == [("value", 99)])
    text = text.replace("-     return x.reshape(n, -1).sum() * HEADS[0]", "-     " + code)
    assert told(kata.classify(text)) == want


def test_only_frames_of_the_traceback_count(kata, oracle):
    # the source line quoted below a frame looks like a frame
    text, want = oracle.records()[0]
    text = text.replace("    if x.norm().item() > limit:", '    File "other.py", line 99, in it')
    assert told(kata.classify(text)) == want


@pytest.mark.parametrize(
    "log",
    ["", "loss 2.3\nloss 2.2\n", "W1122 12:00:00 1 a.py:1] [0/0] Graph break from `Tensor.item()`"],
    ids=["empty", "no log of Dynamo", "a warning only"],
)
def test_a_log_without_records_is_refused(kata, log):
    with pytest.raises(ValueError, match="^log"):
        kata.classify(log)


def test_a_log_of_nothing_but_repetitions_is_none_to_refuse(kata, oracle):
    text, _ = next(part for part in oracle.records() if not part[1])
    assert kata.classify(text) == []


# ---- the same results ----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_results_and_gradients_are_those_of_the_original(kata, oracle, device, seed, name):
    fn = getattr(kata, name)
    for what, args in oracle.inputs(name, seed, device):
        assert_like_the_original(oracle, name, fn, args, what)


def test_what_is_not_positive_may_be_anything(kata, device):
    x = torch.tensor([[-float("inf"), 3.0], [float("nan"), 5.0]], device=device)
    x.requires_grad_()
    before = repr(x.tolist())
    found = kata.mean_of_positive(x)
    found.backward()
    assert found.item() == 4.0
    assert x.grad.tolist() == [[0.0, 0.5], [0.0, 0.5]]
    assert repr(x.tolist()) == before


@pytest.mark.parametrize("limit", [float("inf"), 0.0, 1e-30], ids=["infinite", "zero", "tiny"])
def test_any_limit(kata, oracle, device, seed, limit):
    args = (oracle.rows_of(4, seed, device), limit)
    assert_like_the_original(oracle, "clip_norm", kata.clip_norm, args, f"limit {limit}")
    zeros = (torch.zeros(2, 2, device=device), limit)
    assert_like_the_original(oracle, "clip_norm", kata.clip_norm, zeros, f"zeros, limit {limit}")


def test_a_value_on_an_edge_or_infinite_has_the_bin_that_numpy_gives_it(kata, oracle, device):
    inf = float("inf")
    x = torch.tensor([[-0.5, 0.25, 1.0, -0.0, 0.0], [inf, -inf, 0.2, -0.6, 9.0]], device=device)
    args = oracle.arguments("binned", x)
    assert kata.binned(*args).tolist() == oracle.binned(*args).tolist()


def test_rows_alike_in_the_first_column_keep_their_order(kata, oracle, device):
    x = torch.zeros(50, 2, device=device)
    x[::2, 0] = 1
    x[:, 1] = torch.arange(50.0)
    x[1::4, 0] = -0.0
    assert kata.sorted_rows(x)[:, 1].tolist() == oracle.sorted_rows(x)[:, 1].tolist()


@pytest.mark.parametrize("decay", [0.0, 1.0, 0.01], ids=["none", "all", "little"])
def test_any_decay(kata, oracle, device, seed, decay):
    args = (oracle.rows_of(40, seed, device), decay)
    assert_like_the_original(oracle, "smoothed", kata.smoothed, args, f"decay {decay}")


def test_the_energy_is_handed_back_and_not_printed(kata, device, capsys):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
    _, energy = kata.reported(x)
    assert (energy.item(), energy.requires_grad) == (30.0, False)
    assert capsys.readouterr().out == ""


# ---- one graph -----------------------------------------------------------------------------


class Compiled:
    """A function under Dynamo as it comes, with a backend that only keeps the graphs."""

    def __init__(self, fn):
        from torch._dynamo.utils import counters

        torch.compiler.reset()
        counters.clear()
        self.graphs, self.counters = [], counters
        # called by another function, so that Dynamo minds a `disable` of it
        self.fn = torch.compile(lambda *args: fn(*args), backend=self.keep)

    def keep(self, graph, _inputs):
        self.graphs.append(graph)
        return graph.forward

    def __call__(self, *args):
        import torch._dynamo.config as config

        # as they come: whatever the module under test may have set
        with config.patch(
            capture_scalar_outputs=False,
            capture_dynamic_output_shape_ops=False,
            reorderable_logging_functions=set(),
            assume_static_by_default=True,
            automatic_dynamic_shapes=True,
        ):
            return self.fn(*args)

    @property
    def breaks(self):
        return [why.partition("\n")[0] for why in self.counters["graph_break"]]


def ours(graph):
    """What a graph calls that is no operator of PyTorch: Dynamo did not look into it."""
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    return [
        target
        for target in called
        if getattr(target, "__module__", "").partition(".")[0] not in ("torch", "_operator")
        or getattr(target, "namespace", "aten") not in ("aten", "prims", "higher_order")
    ]


@pytest.mark.parametrize("name", NAMES)
def test_one_graph_and_no_break(kata, oracle, device, seed, cost, name):
    fn = Compiled(getattr(kata, name))
    for length in (5, 5, 5):
        fn(*oracle.arguments(name, oracle.rows_of(length, seed, device)))
    cost.check("breaks", len(fn.breaks))
    cost.check("graphs", len(fn.graphs))


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_is_of_operators_of_pytorch(kata, oracle, device, seed, name):
    fn = Compiled(getattr(kata, name))
    fn(*oracle.arguments(name, oracle.rows_of(5, seed, device)))
    assert [ours(graph) for graph in fn.graphs] == [[]], f"{name}: graphs with calls of one's own"


@pytest.mark.parametrize("name", NAMES)
def test_lengths_are_compiled_once_and_then_for_all(kata, oracle, device, seed, cost, name):
    fn = Compiled(getattr(kata, name))
    for length in oracle.LENGTHS:
        args = oracle.arguments(name, oracle.rows_of(length, seed, device))
        found = fn(*args)
        found = found if isinstance(found, tuple) else (found,)
        want = wanted(oracle, name, args)
        truth = wanted(oracle, name, in_float64(args))
        what = f"{name} compiled, {length} rows"
        assert_matches(found, truth, same_precision=want, name=what)
    cost.check("compilations", len(fn.graphs))
    fn(*oracle.arguments(name, oracle.rows_of(1, seed, device)))
    cost.check("compilations_with_one_row", len(fn.graphs))
