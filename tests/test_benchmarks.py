"""Samples of the judge in pytest-benchmark, from outside, on the tiny curriculum."""

import json
import subprocess
import sys

import pytest

from harness.running.runner import child_environment

SPEED = """
[[speed]]
kind = "baseline"
against = "by_hand"
ratio = 2.0
on = "any"
case = { n = 7, dtype = "float32" }
"""
BASELINE = '''

def by_hand(*, x):
    """Twice, one element after the other, and again."""
    return torch.stack([2 * value for _ in range(20) for value in x])[: x.numel()]
'''


@pytest.fixture
def timed_session(mini, tmp_path):
    """Judge the tiny kata's speed with these options; returns the process and its record."""
    folder = mini / "katas" / "week01" / "doubled"
    for name, more in (("kata.toml", SPEED), ("oracle.py", BASELINE)):
        (folder / name).write_text((folder / name).read_text() + more)

    def run(*options, impl="solution"):
        record = tmp_path / "record.jsonl"
        record.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--device=cpu", "-kspeed",
             f"--impl={impl}", f"--record={record}", *options, str(mini / "katas")],
            capture_output=True,
            text=True,
            cwd=mini,
            env=child_environment({"KATA_HOME": str(tmp_path / "home")}),
            check=False,
        )  # fmt: skip
        events = [json.loads(line) for line in record.read_text().splitlines()]
        return done, [event for event in events if event["event"] == "check"]

    return run


def test_json_holds_the_samples_the_verdict_rests_on(timed_session, tmp_path):
    out = tmp_path / "out.json"
    done, (event,) = timed_session("--benchmark-only", f"--benchmark-json={out}")
    assert event["outcome"] == "passed", done.stdout
    (measured,) = event["measurements"]
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    samples = benchmark["stats"]["data"]
    assert len(samples) == benchmark["stats"]["rounds"] == measured["detail"]["samples"] >= 30
    assert benchmark["stats"]["median"] == measured["detail"]["median"]
    assert min(samples) > 0
    assert benchmark["group"] == "week01/doubled"
    assert benchmark["options"]["timer"] == "device_time"
    assert benchmark["extra_info"] == {
        "device": "cpu",
        "verdict": "passed",
        "message": measured["message"],
    }


def test_a_later_run_is_compared_with_one_that_was_saved(timed_session, tmp_path):
    kept = f"--benchmark-storage=file://{tmp_path}/kept"
    timed_session(kept, "--benchmark-save=before")
    done, _ = timed_session(kept, "--benchmark-compare", "--benchmark-compare-fail=median:10000%")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "benchmark 'week01/doubled': 2 tests" in done.stdout
    assert "(NOW)" in done.stdout
    assert "(0001_before)" in done.stdout


def test_nothing_is_timed_under_xdist(timed_session, tmp_path):
    out = tmp_path / "out.json"
    done, (event,) = timed_session("-n1", f"--benchmark-json={out}")
    assert event["outcome"] == "skipped"
    assert event["message"] == "speed is never timed under xdist"
    assert not out.exists()
    assert "Benchmarks are automatically disabled" not in done.stdout + done.stderr


def test_the_judge_needs_no_pytest_benchmark(timed_session):
    done, (event,) = timed_session("-p", "no:benchmark")
    assert event["outcome"] == "passed", done.stdout
    assert event["measurements"][0]["detail"]["samples"] >= 30


def test_a_stub_is_no_misuse_of_a_benchmark(timed_session):
    done, (event,) = timed_session(impl="yours")
    assert "still a stub" in event["message"]
    assert "not used at all" not in done.stdout
    assert "benchmark 'week01/doubled'" not in done.stdout
