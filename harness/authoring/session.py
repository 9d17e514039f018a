"""One pytest process that judges implementations for an author, and how far it came."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.authoring.limits import LEAST_LIMIT_S, WAITING
from harness.base.pace import PacedLimit, cpu_pace, pace
from harness.base.processes import started
from harness.content.kata import Kata
from harness.running.limits import limits_of
from harness.running.runner import pytest_command, read_record
from harness.running.verdict import events_of, last_words

Event = dict[str, Any]
Heard = Callable[[Event], None]
STARTUP_S = 120.0  # of silence: libraries are imported, tests collected, compilers started


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """
    What a session came to.

    Attributes:
        checks: What was judged.
        stopped: Why it did not come to its end; "" when it did.
        at: The kata, the implementation and the test that it was at then, as far as known.
    """

    checks: list[Event]
    stopped: str
    at: tuple[str, str, str] = ("", "", "")


def judge(
    katas: Sequence[Kata],
    *,
    impls: Iterable[str],
    cpu_limit_s: float,
    seed: int | None = None,
    extra: Iterable[str] = (),
    heard: Heard = lambda _: None,
) -> Judged:
    """
    Judge `impls` of `katas` on the CPU, in a process of their own; `heard` gets what is recorded.

    A test that computes longer than `cpu_limit_s`, in the seconds of this machine, fails by
    itself. So does one that waits ten times as long; where not even that helps, the process is
    ended, and the rest is not judged. A wrong solution has less where the reference, judged before
    it, needs less.
    """
    wall_s = cpu_limit_s * WAITING * pace()
    cpu_limit_s, least_s = cpu_limit_s * cpu_pace(), LEAST_LIMIT_S * cpu_pace()
    limits = [f"--cpu-limit={cpu_limit_s:g}", f"--wrong-limit={least_s:g}", f"--timeout={wall_s:g}"]
    with tempfile.TemporaryDirectory(prefix="kata-check-") as folder:
        record = Path(folder) / "record.jsonl"
        command = pytest_command(
            katas,
            impls=impls,
            device="cpu",
            record=record,
            seed=seed,
            extra=["--tb=line", *limits, *extra],
        )
        follower = _Follower(record, wall_s + STARTUP_S, heard)
        memory_bytes = limits_of(katas[0], "cpu").memory_bytes
        with started(command, {}, cwd=katas[0].root, memory_bytes=memory_bytes) as child:
            while child.is_running() and not follower.overdue(child.elapsed_s):
                pass
        events = read_record(record)
    exit_code, output = child.exit_code, child.output
    checks = [event for event in events if event["event"] == "check"]
    if any(event["event"] == "end" for event in events) and exit_code in (0, 1):
        return Judged(checks=checks, stopped="")
    begun = [event for event in events if event["event"] == "starting"]
    at = (begun[-1]["kata"], begun[-1]["impl"], begun[-1]["name"]) if begun else ("", "", "")
    if exit_code is None:
        stopped = f"stopped after {wall_s + STARTUP_S:g} s without a word"
    else:
        stopped = f"ended with exit code {exit_code}: {last_words(output)}"
    return Judged(checks=checks, stopped=stopped + _place(begun), at=at)


def _place(begun: Sequence[Event]) -> str:
    """Where a session was, and on which draw."""
    if not begun:
        return ""
    drawn = f" on --seed {begun[-1]['seed']}" if "seed" in begun[-1] else ""
    return f" in {begun[-1]['name']}{drawn}"


class _Follower:
    """Reads a record as it is written, and knows how long nothing has been."""

    def __init__(self, record: Path, silence_s: float, heard: Heard) -> None:
        self.record = record
        self.limit = PacedLimit(silence_s)
        self.heard = heard
        self._at = 0
        self._since_s = 0.0

    def overdue(self, elapsed_s: float) -> bool:
        """Whether nothing has been written for too long; what has been is handed on."""
        size = self.record.stat().st_size if self.record.is_file() else 0
        if size > self._at:
            self._since_s = elapsed_s
            self._read()
        return self.limit.is_over(elapsed_s - self._since_s)

    def _read(self) -> None:
        with self.record.open("rb") as stream:
            stream.seek(self._at)
            lines = stream.read().split(b"\n")
        self._at += sum(len(line) + 1 for line in lines[:-1])  # the last has no end yet
        for event in events_of(lines[:-1]):
            self.heard(event)
