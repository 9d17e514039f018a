"""What katas declare is tested: the right function keeps each promise, a wrong one is caught."""

import os

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")  # before anything imports numba

import resource
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from harness.base.errors import MetadataError
from harness.content.kata import load_kata
from harness.content.promises import Refusal
from harness.judge import assert_unordered
from harness.judge.correctness.answer import as_tensor
from harness.judge.promises import (
    assert_keeps_nothing,
    assert_not_finite_stays,
    assert_reaches_past_31_bits,
    assert_read_in_place,
    assert_refused,
    assert_writes_into,
)
from harness.judge.trial import Trial

CASE = {"rows": 3, "cols": 4}


def trial(entry, *, backend="torch", cases=(CASE,)):
    """One whose oracle adds a matrix and a row of ones."""

    def make_inputs(*, rows, cols, device, seed, **_):
        x, y = torch.ones(rows, cols), torch.ones(cols)
        return {"x": x.numpy(), "y": y.numpy()} if backend == "numba" else {"x": x, "y": y}

    oracle = SimpleNamespace(make_inputs=make_inputs, reference=lambda x, y: x + y)
    kata = SimpleNamespace(
        backend=backend, forbidden=(), writes=(), speed=(), cases=cases, folder="folder"
    )
    submission = SimpleNamespace(kata=kata, entry=entry)
    return Trial(
        submission=submission, oracle=oracle, device="cpu", seed=0, profile=None, record=None,
        compile=None,
    )  # fmt: skip


def refusal(names="x", says=None, error="ValueError", **given):
    return Refusal(names=names, given=given, says=says, error=error)


# ---- refuses -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"shape": [5]}, ((5,), "float32", True)),
        ({"dtype": "int32"}, ((3, 4), "int32", True)),
        ({"gaps": "elements"}, ((3, 4), "float32", False)),
        ({"gaps": "rows"}, ((3, 4), "float32", False)),
        ({"shape": [2, 2], "dtype": "float64"}, ((2, 2), "float64", True)),
    ],
    ids=str,
)
def test_an_argument_is_altered_as_declared_and_the_others_are_as_made(backend, change, seen):
    found = []

    def entry(x, y):
        found.append((x, y))
        raise ValueError("x: expected otherwise")

    assert_refused(trial(entry, backend=backend), refusal(x=change))
    ((x, y),) = found
    # an array with gaps is on Numba's device already: one that is moved there would lose them
    assert isinstance(x, np.ndarray) == (backend == "numba" and "gaps" not in change)
    x = as_tensor(x)
    assert (tuple(x.shape), str(x.dtype).removeprefix("torch."), x.is_contiguous()) == seen
    assert (x == 1).all()
    assert y.shape == (4,)


def test_last_elements_stay_neighbours_where_only_rows_have_gaps():
    def entry(x, y):
        raise ValueError(f"x: {x.stride()}")

    assert_refused(trial(entry), refusal(x={"gaps": "rows"}, says="(9, 1)"))
    assert_refused(trial(entry), refusal(x={"gaps": "elements"}, says="(9, 2)"))


def test_a_key_names_several_arguments_and_a_value_stands_for_itself():
    def entry(x, y, mode):
        assert x.shape == y.shape == (2, 2)
        assert mode == "odd"
        raise TypeError("mode: expected even")

    odd = {"x y": {"shape": [2, 2]}, "mode": "odd"}
    assert_refused(trial(entry), Refusal(names="mode", given=odd, says="even", error="TypeError"))


def test_an_argument_that_the_case_leaves_out_is_made_like_the_first():
    def entry(x, y, out):
        assert (out.shape, out.dtype, out.device.type) == ((7,), torch.float32, "meta")
        raise ValueError("out: expected another shape")

    change = {"shape": [7], "device": "meta"}
    assert_refused(trial(entry), refusal(names="out", out=change))


def raises(message, error=ValueError):
    def entry(x, y):
        raise error(message)

    return entry


def writes(x, y):
    y.zero_()
    raise ValueError("x: expected otherwise")


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (lambda x, y: x, "x: dtype int32: expected ValueError, found that it was accepted"),
        (raises("no x: good"), "expected a message that begins with 'x:', found 'no x: good'"),
        (raises("x no good: dtype"), "expected a message that begins with 'x:'"),
        (raises("x_ptr: dtype"), "expected a message that begins with 'x:'"),
        (raises("x: no"), "expected 'dtype' in the message, found 'x: no'"),
        (writes, "an argument was written to before it was refused"),
    ],
    ids=["takes it", "names it later", "no colon", "another name", "wrong words", "writes"],
)
def test_what_is_not_refused_as_declared_is_told(entry, told):
    says = None if entry is writes else "dtype"
    with pytest.raises(AssertionError, match=told):
        assert_refused(trial(entry), refusal(x={"dtype": "int32"}, says=says))


