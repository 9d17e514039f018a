"""
Try a kata's tests on mechanical mutants of its reference: those that live show what is not tested.

A mutant is dead once a test fails on it, or does not end; it lives when all of them pass. Some
cannot die, for they do what the reference does. ``equivalent.toml`` beside the wrong solutions
says which, and why.
"""

import json
import tempfile
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.authoring.limits import LEAST_LIMIT_S, TIMES_SLOWEST
from harness.authoring.mutants import Key, Mutant, mutants_of
from harness.authoring.session import Judged, judge
from harness.base.errors import HarnessError
from harness.base.files import write_atomically
from harness.base.schema import Problems, Table, read_toml
from harness.content.kata import Kata
from harness.content.pristine import pristine_stub
from harness.running.limits import TEST_LIMIT_S

BATCH = 40  # mutants judged by one process: one import of torch for all of them
NO_SPEED = ("-k", "not test_speed")
UNWRITTEN = "TODO(author): why no test can tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """
    What became of a kata's mutants.

    Attributes:
        kata: Whose reference was changed.
        seed: What all inputs were drawn from.
        killed: Dead mutants, and what they died of.
        equivalent: Those that live and are marked, with the reason.
        survivors: Those that live for no known reason.
        problems: Marks that say nothing true, as sentences.
    """

    kata: Kata
    seed: int
    killed: list[tuple[Mutant, str]]
    equivalent: list[tuple[Mutant, str]]
    survivors: list[Mutant]
    problems: list[str]


def kata_mutants(kata: Kata) -> list[Mutant]:
    """Every mutant of the kata's reference, in what its stub leaves to the learner."""
    stub = (pristine_stub(kata) or b"").decode()
    return mutants_of(kata.solution.read_text(encoding="utf-8"), stub)


