"""Run one kata's tests in a process of their own and bring back what was judged."""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from harness.kata import Kata
from harness.progress import Check, Measurement

TAIL_BYTES = 32_768  # how much of a child's output is worth keeping
# a device context and the first compilation come on top of a kata's own limit
STARTUP_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What one run of one implementation came to.

    `status` is "passed", "failed", "crashed", "timed_out" or "error"; `reason` says it in words.
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


def run_kata(
    kata: Kata, *, impl: str, device: str, seed: int | None = None, profile: str | None = None
) -> Outcome:
    """
    Judge one implementation of `kata` on one device.

    The child runs in its own session and is killed with everything it started when the kata's
    time is over. Only a complete record that carries this run's nonce counts as a verdict; the
    child's exit code does not.
    """
    nonce = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="kata-") as folder:
        record = Path(folder) / "record.jsonl"
        command = pytest_command(
            [kata.folder],
            impls=[impl],
            device=device,
            record=record,
            seed=seed,
            profile=profile or (kata.profile if device == "cpu" else None),
        )
        start = time.monotonic()
        exit_code, output = run_group(
            command, kata.timeout_s + STARTUP_S, {"KATA_NONCE": nonce}, cwd=kata.root
        )
        duration_s = time.monotonic() - start
        events = read_record(record)
    return _outcome(events, nonce, exit_code, output, duration_s, device)


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


def run_group(
    command: list[str], limit_s: float, environment: dict[str, str], *, cwd: Path
) -> tuple[int | None, str]:
    """
    Run `command` as a process group with a time limit, draining its output as it comes.

    Returns:
        The exit code (negative: the signal that ended it; None: it ran out of time) and the last
        part of what it printed. Nothing of the group is left running.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=child_environment(environment),
        cwd=cwd,
    )
    tail = bytearray()
    assert child.stdout is not None
    reader = threading.Thread(target=_drain, args=(child.stdout, tail), daemon=True)
    reader.start()
    try:
        exit_code: int | None = child.wait(limit_s)
    except subprocess.TimeoutExpired:
        exit_code = None
    finally:
        _kill_group(child.pid)
        child.wait()
    reader.join(timeout=5)
    return exit_code, tail.decode("utf-8", errors="replace")


def child_environment(more: dict[str, str]) -> dict[str, str]:
    """This process's environment and `more`; a child is no worker of ours under xdist."""
    kept = {name: value for name, value in os.environ.items() if "PYTEST_XDIST" not in name}
    return {**kept, **more}


def _drain(stream: IO[bytes], tail: bytearray) -> None:
    with stream:
        while chunk := os.read(stream.fileno(), 65_536):
            tail += chunk
            del tail[:-TAIL_BYTES]


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def read_record(path: Path) -> list[dict[str, Any]]:
    """Every complete line of a record; a last line cut short by a crash is dropped."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def _outcome(
    events: list[dict[str, Any]],
    nonce: str,
    exit_code: int | None,
    output: str,
    duration_s: float,
    device: str,
) -> Outcome:
    checks = tuple(_check(event) for event in events if event["event"] == "check")
    end = next((event for event in events if event["event"] == "end"), {})
    complete = end.get("nonce") == nonce
    status, reason = _status(checks, complete, exit_code, output)
    session = next((event for event in events if event["event"] == "session"), {})
    return Outcome(
        status=status,
        reason=reason,
        device=device,
        profile=session.get("profile", ""),
        seed=session.get("seed", 0),
        checks=checks,
        measurements=tuple(
            _measurement(found)
            for event in events
            if event["event"] == "check"
            for found in event["measurements"]
        ),
        versions=end.get("versions", {}),
        duration_s=duration_s,
        output=output,
    )


def _status(
    checks: tuple[Check, ...], complete: bool, exit_code: int | None, output: str
) -> tuple[str, str]:
    if exit_code is None:
        return "timed_out", "ran out of time and was stopped, with everything it had started"
    if exit_code < 0:
        return "crashed", f"ended by {signal.Signals(-exit_code).name}"
    if not complete:
        return "crashed", f"ended with exit code {exit_code} before the tests were through"
    if any(check.outcome == "failed" for check in checks):
        failed = sum(check.outcome == "failed" for check in checks)
        return "failed", f"{failed} of {len(checks)} checks failed"
    if not any(check.outcome == "passed" for check in checks):
        last = output.strip().splitlines()[-1:] or ["no output"]
        return "error", f"no check was judged: {last[0]}"
    return "passed", f"{sum(check.outcome == 'passed' for check in checks)} checks passed"


def _check(event: dict[str, Any]) -> Check:
    ambiguous = event["message"].startswith("AMBIGUOUS")
    outcome = "ambiguous" if ambiguous else event["outcome"]
    return Check(name=event["name"], outcome=outcome, message=event["message"])


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
