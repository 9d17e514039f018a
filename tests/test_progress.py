"""The history: nothing is lost, nothing is changed, and every failure says the way out."""

import io
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.base import files
from harness.base.errors import HarnessError
from harness.learner.progress import Attempt, Check, Measurement, Note, Progress, migrations

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
FORMAT = "gpu-katas history"


class Clock:
    """A clock that only moves when told to."""

    def __init__(self, now=NOON):
        self.now = now

    def __call__(self):
        return self.now

    def move(self, **amount):
        self.now += timedelta(**amount)


def begin(progress, kata="row_softmax", impl="yours", **changes):
    details = {"seed": 7, "device": "cpu", "profile": "h200_sxm", **changes}
    return progress.start(kata, impl, "ab" * 32, **details)


def end(progress, attempt, status="passed", reason="3 checks passed", **changes):
    details = {"checks": (), "measurements": (), "versions": {}, "duration_s": 1.5, **changes}
    return progress.finish(attempt, status, reason, **details)


def tried(progress, kata="row_softmax", status="passed", **changes):
    return end(progress, begin(progress, kata, **changes), status)


def ids(attempts):
    return [attempt.id for attempt in attempts]


def exported(progress):
    stream = io.StringIO()
    progress.export(stream)
    return stream.getvalue()


def merge(progress, text):
    return progress.import_(io.StringIO(text))


def forked(work: Callable[[], object]) -> int:
    """Run `work` in a forked process; its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries' threads, from 3.12 on
        pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001 -- a fork must not run on into pytest
        traceback.print_exc()
        os._exit(1)


def ended(pid):
    """Wait for a forked process: 0, its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def raw(progress):
    return closing(sqlite3.connect(progress.path, isolation_level=None))


def replace_connect(monkeypatch, connect):
    """Let the program open databases through `connect`."""
    names = {name: getattr(sqlite3, name) for name in dir(sqlite3)}
    monkeypatch.setattr(migrations, "sqlite3", SimpleNamespace(**{**names, "connect": connect}))


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """Only a power cut needs what is synced, and none is tried here; a kill does not."""
    replace_connect(monkeypatch, unsynced)


def unsynced(place, **options):
    db = sqlite3.connect(place, **options)
    try:
        db.execute("PRAGMA synchronous = OFF")
    except sqlite3.Error:
        db.close()
        raise
    return db


@pytest.fixture
def progress(tmp_path):
    return Progress(tmp_path / "home", clock=Clock())


@pytest.fixture
def other(tmp_path):
    """The history of another machine, a little later."""
    return Progress(tmp_path / "other", clock=Clock(NOON + timedelta(hours=1)))


# keeping


def test_an_attempt_is_on_record_as_running_before_it_ends(progress):
    attempt = begin(progress)
    assert [(found.id, found.status) for found in progress.attempts()] == [(attempt, "running")]


def test_a_finished_attempt_keeps_every_field(tmp_path):
    clock = Clock()
    progress = Progress(tmp_path, clock=clock)
    attempt = begin(progress, impl="mine/try.py", seed=2**62)
    clock.move(seconds=90)
    check = Check(name="test_rows_sum_to_one", outcome="failed", message="row 3 sums to 1.2")
    counted = Measurement(
        name="traffic", meter="bytes_moved", value=4096, unit="bytes", limit=4200.5,
        relation="<=", passed=True, detail={"per_row": [1, 2.5], "why": None},
    )  # fmt: skip
    timed = Measurement(name="speed", meter="roofline", value=0.5, relation=">=")
    kept = progress.finish(
        attempt, "failed", "1 of 1 checks failed", checks=[check], measurements=[counted, timed],
        versions={"torch": "2.13.0"}, duration_s=88.25,
    )  # fmt: skip
    assert kept == Attempt(
        id=attempt,
        kata="row_softmax",
        impl="mine/try.py",
        code_hash="ab" * 32,
        started_at="2026-01-31T12:00:00.000000+00:00",
        finished_at="2026-01-31T12:01:30.000000+00:00",
        status="failed",
        reason="1 of 1 checks failed",
        seed=2**62,
        device="cpu",
        profile="h200_sxm",
        versions={"torch": "2.13.0"},
        duration_s=88.25,
        hints_seen=0,
        solution_seen=False,
        checks=(check,),
        measurements=(counted, timed),
    )
    assert progress.attempts() == [kept]


