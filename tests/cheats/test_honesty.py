"""The guards themselves: what they refuse, and what they leave alone."""

import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
import torch

from harness.errors import SubmissionError
from harness.judge.honesty import nothing_left_behind, sealed
from harness.judge.tools import Toolbox


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


def test_what_is_added_or_counted_is_nobodys_business(toolbox):
    module = ModuleType("helpers")
    module.calls = 0
    toolbox.take_in(module)
    module.calls, module.more = 1, min
    assert toolbox.put_back() == []


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
