"""
What questions are made of, asked of the kata itself in processes of their own, and kept.

The reference's answers to the calls of its tests, the oracle's `cost` of a case, and whether a test
fails on a wrong solution.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness.authoring.matrix import SHARED, function_name
from harness.authoring.session import judge
from harness.base.errors import HarnessError
from harness.base.files import make_folder, sha256, write_atomically
from harness.base.processes import run_group
from harness.content.kata import Kata
from harness.content.submission import Submission, resolve, wrong_solutions
from harness.hardware.roofline import Cost
from harness.running.runner import pytest_command

LIMIT_S = 120.0
TEST_S = 10.0  # of the CPU for one test of a wrong solution, which may be endless
OBSERVER = Path(__file__).with_name("observe.py")  # what was kept is of this version
WORKSHEET = Path(__file__).parents[1] / "judge" / "worksheet.py"
TARGET = "sm_90"  # for which kernels are compiled whose lines are counted
SEED = 0  # of the tests that are watched: the same calls on every machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """
    A call that a test made of the reference, and what came of it.

    Attributes:
        function: Its name.
        call: As it would be typed; arrays as ``<float16 [7, 1000]>``.
        names: The function's parameters.
        numbers: Those among the arguments, by name (``cfg.layers`` of a dataclass).
        given: Each array among the arguments: its `dtype` and `shape`.
        result: What it returned, as text; "" where it raised.
        value: That as plain data; None where it is none.
        arrays: Those that were returned, as `given`.
        raised: The name of the exception, "" without one; `message` is its text.
    """

    function: str
    call: str
    names: tuple[str, ...]
    numbers: Mapping[str, float]
    given: tuple[Mapping[str, Any], ...]
    result: str = ""
    value: Any = None
    arrays: tuple[Mapping[str, Any], ...] = ()
    raised: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """
    The least work of a case.

    Attributes:
        cost: By the oracle.
        given: The function's arguments in words, by name.
        terms: "flops", "bytes", "special" to the oracle's expression, with names and with numbers.
    """

    cost: Cost
    given: Mapping[str, str]
    terms: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the reference's kernels, by number and text, and what it cost, by name."""

    line: int
    text: str
    counts: Mapping[str, int]


class Facts(Protocol):
    """Whoever can say what a kata's code does."""

    def calls(self, kata: Kata) -> Sequence[Call]:
        """What the reference answered in its tests."""

    def works(self, kata: Kata, cases: Sequence[Mapping[str, Any]]) -> Sequence[Work | None]:
        """The least work of each case; None where the oracle cannot make its inputs."""

    def lines(self, kata: Kata) -> Sequence[Line]:
        """What the lines of the reference's kernels cost on its first case."""

    def failing(self, kata: Kata, wrong: str, tests: Iterable[str] = ()) -> list[str]:
        """Of `tests`, or of all of the kata's own, those that fail on a wrong solution."""


