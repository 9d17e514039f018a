"""What every command works on: the curriculum, the learner's files, the learner's history."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import DiskFull, HarnessError, MetadataError, UsageProblem
from harness.base.shelf import Shelf
from harness.content.catalog import Curriculum, Week, load_curriculum
from harness.content.course import is_package
from harness.content.kata import Kata

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from harness.content.reached import Reached
    from harness.content.submission import Submission
    from harness.hardware.profiles import Profile
    from harness.learner.advice import Advice
    from harness.learner.mastery import Standing
    from harness.learner.predict import Sheet
    from harness.learner.progress import Progress
    from harness.learner.schedule import Budget
    from harness.learner.workspace import Workspace


ROMAN = ("I", "II", "III", "IV", "V", "VI")


@dataclass
class House:
    """The project at `root`; each part is opened when first asked for."""

    root: Path
    unkept: set[str] = field(default_factory=set)

    @contextmanager
    def even_without_room(self) -> Iterator[None]:
        """Go on after the block where a full disk ends it; why nothing is kept is said once."""
        try:
            yield
        except DiskFull as error:
            self.say_unkept(error.message)

    def say_unkept(self, problem: str) -> None:
        """Say once why nothing is kept; "" where everything is."""
        if problem and problem not in self.unkept:
            click.echo(f"Not kept: {problem}", err=True)
        self.unkept.add(problem)

    @cached_property
    def curriculum(self) -> Curriculum:
        """
        Parts, weeks and katas.

        Raises:
            UsageProblem: there is no folder to work in, only the installed package.
        """
        self._assert_own()
        return load_curriculum(self.root, Shelf(self.home / "cache" / "toml.json"))

    @cached_property
    def home(self) -> Path:
        """Where progress, kept copies and caches live; UsageProblem as of `curriculum`."""
        self._assert_own()
        from harness.hardware.environment import home_folder

        return home_folder(self.root)

    def _assert_own(self) -> None:
        if is_package(self.root):
            raise UsageProblem(
                f"{Path.cwd()}: expected a folder made by `kata init`, or one inside it, found "
                "none. Make one: kata init DIR, then cd DIR"
            )

    @cached_property
    def progress(self) -> "Progress":
        """Every attempt so far."""
        from harness.learner.progress import Progress

        return Progress(self.home)

    @cached_property
    def workspace(self) -> "Workspace":
        """The learner's files and their kept copies."""
        from harness.learner.workspace import Workspace

        return Workspace(self.home)

    def now(self) -> datetime:
        """The time, or KATA_NOW (ISO 8601 with a zone): for tests, and to look ahead."""
        asked = os.environ.get("KATA_NOW")
        if asked is None:
            return datetime.now(UTC)
        try:
            moment = datetime.fromisoformat(asked)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise UsageProblem(
                f"KATA_NOW: expected a time as in 2026-01-31T12:00+00:00, found {asked!r}. "
                "Unset it."
            )
        return moment.astimezone(UTC)

    def standings(self) -> "dict[str, Standing]":
        """Where the learner stands with every kata, now."""
        return self._standings(self.curriculum.katas)

    def standing(self, kata: Kata) -> "Standing":
        """
        Where the learner stands with one kata, now: what builds on it counts for it.

        While some other kata cannot be read, nothing of the others is seen.
        """
        try:
            katas: Mapping[str, Kata] = self.curriculum.katas
        except MetadataError:
            katas = {kata.name: kata}
        return self._standings(katas)[kata.name]

    def _standings(self, katas: Mapping[str, Kata]) -> "dict[str, Standing]":
        from harness.learner.advice import budget_of
        from harness.learner.mastery import standings, timed_on

        notes = self.progress.notes()
        return standings(
            katas,
            self.progress.outlines(),
            notes,
            timed_on(self.progress.best()),
            self.now(),
            budget_of(notes).retention,
        )

    def budget(self) -> "Budget":
        """The hours of a week and the retention that the learner has asked for."""
        from harness.learner.advice import budget_of

        return budget_of(self.progress.notes())

    def blank_stub(self, kata: Kata, command: str) -> bytes:
        """
        The stub of `kata` as the project ships it, for `command` to put in place.

        Raises:
            HarnessError: git does not have it.
        """
        from harness.content.pristine import committed_stub

        stub = committed_stub(kata)
        if stub is None:
            raise HarnessError(
                f"{command}: expected the stub of {kata.name} in git's HEAD, found none. "
                "Clone the project afresh, or `kata stash list` for an earlier copy."
            )
        return stub

    def submission(self, kata: Kata, impl: str) -> "Submission":
        """The one implementation that ``--impl`` names; a swapped file is the reference's."""
        from harness.content.submission import resolve

        found = resolve(kata, impl, self.home / "cache")
        if impl != "yours":
            return found
        if self.workspace.is_swapped(kata.name, kata.file):
            return replace(found, kind="solution")
        return replace(found, half=self.workspace.half_of(kata.name))

    def placed_out(self) -> set[str]:
        """Katas of weeks that the learner has tested out of."""
        from harness.learner.advice import placed_out

        return placed_out(self.progress.notes())

    def edited_today(self) -> set[str]:
        """Katas whose file was written to on this day, of UTC as all days here."""
        today = self.now().date()
        return {
            name
            for name, kata in self.curriculum.katas.items()
            if kata.file.is_file()
            and datetime.fromtimestamp(kata.file.stat().st_mtime, UTC).date() == today
        }

    def advice(self) -> "list[Advice]":
        """What to take up, best first: for `next`, the scorecard and whatever names one kata."""
        from harness.learner.advice import advise

        return advise(
            self.curriculum,
            self.standings(),
            self.now(),
            placed=self.placed_out(),
            edited=self.edited_today(),
            budget=self.budget(),
        )

    def brief_shown(self, kata: Kata) -> bool:
        """Whether the brief was shown since the kata was last started."""
        notes = [one.kind for one in self.progress.notes(kata.name)]
        return "brief_shown" in notes[_last_index(notes, "started") :]

    def note_brief(self, kata: Kata) -> None:
        """Remember that the brief was shown, once a round."""
        with self.even_without_room():
            if not self.brief_shown(kata):
                self.progress.note("brief_shown", kata.name)

    def prediction_profile(self, asked: str | None) -> "Profile":
        """The profile asked for, else this machine's GPU, else an H100: the one to think of."""
        from harness.hardware.environment import device_present, session_profile

        if asked is None and not device_present():
            asked = "h100_sxm"
        return session_profile(self.root, asked, "cuda", None)

    def measured_share(self, kata: Kata, sheet: "Sheet") -> float | None:
        """The learner's best share of the speed of light on a profile, if it was ever timed."""
        found = (
            one.value
            for one in self.progress.best()
            if (one.kata, one.profile, one.name) == (kata.name, sheet.profile.id, sheet.name)
        )
        return max(found, default=None)

    def reached(self, kata: Kata, profile: str | None = None) -> "tuple[str, Reached]":
        """
        What the reference and the naive version of `kata` come to, by threshold.

        What was timed is that on `profile`, or where none is given, on the profile named.
        """
        from harness.content.reached import reached

        counted = reached(kata)
        if not kata.speed:
            return "", counted
        from harness.reports.measured import kept_results, reached_on

        where, timed = reached_on(kept_results(self.root), kata, profile)
        return where, {**counted, **timed}

    def shown(self, path: Path) -> str:
        """`path` as a learner would type it: relative to the root where it lies inside."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def _last_index(kinds: Sequence[str], wanted: str) -> int:
    """Where `wanted` stands last; 0 where it does not."""
    return max((at for at, kind in enumerate(kinds) if kind == wanted), default=0)


class KataName(click.ParamType):  # type: ignore[type-arg]
    """A kata's name: completed in the shell, misspellings answered with the nearest names."""

    name = "kata"

    def convert(
        self, value: str | Kata, param: click.Parameter | None, ctx: click.Context | None
    ) -> Kata:
        """Find the kata."""
        if isinstance(value, Kata):
            return value
        assert ctx is not None
        if week := re.fullmatch(r"week0*(\d+)", value):
            raise UsageProblem(
                f"kata: expected the name of a kata, found a week, {value!r}. "
                f"To see it: kata show {value}; to judge it: kata run --week {week[1]}"
            )
        house: House = ctx.obj
        return house.curriculum.kata(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list["CompletionItem"]:
        """Names that start with what was typed."""
        from click.shell_completion import CompletionItem

        house = ctx.find_object(House) or House(Path.cwd())
        names = [folder.name for folder in house.curriculum.folders()]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class KataOrWeek(click.ParamType):  # type: ignore[type-arg]
    """A kata's name, or a week as in week09."""

    name = "kata"

    def convert(
        self, value: str | Kata | Week, param: click.Parameter | None, ctx: click.Context | None
    ) -> Kata | Week:
        """Find the week where it is one, else the kata."""
        if isinstance(value, Week):
            return value
        if isinstance(value, str) and (number := re.fullmatch(r"week(\d+)", value)):
            assert ctx is not None
            house: House = ctx.obj
            return house.curriculum.week(int(number[1]))
        return KATA.convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list["CompletionItem"]:
        """Weeks and katas that start with what was typed."""
        from click.shell_completion import CompletionItem

        house = ctx.find_object(House) or House(Path.cwd())
        weeks = sorted(path.parent.name for path in (house.root / "katas").glob("week*/week.toml"))
        found = [CompletionItem(name) for name in weeks if name.startswith(incomplete)]
        return found + KATA.shell_complete(ctx, param, incomplete)


class WeekNumbers(click.ParamType):  # type: ignore[type-arg]
    """A week as in 3, or several as in 1..4; those that the curriculum has."""

    name = "week"

    def convert(
        self,
        value: str | tuple[int, ...],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[int, ...]:
        """From the first week to the last."""
        if isinstance(value, tuple):
            return value
        assert ctx is not None
        known = ctx.obj.curriculum.weeks
        first, _, last = value.partition("..")
        try:
            weeks = tuple(range(int(first), int(last or first) + 1))
        except ValueError:
            weeks = ()
        if not weeks or any(week not in known for week in weeks):
            raise UsageProblem(
                f"--week: expected {min(known)} to {max(known)}, or several as in 1..4, "
                f"found {value!r}."
            )
        return weeks


class PartWeeks(click.ParamType):  # type: ignore[type-arg]
    """A part of the curriculum, as in 2 or II: its weeks."""

    name = "part"

    def convert(
        self,
        value: str | range,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> range:
        """The numbers of its weeks."""
        if isinstance(value, range):
            return value
        assert ctx is not None
        parts: dict[str, range] = {str(one.id): one.weeks for one in ctx.obj.curriculum.parts}
        number = str(ROMAN.index(value.upper()) + 1) if value.upper() in ROMAN else value
        if number not in parts:
            raise UsageProblem(f"--part: expected 1 to {len(parts)}, or as in II, found {value}.")
        return parts[number]


KATA = KataName()
KATA_OR_WEEK = KataOrWeek()
WEEKS = WeekNumbers()
PART = PartWeeks()
