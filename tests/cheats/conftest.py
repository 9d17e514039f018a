"""Cheats are judged in a few pytest sessions, each over many implementations."""

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from harness.running.runner import child_environment

HERE = Path(__file__).resolve().parent
MINI = HERE.parent / "fixtures" / "mini"
# added to the tiny kata: a threshold on the clock, and what it is held against
SPEED = """
[[speed]]
kind = "baseline"
against = "slow"
on = "any"
ratio = 3.0
case = { n = 20000, dtype = "float32" }
"""
SLOW = """

def slow(*, x):
    return torch.cat([part + part for part in x.split(100)])
"""


@pytest.fixture(scope="session")
def curriculum(tmp_path_factory):
    """The tiny curriculum with a threshold on the clock, and with a Triton kata beside it."""
    root = tmp_path_factory.mktemp("cheats") / "mini"
    shutil.copytree(MINI, root)
    doubled = root / "katas" / "week01" / "doubled"
    for file, more in ((doubled / "kata.toml", SPEED), (doubled / "oracle.py", SLOW)):
        with file.open("a", encoding="utf-8") as stream:
            stream.write(more)
    shutil.copytree(HERE / "fixtures", root, dirs_exist_ok=True)
    return root


class Verdicts:
    """What one session found: the messages of failed checks, by implementation and check."""

    def __init__(self, events):
        self.failed = defaultdict(dict)
        self.outcomes = defaultdict(set)
        self.judged = defaultdict(set)
        for event in events:
            name = Path(event["impl"]).stem
            self.outcomes[name].add(event["outcome"])
            self.judged[name].add(event["name"])
            if event["outcome"] == "failed":
                self.failed[name][event["name"]] = f"{event['message']}\n{event['details']}"

    def words(self, name):
        """Everything that was said about one implementation."""
        return "\n".join(self.failed[name].values())


@pytest.fixture(scope="session")
def judge(curriculum, tmp_path_factory):
    """Judge these files, and then the solution, on one kata; returns the verdicts."""

    def run(kata, files, *options):
        folder = tmp_path_factory.mktemp("record")
        record = folder / "record.jsonl"
        impls = [f"--impl={file}" for file in (*files, "solution")]
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device=cpu",
             "--record", str(record), *impls, *options, str(curriculum / "katas/week01" / kata)],
            capture_output=True,
            cwd=curriculum,
            env=child_environment({"KATA_HOME": str(folder / "home")}),
            check=False,
        )  # fmt: skip
        events = [json.loads(line) for line in record.read_text().splitlines()]
        assert events[-1]["event"] == "end", "the session did not end by itself"
        return Verdicts(event for event in events if event["event"] == "check")

    return run
