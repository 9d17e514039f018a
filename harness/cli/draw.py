"""How things look in a terminal. Rich is imported where something is drawn, not before."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from harness.base.words import readable
from harness.cli.screen import broken, folded, width
from harness.content.kata import Kata, SpeedThreshold
from harness.content.reached import Reached, beside

LONG_S, TOO_LONG_S = 5, 30  # of waiting: from then on told, and told how to end it
PLANNED = 376  # katas of the finished curriculum
PROJECTED_CORES = 2

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from harness.authoring.check import Report
    from harness.authoring.mutate import Survey
    from harness.content.catalog import Week
    from harness.learner.progress import Attempt
    from harness.learner.workspace import RestoreResult, StashEntry, SwapResult

MARKS = {"passed": "[green]✓[/]", "failed": "[red]✗[/]", "skipped": "[yellow]-[/]",
         "ambiguous": "[yellow]?[/]", "not_graded": "[yellow]?[/]"}  # fmt: skip
PAGE_WIDTH = 120  # of a brief, at most


def console() -> "Console":
    """Where everything is drawn; plain text when nobody is watching, and no code commands it."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        """Shows what could command a terminal as an escape, wherever the text came from."""

        def render_str(self, text: str, **style: Any) -> Text:  # noqa: ANN401 -- rich's own
            return super().render_str(readable(text), **style)

    return Plain(highlight=False, soft_wrap=width() is None)


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner while a child process works, with words that change; nothing in a file."""
    words = _Waiting(what, time.monotonic)
    with console().status(words):
        yield words.say


class _Waiting:
    """What is waited for and, once that takes a while, for how long and what ends it."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        self._what, self._clock, self._began = what, clock, clock()

    def say(self, what: str) -> None:
        """Wait for something else; the time goes on."""
        self._what = what

    def __rich__(self) -> "Text":
        from rich.text import Text

        waited = int(self._clock() - self._began)
        since = f" {waited} s" if waited >= LONG_S else ""
        end = "; Ctrl-C stops it" if waited >= TOO_LONG_S else ""
        return Text(f"{readable(self._what)} ...{since}{end}")


def brief(kata: Kata) -> None:
    """The kata's README, rendered."""
    console().print(
        f"[bold]{kata.name}[/]  week {kata.week} · {kata.backend} · "
        f"difficulty {kata.difficulty}/5 · {kata.minutes} min\n"
    )
    _page(kata.folder / "README.md")


