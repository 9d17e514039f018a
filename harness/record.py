"""The record of a judging session: one JSON line for each thing judged, as it happens."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.causes import in_one_line
from harness.environment import versions


class Recorder:
    """Writes what begins and what was judged, one JSON line at a time, as it happens."""

    def __init__(self, write: Callable[[dict[str, Any]], None], device: str, profile: str) -> None:
        self.write = write
        self.device = device
        self.profile = profile

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Name the session's surroundings once the number of tests is known."""
        self.write(
            {
                "event": "session",
                "device": self.device,
                "profile": self.profile,
                "seed": int(os.environ["KATA_SEED"]),
                "tests": len(session.items),
            }
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Name the test that is being set up; the first one imports the file."""
        self._starting(item, "setup")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Name the test that is being run, so that a crash or a hang in it has a place."""
        self._starting(item, "call")

    def _starting(self, item: pytest.Item, phase: str) -> None:
        name = dict(item.user_properties).get("test", item.name)
        self.write({"event": "starting", "name": name, "phase": phase})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the verdict of one test of one implementation."""
        properties = dict(report.user_properties)
        decides = report.when == "call" or report.outcome != "passed"
        if "kata" not in properties or not decides or report.when == "teardown":
            return
        measured = [value for name, value in report.user_properties if name == "measurement"]
        self.write(
            {
                "event": "check",
                "kata": properties["kata"],
                "impl": properties["impl"],
                "name": properties["test"],
                "outcome": report.outcome,
                "message": _one_line(report),
                "details": "" if report.passed else report.longreprtext[-4000:],
                "duration_s": report.duration,
                "cpu_s": properties.get("cpu_s", 0.0),
                "measurements": measured,
            }
        )

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Close the record: a record without this line is not a verdict."""
        self.write({"event": "end", "exit": int(exitstatus), "versions": versions()})


def recorder_for(path: Path, device: str, profile: str) -> Recorder:
    """
    A recorder that appends to `path`.

    Each line carries the run's nonce, which from here on is not in the environment any more. A
    forked copy of this process, whoever made it, writes nothing.
    """
    nonce, owner = os.environ.pop("KATA_NONCE", ""), os.getpid()

    def write(event: dict[str, Any]) -> None:
        if os.getpid() == owner:
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"nonce": nonce, **event}) + "\n")

    return Recorder(write, device, profile)


def _one_line(report: pytest.TestReport) -> str:
    """The line that says why a test failed or was skipped."""
    if report.passed:
        return ""
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext.strip()
    return in_one_line(text.removeprefix("Failed: "))
