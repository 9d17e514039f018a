"""Judging a file of practice by the kata's own tests: until one fails, or on one case."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.base.errors import UsageProblem, nearest
from harness.base.files import make_folder, write_atomically
from harness.content.functions import RESERVED
from harness.content.kata import Case, Kata
from harness.content.submission import resolve
from harness.learner.progress import Check
from harness.practice.bugs import Bug
from harness.running.limits import Limits
from harness.running.runner import Outcome, run_kata

QUICK_S = 20.0  # that the tests may take to find a fault
COMPARED = "test_matches_reference"  # the shared check of one case


def dies_of(kata: Kata, bug: Bug, cache: Path, seed: int) -> Check | None:
    """
    The first test that fails on a fault on the CPU, if one does within `QUICK_S` seconds.

    None as well where a mutant's failure names the line at fault: there is nothing to hunt.
    """
    limits = Limits(run_s=QUICK_S, test_s=QUICK_S)
    outcome = judged_text(kata, bug.text, cache, seed=seed, tests=bug.tests, limits=limits)
    found = first_failure(outcome)
    if found and not bug.tests and any(f"(line {n}, " in found.message for n in bug.lines):
        return None
    return found


def not_the_references(kata: Kata, bug: Bug, test: str, cache: Path, seed: int) -> str:
    """Why the reference does not pass `test` here, as it should; nothing where it does."""
    limits = Limits(run_s=QUICK_S, test_s=QUICK_S)
    outcome = judged_text(kata, bug.reference, cache, seed=seed, only=(test,), limits=limits)
    if failed := first_failure(outcome):
        return failed.message
    ran = any(check.outcome == "passed" for check in outcome.checks)
    return "" if ran else outcome.reason


def judged_text(
    kata: Kata,
    text: str,
    cache: Path,
    *,
    seed: int | None = None,
    tests: Sequence[str] = (),
    only: Sequence[str] = (),
    limits: Limits | None = None,
) -> Outcome:
    """Judge a text on the CPU until a test fails; `tests` are run first, or `only` some."""
    path = make_folder(cache / "practice" / kata.id) / f"{kata.name}.py"
    write_atomically(path, text.encode())
    with tempfile.NamedTemporaryFile("w", prefix="kata-order-", encoding="utf-8") as order:
        order.write("\n".join(tests))
        order.flush()
        return run_kata(
            resolve(kata, str(path), cache),
            device="cpu",
            seed=seed,
            limits=limits,
            extra=["-x", f"--fail-fast={order.name}", *(f"--only={name}" for name in only)],
        )


def first_failure(outcome: Outcome) -> Check | None:
    """The first check of a run that failed."""
    return next((check for check in outcome.checks if check.outcome == "failed"), None)


def asked_case(kata: Kata, text: str) -> Case:
    """
    A case from words as in ``rows=1 dtype=float32``; what they leave out is the first case's.

    Raises:
        UsageProblem: the kata has no cases, or no such argument, or a word is no assignment.
    """
    cases = [case for case in kata.cases if case.get("only", "cpu") == "cpu"]
    if not cases:
        raise UsageProblem(
            f"--case: expected a kata with [[cases]], found none in {kata.name}: its tests make "
            "their own inputs."
        )
    given = {}
    known = sorted({name for case in cases for name in case if name not in RESERVED})
    for word in text.replace(",", " ").split():
        name, equals, value = word.partition("=")
        if not equals or name not in known:
            raise UsageProblem(
                f"--case: expected words such as {known[0]}=1, found {word!r}."
                f"{nearest(name, known)} Known: {', '.join(known)}"
            )
        given[name] = _value(value)
    # the case that has most of what is asked for
    base = max(cases, key=lambda case: len(given.keys() & case.keys()))
    return {**base, **given}


def on_case(kata: Kata, file: Path, case: Case, cache: Path, seed: int) -> Outcome:
    """Judge `file` on one case alone, on the CPU, against the oracle."""
    return run_kata(
        resolve(kata, str(file), cache),
        device="cpu",
        seed=seed,
        limits=Limits(run_s=QUICK_S, test_s=QUICK_S),
        extra=[f"--case={json.dumps(case)}", f"--only={COMPARED}"],
    )


def case_words(case: Mapping[str, object]) -> str:
    """A case as it is typed."""
    plain = {name: str(one).lower() if isinstance(one, bool) else one for name, one in case.items()}
    return " ".join(f"{name}={value}" for name, value in plain.items() if name != "only")


def _value(text: str) -> object:
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return text