def test_the_run_may_say_which_seed_and_profile_it_chose(progress):
    kept = end(progress, begin(progress, seed=0, profile=""), seed=99, profile="t4")
    assert (kept.seed, kept.profile) == (99, "t4")


def test_a_measurement_that_is_not_a_number_is_kept_as_such(progress):
    found = Measurement(name="ratio", meter="simulated_time", value=math.nan, passed=False)
    kept = end(progress, begin(progress), measurements=[found])
    assert math.isnan(kept.measurements[0].value)
    assert kept.measurements[0].passed is False


def test_numbers_of_numpy_are_kept_as_numbers(progress):
    found = Measurement(name="m", meter="m", value=np.float32(0.5), limit=np.int64(3))
    (kept,) = end(progress, begin(progress), measurements=[found]).measurements
    assert (kept.value, kept.limit) == (0.5, 3.0)


def test_output_that_was_not_utf8_is_kept_readable(progress):
    reason = b"found \xff\x1b[31m".decode("utf-8", "surrogateescape")
    assert end(progress, begin(progress), "failed", reason).reason == "found \\udcff\x1b[31m"


def test_checks_and_measurements_can_be_queried_without_json(progress):
    end(
        progress,
        begin(progress),
        checks=[Check(name="a", outcome="passed"), Check(name="b", outcome="skipped")],
        measurements=[Measurement(name="m", meter="flops", value=12.0, limit=10.0, passed=False)],
    )
    with raw(progress) as db:
        assert db.execute("SELECT name FROM checks WHERE outcome = 'skipped'").fetchall() == [
            ("b",)
        ]
        over = db.execute('SELECT meter FROM measurements WHERE value > "limit"').fetchall()
    assert over == [("flops",)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Check(name="a", outcome="green"), "outcome: expected one of passed"),
        (
            lambda: Measurement(name="a", meter="m", value=1.0, relation="<"),
            "relation: expected one of <=, >=, ==, found '<'",
        ),
        (lambda: Note(id="1", at="2026-01-31T12:00:00.000000", kind="k", kata="a"), "at: .* UTC"),
        (lambda: Note(id="1", at="2026-01-31T12:00:00Z", kind="k", kata="a"), "at: .* UTC"),
    ],
)
def test_a_record_with_an_impossible_value_cannot_be_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_finishing_with_an_unknown_status_leaves_the_attempt_running(progress):
    attempt = begin(progress)
    with pytest.raises(ValueError, match="status: expected one of"):
        end(progress, attempt, "green")
    assert progress.attempts()[0].status == "running"


# asking


def test_attempts_come_oldest_first_and_a_limit_keeps_the_newest(progress):
    made = [tried(progress, kata).id for kata in ("a", "b", "a", "a")]
    assert ids(progress.attempts()) == made
    assert ids(progress.attempts("a")) == [made[0], made[2], made[3]]
    assert ids(progress.attempts("a", limit=2)) == made[2:]
    assert progress.attempts("c") == []


def test_attempts_can_be_asked_for_by_implementation(progress):
    mine, _ = tried(progress), tried(progress, impl="solution")
    assert progress.attempts(impl="yours") == [mine]


def test_the_latest_is_the_newest_that_has_finished(progress):
    tried(progress, status="passed")
    newest = tried(progress, status="failed")
    begin(progress)
    assert progress.latest("row_softmax") == newest
    assert progress.latest("never_tried") is None


# append-only


def test_an_attempt_ends_once(progress):
    kept = tried(progress)
    with pytest.raises(
        HarnessError, match="expected one that is running, found one that is passed"
    ):
        end(progress, kept.id, "failed")
    assert progress.attempts() == [kept]