def test_another_error_passes_through():
    with pytest.raises(IndexError, match="inner"):
        assert_refused(trial(raises("inner", IndexError)), refusal(x={"shape": []}))


# ---- in_place ------------------------------------------------------------------------------


def add(x, y):
    return x + y


def copies(x, y):
    return x.contiguous() + y


def ignores_gaps(x, y):
    return x.as_strided(x.shape, (x.shape[1], 1)) + y


def test_arguments_with_gaps_are_read_where_they_are():
    assert_read_in_place(trial(add), {"x": "rows", "y": "elements"})


@pytest.mark.parametrize("gaps", ["rows", "elements"])
def test_a_copy_is_told(gaps):
    with pytest.raises(AssertionError, match=r"x with gaps .* expected 48 bytes .* found 96"):
        assert_read_in_place(trial(copies), {"x": gaps})
    assert_read_in_place(trial(copies), {"y": gaps})


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float64], ids=str)
def test_rows_with_a_gap_can_begin_where_tma_wants_them(dtype):
    seen = []

    def entry(x, y):
        seen.append(x.stride(0) * x.itemsize)
        return x + y

    narrow = trial(entry, cases=[{"rows": 3, "cols": 5}])
    made = narrow.oracle.make_inputs
    narrow.oracle.make_inputs = lambda **how: {
        name: one.to(dtype) for name, one in made(**how).items()
    }
    assert_read_in_place(narrow, {"x": "aligned"})
    (pitch,) = seen
    assert pitch % 16 == 0
    assert pitch > 5 * dtype.itemsize


@pytest.mark.parametrize("gaps", ["rows", "elements", "aligned"])
def test_arrays_on_numbas_device_have_gaps_too(gaps):
    seen = []

    def entry(x, y):
        seen.append((hasattr(x, "copy_to_host"), x.strides))
        return x.copy_to_host() + y

    assert_read_in_place(trial(entry, backend="numba"), {"x": gaps})
    pitch = {"rows": 36, "elements": 36, "aligned": 48}[gaps]
    assert seen == [(True, (pitch, 8 if gaps == "elements" else 4))]
    with pytest.raises(AssertionError, match="result: "):
        assert_read_in_place(trial(dense_on_device, backend="numba"), {"x": gaps})


def dense_on_device(x, y):
    """Takes rows and elements to be neighbours."""
    host = x.copy_to_host()
    whole = np.zeros(2 * host.shape[1] * host.shape[0] * 2, host.dtype)
    step = x.strides[1] // x.itemsize
    for at, row in enumerate(host):
        start = at * x.strides[0] // x.itemsize
        whole[start : start + step * len(row) : step] = row
    return whole[: host.size].reshape(host.shape) + y


def test_gaps_that_are_read_as_data_are_told():
    with pytest.raises(AssertionError, match="result: "):
        assert_read_in_place(trial(ignores_gaps), {"x": "rows"})


def test_the_truth_is_that_of_the_arguments_before_the_call():
    def adds_into_y(x, y):
        total = x + y
        y.add_(1)
        return total

    assert_read_in_place(trial(adds_into_y), {"y": "elements"})
    assert_reaches_past_31_bits(trial(adds_into_y), "x")


# ---- int64_rows ----------------------------------------------------------------------------


def offsets_wrap(x, y):
    """Rows begin where 31 bits of their offset say."""
    row, width = x.stride(0), x.shape[1]
    starts = [at * row % 2**31 for at in range(len(x))]
    return torch.stack([x.as_strided((width,), (1,), start) for start in starts]) + y


def test_rows_lie_further_apart_than_31_bits_count():
    seen = []

    def entry(x, y):
        seen.append((len(x) - 1) * x.stride(0))
        return x + y

    assert_reaches_past_31_bits(trial(entry), "x")
    (last_row,) = seen
    assert 2**31 <= last_row < 2**31 + 8
    with pytest.raises(AssertionError, match=r"^x, rows 2\*\*31 elements apart: result: "):
        assert_reaches_past_31_bits(trial(offsets_wrap), "x")


