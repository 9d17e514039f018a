"""Run one kata's tests in a process of their own and bring back what was judged."""

import hmac
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.base.pace import PacedLimit
from harness.base.processes import LINE, seal, started
from harness.base.processes import child_environment as child_environment
from harness.base.processes import run_group as run_group
from harness.content.course import setting_of
from harness.content.kata import Kata
from harness.content.submission import Submission
from harness.hardware.environment import device_present, home_folder
from harness.learner.progress import Check, Measurement
from harness.running.limits import Limits, limits_of
from harness.running.unmeasured import excused
from harness.running.verdict import Event, checks_of, events_of, first, last_words, verdict
from harness.running.verdict import read_record as read_record

MOST_HEARD = 1 << 20  # bytes taken from a record at a time, and kept of a line without an end
HEALTH_S = 60.0  # for a tiny launch in a fresh process
PLUGINS = ("harness.plugin.pytest_plugin", "pytest_timeout", "_hypothesis_pytestplugin")
TINY_LAUNCH = "import torch; x = torch.ones(64, device='cuda'); assert int((x + x).sum()) == 128"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What one run of one implementation came to.

    `status` is "passed", "failed", "crashed", "timed_out" or "error"; `reason` says it in words.
    `device_problem` is what a tiny launch met that was tried because this run crashed or hung;
    `unkept` says why something of an attempt could not be kept, and is empty as a rule.
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
    unkept: str = ""


def run_kata(
    submission: Submission,
    *,
    device: str,
    seed: int | None = None,
    profile: str | None = None,
    limits: Limits | None = None,
    extra: Sequence[str] = (),
    meanwhile: Callable[[], None] | None = None,
) -> Outcome:
    """
    Judge a submission on one device; `extra` are further options of pytest.

    `meanwhile` is called often while the run goes on; what it raises ends the run, and passes
    through.

    The child is killed with everything it started when its time is over. Only a complete record,
    sealed with this run's nonce, counts as a verdict; the child's exit code does not.
    """
    kata = submission.kata
    ours, theirs = socket.socketpair()
    with ours, theirs, _scratch_folder(kata) as (scratch, options):
        watch = Watch(ours, secrets.token_bytes(16), limits or limits_of(kata, device))
        command = pytest_command(
            [kata],
            impls=[submission.label],
            device=device,
            record=f"{LINE}{theirs.fileno()}",
            seed=seed,
            profile=profile or (kata.profile if device == "cpu" else None),
            extra=[
                "--timeout=0",  # the time of the whole is kept out here
                f"--test-limit={watch.limits.test_s:g}",
                *options,
                *extra,
            ],
        )

        with started(
            command,
            {"KATA_HOME": str(home_folder(kata.root).resolve())},
            cwd=scratch,
            memory_bytes=watch.limits.memory_bytes,
            inherited=(theirs.fileno(),),
        ) as child:
            while child.is_running() and not watch.overdue(child.elapsed_s):
                if meanwhile:
                    meanwhile()
        duration_s = child.elapsed_s
        watch.listen()
    exit_code, output = child.exit_code, child.output
    events = watch.events
    checks = checks_of(events)
    status, reason = verdict(
        events,
        checks,
        exit_code,
        output,
        phase=watch.phase,
        limit_s=watch.limit_s,
        # on a GPU nothing is counted; without one nothing may be left out
        costs=[one.name for one in kata.cost] if device == "cpu" else [],
        excused=excused(kata.tests, checks),
    )
    outcome = _outcome(events, checks, status, reason, output, duration_s, device)
    if device == "cuda" and status in ("crashed", "timed_out"):
        return replace(outcome, device_problem=device_problem())
    return outcome


