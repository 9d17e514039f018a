"""
What the judge has timed, as benchmarks of pytest-benchmark: its tables, JSON, comparisons, charts.

pytest-benchmark has a host's clock and calls what it times by itself. Here it is given a timer that
replays the device's samples, so that it reports what the verdict rests on and times nothing.
"""

import os
from collections.abc import Callable, Generator
from itertools import chain
from typing import Any

import pytest

from harness.content.kata import kata_of
from harness.judge.timing.measure import Samples
from harness.judge.timing.threshold import Verdict

Publish = Callable[[Samples, Verdict], None]


class ReplayTimer:
    """A timer of recorded durations: read before and after nothing, it tells the next of them."""

    __name__ = "device_time"  # how pytest-benchmark names a timer in its JSON

    def __init__(self) -> None:
        self._readings = iter([0.0])
        self.loaded = False

    def load(self, samples: Samples) -> None:
        """Tell these durations from now on."""
        self._readings = chain.from_iterable((0.0, seconds) for seconds in samples.values)
        self.loaded = True

    def __call__(self) -> float:
        """The next reading, in seconds."""
        return next(self._readings)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Make a timed check a benchmark, so that --benchmark-only and --benchmark-skip know it."""
    kata = kata_of(item.path)
    names = getattr(item, "fixturenames", [])
    if kata is None or "publish" not in names or not _in_use(item.config):
        return
    if "benchmark" not in names:
        names.append("benchmark")
    item.add_marker(pytest.mark.benchmark(timer=ReplayTimer(), group=kata.id))


def _in_use(config: pytest.Config) -> bool:
    """Whether there is pytest-benchmark, and one process only: nothing is timed under xdist."""
    alone = config.getoption("dist", "no") == "no" and "PYTEST_XDIST_WORKER" not in os.environ
    return alone and config.pluginmanager.hasplugin("benchmark")


@pytest.fixture
def publish(request: pytest.FixtureRequest) -> Generator[Publish, None, None]:
    """``publish(samples, verdict)`` hands samples to pytest-benchmark, where that is in use."""
    marker = request.node.get_closest_marker("benchmark")
    if marker is None:
        yield lambda samples, verdict: None
        return
    benchmark = request.getfixturevalue("benchmark")
    timer: ReplayTimer = marker.kwargs["timer"]

    def hand_over(samples: Samples, verdict: Verdict) -> None:
        timer.load(samples)
        benchmark.extra_info.update(
            device=os.environ["KATA_DEVICE"], verdict=verdict.outcome, message=verdict.message
        )
        benchmark.pedantic(lambda: None, rounds=len(samples.values))

    yield hand_over
    if not timer.loaded:
        # the check failed before anything was timed: no misuse of the fixture, so no warning
        benchmark.skipped = True


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Name the GPU, so that a comparison between two of them is told as such."""
    if os.environ.get("KATA_DEVICE") == "cuda":
        import torch

        machine_info["gpu"] = torch.cuda.get_device_name()
