"""Run one kata's tests in a process of their own and bring back what was judged."""

import json
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.causes import DEVICE_FAULT, stated_cause
from harness.environment import device_present
from harness.files import explained
from harness.kata import Kata
from harness.processes import child_environment as child_environment
from harness.processes import readable, run_watched
from harness.processes import run_group as run_group
from harness.progress import Check, Measurement

# until the first test is called: the interpreter, its libraries, collection, the file's own import
STARTUP_S = 60.0
# kernels are compiled in the first calls, and a device context is made: on top of a kata's limit
COMPILE_S = 60.0
EXIT_S = 10.0  # from the last test to the end of the process
HEALTH_S = 60.0  # for a tiny launch in a fresh process
TINY_LAUNCH = "import torch; x = torch.ones(64, device='cuda'); assert int((x + x).sum()) == 128"

# a skip that opens with one of these is a check that was judged, and came to no verdict
UNDECIDED = {"AMBIGUOUS": "ambiguous", "NOT GRADED": "not_graded"}

INTERNAL = "INTERNALERROR>"  # how pytest's own trouble is printed

Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What one run of one implementation came to.

    `status` is "passed", "failed", "crashed", "timed_out" or "error"; `reason` says it in words.
    `device_problem` is what a tiny launch met that was tried because this run crashed or hung.
    """

    status: str
    reason: str
    device: str
    profile: str
    seed: int
    checks: tuple[Check, ...]
    measurements: tuple[Measurement, ...]
    versions: dict[str, str]
    duration_s: float
    output: str
    device_problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    What one run may take.

    Attributes:
        startup_s: Until the first test is called; the import of the file under test belongs to it.
        run_s: From there until the last test is through.
        exit_s: From there until the process has ended.
        memory_bytes: The most one process may allocate on the host; 0 is no limit.
    """

    startup_s: float = STARTUP_S
    run_s: float
    exit_s: float = EXIT_S
    memory_bytes: int = 0


def limits_of(kata: Kata, device: str) -> Limits:
    """
    The limits of an ordinary run.

    Asking for more memory than the machine has ends in words and not in swapping. On a device the
    driver reserves addresses by the terabyte, so that no such limit can be set.
    """
    if device == "cpu":
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Limits(run_s=kata.timeout_s, memory_bytes=memory_bytes)
    return Limits(run_s=kata.timeout_s + COMPILE_S)


def run_kata(
    kata: Kata,
    *,
    impl: str,
    device: str,
    seed: int | None = None,
    profile: str | None = None,
    limits: Limits | None = None,
) -> Outcome:
    """
    Judge one implementation of `kata` on one device.

    The child is killed with everything it started when its time is over. Only a complete record
    that carries this run's nonce counts as a verdict; the child's exit code does not.
    """
    nonce = secrets.token_hex(16)
    with _scratch_folder() as folder:
        record = Path(folder) / "record.jsonl"
        command = pytest_command(
            [kata.folder],
            impls=[impl],
            device=device,
            record=record,
            seed=seed,
            profile=profile or (kata.profile if device == "cpu" else None),
            extra=["--timeout=0"],  # the time is kept out here
        )
        watch = Watch(record, nonce, limits or limits_of(kata, device))
        start = time.monotonic()
        exit_code, output = run_watched(
            command,
            watch.overdue,
            {"KATA_NONCE": nonce},
            cwd=kata.root,
            memory_bytes=watch.limits.memory_bytes,
        )
        duration_s = time.monotonic() - start
        events = read_record(record, nonce)
    status, reason = verdict(events, exit_code, output, watch)
    outcome = _outcome(events, status, reason, output, duration_s, device)
    if device == "cuda" and status in ("crashed", "timed_out"):
        return replace(outcome, device_problem=device_problem())
    return outcome


def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    with explained(Path(tempfile.tempdir or "TMPDIR"), "a folder for temporary files"):
        return tempfile.TemporaryDirectory(prefix="kata-")


class Watch:
    """
    Follows a record as it grows: start-up, run and exit have a time of their own.

    A phase only ever gives way to the next, so that nothing written into the record makes a run
    longer than the three together.
    """

    def __init__(self, record: Path, nonce: str, limits: Limits) -> None:
        self.record = record
        self.nonce = nonce
        self.limits = limits
        self.phase = "startup"
        self.since_s = 0.0

    @property
    def limit_s(self) -> float:
        """What the phase that the run is in may take."""
        return float(getattr(self.limits, f"{self.phase}_s"))

    def overdue(self, elapsed_s: float) -> bool:
        """Whether the present phase has had its time."""
        events = read_record(self.record, self.nonce)
        if self.phase == "startup" and any(event.get("phase") == "call" for event in events):
            self.phase, self.since_s = "run", elapsed_s
        if self.phase == "run" and any(event["event"] == "end" for event in events):
            self.phase, self.since_s = "exit", elapsed_s
        return elapsed_s - self.since_s > self.limit_s


def pytest_command(
    targets: Iterable[Path],
    *,
    impls: Iterable[str],
    device: str,
    record: Path,
    seed: int | None = None,
    profile: str | None = None,
    extra: Iterable[str] = (),
) -> list[str]:
    """The pytest call that judges `targets` and writes what it finds to `record`."""
    command = [sys.executable, "-m", "pytest", *map(str, targets), "--record", str(record)]
    command += [f"--device={device}", *(f"--impl={impl}" for impl in impls)]
    command += ["-q", "--no-header", "--tb=short", "--color=no", "-p", "no:cacheprovider"]
    if seed is not None:
        command.append(f"--seed={seed}")
    if profile is not None:
        command.append(f"--profile={profile}")
    return [*command, *extra]


