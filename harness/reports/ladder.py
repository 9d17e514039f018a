"""
The ladder of a kata: naive, yours, the reference, other approaches and the library, side by side.

The library, or what else a threshold compares with, has a rung where it is timed: most on a GPU.
"""

import ast
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.base.errors import HarnessError
from harness.content.kata import Kata
from harness.content.submission import (
    ANOTHER_WAY,
    APPROACH,
    NAIVE,
    approaches,
    wrong_solutions,
)
from harness.reports.measured import rows
from harness.running.runner import pytest_command, read_record, run_group

LIMIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """
    One implementation, and what it came to at each threshold.

    `values` are in the unit of their meter: a share of the speed of light, a ratio, a count.
    """

    name: str
    values: dict[str, float] = field(default_factory=dict)
    passed: dict[str, bool] = field(default_factory=dict)


def climb(kata: Kata, device: str, cache: Path, *, yours: bool) -> list[Rung]:
    """
    Judge each implementation in one session on this machine.

    Those that nothing measured are out, but for the naive version, which is wrong as a rule.
    What thresholds compare with comes last, unless it is called like one of them. In a course that
    a teacher released there is neither a reference nor a naive version.

    Args:
        kata: What to judge; its naive version is the wrong solution of that name, if any.
        device: "cpu" or "cuda".
        cache: For wrong solutions that are written as edits of the reference.
        yours: Whether the learner's own file is worth judging.
    """
    naive = [one.label for one in wrong_solutions(kata, cache) if one.label == NAIVE]
    others = [one.label for one in approaches(kata, cache)] if kata.solution.is_file() else []
    own = ["yours"] if yours else []
    impls = [*naive, *own, *(["solution"] * kata.solution.is_file()), *others]
    found = _measured(kata, impls, device) if impls else {}
    every = [_rung(name, found[name]) for name in impls]
    rungs = [rung for rung in every if rung.values or rung.name == "naive"]
    there = [rung.name for rung in rungs]
    return [
        *rungs,
        *(one for one in baselines(kata, found.get("solution", [])) if one.name not in there),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approach:
    """
    Another way than the reference's.

    Attributes:
        name: Its rung's.
        why: What it says of itself.
        profile: The device that timed it last; "" for none.
        measured: What it reached there, by threshold.
        reference: What the reference reached there, as far as it was timed.
    """

    name: str
    why: str
    profile: str = ""
    measured: dict[str, float] = field(default_factory=dict)
    reference: dict[str, float] = field(default_factory=dict)


def approaches_of(kata: Kata, cache: Path, results: Sequence[dict[str, Any]]) -> list[Approach]:
    """
    The approaches beside the reference; none in a course that a teacher released.

    Args:
        kata: Whose.
        cache: For those that are written as edits of the reference.
        results: Of implementations on real devices, oldest first.
    """
    timed = [row for row in rows(results, {}) if row["kata"] == kata.id]
    found = []
    for one in approaches(kata, cache) if kata.solution.is_file() else ():
        profile = next((row["profile"] for row in timed[::-1] if row["impl"] == one.label), "")
        reached = {
            impl: {
                row["threshold"]: row["value"]
                for row in timed
                if (row["impl"], row["profile"]) == (impl, profile)
            }
            for impl in (one.label, "solution")
        }
        found.append(
            Approach(
                name=one.label.removeprefix(APPROACH),
                why=_said(one.path, ANOTHER_WAY),
                profile=profile,
                measured=reached[one.label],
                reference=reached["solution"],
            )
        )
    return found


def naive_words(kata: Kata, cache: Path) -> str:
    """What is naive about the naive version, as it says itself; "" where there is none."""
    found = [one.path for one in wrong_solutions(kata, cache) if one.label == NAIVE]
    if not found:
        return ""
    return _said(found[0], "Wrong on purpose:")


def _said(file: Path, opening: str) -> str:
    """What the module docstring of `file` says behind its opening."""
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(said.partition("\n\n")[0].removeprefix(opening).split())


def _measured(kata: Kata, impls: Sequence[str], device: str) -> dict[str, list[dict[str, Any]]]:
    """Judge `impls` in one session; what was measured of each."""
    with tempfile.TemporaryDirectory(prefix="kata-ladder-") as folder:
        record = Path(folder) / "record.jsonl"
        command = pytest_command([kata], impls=impls, device=device, record=record)
        exit_code, output = run_group(command, LIMIT_S, {}, cwd=kata.root)
        events = read_record(record)
    if not any(event["event"] == "end" for event in events):
        raise HarnessError(f"ladder: expected pytest to finish, found exit {exit_code}:\n{output}")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in impls}
    for event in events:
        if event["event"] == "check":
            found[event["impl"]] += event["measurements"]
    return found


def baselines(kata: Kata, measured: Iterable[Mapping[str, Any]]) -> list[Rung]:
    """
    What thresholds of `kata` compare with, as far as it stands in what was measured of another.

    Held against itself it is at 1. Where the same case has a threshold on the roofline as well, its
    share of the speed of light is told by its time: the other's median times their ratio.
    """
    known = {one["name"]: one for one in measured}
    timed = [one for one in kata.speed if one.name in known]
    values: dict[str, dict[str, float]] = {}
    for limit in timed:
        if limit.against is None:
            continue
        found = values.setdefault(limit.against, {})
        found[limit.name] = 1.0
        its_s = known[limit.name]["value"] * known[limit.name]["detail"]["median"]
        for one in timed:
            if one.kind == "roofline" and one.case == limit.case:
                ideal_s = known[one.name]["value"] * known[one.name]["detail"]["median"]
                found[one.name] = ideal_s / its_s
    return [
        Rung(
            name=name,
            values=found,
            passed={key: value >= known[key]["limit"] for key, value in found.items()},
        )
        for name, found in values.items()
    ]


def timed_elsewhere(kata: Kata, results: Sequence[dict[str, Any]]) -> str:
    """
    What a machine without a GPU cannot tell of the library, in a line; "" where that is nothing.

    Args:
        kata: Whose thresholds are meant.
        results: Of references on real devices, oldest first; the newest device is quoted.
    """
    names = [one.name for one in kata.speed if one.kind == "baseline" and one.on == "cuda"]
    found = [
        row
        for row in rows(results, {})
        if (row["kata"], row["impl"]) == (kata.id, "solution") and row["threshold"] in names
    ]
    if not found:
        return f"timed on a GPU only: {', '.join(names)}" if names else ""
    device = found[-1]["profile"]
    ratios = {row["threshold"]: row["value"] for row in found if row["profile"] == device}
    told = ", ".join(f"{name} {value:.2f}" for name, value in ratios.items())
    return f"timed on a GPU only; the reference on {device}, times as fast: {told}"


def _rung(name: str, found: Sequence[Mapping[str, Any]]) -> Rung:
    return Rung(
        name=name.removeprefix("wrong:").removeprefix(APPROACH),
        values={one["name"]: one["value"] for one in found},
        passed={one["name"]: one["outcome"] == "passed" for one in found},
    )