def test_an_unknown_attempt_cannot_be_finished(progress):
    with pytest.raises(HarnessError, match="attempt 123: expected one that is running, found none"):
        end(progress, "123")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE attempts SET status = 'passed'",
        "UPDATE attempts SET started_at = '2020-01-01'",
        "DELETE FROM attempts",
        "REPLACE INTO attempts SELECT * FROM attempts",
        "UPDATE checks SET outcome = 'passed'",
        "DELETE FROM checks",
        "REPLACE INTO checks SELECT * FROM checks",
        "INSERT INTO checks SELECT attempt, 9, 'new', 'passed', '' FROM checks",
        "UPDATE measurements SET value = 0",
        "DELETE FROM measurements",
        "REPLACE INTO measurements SELECT * FROM measurements",
        "UPDATE notes SET kind = 'nothing'",
        "DELETE FROM notes",
        "REPLACE INTO notes SELECT * FROM notes",
    ],
)
def test_the_database_itself_refuses_to_change_what_is_finished(progress, statement):
    found = Measurement(name="m", meter="flops", value=1.0)
    failed = Check(name="c", outcome="failed")
    end(progress, begin(progress), "failed", checks=[failed], measurements=[found])
    progress.note("hint_shown", "row_softmax", "1")
    before = exported(progress)
    with raw(progress) as db, pytest.raises(sqlite3.IntegrityError):
        db.execute(statement)
    assert exported(progress) == before


def test_the_database_refuses_to_delete_a_running_attempt(progress):
    begin(progress)
    with raw(progress) as db, pytest.raises(sqlite3.IntegrityError, match="never deleted"):
        db.execute("DELETE FROM attempts")


# hints and notes


def test_each_hint_counts_once_and_for_its_own_kata(progress):
    for kata, hint in (("a", "1"), ("a", "2"), ("a", "1"), ("b", "1")):
        progress.note("hint_shown", kata, hint)
    assert [progress.hints_seen(kata) for kata in "abc"] == [2, 1, 0]


def test_starting_afresh_forgets_hints_and_solution(progress):
    progress.note("hint_shown", "a", "1")
    progress.note("solution_seen", "a")
    assert (progress.hints_seen("a"), progress.solution_seen("a")) == (1, True)
    progress.note("started", "a")
    assert (progress.hints_seen("a"), progress.solution_seen("a")) == (0, False)


def test_an_attempt_keeps_what_had_been_seen_when_it_started(progress):
    progress.note("hint_shown", "a", "1")
    attempt = begin(progress, "a")
    progress.note("solution_seen", "a")
    kept = end(progress, attempt)
    assert (kept.hints_seen, kept.solution_seen) == (1, False)


def test_notes_come_back_in_order(progress):
    progress.note("swap", "b")
    progress.note("reset", "a", "by hand")
    assert [(note.kind, note.kata, note.detail) for note in progress.notes()] == [
        ("swap", "b", ""),
        ("reset", "a", "by hand"),
    ]
    assert [note.kind for note in progress.notes("a")] == ["reset"]


# the clock


def test_a_clock_corrected_backwards_does_not_reorder_attempts(tmp_path):
    clock = Clock()
    progress = Progress(tmp_path, clock=clock)
    first = tried(progress)
    clock.move(seconds=-30)
    second = tried(progress)
    assert ids(progress.attempts()) == [first.id, second.id]
    assert second.started_at == "2026-01-31T12:00:00.000001+00:00"
    assert second.finished_at >= second.started_at


def test_a_clock_that_had_been_years_ahead_is_believed_once_it_is_right(tmp_path):
    clock = Clock(NOON.replace(year=2038))
    progress = Progress(tmp_path, clock=clock)
    tried(progress)
    clock.now = NOON
    assert tried(progress).started_at == "2026-01-31T12:00:00.000000+00:00"


def test_an_attempt_during_which_the_clock_was_set_back_ends_no_earlier_than_it_began(tmp_path):
    clock = Clock()
    progress = Progress(tmp_path, clock=clock)
    attempt = begin(progress)
    clock.move(days=-400)
    kept = end(progress, attempt)
    assert kept.finished_at == kept.started_at


def test_times_are_kept_in_utc(tmp_path):
    there = timezone(timedelta(hours=5, minutes=30))
    progress = Progress(tmp_path, clock=Clock(datetime(2026, 1, 31, 17, 30, tzinfo=there)))
    assert tried(progress).started_at == "2026-01-31T12:00:00.000000+00:00"


