"""The ladder of a kata: naive, yours, the reference and the library, side by side."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.judge.submission import wrong_solutions
from harness.kata import Kata
from harness.runner import pytest_command, read_record, run_group

LIMIT_S = 300.0
NAIVE = "wrong:naive"


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
    Judge each implementation in one session on this machine; those that nothing measured are out.

    Args:
        kata: What to judge; its naive version is the wrong solution of that name, if any.
        device: "cpu" or "cuda".
        cache: For wrong solutions that are written as edits of the reference.
        yours: Whether the learner's own file is worth judging.
    """
    naive = [one.label for one in wrong_solutions(kata, cache) if one.label == NAIVE]
    impls = [*naive, *(["yours"] if yours else []), "solution"]
    with tempfile.TemporaryDirectory(prefix="kata-ladder-") as folder:
        record = Path(folder) / "record.jsonl"
        command = pytest_command([kata.folder], impls=impls, device=device, record=record)
        exit_code, output = run_group(command, LIMIT_S, {}, cwd=kata.root)
        events = read_record(record)
    if not any(event["event"] == "end" for event in events):
        raise HarnessError(f"ladder: expected pytest to finish, found exit {exit_code}:\n{output}")
    checks = [event for event in events if event["event"] == "check"]
    return [rung for rung in (_rung(name, checks) for name in impls) if rung.values]


def _rung(name: str, checks: Sequence[dict[str, Any]]) -> Rung:
    found = [one for event in checks if event["impl"] == name for one in event["measurements"]]
    return Rung(
        name=name.removeprefix("wrong:"),
        values={one["name"]: one["value"] for one in found},
        passed={one["name"]: one["outcome"] == "passed" for one in found},
    )
