"""
How long parts of the harness take, as a multiple of `import torch` in the same run.

That is work of Python's and of the disk's that every run of a kata does once, so that a share of it
is what a learner does or does not notice. Not part of the tests: `make bench`.
"""

import subprocess
import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numba import cuda

from harness.learner.advice import advise
from harness.learner.mastery import memory_of, standings
from harness.learner.progress import Progress
from harness.learner.schedule import plan
from harness.meters.simt import simt_meter
from harness.reports.scorecard import read_scorecard
from harness.reports.scorecard.draw import drawn
from harness.simulators.ranks import run_ranks
from harness.simulators.serving.engine import simulate
from harness.simulators.serving.step_model import StepModel
from harness.simulators.serving.traces import chat_trace
from harness.simulators.simt import install
from tests.schedule.catalogue import entries
from tests.schedule.learner import START as WEEK_1
from tests.schedule.learner import Learner, kept_of
from tests.scorecards import test_year
from tests.scorecards.test_year import END, RUNS, START
from tests.test_serving import FirstComeFirstServed, llama3_8b, toy_profile

crowded = test_year.crowded


@pytest.fixture(scope="session")
def torch_s():
    """Seconds of a process that imports torch, the least of three."""
    command = [sys.executable, "-c", "import torch"]
    return min(seconds(lambda: subprocess.run(command, check=True)) for _ in range(3))


@pytest.fixture
def times_import_torch(benchmark, torch_s):
    """Time a function; how many times `import torch` its quickest call takes."""

    def measure(function, rounds=5):
        benchmark.pedantic(function, rounds=rounds, warmup_rounds=1)
        ratio = benchmark.stats.stats.min / torch_s
        benchmark.extra_info["times_import_torch"] = round(ratio, 3)
        return ratio

    return measure


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@pytest.mark.parametrize(("form", "most"), [("json", 1.0), ("html", 2.0)])
def test_a_history_of_a_hundred_thousand_attempts_is_drawn(
    times_import_torch, crowded, tmp_path, form, most
):
    known, progress = crowded
    drawn(read_scorecard(known, Progress(tmp_path), END), form)  # imports are not what is timed
    now = START + timedelta(minutes=5 * RUNS)
    assert times_import_torch(lambda: drawn(read_scorecard(known, progress, now), form)) <= most


def test_what_is_next_is_known_after_two_years_of_practice(times_import_torch):
    """Some thousand rounds and reviews, each counted for what its kata requires."""
    attempts, notes = kept_of(Learner(hours=10), weeks=104)
    katas, now = entries(), WEEK_1 + timedelta(weeks=104)
    course = SimpleNamespace(katas=katas)

    def look():
        known = standings(katas, attempts, notes, {}, now)
        advise(course, known, now)
        plan(katas, memory_of(katas, known), now, owned=list(katas)[:300])

    assert times_import_torch(look) <= 0.25


def test_four_hundred_requests_are_served(times_import_torch):
    step_model = StepModel(toy_profile(), llama3_8b)
    trace = chat_trace(400, rate=0.7 * step_model.capacity(chat_trace(400)))
    bounds = {"kv_tokens": 100_000, "max_batch": 64, "token_budget": 512}

    def serve():
        simulate(FirstComeFirstServed(**bounds), trace, step_model, **bounds)

    assert times_import_torch(serve) <= 0.5


def test_four_ranks_meet(times_import_torch):
    def meet(rank, world):
        dist.all_reduce(torch.ones(1))

    assert times_import_torch(lambda: run_ranks(4, meet)) <= 0.5


@pytest.mark.parametrize("counted", [False, True])
def test_a_thousand_simulated_threads_meet_at_eight_barriers(times_import_torch, counted):
    @cuda.jit
    def barriers(x):
        for _ in range(8):
            x[cuda.grid(1)] += 1
            cuda.syncthreads()

    install()
    x = np.zeros(1024)

    def launch():
        barriers[8, 128](x)

    def launch_counted():
        with simt_meter():
            launch()

    assert times_import_torch(launch_counted if counted else launch) <= 0.5
