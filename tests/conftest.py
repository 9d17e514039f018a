"""What the harness's own tests share: the tiny curriculum, and sessions over it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_timeout

from harness.base.pace import pace
from harness.running.runner import child_environment

ROOT = Path(__file__).resolve().parents[1]
MINI = ROOT / "tests" / "fixtures" / "mini"

# set by pytest-xdist in its workers: what they print would be folded like on a screen
os.environ.pop("COLUMNS", None)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item, settings):
    """A test that hangs is stopped; how long that takes to be known follows the machine."""
    paced = settings._replace(timeout=settings.timeout * pace())
    return pytest_timeout.pytest_timeout_set_timer(item, paced)


@pytest.fixture(autouse=True, scope="session")
def _interruptible():
    """A job in the background ignores Ctrl-C, and hands that on to every process it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def mini(tmp_path):
    """A copy of the tiny curriculum that a test may change."""
    root = tmp_path / "mini"
    shutil.copytree(MINI, root, symlinks=False)
    return root


@pytest.fixture
def kata_command(mini, tmp_path):
    """Run `kata` on the copy, in a process of its own; returns the finished process."""

    def run(*args, **environment):
        return subprocess.run(
            [sys.executable, "-m", "harness", "--root", str(mini), *args],
            capture_output=True,
            text=True,
            cwd=mini,
            env=child_environment({"KATA_HOME": str(tmp_path / "home"), **environment}),
            check=False,
        )

    return run


@pytest.fixture
def judged(mini, tmp_path):
    """Judge the tiny kata with these pytest options; returns the check events of the record."""

    def run(*options):
        record = tmp_path / "record.jsonl"
        record.unlink(missing_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device=cpu",
             "--record", str(record), *options, str(mini / "katas")],
            capture_output=True,
            cwd=mini,
            env=child_environment({"KATA_HOME": str(tmp_path / "home")}),
            check=False,
        )  # fmt: skip
        events = [json.loads(line) for line in record.read_text().splitlines()]
        return [event for event in events if event["event"] == "check"]

    return run
