"""
A hunt: the reference with a fault in it, to be found, explained and mended.

The file lies in ``hunt/`` of the course's folder, so the learner's own is never touched, and goes
when the hunt is over, so that no reference is left lying about for the next round; a copy is kept.
What the fault is stands in ``hunts/`` of the learner's home until then.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from difflib import SequenceMatcher, unified_diff
from itertools import islice
from pathlib import Path
from random import Random

from harness.base.errors import HarnessError
from harness.base.files import (
    explained,
    make_folder,
    read_file,
    read_json,
    utc_text,
    write_atomically,
)
from harness.content.kata import Kata
from harness.hardware.packages import missing_for
from harness.learner.workspace import Workspace
from harness.practice.bugs import Bug, drawn_bugs
from harness.practice.judging import QUICK_S, dies_of, not_the_references

TRIES = 8  # faults that are looked at before there is said to be none
FREE_GUESSES = 3  # wrong lines that a hunt may have and still count as passed
MENDED, GIVEN_UP = "mended", "given up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunt:
    """
    One hunt, and how far it is.

    Attributes:
        kata: Whose reference it is.
        bug: Its key among the kata's faults.
        why: What is wrong, in words.
        text: The file as it was handed out.
        lines: The numbers of its lines that are at fault, from 1.
        mend: How the reference differs from it, as lines of a diff.
        seed: What the tests draw their inputs from: on these inputs they find the fault.
        test: The first test that failed on it.
        began_at: When, in UTC (ISO 8601).
        guesses: Lines that were named, in order; numbers of `text`.
        located: Whether one of them was right.
        sentence: What the learner says is wrong.
        runs: How often it was judged.
        smallest: The last case of the learner's own that still failed, as text.
        ended: "", ``mended`` or ``given up``.
    """

    kata: str
    bug: str
    why: str
    text: str
    lines: tuple[int, ...]
    mend: tuple[str, ...]
    seed: int
    test: str
    began_at: str
    guesses: tuple[int, ...] = ()
    located: bool = False
    sentence: str = ""
    runs: int = 0
    smallest: str = ""
    ended: str = ""

    @property
    def misses(self) -> int:
        """How many lines were named that are right as they are."""
        return len(set(self.guesses) - set(self.lines))

    @property
    def passed(self) -> bool:
        """Whether it counts as a review that went well."""
        return self.ended == MENDED and self.misses <= FREE_GUESSES

    def minutes(self, now: datetime) -> float:
        """Minutes since it began."""
        return (now - datetime.fromisoformat(self.began_at)).total_seconds() / 60

    def named(self, number: int, current: str) -> "Hunt":
        """
        The hunt with a guess more: line `number` of the file as it is now.

        Lines that the learner has added stand for where they were put in.
        """
        here = sorted(_handed_out(self.text, current, number))
        hit = set(here) & set(self.lines)
        guess = min(hit) if hit else here[0]
        return replace(
            self, guesses=(*self.guesses, guess), located=self.located or guess in self.lines
        )

    def note(self, now: datetime) -> str:
        """What is kept of it for good: the detail of a note ``short_review``."""
        return json.dumps(
            {
                "form": "hunt",
                "passed": self.passed,
                "bug": self.bug,
                "minutes": round(self.minutes(now), 1),
                "misses": self.misses,
                "runs": self.runs,
                "sentence": self.sentence,
            }
        )


class Hunts:
    """
    The hunts of one learner.

    Args:
        root: The course's folder: the hunted file is ``hunt/NAME.py`` in it.
        home: Where it is kept what the fault is.
        workspace: Where copies of hunted files are kept.
    """

    def __init__(self, root: Path, home: Path, workspace: Workspace) -> None:
        self.root, self.home, self.workspace = root, home, workspace

    def file(self, kata: Kata) -> Path:
        """Where the hunted file lies."""
        return self.root / "hunt" / f"{kata.name}.py"

    def last(self, kata: Kata) -> Hunt | None:
        """
        The hunt that is open, or the last one that ended.

        Raises:
            HarnessError: the record is damaged.
        """
        path = self._record(kata)
        if not path.exists():
            return None
        mend = f"Remove it, and begin anew: kata hunt {kata.name}"
        hunt: Hunt = read_json(path, Hunt, "the record of a hunt", mend)
        return hunt

    def begin(self, kata: Kata, *, seed: int, now: datetime, replayed: bool = False) -> Hunt:
        """
        Hand out a fault that the tests find here and quickly.

        It is not that of the hunt before, unless one with this seed is `replayed`.

        Raises:
            UsageProblem: the course has no reference.
            HarnessError: a package that the kata needs is missing, no such fault was found, or the
                reference fails here as well.
        """
        if missing := missing_for(kata):
            raise HarnessError(missing)
        before = None if replayed else self.last(kata)
        last = before.bug if before else ""
        drawn = drawn_bugs(kata, Random(f"{kata.name} {seed}"), not_this=last)
        for bug in islice(drawn, TRIES):
            if found := dies_of(kata, bug, self.home / "cache", seed):
                break
        else:
            raise HarnessError(
                f"hunt: expected a fault in {kata.name} that its tests find within {QUICK_S:g} s "
                f"here, found none in {TRIES} tries. Try another --seed."
            )
        if why := not_the_references(kata, bug, found.name, self.home / "cache", seed):
            raise HarnessError(
                f"hunt: expected the reference of {kata.name} to pass {found.name} here, found "
                f"that it fails as well: {why}\nSee what is amiss here: kata doctor, then "
                f"kata run {kata.name} --impl solution --seed {seed}"
            )
        hunt = Hunt(
            kata=kata.name,
            bug=bug.key,
            why=bug.why,
            text=bug.text,
            lines=tuple(bug.lines),
            mend=tuple(_mend(bug)),
            seed=seed,
            test=found.name,
            began_at=utc_text(now),
        )
        self._keep(kata)
        make_folder(self.file(kata).parent)
        self.save(kata, hunt)
        write_atomically(self.file(kata), hunt.text.encode())
        return hunt

    def save(self, kata: Kata, hunt: Hunt) -> None:
        """Remember how far a hunt is; the file of one that has ended goes, and a copy is kept."""
        make_folder(self._record(kata).parent)
        write_atomically(self._record(kata), json.dumps(asdict(hunt)).encode())
        if hunt.ended:
            self._keep(kata)
            with explained(self.file(kata), "a file that can be removed"):
                self.file(kata).unlink(missing_ok=True)
            with suppress(OSError):  # another hunt is under way
                self.file(kata).parent.rmdir()

    def current(self, kata: Kata, hunt: Hunt) -> str:
        """The hunted file as it is now; put there again where it is gone."""
        if not self.file(kata).is_file():
            make_folder(self.file(kata).parent)
            write_atomically(self.file(kata), hunt.text.encode())
        return read_file(self.file(kata)).decode(errors="replace")

    def _keep(self, kata: Kata) -> None:
        if self.file(kata).is_file():
            self.workspace.keep(kata.name, self.file(kata), "hunt")

    def _record(self, kata: Kata) -> Path:
        return self.home / "hunts" / f"{kata.name}.json"


def _mend(bug: Bug) -> list[str]:
    """What the reference has in place of the fault, as lines of a diff."""
    sides = (bug.text.splitlines(), bug.reference.splitlines())
    found = unified_diff(*sides, "hunted", "reference", lineterm="", n=1)
    return [line for line in found if not line.startswith(("---", "+++"))]


def _handed_out(before: str, now: str, number: int) -> set[int]:
    """The lines of the file as it was handed out that line `number` of it is or has replaced."""
    one, other = before.splitlines(), now.splitlines()
    steps = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    for kind, a, b, c, d in steps:
        if c < number <= d:
            return {a + number - c} if kind == "equal" else set(range(a + 1, max(b, a + 1) + 1))
    return {number}
