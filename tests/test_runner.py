"""One kata judged in a process of its own; what can go wrong there is in tests/faults."""

import os
from pathlib import Path

import pytest

from harness.catalog import load_curriculum
from harness.kata import load_kata
from harness.runner import read_record, run_kata


@pytest.fixture
def judge(mini, tmp_path, monkeypatch):
    """Judge this file as the tiny kata's implementation."""
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))

    def run(impl, **options):
        kata = load_curriculum(mini).kata("doubled")
        return run_kata(kata, impl=str(impl), device="cpu", **options)

    return run


def test_a_verdict_comes_with_seed_versions_and_measurements(judge):
    outcome = judge("solution", seed=7)
    assert (outcome.status, outcome.reason) == ("passed", "7 checks passed")
    assert (outcome.seed, outcome.device, outcome.profile) == (7, "cpu", "cpu")
    assert {"python", "torch"} <= outcome.versions.keys()
    (found,) = outcome.measurements
    assert (found.name, found.value, found.limit) == ("allocated_bytes", 4000.0, 4000.0)
    assert found.passed


def test_the_learners_own_exception_is_shown(judge, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def doubled(x):\n    raise KeyError('lost')\n")
    outcome = judge(file)
    assert outcome.status == "failed"
    assert any("KeyError: 'lost'" in check.message for check in outcome.checks)


def test_a_record_cut_short_keeps_its_whole_lines(tmp_path):
    record = tmp_path / "record.jsonl"
    record.write_text('{"event": "session"}\n{"event": "che')
    assert read_record(record) == [{"event": "session"}]
    assert read_record(tmp_path / "none") == []


def test_only_lines_that_carry_the_nonce_are_of_the_record(tmp_path):
    record = tmp_path / "record.jsonl"
    record.write_bytes(b'{"event": "end"}\n{"nonce": "b"}\n\xff\n[1]\n{"nonce": "a", "event": 1}\n')
    assert read_record(record, "a") == [{"nonce": "a", "event": 1}]


def test_katas_are_read_from_the_copy(mini):
    kata = load_kata(mini / "katas" / "week01" / "doubled")
    assert kata.solution == Path(mini) / "solutions" / "week01" / "doubled.py"
    assert os.path.commonpath([kata.wrong, mini]) == str(mini)