def mutate(
    kata: Kata,
    *,
    jobs: int,
    seed: int,
    lines: Collection[int] = (),
    told: Callable[[int], None] = lambda _: None,
) -> Survey:
    """
    Judge every mutant of `kata` until a test kills it.

    Args:
        kata: Whose tests are tried.
        jobs: Processes at a time.
        seed: What all inputs are drawn from.
        lines: Only the mutants of these lines of the reference; of all when there are none.
        told: Called with how many mutants were judged, each time that some were.

    Raises:
        HarnessError: nothing to change on `lines`, the reference itself fails, or a session could
            not be held.
    """
    marks = equivalents(kata)
    mutants = kata_mutants(kata)
    problems = stale_marks(kata, mutants)
    if lines:
        offered = sorted({one.number for one in mutants})
        mutants = [one for one in mutants if one.number in lines]
        if not mutants:
            raise HarnessError(
                f"mutate: expected lines of {kata.solution} that can be changed, found {[*lines]}. "
                f"Lines that can: {', '.join(map(str, offered))}"
            )
    order, slowest_s = _reference(kata, seed)
    with tempfile.TemporaryDirectory(prefix="kata-mutants-") as folder:
        files = _written(kata, mutants, Path(folder))
        cheapest_first = Path(folder) / "order"
        cheapest_first.write_text("\n".join(order), encoding="utf-8")
        run = partial(
            judge,
            [kata],
            cpu_limit_s=LEAST_LIMIT_S + TIMES_SLOWEST * slowest_s,
            seed=seed,
            extra=[f"--fail-fast={cheapest_first}", *NO_SPEED],
        )
        size = max(1, min(BATCH, -(-len(files) // (2 * jobs))))
        batches = [files[at : at + size] for at in range(0, len(files), size)]
        died: dict[str, str] = {}
        with ThreadPoolExecutor(jobs) as pool:
            for batch, deaths in zip(
                batches, pool.map(partial(_deaths, run), batches), strict=True
            ):
                died |= deaths
                told(len(batch))
    return _survey(kata, seed, marks, list(zip(mutants, files, strict=True)), died, problems)


def _reference(kata: Kata, seed: int) -> tuple[list[str], float]:
    """The tests that the reference passes, the cheapest first; CPU seconds of the slowest."""
    judged = judge([kata], impls=["solution"], cpu_limit_s=TEST_LIMIT_S, seed=seed, extra=NO_SPEED)
    failed = [
        f"{one['name']}: {one['message']}" for one in judged.checks if one["outcome"] == "failed"
    ]
    if judged.stopped or failed:
        raise HarnessError(
            f"mutate: expected a reference that passes, found {judged.stopped or failed[0]}. "
            f"Mend that first: kata check {kata.name}"
        )
    passed = [one for one in judged.checks if one["outcome"] == "passed"]
    order = sorted(passed, key=lambda one: float(one["cpu_s"]))
    return [one["name"] for one in order], max((one["cpu_s"] for one in passed), default=0.0)


def _written(kata: Kata, mutants: Sequence[Mutant], folder: Path) -> list[str]:
    """A file for each mutant, under the name that the kata's own file has."""
    paths = [folder / f"{number}" / kata.file.name for number in range(len(mutants))]
    for path, mutant in zip(paths, mutants, strict=True):
        path.parent.mkdir()
        path.write_text(mutant.source, encoding="utf-8")
    return [str(path) for path in paths]


def _deaths(run: Callable[..., Judged], files: Sequence[str]) -> dict[str, str]:
    """
    What each dead mutant of a batch died of.

    The reference comes last. When it fails, a mutant has broken more than itself, and the halves
    are judged again, each by a process of its own.
    """
    judged = run(impls=[*files, "solution"])
    died = {
        one["impl"]: f"{one['name']}: {one['message']}"
        for one in reversed(judged.checks)
        if one["outcome"] == "failed"
    }
    _, culprit, _ = judged.at
    if culprit in files:
        rest = files[files.index(culprit) + 1 :]
        died[culprit] = judged.stopped
        return died | (_deaths(run, rest) if rest else {})
    if judged.stopped and culprit != "solution":
        raise HarnessError(
            f"mutate: expected pytest to judge mutants, found that it {judged.stopped}"
        )
    if (judged.stopped or "solution" in died) and len(files) > 1:
        half = len(files) // 2
        return _deaths(run, files[:half]) | _deaths(run, files[half:])
    return died


def _survey(
    kata: Kata,
    seed: int,
    marks: dict[Key, str],
    written: Sequence[tuple[Mutant, str]],
    died: dict[str, str],
    problems: list[str],
) -> Survey:
    living = [mutant for mutant, file in written if file not in died]
    killed = [(mutant, died[file]) for mutant, file in written if file in died]
    return Survey(
        kata=kata,
        seed=seed,
        killed=killed,
        equivalent=[(one, marks[one.key]) for one in living if one.key in marks],
        survivors=[one for one in living if one.key not in marks],
        problems=problems
        + [
            f"equivalent.toml: expected a mutant that lives, found {mutant.after!r} in "
            f"{mutant.function}, killed by {cause}. Take the mark away."
            for mutant, cause in killed
            if mutant.key in marks
        ],
    )


# ---- equivalent.toml -----------------------------------------------------------------------


def equivalents(kata: Kata) -> dict[Key, str]:
    """
    The mutants that ``equivalent.toml`` says no test can kill, and why.

    Raises:
        MetadataError: keys that are missing or unknown.
    """
    path = _marks(kata)
    if not path.is_file():
        return {}
    marks = {}
    data: dict[str, Any] = read_toml(path)
    with Problems(path) as problems:
        table = Table(data, problems, "")
        for row in table.tables("equivalent"):
            function, before, after = (
                row.take(name, str) for name in ("function", "before", "after")
            )
            marks[function, before, after, row.take("nth", int, 1)] = row.take("why", str)
            row.done()
        table.done()
    return marks


def mark_problems(kata: Kata) -> list[str]:
    """What is wrong with ``equivalent.toml``, as far as that is seen without running anything."""
    if not _marks(kata).is_file():
        return []
    try:
        return stale_marks(kata, kata_mutants(kata))
    except HarnessError as error:
        return [error.message]


def stale_marks(kata: Kata, mutants: Sequence[Mutant]) -> list[str]:
    """Marks of changes that the reference, as it stands now, does not offer."""
    known = {one.key for one in mutants}
    return [
        f"equivalent.toml: expected a line of the reference, found {before!r} in {function} "
        f"(changed to {after!r}). Take the mark away, or renew it: kata mutate {kata.name} --mark"
        for function, before, after, nth in equivalents(kata)
        if (function, before, after, nth) not in known
    ]


def mark(kata: Kata, survivors: Sequence[Mutant]) -> Path:
    """Add `survivors` to ``equivalent.toml``; why they are equivalent is the author's to write."""
    path = _marks(kata)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    for one in survivors:
        rows = {"function": one.function, "before": one.before, "after": one.after}
        lines = [f"{name:<8} = {_toml(value)}" for name, value in rows.items()]
        lines += [f"nth      = {one.nth}"] if one.nth > 1 else []
        text += "\n".join(["", "[[equivalent]]", *lines, f"why      = {_toml(UNWRITTEN)}", ""])
    write_atomically(path, text.lstrip("\n").encode())
    return path


def _toml(text: str) -> str:
    """A TOML string: literal where that can be read, for most of these have quotes in them."""
    return (
        json.dumps(text, ensure_ascii=False)
        if "'" in text or not text.isprintable()
        else f"'{text}'"
    )


def _marks(kata: Kata) -> Path:
    return kata.wrong / "equivalent.toml"
