"""
`kill -9` of the harness at random moments: what was recorded stays, and so does every line.

Moments between any two statements or file operations are tried one by one in test_progress.py and
test_workspace.py; here it is the clock that decides. KATA_KILLS says how many (`-s` shows what
became of them); one of each kind is tried when it is not set.
"""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from harness.base.files import hash_of
from harness.base.processes import child_environment
from harness.learner.progress import Progress, migrations, store

TURNS = ("run", "swap", "migration", "run", "restore", "reset")
KILLS = int(os.environ.get("KATA_KILLS", len(TURNS)))
RIGHT = "def counted(numbers):\n    return sum(n % 2 == 0 for n in numbers)\n"
OLD_ATTEMPTS = 5000
# a step to come, long enough that a kill meets it halfway
REWRITE = """
CREATE TABLE again AS SELECT * FROM attempts ORDER BY reason, id;
CREATE INDEX again_by_reason ON again (reason, id);
ALTER TABLE attempts ADD COLUMN mood TEXT;
"""
# an old history, as version 1 of the schema wrote it
BEGUN = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO attempts SELECT hex(randomblob(16)), 'counted', 'yours', hex(randomblob(32)),
    printf('2026-01-01T00:00:00.%06d+00:00', i), NULL, 'running', '', i, 'cpu', 'cpu', '{}',
    0, 0, 0, 'elsewhere', 1, '1' FROM n"""
ENDED = "UPDATE attempts SET status = 'passed', finished_at = started_at, reason = id"
MIGRATE = """
import sys
from pathlib import Path
from harness.learner.progress import store
steps = [*store.scripts(), sys.argv[2]]
store.scripts = lambda: steps
print("ready", flush=True)
store.Progress(Path(sys.argv[1]))
print("done", flush=True)
"""


class Siege:
    """Kills one command after another on one bench, and counts what became of it."""

    def __init__(self, bench, old, moments):
        self.bench = bench
        self.old = old
        self.moments = moments
        self.counts = Counter()
        self.known = {}
        self.lasts_s = {}

    def prepare(self):
        """Commit the stub that `reset` brings back, and see how long each command takes."""
        git = ["git", "-c", "user.name=kata", "-c", "user.email=kata@localhost"]
        for arguments in (["init", "-q"], ["add", "katas"], ["commit", "-qm", "stubs"]):
            subprocess.run([*git, *arguments], cwd=self.bench.root, check=True)
        self.stub = self.bench.kata().file.read_bytes()
        self.bench.solve()
        for action in ("run", "swap", "restore", "reset"):
            start = time.monotonic()
            code, output = self.bench.kata_command(action, "counted")
            assert code == 0, output
            self.lasts_s[action] = time.monotonic() - start
        self.lasts_s["migration"] = self.migrate(kill_after_s=None)
        self.known = self.attempts()

    def attempts(self):
        return {attempt.id: attempt for attempt in self.bench.progress.attempts()}

    def kill(self, action, number):
        """Kill one command somewhere on its way, then take stock."""
        if action == "migration":
            self.migrate(self.moments.uniform(0, 1) * self.lasts_s[action])
        else:
            self.kill_command(action, f"# round {number}\n{RIGHT}".encode())
        self.counts["kills"] += 1

    # ---- runs, and the learner's file

    def kill_command(self, action, mine):
        kata, workspace = self.bench.kata(), self.bench.house.workspace
        kata.file.write_bytes(mine)
        if action == "restore":
            workspace.swap("counted", kata.file, kata.solution)
        running = self.bench.command(action, "counted")
        time.sleep(self.moments.uniform(0.2, 1) * self.lasts_s[action])
        begun = self.attempts()
        running.kill()
        output, _ = running.communicate()
        self.bench.assert_nothing_left()
        self.count_attempts(action, begun, "passed: counted" in output)
        self.count_lines(action, mine)

    def count_attempts(self, action, begun, told):
        """Each attempt that was there before the kill is there still; what had ended is as is."""
        self.bench.progress.abort_orphans()
        after = self.attempts()
        kept = {key: one for key, one in (self.known | begun).items() if one.status != "running"}
        new = [one.status for key, one in after.items() if key not in self.known]
        self.counts["attempts begun"] += len(new)
        self.counts["finished"] += new.count("passed")
        self.counts["aborted"] += new.count("aborted")
        self.counts["attempts lost"] += (
            sum(key not in after for key in self.known | begun)
            + sum(after.get(key) not in (one, None) for key, one in kept.items())
            + (told and new != ["passed"])
        )
        assert len(new) <= (action == "run")
        assert set(new) <= {"passed", "aborted"}
        self.known = after
        self.counts["database opened"] += 1

    def count_lines(self, action, mine):
        """A whole file is in place, and the learner's own is it or can be had back."""
        kata, workspace = self.bench.kata(), self.bench.house.workspace
        found = kata.file.read_bytes()
        places = {mine: "own file", self.stub: "stub", kata.solution.read_bytes(): "reference"}
        place = places[found]
        self.counts[f"{action} left the {place} in place"] += 1
        if workspace.is_swapped("counted", kata.file):
            workspace.restore("counted", kata.file)
        elif place != "own file":
            workspace.apply("counted", kata.file, hash_of(mine))
        self.counts["learner's files lost"] += kata.file.read_bytes() != mine

    # ---- migrations

    def migrate(self, kill_after_s):
        """Bring an old history up to date, killed or not; the seconds it took."""
        home = self.bench.root.parent / "old"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        shutil.copy(self.old, home / "progress.db")
        command = [sys.executable, "-c", MIGRATE, str(home), REWRITE]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, env=child_environment({}), cwd=Path.cwd()
        ) as running:
            assert running.stdout.readline() == b"ready\n"
            start = time.monotonic()
            if kill_after_s is None:
                assert running.stdout.readline() == b"done\n"
                return time.monotonic() - start
            time.sleep(kill_after_s)
            running.kill()
        self.count_history(home)
        return kill_after_s

    def count_history(self, home):
        """The file is at a whole version, and opening it finishes the work."""
        with closing(sqlite3.connect(home / "progress.db")) as db:
            version = migrations.version_of(db)
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
            ids = {key for (key,) in db.execute("SELECT id FROM attempts")}
        steps = [*store.scripts(), REWRITE]
        assert ("notes" in tables, "again" in tables) == (version >= 2, version >= len(steps))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store, "scripts", lambda: steps)
            kept = Progress(home).attempts()
        lost = OLD_ATTEMPTS - len(ids & {attempt.id for attempt in kept})
        self.counts[f"migration left version {version}"] += 1
        self.counts["attempts lost"] += lost + sum(one.status != "passed" for one in kept)
        self.counts["database opened"] += 1


