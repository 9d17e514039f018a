"""Prove katas: the contract holds, the reference passes, each wrong solution dies."""

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harness.authoring.contract import contract_problems
from harness.authoring.matrix import SHARED, WRONG, cheapest_kills, function_name, remember
from harness.base.errors import HarnessError
from harness.content.kata import Kata
from harness.running.runner import pytest_command, read_record, run_group

Event = dict[str, Any]
SLOW_S = 5.0  # the longest the reference may compute on its own tests; CPU time, not the wall's
TEST_LIMIT_S = 30  # one test on one implementation, while the matrix runs
DRAWN_CASES = 2  # besides those that a kata lists
EVERY_CASE = 1_000_000  # more than there are
MATCHES = "test_matches_reference"
BATCH = 8  # katas judged by one process: one import of torch for all of them


@dataclass(kw_only=True)
class Report:
    """What was found about one kata; without problems it is proven."""

    kata: Kata
    problems: list[str] = field(default_factory=list)
    killed_by: dict[str, list[str]] = field(default_factory=dict)
    tests: int = 0
    solution_s: float = 0.0
    total_s: float = 0.0


def check_katas(
    katas: Sequence[Kata],
    cache: Path,
    *,
    jobs: int,
    whole: bool = False,
) -> list[Report]:
    """
    Check the contract of each kata, then run their kill matrices.

    Args:
        katas: What to prove.
        cache: For wrong solutions made from edits, and for compiled kernels.
        jobs: Processes at a time.
        whole: Run every test on every wrong solution, and remember the cheapest kills; run the
            reference on every case that may be drawn.
    """
    reports = {
        kata.id: Report(kata=kata, problems=contract_problems(kata, cache)) for kata in katas
    }
    sound = [kata for kata in katas if not reports[kata.id].problems]
    if sound:
        events = _run_matrices(sound, jobs, whole)
        for kata in sound:
            judge_matrix(reports[kata.id], events[kata.id])
            if whole and kata.vary:
                reports[kata.id].problems += _vary_problems(kata)
            if whole and not reports[kata.id].problems:
                remember(kata, cheapest_kills(_failures(events[kata.id])))
    return list(reports.values())


def _run_matrices(katas: Sequence[Kata], jobs: int, whole: bool) -> dict[str, list[Event]]:
    """The check events of each kata; clocks are read after everything else, alone."""
    size = min(BATCH, -(-len(katas) // jobs))
    batches = [katas[at : at + size] for at in range(0, len(katas), size)]
    matrix = f"--matrix={'whole' if whole else 'lean'}"
    # drawn cases would be remembered by names that never come again
    drawn = [] if whole else [f"--vary={DRAWN_CASES}"]
    judge = partial(
        _session,
        impls=["stub", "solution", "wrong"],
        extra=[matrix, "-k", "not test_speed", *drawn],
    )
    events: dict[str, list[Event]] = defaultdict(list)
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(judge, batches):
            for event in found:
                events[event["kata"]].append(event)
    for kata in katas:
        if any(one.on == "any" for one in kata.speed):
            impls = ["solution", *_alive(events[kata.id])]
            events[kata.id] += _session([kata], impls=impls, extra=["-k", "test_speed"])
    return events


def _vary_problems(kata: Kata) -> list[str]:
    """Cases that a learner may be given one day, and that the reference is not right on."""
    events = _session([kata], impls=["solution"], extra=[f"--vary={EVERY_CASE}", "-k", MATCHES])
    return [
        f"[vary]: expected cases that the reference is right on, found {event['name']}: "
        f"{event['message']}"
        for event in events
        if event["outcome"] == "failed"
    ]


def _alive(events: Sequence[Event]) -> list[str]:
    """Wrong solutions that no test has failed on."""
    labels = dict.fromkeys(event["impl"] for event in events if event["impl"].startswith(WRONG))
    dead = {event["impl"] for event in events if event["outcome"] == "failed"}
    return [label for label in labels if label not in dead]


def _failures(events: Sequence[Event]) -> list[tuple[str, str, float]]:
    """Who failed what, and how long it took."""
    return [
        (event["impl"].removeprefix(WRONG), event["name"], event["duration_s"])
        for event in events
        if event["impl"].startswith(WRONG) and event["outcome"] == "failed"
    ]


def _session(katas: Sequence[Kata], *, impls: Iterable[str], extra: Iterable[str]) -> list[Event]:
    with tempfile.TemporaryDirectory(prefix="kata-check-") as folder:
        record = Path(folder) / "record.jsonl"
        command = pytest_command(
            katas,
            impls=impls,
            device="cpu",
            record=record,
            extra=["--tb=line", f"--timeout={TEST_LIMIT_S}", *extra],
        )
        limit_s = 120 + 120 * len(katas)
        exit_code, output = run_group(command, limit_s, {}, cwd=katas[0].root)
        events = read_record(record)
    if not any(event["event"] == "end" for event in events) or exit_code not in (0, 1):
        raise HarnessError(f"check: expected pytest to finish, found exit {exit_code}:\n{output}")
    return [event for event in events if event["event"] == "check"]


def judge_matrix(report: Report, events: Sequence[Event]) -> None:
    """Read one kata's kill matrix and note what it fails to prove."""
    by_impl: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_impl[event["impl"]].append(event)
    report.total_s = sum(event["cpu_s"] for event in events)
    report.solution_s = sum(event["cpu_s"] for event in by_impl["solution"])
    report.tests = len({event["name"] for event in events})
    report.problems += _stub_problems(by_impl["stub"])
    report.problems += _solution_problems(report.kata, by_impl["solution"])
    kills: dict[str, list[str]] = {
        label: [event["name"] for event in found if event["outcome"] == "failed"]
        for label, found in by_impl.items()
        if label.startswith(WRONG)
    }
    report.killed_by = kills
    report.problems += [
        f"{label} lives: no test fails on it" for label in kills if not kills[label]
    ]
    report.problems += _idle_tests(by_impl, kills)
    if report.solution_s > SLOW_S:
        report.problems.append(f"slow: the reference takes {report.solution_s:.1f} s of tests")


def _stub_problems(events: Sequence[Event]) -> list[str]:
    passed = [event["name"] for event in events if event["outcome"] == "passed"]
    unclear = [
        event["name"]
        for event in events
        if event["outcome"] == "failed" and "is still a stub: edit" not in event["message"]
    ]
    problems = [f"stub passes {name}: the test asserts nothing" for name in passed]
    return problems + [f"stub fails {name} without the one clear line" for name in unclear]


def _solution_problems(kata: Kata, events: Sequence[Event]) -> list[str]:
    problems = [
        f"solution fails {event['name']}: {event['message']}"
        for event in events
        if event["outcome"] == "failed"
    ]
    if not any(event["outcome"] == "passed" for event in events):
        problems.append("solution: no test was run on it")
    judged = {found["name"] for event in events for found in event["measurements"]}
    unmeasured = [one.name for one in kata.cost if one.name not in judged]
    return problems + [f"cost {name}: no test measures it" for name in unmeasured]


def _idle_tests(by_impl: dict[str, list[Event]], kills: dict[str, list[str]]) -> list[str]:
    """A kata's own tests that ran and killed nothing."""
    killers = {function_name(name) for names in kills.values() for name in names}
    ran = {
        function_name(event["name"])
        for event in by_impl["solution"]
        if event["outcome"] == "passed"
    }
    idle = sorted(ran - killers - SHARED)
    return [f"{name} kills no wrong solution" for name in idle]
