"""One test after the other on many draws: a reference that is right passes all of them."""

import random
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest
from _pytest.runner import runtestprotocol

from harness.hardware.environment import SEEDS
from harness.running.record import SEED

Seed = Callable[[pytest.Item], None]


class Draws:
    """
    Runs each test on `count` seeds, from the session's own upwards, until one fails.

    A test that draws nothing, neither from `seed` nor from a generator, is run once. What is
    recorded is the first failure, with its seed, or else the last pass.

    Args:
        count: Seeds for each test.
        seed_generators: Starts the generators for a test, from the session's seed.
    """

    def __init__(self, count: int, seed_generators: Seed) -> None:
        self.count = count
        self.seed_generators = seed_generators

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Run one test on every seed."""
        if not isinstance(item, pytest.Function):
            return None
        first = item.config.stash[SEED]
        known = list(item.user_properties)
        reports: list[pytest.TestReport] = []
        for draw in range(self.count):
            seed = (first + draw) % SEEDS
            item.config.stash[SEED] = seed
            item.user_properties[:] = [*known, ("seed", seed), ("draws", draw + 1)]
            # what the module's fixtures have made is kept for the next draw
            reports = runtestprotocol(item, nextitem=cast(pytest.Item, item.parent), log=False)
            failed = any(report.failed for report in reports)
            if failed or (draw == 0 and not self._draws(item)):
                break
        item.config.stash[SEED] = first
        item.session._setupstate.teardown_exact(nextitem)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        return True

    def _draws(self, item: pytest.Function) -> bool:
        """Whether a test that has just been run depends on the seed."""
        if "seed" in item.fixturenames or getattr(item.obj, "is_hypothesis_test", False):
            return True
        after = _states()
        self.seed_generators(item)
        return after != _states()


def _states() -> list[Any]:
    """How far each generator has come."""
    states: list[Any] = [random.getstate()]
    if (numpy := sys.modules.get("numpy")) is not None:
        states.append(repr(numpy.random.get_state()))
    if (torch := sys.modules.get("torch")) is not None:
        states.append(torch.get_rng_state().tolist())
    return states
