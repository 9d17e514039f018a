"""Time limits follow the machine."""

import pytest

from harness.base import pace
from harness.base.pace import REFERENCE_S, PacedLimit


@pytest.fixture
def takes(monkeypatch):
    """Let the calibration take so many times the reference's seconds; returns how often it ran."""

    def set_to(factor):
        now, runs = [0.0], []

        def work():
            runs.append(factor)
            now[0] += factor * REFERENCE_S

        monkeypatch.setattr(pace, "perf_counter", lambda: now[0])
        monkeypatch.setattr(pace, "_work", work)
        return runs

    pace.pace.cache_clear()
    yield set_to
    pace.pace.cache_clear()


@pytest.mark.parametrize(("factor", "expected"), [(0.25, 1.0), (1.0, 1.0), (3.5, 3.5)])
def test_a_fast_machine_has_the_limits_as_they_are_and_a_slow_one_longer(takes, factor, expected):
    takes(factor)
    assert pace.pace() == pytest.approx(expected)


def test_the_pace_is_measured_once(takes):
    runs = takes(2.0)
    assert pace.pace() == pace.pace()
    assert len(runs) == 1


def test_a_limit_that_is_kept_costs_no_measurement(takes):
    runs = takes(3.0)
    assert not PacedLimit(10.0).is_over(10.0)
    assert runs == []


def test_a_limit_that_is_passed_is_lengthened_once(takes):
    runs, limit = takes(3.0), PacedLimit(10.0)
    assert not limit.is_over(10.1)
    assert not limit.is_over(29.9)
    assert limit.is_over(30.1)
    assert limit.limit_s == pytest.approx(30.0)
    assert len(runs) == 1


def test_a_limit_in_cpu_seconds_follows_these_alone(monkeypatch):
    now = [0.0, 0.0]

    def work():
        now[:] = now[0] + 9.0 * REFERENCE_S, now[1] + 2.0 * REFERENCE_S

    monkeypatch.setattr(pace, "perf_counter", lambda: now[0])
    monkeypatch.setattr(pace, "process_time", lambda: now[1])
    monkeypatch.setattr(pace, "_work", work)
    pace.cpu_pace.cache_clear()
    assert pace.cpu_pace() == pytest.approx(2.0)
    pace.cpu_pace.cache_clear()


def test_the_calibration_does_all_its_steps():
    assert pace._work() == 1024