@pytest.fixture
def old(tmp_path):
    """A history of version 1 with many attempts."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        migrations.migrate(db, migrations.scripts()[:1])
        db.execute("PRAGMA journal_mode = wal")
        db.execute("BEGIN")
        db.execute(BEGUN, (OLD_ATTEMPTS,))
        db.execute(ENDED)
        db.execute("COMMIT")
    return path


@pytest.mark.skipif(not Path("/proc/self/environ").is_file(), reason="processes are found by /proc")
@pytest.mark.skipif(shutil.which("git") is None, reason="`kata reset` asks git for the stub")
@pytest.mark.timeout(90 + 10 * KILLS)
def test_a_harness_killed_at_any_moment_loses_no_attempt_and_no_line(bench, old):
    seed = random.SystemRandom().randrange(2**31)
    siege = Siege(bench, old, random.Random(seed))
    siege.prepare()
    for number in range(KILLS):
        siege.kill(TURNS[number % len(TURNS)], number)
    counts = siege.counts
    lines = [f"  {counts[name]:4} {name}" for name in sorted(counts)]
    print(f"\nseed {seed}", *lines, sep="\n")  # noqa: T201 -- shown with -s
    assert counts["attempts lost"] == counts["learner's files lost"] == 0
    assert counts["database opened"] == counts["kills"] == KILLS
    assert counts["attempts begun"] == counts["finished"] + counts["aborted"]
    bench.assert_still_right()