def _page(readme: Path) -> None:
    """A page of markdown."""
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import CodeBlock, Markdown
    from rich.text import Text

    class Figure(CodeBlock):
        """Breaks a line that is too long where it has a gap, and says that it goes on."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            room = options.max_width - 2  # a blank on either side
            lines = (part for line in str(self.text).split("\n") for part in broken(line, room))
            self.text = Text("\n".join(lines))
            yield from super().__rich_console__(console, options)

    class Page(Markdown):
        elements: ClassVar = {**Markdown.elements, "fence": Figure, "code_block": Figure}

    page = Console(highlight=False)  # wraps, or lists and tables would lose what passes the edge
    page.width = min(width() or PAGE_WIDTH, PAGE_WIDTH)
    page.print(Page(readme.read_text(encoding="utf-8")))
    page.print()


def week(one: "Week", readme: Path) -> None:
    """What a week is for, and its page where it has one."""
    out = console()
    out.print(f"week {one.number}: {one.title}\n", style="bold", markup=False)
    out.print(f"{one.goal}\n", markup=False)
    if readme.is_file():
        _page(readme)


def reading(one: "Week") -> None:
    """What to read."""
    for source in one.reading:
        hours = f", {source.hours:g} h" if source.hours else ""
        click.echo(f"read:  {source.title}{hours}\n       {source.link}")


def corrections(one: "Week") -> None:
    """What is not so in the curriculum as it was handed down."""
    for correction in one.corrections:
        click.echo(f"correction: {correction.says}")
        click.echo(f"            {correction.truth} ({correction.source})")


def thresholds(kata: Kata, measured_on: str, reached: Reached) -> None:
    """
    What the kata asks for, counted and timed.

    Beside each limit stands what the reference and the naive version reach, the times of it on the
    profile `measured_on`.
    """
    for one in kata.cost:
        limit = (
            f"<= {one.bound:g} x the least possible" if one.bound is not None
            else f"<= {one.at_most:g}" if one.at_most is not None
            else f">= {one.at_least:g}" if one.at_least is not None
            else f"== {one.exactly:g}"
        )  # fmt: skip
        click.echo(folded(f"cost   {one.name}: {limit}{beside(reached.get(one.name, {}))}", 7))
    for timed in kata.speed:
        aside = beside(reached.get(timed.name, {}), timed=True)
        where = f" ({measured_on})" if aside else ""
        click.echo(folded(f"speed  {_speed_limit(timed)}{aside}{where}", 7))


def _speed_limit(one: SpeedThreshold) -> str:
    where = "on a GPU" if one.on == "cuda" else "anywhere"
    if one.kind == "roofline":
        special = "".join(f", {name} {value:g}" for name, value in one.profiles.items())
        return f"{one.name}: >= {one.fraction:g} of the speed of light, {where}{special}"
    return f"{one.name}: >= {one.ratio:g} times as fast as {one.against}, {where}"


def attempts(found: Sequence["Attempt"]) -> None:
    """The latest attempts, newest first."""
    for one in found:
        click.echo(
            f"{one.started_at[:16]}  {one.status:9} {one.impl:8} {one.device:4} "
            f"{one.duration_s:6.1f} s  {one.reason}"
        )


def swapped(kata: Kata, shown: str, result: "SwapResult") -> None:
    """What `kata swap` did."""
    if result.already and not result.kept:
        click.echo(folded(f"{shown} holds the reference solution already: nothing was changed."))
    elif result.already:
        click.echo(folded(f"{shown} holds the reference again, without edits. {kept(result)}"))
    else:
        click.echo(folded(f"{shown} now holds the reference solution. {kept(result)}".rstrip()))
    click.echo(f"kata restore {kata.name} brings your file back.")


def restored(kata: Kata, shown: str, result: "RestoreResult") -> None:
    """What `kata restore` did."""
    click.echo(folded(f"{shown} is back as it was before the swap. {kept(result)}".rstrip()))


def kept(result: object) -> str:
    """Where what was there is kept, if anything was."""
    copy = getattr(result, "kept", None)
    return f"What was there is kept as {copy[:12]} (kata stash list)." if copy else ""


def diff(lines: Sequence[str]) -> None:
    """A unified diff in colour, line for line: it can be kept as a patch."""
    from rich.text import Text

    out = console()
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for line in lines:
        out.print(Text(readable(line), style=colours.get(line[:1], "")), soft_wrap=True)
    if not lines:
        out.print("No difference.")


def versions(entries: Sequence["StashEntry"]) -> None:
    """The kept copies, oldest first."""
    if not entries:
        click.echo("Nothing has been kept yet.")
    for entry in entries:
        click.echo(
            f"{entry.sha256[:12]}  {entry.time[:16]}  {entry.kata:24} {entry.lines:4} lines  "
            f"{entry.why}"
        )


def reports(
    found: Iterable["Report"], *, width: int, seed: int, spent_s: Callable[[], float], verbose: bool
) -> bool:
    """
    The result of `kata check`: each kata as it comes, with every problem, then what it cost.

    Returns:
        Whether all of them are proven.
    """
    out = console()
    bad = count = 0
    for report in found:
        count, bad = count + 1, bad + bool(report.problems)
        _report(out, report, width, verbose=verbose)
    out.print(
        f"{count - bad} of {count} katas proven, {spent_s():.0f} s of CPU time "
        f"[dim]--seed {seed}[/]"
    )
    if count > 1:
        minutes = spent_s() / count * PLANNED / PROJECTED_CORES / 60
        out.print(
            f"at this rate {PLANNED} katas take {minutes:.0f} minutes on {PROJECTED_CORES} cores"
        )
    return not bad


def _report(out: "Console", report: "Report", width: int, *, verbose: bool) -> None:
    """One kata's line, and what is to be said of it."""
    dead = sum(bool(tests) for tests in report.killed_by.values())
    mark = MARKS["failed" if report.problems else "passed"]
    matrix = f"{dead}/{len(report.killed_by)} wrong solutions dead, "
    out.print(
        f"{mark} {report.kata.name:{width}}  {matrix if report.killed_by else ''}"
        f"{report.tests} tests, reference {report.solution_s:.1f} s, all {report.total_s:.1f} s"
    )
    for problem in report.problems:
        out.print(f"    {problem}", markup=False)
    for note in report.notes:
        out.print(f"    note: {note}", markup=False)
    if verbose:
        for label, tests in report.killed_by.items():
            out.print(f"    {label}: {', '.join(tests) or 'lives'}", markup=False)
    out.file.flush()


def report_row(found: "Report", seed: int) -> dict[str, Any]:
    """What `kata check` found about one kata, as plain data."""
    return {
        "kata": found.kata.name,
        "problems": found.problems,
        "notes": found.notes,
        "killed_by": found.killed_by,
        "tests": found.tests,
        "reference_s": found.solution_s,
        "total_s": found.total_s,
        "seed": seed,
    }


def survey_row(found: "Survey") -> dict[str, Any]:
    """What became of a kata's mutants, as plain data."""
    return {
        "kata": found.kata.name,
        "seed": found.seed,
        "killed": len(found.killed),
        "equivalent": len(found.equivalent),
        "survivors": [
            {"function": one.function, "line": one.number, "before": one.before, "after": one.after}
            for one in found.survivors
        ],
        "problems": found.problems,
    }


def survey(found: "Survey", reference: str, *, verbose: bool) -> None:
    """The result of `kata mutate`: one line a kata, then each survivor, as a difference."""
    out = console()
    killed, marked, living = len(found.killed), len(found.equivalent), len(found.survivors)
    mark = MARKS["failed" if found.survivors or found.problems else "passed"]
    out.print(
        f"{mark} {found.kata.name}  {killed + marked + living} mutants: {killed} dead, {marked} "
        f"equivalent, {living} alive  [dim]--seed {found.seed}[/]"
    )
    listed = [(one, "alive") for one in found.survivors]
    if verbose:
        listed += [(one, f"equivalent: {why}") for one, why in found.equivalent]
        listed += [(one, f"dead: {cause}") for one, cause in found.killed]
    for one, what in listed:
        out.print(f"{reference}:{one.number}, in {one.function}: {what}", markup=False)
        out.print(f"    - {one.before}\n    + {one.after}", markup=False, soft_wrap=True)
    for problem in found.problems:
        out.print(f"    {problem}", markup=False)