@dataclass
class AskedFacts:
    """
    Facts from child processes; what was asked once is read from `folder` as long as it holds.

    Attributes:
        folder: Where answers are kept.
        cache: Where wrong solutions that are edits of the reference are written.
    """

    folder: Path
    cache: Path
    known: dict[str, Any] = field(default_factory=dict)

    def calls(self, kata: Kata) -> Sequence[Call]:
        """As `Facts` has it; nothing where there is no reference, or nothing can be told."""
        if not kata.solution.is_file() or not kata.tests.is_file():
            return ()
        files = [kata.solution, kata.tests, kata.oracle, kata.folder / "kata.toml", OBSERVER]
        rows = self._kept("calls", kata, files, "", lambda: _observed(kata))
        return [Call(**{**row, "names": tuple(row["names"])}) for row in rows]

    def works(self, kata: Kata, cases: Sequence[Mapping[str, Any]]) -> Sequence[Work | None]:
        """As `Facts` has it."""
        plain = [dict(case) for case in cases]
        files = [kata.oracle, kata.folder / "kata.toml", WORKSHEET]
        rows = self._kept("works", kata, files, json.dumps(plain), lambda: _costs(kata, plain))
        return [
            row
            and Work(
                cost=Cost(**row["cost"]),
                given=row["given"],
                terms={name: tuple(found) for name, found in row["terms"].items()},
            )
            for row in rows
        ]

    def lines(self, kata: Kata) -> Sequence[Line]:
        """As `Facts` has it; none of a kata without kernels, or whose case launches none."""
        if not kata.solution.is_file() or not kata.cases or kata.cases[0].get("only"):
            return ()
        files = [kata.solution, kata.oracle, kata.folder / "kata.toml"]
        rows = self._kept("lines", kata, files, TARGET, lambda: _lines(kata, self.cache))
        return [Line(**row) for row in rows]

    def failing(self, kata: Kata, wrong: str, tests: Iterable[str] = ()) -> list[str]:
        """As `Facts` has it, in the order of the file."""
        found = next(
            one for one in wrong_solutions(kata, self.cache) if one.label == f"wrong:{wrong}"
        )
        names = list(tests)
        files = [found.path, kata.tests, kata.oracle, kata.folder / "kata.toml"]
        asked = f"{wrong} {' '.join(names)}"
        return list(self._kept("fails", kata, files, asked, lambda: _failing(found, names)))

    def _kept(self, what: str, kata: Kata, files: Sequence[Path], asked: str, ask: Any) -> Any:  # noqa: ANN401 -- JSON
        """An answer that was kept for these files and this question, or that is asked for now."""
        stamp = hashlib.sha256(asked.encode())
        for path in files:
            stamp.update(sha256(path).encode())
        key = f"{kata.name}-{what}-{stamp.hexdigest()[:16]}"
        if key in self.known:
            return self.known[key]
        path = self.folder / f"{key}.json"
        if path.is_file():
            self.known[key] = json.loads(path.read_text(encoding="utf-8"))
        else:
            self.known[key] = found = ask()
            if any(found):  # nothing at all may be for want of time
                make_folder(self.folder)
                write_atomically(path, json.dumps(found).encode())
        return self.known[key]


def _observed(kata: Kata) -> list[dict[str, Any]]:
    """Run the kata's tests on its reference, and read what they called."""
    with tempfile.TemporaryDirectory(prefix="kata-quiz-") as folder:
        path = Path(folder) / "observed.jsonl"
        command = pytest_command(
            [kata],
            impls=["solution"],
            device="cpu",
            record=Path(folder) / "record.jsonl",
            seed=SEED,
            profile=kata.profile,
            extra=["-p", "harness.practice.observe", f"--observed={path}"],
        )
        run_group(command, LIMIT_S, {}, cwd=Path(folder))
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def _costs(kata: Kata, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
    """The oracle's cost of each case, with its terms."""
    command = [sys.executable, "-m", "harness.judge.worksheet", str(kata.folder)]
    command += ["--explained", json.dumps(cases)]
    exit_code, output = run_group(command, LIMIT_S, {}, cwd=kata.root)
    if exit_code != 0:
        return [None] * len(cases)
    found: list[dict[str, Any] | None] = json.loads(output.strip().splitlines()[-1])
    return found


def _lines(kata: Kata, cache: Path) -> list[dict[str, Any]]:
    """Run the reference's kernels on the first case, line by line."""
    from harness.reports.listing import LISTED, listed

    if kata.backend not in LISTED:
        return []
    try:
        rows = listed(resolve(kata, "solution", cache), 1, TARGET).rows
    except HarnessError:  # what the simulator does not know, or that launches nothing here
        return []
    names = {
        "bytes": "bytes_moved",
        "sectors": "sectors",
        "wavefronts": "wavefronts",
        "conflicts": "conflicts",
    }
    return [
        {
            "line": row.line,
            "text": row.text.partition("  #")[0].strip(),
            "counts": {name: getattr(row, counter) for name, counter in names.items()},
        }
        for row in rows
        if row.text.strip()
    ]


def _failing(wrong: Submission, tests: Sequence[str]) -> list[str]:
    """Names, without their parameters, of the kata's own tests that fail on `wrong`."""
    judged = judge(
        [wrong.kata],
        impls=[wrong.label],
        cpu_limit_s=TEST_S,
        seed=SEED,
        extra=[f"--only={test}" for test in tests],
    )
    failed = [event for event in judged.checks if event["outcome"] == "failed"]
    names = [function_name(event["name"]) for event in failed]
    return [name for name in dict.fromkeys(names) if name not in SHARED]