@pytest.mark.parametrize("backend", ["cuda", "gluon"])
def test_rows_far_apart_are_aligned_where_16_bytes_may_be_loaded_at_once(backend):
    seen = []

    def entry(x, y):
        seen.append((x.data_ptr() % 16, x.stride(0) * x.itemsize % 16))
        return x + y

    assert_reaches_past_31_bits(trial(entry, backend=backend), "x")
    assert seen == [(0, 0)]


def test_only_what_has_the_dtype_of_the_rows_is_narrowed():
    seen = []

    def entry(x, y):
        seen.append((x.dtype, y.dtype))
        return x + y

    mixed = trial(entry)
    make_inputs = mixed.oracle.make_inputs
    for dtype in (torch.float32, torch.float64):
        mixed.oracle.make_inputs = lambda **how: (
            lambda given: {**given, "y": given["y"].to(dtype)}  # noqa: B023 -- called at once
        )(make_inputs(**how))
        assert_reaches_past_31_bits(mixed, "x")
    assert seen == [(torch.float16, torch.float16), (torch.float16, torch.float64)]


def test_rows_far_apart_need_no_memory_that_a_limit_counts():
    """A machine with little memory left must not fail a solution that is right."""
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (held + 2**30, limits[1]))
    try:
        with pytest.raises(RuntimeError, match="allocate"):
            torch.empty(2**32, dtype=torch.uint8)
        assert_reaches_past_31_bits(trial(lambda x, y: x + y), "x")
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def test_one_case_of_each_form_is_tried_and_none_without_rows():
    seen = []

    def entry(x, y):
        seen.append(tuple(x.shape))
        return x + y

    cases = ({"rows": 1, "cols": 2}, CASE, {"rows": 5, "cols": 2}, {**CASE, "masked": True})
    assert_reaches_past_31_bits(trial(entry, cases=cases), "x")
    assert seen == [(3, 4), (3, 4)]
    with pytest.raises(AssertionError, match="expected a case with two rows of x, found none"):
        assert_reaches_past_31_bits(trial(entry, cases=cases[:1]), "x")


# ---- into ----------------------------------------------------------------------------------


def adds_into(x, y, out=None):
    out = np.empty_like(x) if out is None and isinstance(x, np.ndarray) else out
    out = torch.empty_like(x) if out is None else out
    out[...] = x + y
    return out


def test_arrays_that_are_given_are_written_to_and_returned():
    assert_writes_into(trial(adds_into), ["out"])
    assert_writes_into(trial(adds_into, backend="numba"), ["out"])


def without_return(x, y, out=None):
    return adds_into(x, y, out).clone()


def front_alone(x, y, out=None):
    if out is not None:
        out[:1] = x[:1] + y
        return out
    return x + y


def not_at_all(x, y, out=None):
    return x + y


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (without_return, "result: expected the array that was given as `out`, found another"),
        (not_at_all, "result: expected the array that was given as `out`, found another"),
        (front_alone, "result: 8 of 12 values off"),
    ],
)
def test_arrays_that_are_not_used_are_told(entry, told):
    with pytest.raises(AssertionError, match=told):
        assert_writes_into(trial(entry), ["out"])


def test_each_part_of_a_result_has_its_argument():
    with pytest.raises(AssertionError, match="an argument for each of the result's 1 parts"):
        assert_writes_into(trial(adds_into), ["out", "more"])


# ---- not finite ----------------------------------------------------------------------------


def product(entry, *, backend="torch"):
    """One whose oracle multiplies matrices."""
    made = trial(entry, backend=backend, cases=[{"rows": 5, "cols": 7}])

    def make_inputs(*, rows, cols, device, seed):
        draw = torch.Generator().manual_seed(seed)
        x = torch.rand(rows, cols, generator=draw) + 1
        y = torch.rand(cols, 3, generator=draw) + 1
        return {"x": x.numpy(), "y": y.numpy()} if backend == "numba" else {"x": x, "y": y}

    made.oracle = SimpleNamespace(
        make_inputs=make_inputs,
        reference=lambda x, y: torch.as_tensor(x).double() @ torch.as_tensor(y).double(),
        same_precision=lambda x, y: torch.as_tensor(x) @ torch.as_tensor(y),
    )
    return made


def padded(x, y):
    """A tile that is longer, whose zeros meet what is read for all that: the last row of y."""
    wide = torch.nn.functional.pad(x, (0, 1))
    return wide @ torch.cat([y, y[-1:]])


