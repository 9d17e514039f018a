"""The record of a judging session: one JSON line for each thing judged, as it happens."""

import os
import re
import socket
from collections.abc import Callable
from itertools import count
from json import JSONEncoder
from pathlib import Path
from typing import Any

import pytest

from harness.base.processes import LINE, seal
from harness.hardware.packages import versions
from harness.running.causes import in_one_line

SEED = pytest.StashKey[int]()  # where a session's config keeps its seed, and nothing else does
NUMPYS_LINES = 5  # what is not equal, why it should be, how many are not, and the first of them
MODULES = re.compile(r"^(?:\w+\.)+(?=[A-Z]\w*: )")  # where an exception's class is defined
INPUT = " | input: "  # opens what a test was given
MOST_MESSAGE, MOST_DETAIL = 1000, 4000  # characters of a message and of a traceback
Write = Callable[[dict[str, Any]], None]


class Recorder:
    """Writes what begins and what was judged, one JSON line at a time, as it happens."""

    def __init__(self, write: Write, device: str, profile: str) -> None:
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
                "seed": session.config.stash[SEED],
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
        known = dict(item.user_properties)
        name = known.get("test", item.name)
        whose = {"kata": known.get("kata", ""), "impl": known.get("impl", "")}
        drawn: dict[str, Any] = {key: known[key] for key in ("seed", "draws") if key in known}
        self.write({"event": "starting", "name": name, "phase": phase, **whose, **drawn})

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
                "message": _message(report),
                "details": "" if report.passed else report.longreprtext[-MOST_DETAIL:],
                "duration_s": report.duration,
                "cpu_s": properties.get("cpu_s", 0.0),
                "seed": properties.get("seed"),
                "draws": properties.get("draws", 1),
                "measurements": measured,
            }
        )

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Close the record: a record without this line is not a verdict."""
        self.write({"event": "end", "exit": int(exitstatus), "versions": versions()})


def recorder_for(target: str, device: str, profile: str) -> Recorder:
    """
    A recorder that appends to the file `target` or speaks into the socket that it names.

    A forked copy of this process, whoever made it, writes nothing.
    """
    write = _into_line(int(target.removeprefix(LINE))) if on_a_line(target) else _into_file(target)
    owner = os.getpid()

    def write_as_owner(event: dict[str, Any]) -> None:
        if os.getpid() == owner:
            write(event)

    return Recorder(write_as_owner, device, profile)


def on_a_line(target: str) -> bool:
    """Whether a record goes to whoever waits for the verdict, and into no file."""
    return target.startswith(LINE)


def _into_line(number: int) -> Write:
    """
    Speak into the inherited socket `number`: what was said cannot be taken back or written over.

    The nonce that seals each line is waiting there, to be read once. It is never said, so that
    who stands between has no line to alter, leave out or add.
    """
    line = socket.socket(fileno=number)
    line.set_inheritable(False)
    with line.makefile("rb") as heard:
        nonce = heard.read()
    encode, send, sealed, numbers = JSONEncoder().encode, line.sendall, seal, count()

    def write(event: dict[str, Any]) -> None:
        text = encode(event).encode()
        send(b"%b %b\n" % (sealed(nonce, next(numbers), text), text))

    return write


def _into_file(path: str) -> Write:
    encode = JSONEncoder().encode

    def write(event: dict[str, Any]) -> None:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(f"{encode(event)}\n")

    return write


def _message(report: pytest.TestReport) -> str:
    """Why a test failed or was skipped, where in the code under test, if there, on which input."""
    properties: dict[str, Any] = dict(report.user_properties)
    words: str = properties.get("told") or _one_line(report)
    place, asked, given = (properties.get(name) for name in ("place", "asked", "input"))
    words = MODULES.sub("", words)[:MOST_MESSAGE]
    if " | fix: " not in words:  # which follows the places
        # an assertion of the test's own: that it is one goes without saying
        words = f"{words} ({place})" if place else words.removeprefix("AssertionError: ")
    words = f"{words} | {asked}" if asked else words
    return f"{words}{INPUT}{given}" if given else words


def _one_line(report: pytest.TestReport) -> str:
    """The line that says why a test failed or was skipped."""
    if report.passed:
        return ""
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext.strip()
    head, _, rest = text.partition("\n")
    if head.endswith("Error: "):  # NumPy's words begin a line later, and take some
        said = [line for line in map(str.strip, rest.splitlines()) if line]
        telling = [line for line in said if not line.startswith("Max ")]
        text = head + " | ".join(telling[:NUMPYS_LINES])
    return in_one_line(text.removeprefix("Failed: "))