def test_a_clock_without_a_zone_is_refused(tmp_path):
    progress = Progress(tmp_path, clock=lambda: NOON.replace(tzinfo=None))
    with pytest.raises(ValueError, match="expected one with a zone"):
        begin(progress)
    assert progress.attempts() == []


# processes


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    def write():
        progress = Progress(tmp_path)
        for _ in range(50):
            tried(progress, str(os.getpid()))

    assert [ended(pid) for pid in [forked(write) for _ in range(8)]] == [0] * 8
    attempts = Progress(tmp_path).attempts()
    assert len({attempt.id for attempt in attempts}) == 400
    assert {attempt.status for attempt in attempts} == {"passed"}
    assert len({attempt.started_at for attempt in attempts}) == 400


def test_an_attempt_whose_process_was_killed_becomes_aborted(progress):
    child = forked(lambda: (begin(progress), os.kill(os.getpid(), signal.SIGKILL)))
    assert ended(child) == -signal.SIGKILL
    mine = begin(progress)
    assert progress.abort_orphans() == 1
    aborted, running = progress.attempts()
    assert (aborted.status, aborted.reason) == (
        "aborted",
        "its process ended without a result",
    )
    assert (running.id, running.status) == (mine, "running")
    assert progress.abort_orphans() == 0


def test_a_killed_process_counts_as_gone_before_its_parent_asks_after_it(progress):
    child = forked(lambda: (begin(progress), os.kill(os.getpid(), signal.SIGKILL)))
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert progress.abort_orphans() == 1
    ended(child)


def test_another_process_that_got_the_same_id_keeps_nothing_alive(progress):
    begin(progress)
    with raw(progress) as db:
        db.execute("UPDATE attempts SET process = 'an earlier start'")
    assert progress.abort_orphans() == 1


def test_attempts_of_another_machine_are_left_running(progress, monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "uname", lambda: SimpleNamespace(nodename="elsewhere"))
        begin(progress, pid=2**22 + 1)
    assert progress.abort_orphans() == 0


