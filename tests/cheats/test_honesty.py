"""The guards themselves: what they refuse, and what they leave alone."""

import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context, resource_tracker
from operator import methodcaller
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.autograd.profiler import profile, record_function
from torch.utils._python_dispatch import _disable_current_modes

from harness.base.errors import MetadataError, SubmissionError
from harness.content.kata import load_kata
from harness.content.submission import resolve
from harness.judge.correctness.memory import NAN, poisoned_allocations
from harness.judge.honesty.forbidden import forbidden, outermost
from harness.judge.honesty.tools import Toolbox
from harness.judge.honesty.watch import nothing_left_behind, sealed, watched


def test_an_idle_pool_is_no_work_left_behind():
    with nothing_left_behind(), ThreadPoolExecutor(1) as early:
        early.submit(int).result()
    pool = ThreadPoolExecutor(1)
    with nothing_left_behind():
        pool.submit(int).result()
        while not pool._work_queue.empty():
            time.sleep(0.001)
        time.sleep(0.01)
    pool.shutdown()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are read from /proc")
def test_a_helper_of_multiprocessing_is_no_work_left_behind():
    tracker = resource_tracker._resource_tracker
    try:
        with nothing_left_behind():
            # it stays when a process that it was started for has been waited for
            process = get_context("spawn").Process(target=print)
            process.start()
            process.join()
        assert "resource_tracker" in Path(f"/proc/{tracker._pid}/cmdline").read_text()
    finally:
        tracker._stop()


def test_another_default_dtype_is_no_tool_replaced(submission):
    try:
        ends_in(submission, submission.path, "import torch; torch.set_default_dtype(torch.float64)")
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_idle_pool_that_is_set_to_work_is_seen():
    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()
    time.sleep(0.01)
    with pytest.raises(SubmissionError, match="thread 'ThreadPoolExecutor-"), nothing_left_behind():
        pool.submit(time.sleep, 0.2)
    pool.shutdown()


def test_a_child_that_was_waited_for_is_no_work_left_behind():
    with nothing_left_behind():
        subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are read from /proc")
def test_a_running_child_is_named():
    children = []
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    with (
        pytest.raises(SubmissionError, match=r"child process \d+ still running"),
        nothing_left_behind(),
    ):
        children.append(subprocess.Popen(sleeper))
    (child,) = children
    child.kill()
    child.wait()


def test_an_error_of_the_call_comes_first():
    def call():
        with nothing_left_behind():
            pool.submit(time.sleep, 0.1)
            raise KeyError

    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyError):
        call()


# ---- tools ---------------------------------------------------------------------------------


@pytest.fixture
def toolbox():
    toolbox = Toolbox()
    toolbox.take_in()
    yield toolbox
    toolbox.put_back()


def test_what_is_replaced_is_put_back_and_named(toolbox):
    clock, median, norm = time.perf_counter, statistics.median, torch.Tensor.norm
    time.perf_counter = lambda: 0.0
    statistics.median = min
    torch.Tensor.norm = lambda self: 0.0
    assert toolbox.put_back() == [
        "time.perf_counter",
        "statistics.median",
        "torch.Tensor.norm",
    ]
    assert (time.perf_counter, statistics.median, torch.Tensor.norm) == (clock, median, norm)
    assert toolbox.put_back() == []


def test_a_method_that_hides_an_inherited_one_is_seen(toolbox):
    assert "double" not in vars(torch.Tensor)
    torch.Tensor.double = lambda self: self * 0
    assert toolbox.put_back() == ["torch.Tensor.double"]
    assert torch.ones(1).double().item() == 1


def test_new_code_inside_an_old_function_is_seen(toolbox):
    module = ModuleType("helpers")
    exec("def limit():\n    return 1", vars(module))
    toolbox.take_in(module)
    module.limit.__code__ = (lambda: 100).__code__
    assert toolbox.put_back() == ["helpers.limit"]
    assert module.limit() == 1


def test_defaults_and_what_a_decorator_wraps_are_seen(toolbox):
    module = ModuleType("helpers")
    exec(
        "from contextlib import contextmanager\n"
        "def near(x, limit=1, *, times=2):\n    return x < limit * times\n"
        "@contextmanager\ndef guarded():\n    yield 'guarded'\n",
        vars(module),
    )
    toolbox.take_in(module)
    module.near.__defaults__ = (1e9,)
    module.near.__kwdefaults__["times"] = 1e9
    module.guarded.__closure__[0].cell_contents = lambda: iter(["not guarded"])
    assert toolbox.put_back() == ["helpers.near", "helpers.near", "helpers.guarded"]
    assert not module.near(3)
    with module.guarded() as found:
        assert found == "guarded"
    assert toolbox.put_back() == []


def test_a_table_that_was_written_to_is_seen(toolbox):
    module = ModuleType("helpers")
    module.LIMITS, module.ORDER, module.MOST = {"a": 1.0}, [1, 2], 3
    toolbox.take_in(module)
    module.LIMITS["a"], module.MOST = 1e9, 9
    module.ORDER.reverse()
    assert toolbox.put_back() == ["helpers.MOST", "helpers.LIMITS", "helpers.ORDER"]
    assert (module.LIMITS, module.ORDER, module.MOST) == ({"a": 1.0}, [1, 2], 3)


def test_what_was_deleted_comes_back(toolbox):
    median = statistics.median
    del statistics.median
    assert toolbox.put_back() == ["statistics.median"]
    assert statistics.median is median


