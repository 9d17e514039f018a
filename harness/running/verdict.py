"""What a run came to: read from its record, its exit code and its output, and said in words."""

import json
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.base.words import readable
from harness.learner.progress import Check
from harness.running.causes import DEVICE_FAULT, NOT_MODELLED, stated_cause

# a skip that opens with one of these is a check that was judged, and came to no verdict
UNDECIDED = {"AMBIGUOUS": "ambiguous", "NOT GRADED": "not_graded"}

STILL_A_STUB = " is still a stub: edit "  # between a function and its file
INTERNAL = "INTERNALERROR>"  # how pytest's own trouble is printed

Event = dict[str, Any]


def read_record(path: Path) -> list[Event]:
    """
    The events of a session that recorded into a file.

    A last line cut short by a crash is dropped, and so is whatever else was written there.
    """
    return events_of(path.read_bytes().split(b"\n")[:-1]) if path.is_file() else []


def events_of(lines: Iterable[bytes]) -> list[Event]:
    """The events among these lines."""
    return [event for line in lines if (event := _event(line)) is not None]


def _event(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and "event" in event else None


def first(events: Sequence[Event], kind: str) -> Event:
    """The first event of a kind; empty when there is none."""
    return next((event for event in events if event["event"] == kind), {})


def checks_of(events: Sequence[Event]) -> tuple[Check, ...]:
    """What was judged, in order, fit for a terminal."""
    return tuple(_check(event) for event in events if event["event"] == "check")


def _check(event: Event) -> Check:
    outcome, message = event["outcome"], readable(event["message"])
    if outcome == "skipped":
        outcome = UNDECIDED.get(message.partition(":")[0], outcome)
    return Check(name=readable(event["name"]), outcome=outcome, message=message)


def is_stub(check: Check) -> bool:
    """Whether a check failed at a function that is not written yet."""
    return check.outcome == "failed" and STILL_A_STUB in check.message


def waiting(messages: Sequence[str]) -> str:
    """One line for all checks of a kata that met a function which is not written yet."""
    counts = Counter(message.partition(STILL_A_STUB)[0] for message in messages)
    many = len(messages) > 1
    head = f"{len(messages)} check{'s' if many else ''} wait{'' if many else 's'} for your code"
    edit = messages[0].partition(STILL_A_STUB)[2]
    if len(counts) == 1:
        return f"{head}: {messages[0]}"
    names = ", ".join(f"{name} ({count})" for name, count in counts.most_common())
    return f"{head}: {names} are still stubs: edit {edit}"


def verdict(
    events: Sequence[Event],
    checks: Sequence[Check],
    exit_code: int | None,
    output: str,
    *,
    phase: str,
    limit_s: float,
    costs: Iterable[str] = (),
    excused: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, str]:
    """
    The status of a run and the words for it.

    Args:
        events: Its record.
        checks: What was judged in it: `checks_of(events)`.
        exit_code: Of the child; None when it was stopped.
        output: The last part of what it printed.
        phase: "startup", "run" or "exit": what it had come to.
        limit_s: What that phase may take.
        costs: Names of what a pass must have measured.
        excused: Those that may be left unmeasured here, and why.
    """
    ended = bool(first(events, "end"))
    if ended and len(checks) == first(events, "session").get("tests"):
        unmeasured = _unmeasured(costs, events)
        missing = [name for name in unmeasured if name not in excused]
        status, reason = _judged(checks, output, missing)
        if status == "passed" and unmeasured:
            told = "; ".join(f"{name} ({excused[name]})" for name in unmeasured)
            reason += f", unmeasured: {told}"
        return status, reason + _afterwards(exit_code)
    if exit_code is None:
        return "timed_out", _overdue_words(events, phase, limit_s)
    if exit_code < 0:
        return "crashed", _signal_words(-exit_code, _where(events), output)
    if ended and not first(events, "starting"):
        return "error", f"no check ran: {last_words(output)}"
    if INTERNAL in output:
        return "error", f"the judge could not continue {_where(events)}: {last_words(output)}"
    left = f"ended with exit code {exit_code} {_where(events)}, before the tests had finished"
    # what kept it from beginning is said nowhere but in its output
    begun = first(events, "starting") or not output.strip()
    return "crashed", left if begun else f"{left}: {last_words(output)}"


def _afterwards(exit_code: int | None) -> str:
    """What is to be said of a process that was judged and then did not end as it should."""
    if exit_code is None:
        return "; a thread or process that it left running was stopped"
    return f"; it ended with {_signal_name(-exit_code)}" if exit_code < 0 else ""


def _unmeasured(costs: Iterable[str], events: Sequence[Event]) -> list[str]:
    found = {one["name"] for event in events for one in event.get("measurements", ())}
    return [name for name in costs if name not in found]


def _judged(
    checks: Sequence[Check], output: str, unmeasured: Sequence[str] = ()
) -> tuple[str, str]:
    """The verdict of a complete record."""
    failed = [check for check in checks if check.outcome == "failed"]
    passed = sum(check.outcome == "passed" for check in checks)
    for check in failed:
        if stated_cause(check.message) == DEVICE_FAULT:
            later = "the tests after it ran on a lost device"
            return "crashed", f"{check.message} (in {check.name}; {later})"
        if stated_cause(check.message) == NOT_MODELLED:
            return "error", f"{check.message} (in {check.name})"
    if failed and all(map(is_stub, failed)) and not passed:
        return "failed", "not written yet"
    if failed:
        causes = {stated_cause(check.message): None for check in failed}
        named = ", ".join(cause for cause in causes if cause)
        reason = f"{len(failed)} of {len(checks)} checks failed"
        return "failed", f"{reason}: {named}" if named else reason
    if not passed:
        return "error", f"no check ran: {last_words(output)}"
    if unmeasured:
        return (
            "failed",
            f"expected every [[cost]] to be measured, found no figure for {unmeasured[0]}",
        )
    return "passed", f"{passed} check{'s' if passed > 1 else ''} passed"


def _overdue_words(events: Sequence[Event], phase: str, limit_s: float) -> str:
    if phase != "startup":
        return f"stopped after {limit_s:.3g} s {_where(events)}"
    doing = f"start-up was stopped after {limit_s:.3g} s"
    if first(events, "starting"):
        return f"{doing} {_where(events)}, which includes importing the file"
    return f"{doing}, before any test was found"


def _signal_words(number: int, where: str, output: str) -> str:
    words = f"ended by {_signal_name(number)} {where}"
    if number == signal.SIGKILL:
        return f"{words}, not sent by the judge: usually the machine is out of memory"
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


def last_words(output: str) -> str:
    """The line that a process ended on, pytest's own trouble before all others."""
    lines = [line for line in output.splitlines() if line.strip()] or ["no output"]
    internal = [line for line in lines if line.startswith(INTERNAL)]
    return (internal or lines)[-1].removeprefix(INTERNAL).strip()