@pytest.mark.filterwarnings("ignore:invalid value")  # as for katas
def test_what_is_not_finite_passes_where_it_belongs():
    for seed in range(4):
        for backend in ("torch", "numba"):
            right = product(lambda x, y: x @ y, backend=backend)
            right.seed = seed
            assert_not_finite_stays(right, ["x", "y"])


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (lambda x, y: x.nan_to_num() @ y, r"with x\[\d, \d\] = nan: result: "),
        (lambda x, y: x @ y.nan_to_num(), r"with x\[\d, \d\] = nan, y\[\d, \d\] = nan: result: "),
        (lambda x, y: (x @ y).clamp(max=1e30), r"with x\[4, 6\] = inf, .* = -?inf: result: "),
        (lambda x, y: x @ y + 0 * x.sum(), r"with x\[\d, \d\] = nan"),
        (padded, r"y\[6, 2\] = -inf: result: .* found nan"),
    ],
    ids=["dropped", "dropped from the other", "clamped", "in other rows", "padded with zeros"],
)
def test_what_is_not_finite_and_elsewhere_is_told(entry, told):
    names = ["x", "y"] if "y" in told or ("=" in told and "inf" in told) else ["x"]
    with pytest.raises(AssertionError, match=told):
        assert_not_finite_stays(product(entry), names)


def test_whole_numbers_are_always_finite():
    whole = product(lambda x, y: x @ y)
    whole.oracle.make_inputs = lambda **_: {"x": torch.ones(2, 2, dtype=torch.int32)}
    whole.submission.kata.folder = Path("folder")
    with pytest.raises(MetadataError, match="not_finite: expected `x` of the first case"):
        assert_not_finite_stays(whole, ["x"])


# ---- stateless -----------------------------------------------------------------------------


def kept_by_shape():
    """Keeps a sum for each shape, and does not look at the values again."""
    kept = {}

    def entry(x, y):
        return kept.setdefault(tuple(x.shape), x + y).clone()

    return entry


def one_workspace():
    room = torch.empty(100)

    def entry(x, y):
        found = room[: x.numel()].view(x.shape)
        return found.copy_(x + y)

    return entry


def first_size():
    """Remembers how many rows the first call had."""
    rows = []

    def entry(x, y):
        rows.append(len(x))
        return (x + y)[: rows[0]]

    return entry


def by_values(trial):
    """The same, with inputs that the seed decides."""
    made = trial.oracle.make_inputs
    trial.oracle.make_inputs = lambda *, seed, **how: {
        name: one + seed for name, one in made(seed=seed, **how).items()
    }
    return trial


TWO = (CASE, {"rows": 5, "cols": 4})


def test_a_call_that_leaves_nothing_passes():
    assert_keeps_nothing(by_values(trial(add, cases=TWO)), CASE)
    assert_keeps_nothing(by_values(trial(add)), CASE)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (kept_by_shape, "call 3, on rows = 3, cols = 4, after others: result: 12 of 12 values off"),
        (one_workspace, "wrote to the result of the first call: expected memory of its own"),
        (first_size, r"call 2, on rows = 5, .*: expected shape \(5, 4\), found \(3, 4\)"),
    ],
)
def test_what_is_kept_for_a_later_call_is_told(entry, told):
    with pytest.raises(AssertionError, match=told):
        assert_keeps_nothing(by_values(trial(entry(), cases=TWO)), CASE)


STATE = """

def test_nothing_is_kept(stateless):
    stateless(lambda kata: kata.doubled(torch.ones(2)), lambda kata: kata.doubled(torch.ones(3)))
"""
COUNTS = """
import torch
calls = []

def doubled(x):
    calls.append(x)
    return 2 * x if len(calls) % 2 else 2 * x[:2]
"""


def test_a_test_can_ask_for_it(judged, mini, tmp_path):
    tests = mini / "katas" / "week01" / "doubled" / "test_doubled.py"
    tests.write_text(tests.read_text() + STATE)
    (event,) = judged("--impl=solution", "-k", "nothing_is_kept")
    assert event["outcome"] == "passed"
    (tmp_path / "mine.py").write_text(COUNTS)
    (event,) = judged(f"--impl={tmp_path / 'mine.py'}", "-k", "nothing_is_kept")
    assert event["message"].startswith("call 2: expected [2.0, 2.0, 2.0] (float32), as from a file")
    (event,) = judged("-k", "nothing_is_kept")
    assert "is still a stub" in event["message"]


# ---- without an order ----------------------------------------------------------------------


