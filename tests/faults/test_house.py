"""The house around a run: other runs, the disk, the database, thresholds and files that change."""

import os
import sqlite3
from contextlib import closing

import pytest

from harness.base.errors import HarnessError

LITTLE_ROOM = (
    "import resource, runpy, sys\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
    "runpy.run_module('harness', run_name='__main__', alter_sys=True)\n"
)


def remember(bench):
    """An earlier attempt, without the time that one takes."""
    progress = bench.progress
    attempt = progress.start("counted", "yours", "0" * 64, seed=1, device="cpu", profile="cpu")
    progress.finish(attempt, "passed", "", checks=(), measurements=(), versions={}, duration_s=0.0)


def test_two_runs_at_once_are_both_judged_and_kept(bench):
    bench.solve()
    runs = [bench.command("run", "counted") for _ in range(2)]
    outputs = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert [attempt.status for attempt in bench.progress.attempts()] == ["passed", "passed"]


def test_a_disk_that_is_full_is_named_loses_nothing_and_still_gives_a_verdict(bench):
    remember(bench)
    before = bench.progress.attempts()
    code, output = bench.kata_command("run", "counted", python=["-c", LITTLE_ROOM])
    assert code == 1, output
    assert "Not kept: " in output
    assert "progress.db: expected a disk" in output
    assert "failed: counted" in output
    assert "Traceback" not in output
    assert bench.progress.attempts() == before
    bench.assert_still_right()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_home_that_cannot_be_written_is_named(bench):
    remember(bench)
    bench.home.chmod(0o500)
    try:
        code, output = bench.kata_command("run", "counted")
    finally:
        bench.home.chmod(0o700)
    assert code == 3, output
    assert "Traceback" not in output
    bench.assert_still_right()


def test_a_newer_database_is_left_alone_and_the_code_unjudged(bench):
    remember(bench)
    path = bench.progress.path
    with closing(sqlite3.connect(path)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        db.execute("PRAGMA user_version = 99")
    code, output = bench.kata_command("run", "counted")
    assert code == 3
    assert "progress.db" in output
    assert "found version 99" in output
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {version}")
    bench.assert_still_right()
    assert len(bench.progress.attempts()) == 2


def test_a_damaged_database_is_left_in_place_for_its_owner_to_move(bench):
    path = bench.home / "progress.db"
    bench.home.mkdir()
    path.write_bytes(b"\xa5" * 8192)
    code, output = bench.kata_command("run", "counted")
    assert code == 3
    assert "Move it aside" in output
    assert path.read_bytes() == b"\xa5" * 8192
    path.rename(path.with_name("damaged.db"))
    bench.assert_still_right()


def test_a_file_that_is_gone_is_named(bench):
    bench.kata().file.unlink()
    with pytest.raises(HarnessError, match=r"counted\.py: expected a file that can be read"):
        bench.judge()
    assert bench.progress.attempts() == []


def test_a_threshold_changed_later_leaves_old_verdicts_as_they_were(bench):
    bench.assert_still_right()
    toml = bench.kata().folder / "kata.toml"
    toml.write_text(toml.read_text().replace("at_most = 5", "at_most = 4"))
    code, output = bench.kata_command("run", "counted")
    assert code == 1
    assert "evaluations: 5, limit <= 4" in output
    old, new = bench.progress.attempts("counted")
    assert (old.status, new.status) == ("passed", "failed")
    assert [(found.limit, found.passed) for found in old.measurements] == [(5.0, True)]
    assert [(found.limit, found.passed) for found in new.measurements] == [(4.0, False)]


def test_a_record_needs_no_room_on_a_disk(bench, monkeypatch, tmp_path):
    bench.solve()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert bench.judge().status == "passed"