def test_processes_are_told_apart_without_proc(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PROC", tmp_path)
    first = files.process_birth(os.getpid())
    assert first == files.process_birth(os.getpid()) != ""
    child = forked(lambda: None)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert files.process_birth(child) == ""
    ended(child)
    assert files.process_birth(child) == ""


# the schema


STEPS = migrations.scripts()


def statements_of_all_steps():
    seen = []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.set_trace_callback(seen.append)
        migrations.migrate(db, STEPS)
    return len(seen)


@pytest.mark.parametrize("statement", range(1, statements_of_all_steps() + 1))
def test_a_migration_killed_at_any_statement_leaves_a_whole_version(tmp_path, statement):
    path = tmp_path / "progress.db"

    def migrate_until_killed():
        with closing(unsynced(path, isolation_level=None)) as db:
            left = iter(range(statement - 1))
            db.set_trace_callback(
                lambda _: next(left, None) is None and os.kill(os.getpid(), signal.SIGKILL)
            )
            migrations.migrate(db, STEPS)

    assert ended(forked(migrate_until_killed)) == -signal.SIGKILL
    with closing(sqlite3.connect(path)) as db:
        version = migrations.version_of(db)
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    expected = [set(), {"attempts", "checks", "measurements"}, {"notes"}]
    assert tables >= set().union(*expected[: version + 1])
    assert bool(tables) == (version > 0)
    assert ("notes" in tables) == (version > 1)
    kept = tried(Progress(tmp_path))
    assert Progress(tmp_path).attempts() == [kept]


def test_a_step_that_fails_changes_nothing(tmp_path):
    with closing(sqlite3.connect(tmp_path / "some.db", isolation_level=None)) as db:
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            migrations.migrate(db, ["CREATE TABLE a (x);\nINSERT INTO b VALUES (1);"])
        assert migrations.version_of(db) == 0
        assert db.execute("SELECT * FROM sqlite_master").fetchall() == []


def test_rows_survive_a_later_step(progress):
    kept = tried(progress)
    with raw(progress) as db:
        migrations.migrate(db, [*STEPS, "ALTER TABLE attempts ADD COLUMN mood TEXT"])
        assert migrations.version_of(db) == len(STEPS) + 1
        assert db.execute("SELECT id, mood FROM attempts").fetchall() == [(kept.id, None)]


def test_processes_that_open_a_new_home_at_once_all_succeed(tmp_path):
    children = [forked(lambda: tried(Progress(tmp_path / "new"))) for _ in range(8)]
    assert [ended(child) for child in children] == [0] * 8
    assert len(Progress(tmp_path / "new").attempts()) == 8


def test_migrations_are_numbered_without_gaps():
    names = sorted(path.name for path in Path(migrations.__file__).parent.glob("*.sql"))
    assert [name[:5] for name in names] == [f"{number:04d}_" for number in range(1, len(names) + 1)]


# trouble


def test_a_newer_database_is_refused_and_left_alone(progress):
    with raw(progress) as db:
        db.execute("PRAGMA user_version = 99")
    before = progress.path.read_bytes()
    with pytest.raises(HarnessError, match=r"progress\.db: .*found version 99.*Update"):
        Progress(progress.path.parent)
    assert progress.path.read_bytes() == before


def test_a_file_that_is_no_database_is_named_and_left_in_place(tmp_path):
    path = tmp_path / "progress.db"
    path.write_bytes(b"not a database, though long enough to be asked" * 100)
    before = path.read_bytes()
    with pytest.raises(HarnessError, match=r"progress\.db: .*damaged file.*Move it aside"):
        Progress(tmp_path)
    assert path.read_bytes() == before


def test_damage_inside_the_file_is_named_when_it_is_met(progress):
    for _ in range(20):
        tried(progress)
    data = bytearray(progress.path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    progress.path.write_bytes(data)
    with pytest.raises(HarnessError, match=r"progress\.db: .*damaged file"):
        progress.attempts()
    with pytest.raises(HarnessError, match=r"progress\.db: .*damaged file"):
        begin(progress)
    assert progress.path.read_bytes() == data


def test_a_home_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HarnessError, match="file/home: expected a folder to write in"):
        Progress(tmp_path / "file" / "home")


def test_a_database_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "progress.db").mkdir()
    with pytest.raises(HarnessError, match=r"progress\.db: .*set KATA_HOME to a folder that is"):
        Progress(tmp_path)


def test_a_read_only_database_can_be_read_but_not_written(progress, monkeypatch):
    kept = tried(progress)
    connect = sqlite3.connect
    replace_connect(
        monkeypatch, lambda place, **options: connect(place.split("?")[0] + "?mode=ro", **options)
    )
    assert Progress(progress.path.parent).attempts() == [kept]
    with pytest.raises(HarnessError, match=r"progress\.db: .*Make it and its folder writable"):
        begin(progress)


def test_a_full_disk_leaves_what_was_kept_before(progress, monkeypatch):
    connect = sqlite3.connect

    def on_a_full_disk(place, **options):
        db = connect(place, **options)
        db.execute("PRAGMA max_page_count = 1")  # SQLite holds it at the pages there are
        return db

    kept = tried(progress)
    running = begin(progress)
    before = progress.attempts()
    with monkeypatch.context() as full:
        replace_connect(full, on_a_full_disk)
        with pytest.raises(HarnessError, match=r"progress\.db: .*a full disk.*free some space"):
            end(progress, running, "failed", "x" * 100_000)
    assert progress.attempts() == before
    assert before[0] == kept
    assert end(progress, running).status == "passed"


def test_a_database_that_another_process_holds_is_said_to_be_held(progress, monkeypatch):
    monkeypatch.setattr(migrations, "BUSY_TIMEOUT_S", 0.05)
    with raw(progress) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(HarnessError, match=r"progress\.db: .*another process holding it"):
            begin(progress)


def test_a_database_that_vanished_is_not_silently_made_anew(progress):
    progress.path.unlink()
    with pytest.raises(HarnessError, match=r"progress\.db: .*unable to open"):
        begin(progress)
    assert not progress.path.exists()


# the journal