def read_record(path: Path, nonce: str = "") -> list[Event]:
    """
    The events of a run, those that carry its nonce.

    A last line cut short by a crash is dropped, and so is whatever else was written there.
    """
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [event for line in lines if (event := _event(line, nonce)) is not None]


def _event(line: bytes, nonce: str) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and event.get("nonce", "") == nonce else None


def verdict(
    events: Sequence[Event], exit_code: int | None, output: str, watch: Watch
) -> tuple[str, str]:
    """
    The status of a run and the words for it.

    Args:
        events: Its record.
        exit_code: Of the child; None when it was stopped.
        output: The last part of what it printed.
        watch: What was followed while it ran.
    """
    checks = [_check(event) for event in events if event["event"] == "check"]
    ended = bool(_first(events, "end"))
    if ended and len(checks) == _first(events, "session").get("tests"):
        status, reason = _judged(checks, output)
        return status, reason + _afterwards(exit_code)
    if exit_code is None:
        return "timed_out", _overdue_words(events, watch)
    if exit_code < 0:
        return "crashed", _signal_words(-exit_code, _where(events), output)
    if ended and not _first(events, "starting"):
        return "error", f"no check was judged: {_last_words(output)}"
    if INTERNAL in output:
        return "error", f"the judge could not go on {_where(events)}: {_last_words(output)}"
    left = f"ended with exit code {exit_code} {_where(events)}"
    return "crashed", f"{left}, before the tests were through"


def _afterwards(exit_code: int | None) -> str:
    """What is to be said of a process that was judged and then did not end as it should."""
    if exit_code is None:
        return "; a thread or process that it left running was stopped"
    return f"; at its end it met {_signal_name(-exit_code)}" if exit_code < 0 else ""


def _judged(checks: Sequence[Check], output: str) -> tuple[str, str]:
    """The verdict of a complete record."""
    failed = [check for check in checks if check.outcome == "failed"]
    passed = sum(check.outcome == "passed" for check in checks)
    for check in failed:
        if stated_cause(check.message) == DEVICE_FAULT:
            later = "what came after it met a device that was lost"
            return "crashed", f"{check.message} (in {check.name}; {later})"
    if failed:
        causes = {stated_cause(check.message): None for check in failed}
        named = ", ".join(cause for cause in causes if cause)
        reason = f"{len(failed)} of {len(checks)} checks failed"
        return "failed", f"{reason}: {named}" if named else reason
    if not passed:
        return "error", f"no check was judged: {_last_words(output)}"
    return "passed", f"{passed} checks passed"


def _overdue_words(events: Sequence[Event], watch: Watch) -> str:
    if watch.phase == "run":
        return f"stopped after {watch.limit_s:g} s {_where(events)}"
    doing = f"start-up was stopped after {watch.limit_s:g} s"
    if _first(events, "starting"):
        return f"{doing} {_where(events)}, of which the import of the file is part"
    return f"{doing}, before any test was found"


def _signal_words(number: int, where: str, output: str) -> str:
    words = f"ended by {_signal_name(number)} {where}"
    if number == signal.SIGKILL:
        return f"{words}, which the judge did not send: as a rule the machine was out of memory"
    if number == signal.SIGABRT and "std::bad_alloc" in output:
        return f"{words}: host out of memory"
    return words


def _signal_name(number: int) -> str:
    names = {known.value: known.name for known in signal.Signals}
    return f"signal {number} ({names.get(number, 'real-time')})"


def _where(events: Sequence[Event]) -> str:
    """Where in a session its record breaks off."""
    places = [event for event in events if event["event"] in ("starting", "check")]
    if not places:
        return "during start-up"
    if places[-1]["event"] == "check":
        return f"after {readable(places[-1]['name'])}"
    phase = "in the set-up of" if places[-1]["phase"] == "setup" else "in"
    return f"{phase} {readable(places[-1]['name'])}"


def _last_words(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()] or ["no output"]
    internal = [line for line in lines if line.startswith(INTERNAL)]
    return (internal or lines)[-1].removeprefix(INTERNAL).strip()


def _first(events: Sequence[Event], kind: str) -> Event:
    return next((event for event in events if event["event"] == kind), {})


def device_problem() -> str:
    """What a tiny launch in a fresh process meets; "" when it goes well or there is no device."""
    if not device_present():
        return ""
    command = [sys.executable, "-c", TINY_LAUNCH]
    exit_code, output = run_group(command, HEALTH_S, {}, cwd=Path.cwd())
    if exit_code is None:
        return f"no answer within {HEALTH_S:g} s"
    return "" if exit_code == 0 else _last_words(output)


def _outcome(
    events: Sequence[Event],
    status: str,
    reason: str,
    output: str,
    duration_s: float,
    device: str,
) -> Outcome:
    judged = [event for event in events if event["event"] == "check"]
    session = _first(events, "session")
    return Outcome(
        status=status,
        reason=reason,
        device=device,
        profile=session.get("profile", ""),
        seed=session.get("seed", 0),
        checks=tuple(_check(event) for event in judged),
        measurements=tuple(
            _measurement(found) for event in judged for found in event["measurements"]
        ),
        versions=_first(events, "end").get("versions", {}),
        duration_s=duration_s,
        output=output,
    )


def _check(event: dict[str, Any]) -> Check:
    outcome = UNDECIDED.get(event["message"].partition(":")[0], event["outcome"])
    return Check(name=readable(event["name"]), outcome=outcome, message=readable(event["message"]))


def _measurement(found: dict[str, Any]) -> Measurement:
    return Measurement(
        name=found["name"],
        meter=found["meter"],
        value=found["value"],
        limit=found["limit"],
        relation=found["relation"],
        passed=found["outcome"] == "passed",
        detail={"outcome": found["outcome"], "message": found["message"], **found["detail"]},
    )