def test_what_is_added_or_counted_is_nobodys_business(toolbox):
    module = ModuleType("helpers")
    module.calls = 0
    toolbox.take_in(module)
    module.calls, module.more = 1, min
    assert toolbox.put_back() == []


# ---- endings -------------------------------------------------------------------------------


@pytest.fixture
def submission(mini):
    return resolve(load_kata(mini / "katas" / "week01" / "doubled"), "solution", mini)


def ends_in(submission, file, ending):
    with watched(submission):
        exec(compile(f"import pytest, unittest; {ending}", str(file), "exec"), {})


@pytest.mark.parametrize(
    "name",
    [
        "doubled/notes.txt",  # of its own, and new
        "doubled/__pycache__/mine.doubled-12.py311.nbi",  # what Numba keeps
        "../pictures.svg",  # not of the house
    ],
)
def test_what_decides_over_nothing_may_be_written(submission, name):
    file = submission.kata.folder.parent / name
    file.parent.mkdir(exist_ok=True)
    ends_in(submission, submission.path, f"open({str(file)!r}, 'w').close()")
    assert file.is_file()


@pytest.mark.parametrize("change", ["os.remove({})", "os.truncate({}, 0)", "os.replace({0}, {0})"])
def test_a_file_of_the_house_stays_as_it_is(submission, change):
    test = submission.kata.folder / "test_doubled.py"
    with pytest.raises(SubmissionError, match=f"found that it changed {test}"):
        ends_in(submission, submission.path, f"import os; {change.format(repr(str(test)))}")
    assert test.stat().st_size


def test_a_file_of_the_house_may_be_read(submission):
    brief = submission.kata.folder / "README.md"
    read = f"from pathlib import Path; Path({str(brief)!r}).read_text()"
    ends_in(submission, submission.path, read)


def test_a_test_may_skip_itself(submission):
    test = submission.kata.folder / "test_doubled.py"
    with pytest.raises(pytest.skip.Exception, match="on a GPU only"):
        ends_in(submission, test, "pytest.skip('on a GPU only')")


@pytest.mark.parametrize("ending", ["pytest.skip('none')", "raise unittest.SkipTest('none')"])
def test_a_skip_of_any_other_code_is_no_verdict(submission, ending):
    with pytest.raises(SubmissionError, match=r"found that it ended the test \(Skip\w+: none\)"):
        ends_in(submission, "/elsewhere/core.py", ending)


# ---- operators -----------------------------------------------------------------------------


def is_called(names, call):
    """Whether `call` is refused for one of these ops."""
    try:
        with forbidden(names, on_the_host=True):
            call()
    except AssertionError as error:
        return "this kata is about writing it yourself" in str(error)
    return False


@pytest.fixture
def idle():
    """A thread that was started long before the call."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        yield pool


def test_ops_are_seen_on_any_thread_and_behind_modes(idle):
    x = torch.ones(4)

    def unseen(op):
        with _disable_current_modes():
            op(x)

    assert is_called(["aten.neg"], lambda: torch.neg(x))
    assert is_called(["aten.neg"], lambda: idle.submit(torch.neg, x).result())
    assert is_called(["aten.neg"], lambda: unseen(torch.neg))
    # softmax stands for _softmax, as a dispatch mode is told
    assert is_called(["aten._softmax"], lambda: unseen(lambda x: torch.softmax(x, 0)))
    assert not is_called(["aten.abs"], lambda: idle.submit(torch.neg, x).result())


def test_what_an_op_uses_inside_is_its_own_business():
    x = torch.ones(4)
    with profile(use_cpu=True) as seen:
        x.mean()
    assert "aten::sum" in {event.name() for event in seen.kineto_results.events()}
    assert list(outermost(seen.kineto_results.events())) == ["aten::mean"]
    assert not is_called(["aten.sum"], x.mean)


def test_a_stretch_that_is_called_like_an_op_hides_none():
    x = torch.ones(4)

    def annotated():
        with _disable_current_modes(), record_function("aten::empty"):
            torch.neg(x)

    assert is_called(["aten.neg"], annotated)


@pytest.mark.parametrize("name", ["aten.nonesuch", "mm", "torch.mm"])
def test_an_operator_that_does_not_exist_is_told(name):
    words = f"such as aten.mm, found '{name}'"
    with pytest.raises(MetadataError, match=words), forbidden([name], on_the_host=True):
        pass


@pytest.mark.parametrize("way", [methodcaller("numpy"), np.asarray, np.from_dlpack])
def test_tensors_become_no_arrays_where_ops_are_forbidden(way):
    x = torch.ones(4)
    assert is_called(["aten.neg"], lambda: way(x))
    assert way(x).tolist() == [1, 1, 1, 1]


def test_arrays_are_poisoned_also_where_tensors_become_none():
    with forbidden(["aten.neg"], on_the_host=True), poisoned_allocations(NAN):
        assert np.isnan(np.empty(3)).all()


# ---- the oracle ----------------------------------------------------------------------------


def test_an_oracle_opens_again():
    oracle = ModuleType("oracle")
    oracle.reference = oracle.same_precision = oracle.make_inputs = lambda: 1
    with sealed(oracle, ("reference", "same_precision", "no_such_function")):
        assert oracle.make_inputs() == 1
    assert oracle.reference() == oracle.same_precision() == 1


def test_a_swallowed_refusal_is_remembered():
    oracle = ModuleType("oracle")
    oracle.reference = lambda: 1

    def call():
        with sealed(oracle, ("reference",)), suppress(SubmissionError):
            oracle.reference()

    with pytest.raises(SubmissionError, match="oracle.reference was called for it"):
        call()