@contextmanager
def _scratch_folder(kata: Kata) -> Iterator[tuple[Path, list[str]]]:
    """
    A folder where a submission may do as it likes, and the options that pytest needs there.

    Where nothing can be written there is none: then it runs in the root, and what it prints is
    kept in memory and in no temporary file.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="kata-run-", ignore_cleanup_errors=True)
    except OSError:
        yield kata.root, ["--capture=sys"]
        return
    with made as folder:
        yield Path(folder), []


class Watch:
    """
    Follows a record as it is spoken: start-up, run and exit have a time of their own.

    A phase only ever gives way to the next, so that nothing said on the line makes a run longer
    than the three together.
    """

    def __init__(self, line: socket.socket, nonce: bytes, limits: Limits) -> None:
        self.line = line
        self.nonce = nonce
        self.limits = limits
        self._begin("startup")
        self.events: list[Event] = []
        self._begun = b""  # of a line that has no end yet
        self._taken = 0  # lines that were sealed
        # the child reads the nonce to its end, so that nobody can read it again
        line.sendall(nonce)
        line.shutdown(socket.SHUT_WR)
        line.setblocking(False)

    def _begin(self, phase: str, at_s: float = 0.0) -> None:
        self.phase, self.since_s = phase, at_s
        self._limit = PacedLimit(getattr(self.limits, f"{phase}_s"))

    @property
    def limit_s(self) -> float:
        """What the phase that the run is in may take on this machine."""
        return self._limit.limit_s

    def overdue(self, elapsed_s: float) -> bool:
        """Whether the present phase has had its time."""
        self.listen()
        if self.phase == "startup" and any(event.get("phase") == "call" for event in self.events):
            self._begin("run", elapsed_s)
        if self.phase == "run" and first(self.events, "end"):
            self._begin("exit", elapsed_s)
        return self._limit.is_over(elapsed_s - self.since_s)

    def listen(self) -> None:
        """Take in what has been said: so much at most, for whoever floods the line."""
        heard = bytearray(self._begun[-MOST_HEARD:])
        end = len(heard) + MOST_HEARD
        with suppress(BlockingIOError):
            while len(heard) < end and (chunk := self.line.recv(65_536)):
                heard += chunk
        *lines, self._begun = bytes(heard).split(b"\n")
        self.events += events_of([text for line in lines for text in self._unsealed(line)])

    def _unsealed(self, line: bytes) -> Iterator[bytes]:
        """What a line says, if it is the next one of the run's own; else nothing."""
        seen, _, text = line.partition(b" ")
        if hmac.compare_digest(seen, seal(self.nonce, self._taken, text)):
            self._taken += 1
            yield text


def pytest_command(
    katas: Sequence[Kata],
    *,
    impls: Iterable[str],
    device: str,
    record: Path | str,
    seed: int | None = None,
    profile: str | None = None,
    extra: Iterable[str] = (),
) -> list[str]:
    """
    The pytest call that judges `katas` and writes what it finds to `record`.

    That is a file, or the name of a socket that the process inherits (``LINE``).
    """
    # no stray file may change a verdict: a module, a conftest.py, pytest's settings
    command = [sys.executable, "-P", "-m", "pytest", *(str(kata.folder) for kata in katas)]
    settings = setting_of(katas[0].root, "pyproject.toml")
    command += ["--noconftest", *([f"-c{settings}"] if settings.is_file() else [])]
    command += ["--record", str(record)]
    command += [f"--device={device}", *(f"--impl={impl}" for impl in impls)]
    command += ["-q", "--no-header", "--tb=short", "--color=no", "-p", "no:cacheprovider"]
    # it collects garbage five times at the end, for a third of a second
    command += ["-p", "no:unraisableexception"]
    # no plugin that happens to be installed has a say in a verdict, or a share of its time
    command += ["--disable-plugin-autoload", *(f"-p{plugin}" for plugin in PLUGINS)]
    if seed is not None:
        command.append(f"--seed={seed}")
    if profile is not None:
        command.append(f"--profile={profile}")
    return [*command, *extra]


def device_problem() -> str:
    """What a tiny launch in a fresh process meets; "" when it goes well or there is no device."""
    if not device_present():
        return ""
    command = [sys.executable, "-c", TINY_LAUNCH]
    exit_code, output = run_group(command, HEALTH_S, {}, cwd=Path.cwd())
    if exit_code is None:
        return f"no answer within {HEALTH_S:g} s"
    return "" if exit_code == 0 else last_words(output)


def _outcome(
    events: Sequence[Event],
    checks: tuple[Check, ...],
    status: str,
    reason: str,
    output: str,
    duration_s: float,
    device: str,
) -> Outcome:
    judged = [event for event in events if event["event"] == "check"]
    session = first(events, "session")
    return Outcome(
        status=status,
        reason=reason,
        device=device,
        profile=session.get("profile", ""),
        seed=session.get("seed", 0),
        checks=checks,
        measurements=tuple(
            _measurement(found) for event in judged for found in event["measurements"]
        ),
        versions=first(events, "end").get("versions", {}),
        duration_s=duration_s,
        output=output,
    )


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