def pretend_mounts(monkeypatch, tmp_path, *mounts):
    """Let the file systems of this machine be `mounts`: pairs of a folder and a type."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True, exist_ok=True)
    lines = [
        f"{at} 1 8:1 / {str(folder).replace(' ', chr(92) + '040')} rw - {kind} source rw\n"
        for at, (folder, kind) in enumerate(mounts)
    ]
    (proc / "self/mountinfo").write_text("".join(lines))
    monkeypatch.setattr(files, "PROC", proc)


def journal(progress):
    with raw(progress) as db:
        return db.execute("PRAGMA journal_mode").fetchone()[0]


@pytest.mark.parametrize(
    ("kind", "mode"), [("ext4", "wal"), ("nfs4", "delete"), ("fuse.sshfs", "delete")]
)
def test_the_journal_suits_the_file_system(tmp_path, monkeypatch, kind, mode):
    pretend_mounts(monkeypatch, tmp_path, ("/", kind))
    progress = Progress(tmp_path / "home")
    kept = tried(progress)
    assert journal(progress) == mode
    assert progress.attempts() == [kept]


def test_a_history_that_moved_to_a_network_changes_its_journal(tmp_path, monkeypatch):
    pretend_mounts(monkeypatch, tmp_path, ("/", "ext4"))
    kept = tried(Progress(tmp_path / "home"))
    pretend_mounts(monkeypatch, tmp_path, ("/", "nfs"))
    progress = Progress(tmp_path / "home")
    assert journal(progress) == "delete"
    assert progress.attempts() == [kept]


def test_where_wal_is_refused_the_history_is_kept_all_the_same(tmp_path, monkeypatch):
    class WithoutWal(sqlite3.Connection):
        def execute(self, statement, *values):
            if statement == "PRAGMA journal_mode = wal":
                raise sqlite3.OperationalError("locking protocol")
            return super().execute(statement, *values)

    pretend_mounts(monkeypatch, tmp_path, ("/", "ext4"))
    connect = sqlite3.connect
    replace_connect(
        monkeypatch, lambda place, **options: connect(place, factory=WithoutWal, **options)
    )
    progress = Progress(tmp_path / "home")
    kept = tried(progress)
    assert progress.attempts() == [kept]
    assert journal(progress) == "delete"


def test_the_nearest_mount_decides_and_of_two_the_later(tmp_path, monkeypatch):
    share = tmp_path / "a share"
    share.mkdir()
    pretend_mounts(monkeypatch, tmp_path, ("/", "xfs"), (share, "ext4"), (share, "cifs"))
    assert files.on_local_disk(tmp_path)
    assert not files.on_local_disk(share / "below")


def test_an_unknown_machine_is_taken_for_one_with_network_disks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PROC", tmp_path / "none")
    assert not files.on_local_disk(tmp_path)


# merging


def test_histories_merged_both_ways_are_the_same(progress, other):
    found = Measurement(name="m", meter="flops", value=math.nan, detail={"a": [1]})
    end(progress, begin(progress), checks=[Check(name="c", outcome="passed")], measurements=[found])
    progress.note("hint_shown", "row_softmax", "1")
    tried(other, "fused_silu", "failed")
    other.note("solution_seen", "fused_silu")
    mine, theirs = exported(progress), exported(other)
    assert merge(progress, theirs).added == 1
    assert merge(other, mine).added == 1
    assert exported(progress) == exported(other)
    assert len(progress.attempts()) == len(progress.notes()) == 2
    assert (other.hints_seen("row_softmax"), progress.solution_seen("fused_silu")) == (1, True)


def test_a_second_merge_changes_nothing(progress, other):
    end(other, begin(other), measurements=[Measurement(name="m", meter="m", value=math.nan)])
    begin(other)
    other.note("reset", "a")
    first = merge(progress, exported(other))
    before = exported(progress)
    second = merge(progress, exported(other))
    assert (first.added, first.already_there) == (2, 0)
    assert (second.added, second.already_there) == (0, 2)
    assert exported(progress) == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 0)])
def test_an_attempt_exported_while_running_is_completed_in_any_order(progress, other, order):
    attempt = begin(other)
    texts = [exported(other)]
    kept = end(other, attempt)
    texts.append(exported(other))
    for at in order:
        merge(progress, texts[at])
    assert progress.attempts() == [kept]


def test_an_imported_running_attempt_is_no_orphan_here(progress, other):
    begin(other, pid=2**22 + 1)
    merge(progress, exported(other))
    assert progress.abort_orphans() == 0


def test_an_export_counts_its_attempts_and_opens_with_its_schema(progress):
    tried(progress)
    begin(progress)
    progress.note("swap", "a")
    stream = io.StringIO()
    assert progress.export(stream) == 2
    lines = stream.getvalue().splitlines()
    assert json.loads(lines[0]) == {"format": FORMAT, "schema": len(STEPS)}
    assert [list(json.loads(line)) for line in lines[1:]] == [["attempt"], ["attempt"], ["note"]]


def test_a_newer_export_is_refused(progress, other):
    tried(other)
    text = exported(other).replace(f'"schema": {len(STEPS)}', '"schema": 99')
    with pytest.raises(HarnessError, match="found 99, written by a newer release"):
        merge(progress, text)
    assert progress.attempts() == []


@pytest.mark.parametrize("text", ["", "hello\n", "[1]\n", '{"format": "else", "schema": 1}\n'])
def test_what_is_no_export_is_refused(progress, text):
    with pytest.raises(HarnessError, match="expected a first line with the format"):
        merge(progress, text)


def test_an_export_in_another_encoding_is_refused(progress, tmp_path):
    (tmp_path / "odd.jsonl").write_bytes(b"\xff\xfe\x00")
    with (
        (tmp_path / "odd.jsonl").open(encoding="utf-8") as stream,
        pytest.raises(HarnessError, match=r"odd\.jsonl: expected UTF-8"),
    ):
        progress.import_(stream)


def test_every_bad_line_is_named_and_nothing_is_written(progress, other):
    tried(other)
    header, good = exported(other).splitlines()
    bad = {
        3: good[:50],
        4: '{"else": {}}',
        5: good.replace('"status": "passed"', '"status": "green"'),
        6: good.replace('"seed": 7', '"seed": true'),
        7: good.replace('"started_at": "2026-01-31T13:00:00.000000+00:00"',
                        '"started_at": "2026-01-31T13:00:00.000000"'),
        8: good.replace('"kata": "row_softmax", ', ""),
        9: good.replace('"seed": 7', f'"seed": {2**70}').replace('"id": "', '"id": "9'),
        10: good.replace('"passed"', '"failed"'),
        11: "[]",
    }  # fmt: skip
    assert len({good, *bad.values()}) == 10
    with pytest.raises(HarnessError) as caught:
        merge(progress, "\n".join([header, good, *bad.values()]))
    message = caught.value.message
    assert "9 problem(s), nothing was imported" in message
    assert all(f"\n  line {number}: " in message for number in bad)
    assert "line 2:" not in message
    assert "seed: expected int, found True" in message
    assert progress.attempts() == []


def test_a_long_list_of_bad_lines_is_cut(progress):
    text = exported(progress) + "nonsense\n" * 50
    with pytest.raises(HarnessError, match="50 problem") as caught:
        merge(progress, text)
    assert caught.value.message.endswith("… and 30 more")


def test_an_import_that_contradicts_what_is_kept_is_refused(progress):
    kept = tried(progress)
    tampered = exported(progress).replace('"duration_s": 1.5', '"duration_s": 0.1')
    with pytest.raises(HarnessError, match=f"line 2: {kept.id}: expected what is kept"):
        merge(progress, tampered)
    assert progress.attempts() == [kept]


# the program


def test_the_history_loads_without_torch():
    program = (
        "import sys, harness.learner.progress, harness.learner.workspace\n"
        "print({'torch', 'triton', 'numba', 'numpy'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout == "set()\n"


def test_each_relation_to_a_limit_is_kept(tmp_path):
    progress = Progress(tmp_path)
    attempt = progress.start("kata", "yours", "0" * 64, seed=1, device="cpu", profile="cpu")
    found = [
        Measurement(name=name, meter="barriers", value=1.0, limit=1.0, relation=name, passed=True)
        for name in ("<=", ">=", "==")
    ]
    progress.finish(
        attempt, "passed", "", checks=(), measurements=found, versions={}, duration_s=1.0
    )
    assert progress.latest("kata").measurements == tuple(found)