def test_items_in_any_order():
    assert_unordered([3, 1, 3], torch.tensor([1, 3, 3]))
    assert_unordered(np.array([np.nan, 1.0]), [1.0, np.nan])
    assert_unordered(np.array([[1, 2], [0, 1]]), [(0, 1), (1, 2)])
    with pytest.raises(AssertionError, match=r"^kept: expected 3 items in any order, found 4: "):
        assert_unordered([1, 2, 3, 4], [1, 2, 3], name="kept")
    with pytest.raises(AssertionError, match=r"missing: 1; too many: 3 \(2 times\), nan$"):
        assert_unordered([2, 3, 3, 3, np.nan], [1, 2, 3])


def test_an_answer_without_an_order_is_compared_sorted():
    def rotated(x, y):
        return torch.roll(x + y, 1, dims=1)

    def repeated(x, y):
        return (x + y)[:, :1].expand(x.shape)

    free = trial(add)
    free.oracle.reference = lambda x, y: (x + y).double() + torch.arange(4)
    for entry, told in ((rotated, None), (repeated, "values off")):
        found = entry(torch.ones(3, 4) + torch.arange(4), torch.ones(4))
        inputs = {"x": torch.ones(3, 4), "y": torch.ones(4)}
        with pytest.raises(AssertionError):
            free.assert_matches(found, inputs)
        free.submission.kata.unordered = True
        with pytest.raises(AssertionError, match=told) if told else nullcontext():
            free.assert_matches(found, inputs)
        free.submission.kata.unordered = False


# ---- in kata.toml --------------------------------------------------------------------------

PROMISES = """
refuses = [
  { with = { x = { shape = [2, 3] } }, says = "1-D" },
  { names = "y", with = { "x y" = { dtype = "int8", gaps = "rows" }, n = 3 }, error = "TypeError" },
]
in_place = { x = "elements" }
int64_rows = ["x"]
into = ["out"]
stateless = true
unordered = true
"""


def declare(mini, text):
    toml = mini / "katas" / "week01" / "doubled" / "kata.toml"
    toml.write_text(toml.read_text().replace("\n[[cases]]", text + "\n[[cases]]", 1))
    return toml.parent


def test_promises_are_read(mini):
    kata = load_kata(declare(mini, PROMISES))
    first, second = kata.refuses
    assert (first.names, first.error, first.label) == ("x", "ValueError", "x: shape 2x3")
    assert (second.names, second.error) == ("y", "TypeError")
    assert second.label == "y: x y dtype int8 gaps rows, n 3"
    assert kata.in_place == {"x": "elements"}
    assert kata.int64_rows == ("x",)
    assert kata.into == ("out",)
    assert kata.stateless
    assert kata.unordered


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("refuses = [{ with = {} }]", "refuses[0].with: expected an argument"),
        ("refuses = [{ with = { x = 1 }, error = 'Eror' }]", "refuses[0].error: expected one of"),
        ("refuses = [{ with = { x = { shap = [1] } } }]", "refuses[0].with.x.shap: expected one"),
        ("refuses = [{ with = { x = { gaps = 'row' } } }]", "Did you mean rows?"),
        ("in_place = { x = 'everywhere' }", "in_place.x: expected one of rows, elements"),
    ],
)
def test_promises_that_mean_nothing_are_told(mini, text, told):
    with pytest.raises(MetadataError) as caught:
        load_kata(declare(mini, text))
    assert told in caught.value.message


def test_a_promise_is_a_test_of_every_implementation(judged, mini):
    declare(
        mini,
        'refuses = [{ with = { x = { dtype = "int64" } } }]\nin_place = { x = "elements" }\n'
        'int64_rows = ["x"]\nstateless = true',
    )
    failed = {}
    for event in judged("--impl=solution", "--impl=stub", "--impl=wrong", "-k", "kata.toml"):
        failed.setdefault(event["name"], set()).update(
            {event["impl"]} if event["outcome"] == "failed" else ()
        )
    refused = failed["test_refuses[x: dtype int64]"]
    assert repr(refusal(x={"shape": [2, 3]}, says="1-D")) == (
        "x: shape 2x3: must raise ValueError 'x: …', saying '1-D'"
    )
    assert refused == {"stub", "wrong:checks_nothing", *(refused & {"wrong:remembers"})}
    assert {"stub", "wrong:copies"} <= failed["test_reads_in_place[x]"]
    assert "stub" in failed["test_rows_past_31_bits[x]"]
    assert {"stub", "wrong:clamps"} & failed["test_keeps_nothing[7-float32]"]
    assert not any("solution" in impls for impls in failed.values())
