"""A bench to misbehave on: a curriculum with one very cheap kata, judged as `kata run` does."""

import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from harness.base.pace import PacedLimit
from harness.base.processes import child_environment
from harness.cli.house import House
from harness.cli.practise import How, judge

FAULTY = Path(__file__).resolve().parents[1] / "fixtures" / "faulty"


class Bench:
    """A copy of the curriculum, with a home of its own."""

    def __init__(self, folder):
        self.root = folder / "faulty"
        shutil.copytree(FAULTY, self.root)
        self.house = House(self.root)
        self.home = self.house.home
        self.commands = []

    @property
    def progress(self):
        return self.house.progress

    def kata(self, name="counted"):
        return self.house.curriculum.kata(name)

    def write(self, source, name="counted"):
        """Let this be the learner's file, escapes and all."""
        self.kata(name).file.write_bytes(textwrap.dedent(source).encode(errors="surrogateescape"))

    def solve(self, name="counted"):
        """Let the learner's file do what the reference does, in other words."""
        self.write("# mine\n" + self.kata(name).solution.read_text(), name)

    def judge(self, source=None, name="counted", device="cpu"):
        """Judge this source; what came of it."""
        if source is not None:
            self.write(source, name)
        return judge(self.house, self.house.submission(self.kata(name), "yours"), device, How())

    def assert_still_right(self, name="counted", device="cpu"):
        """The right code passes, whatever happened before, and that is what is remembered."""
        self.solve(name)
        outcome = self.judge(name=name, device=device)
        assert outcome.status == "passed", f"{outcome.reason}\n{outcome.output}"
        latest = self.progress.latest(name)
        assert (latest.status, latest.impl) == ("passed", "yours")

    def command(self, *arguments, python=("-m", "harness")):
        """Start `kata` in a process of its own."""
        process = subprocess.Popen(
            [sys.executable, *python, "--root", str(self.root), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.root,
            env=child_environment({}),
        )
        self.commands.append(process)
        return process

    def kata_command(self, *arguments, python=("-m", "harness")):
        """Run `kata` in a process of its own: its exit code and all it printed."""
        process = self.command(*arguments, python=python)
        output, _ = process.communicate()
        return process.returncode, output

    def alive(self):
        """The processes that carry this bench's home in their environment, this one apart."""
        mark = f"KATA_HOME={self.home}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                carries = mark in entry.read_bytes().split(b"\0")
            except OSError:
                continue  # another's, or gone meanwhile
            if carries and int(entry.parent.name) != os.getpid():
                found.append(int(entry.parent.name))
        return found

    def close(self):
        """End what a failed test left running, so that its neighbours do not meet it."""
        for process in self.commands:
            with process:
                process.kill()

    def assert_nothing_left(self):
        """Nothing that was started here is running any more."""
        start, limit = time.monotonic(), PacedLimit(10.0)
        while self.alive() and not limit.is_over(time.monotonic() - start):
            time.sleep(0.02)
        assert self.alive() == []


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """The bench, with KATA_HOME pointing at its home."""
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    bench = Bench(tmp_path)
    yield bench
    bench.close()
