"""The scorecard in a terminal."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.base.words import readable
from harness.learner.levels import Level
from harness.learner.mastery import CLEAN_DAYS
from harness.learner.memory import RETENTION
from harness.reports.scorecard import Group, KataLine, Scorecard

COLOURS = {
    Level.MASTERED: "cyan",
    Level.FAST: "blue",
    Level.SOLVED: "green",
    Level.CORRECT: "yellow",
    Level.ATTEMPTED: "magenta",
    Level.UNTRIED: "dim",
}


def print_scorecard(card: Scorecard) -> None:
    """One line a week that was begun, one a kata that was tried, then totals and what is next."""
    out = Console(highlight=False)
    if any(week.tried for week in card.weeks):
        out.print(_week_table(card.weeks))
    if untried := untried_weeks(card.weeks):
        out.print(untried)
    out.print("  ".join(f"[{colour}]{level.glyph}[/] {level}" for level, colour in COLOURS.items()))
    if touched := [kata for kata in card.katas if kata.touched]:
        out.print(_kata_table(touched))
    for line in totals(card):
        out.print(line)
    if card.due:
        out.print(f"due: {', '.join(card.due)}")
    if card.next is None:
        out.print("next: nothing; you have solved all there is, and nothing is due")
    else:
        out.print(f"next: {card.next.command}  [dim]({escape(card.next.reason)})[/]")


def totals(card: Scorecard) -> Iterator[str]:
    """The sums in sentences: katas, then what they cover and what no kata covers yet."""
    levels, count = card.whole.katas, len(card.katas)
    solved = sum(number for level, number in levels.items() if level.owned)
    mastered = levels[Level.MASTERED]
    yield (
        f"{mastered} of {count} katas mastered, {solved - mastered} more solved, "
        f"{levels[Level.UNTRIED]} untried; {card.kept} reviews in a row kept."
    )
    whole = card.whole
    yield (
        f"Concepts, hands-on exercises and milestones: {whole.owned} of the {whole.covered} that "
        f"have katas are owned (all katas of each), {whole.size - whole.covered} have none yet."
    )
    concepts = [item for item in card.items if item.kind == "concepts"]
    if met := [item.recall for item in concepts if item.recall is not None]:
        yield (
            f"Concepts met: {len(met)} of {len(concepts)}; their recall is {fmean(met):.0%} on "
            f"average, and {RETENTION:.0%} or more for {sum(one >= RETENTION for one in met)}."
        )
    hints, peeks = sum(one.hints for one in card.katas), sum(one.peeks for one in card.katas)
    if hints or peeks:
        yield f"Hints shown: {hints}. Rounds with the solution seen: {peeks}."


def untried_weeks(weeks: Sequence[Group]) -> str:
    """The weeks with katas of which none was run, in a line; nothing where there are none."""
    left = [week for week in weeks if sum(week.katas.values()) and not week.tried]
    if not left:
        return ""
    runs: list[list[int]] = []
    for number in (week.number for week in left):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    named = ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    katas = sum(sum(week.katas.values()) for week in left)
    return f"untried: week{'s' if len(left) > 1 else ''} {named} ({katas} katas)"


def _week_table(weeks: Sequence[Group]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("week", "", "solved", "concepts", "owned"):
        right = heading in ("week", "solved", "owned")
        table.add_column(heading, justify="right" if right else "left")
    for week in weeks:
        if week.tried:
            table.add_row(
                str(week.number),
                escape(week.title),
                f"{sum(count for level, count in week.katas.items() if level.owned)}"
                f"/{sum(week.katas.values())}",
                _bar(week),
                f"{week.owned}/{week.size}",
            )
    return table


def _kata_table(katas: Sequence[KataLine]) -> Table:
    """Narrow enough for 80 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("kata", "level", "cold", "due", "cost", "speed on"):
        table.add_column(heading, overflow="fold")
    for heading in ("runs", "hints", "seen"):
        table.add_column(heading, justify="right")
    for one in katas:
        table.add_row(
            one.name,
            f"{one.level.glyph} {one.level}",
            f"{min(one.clean_days, CLEAN_DAYS)}/{CLEAN_DAYS}",
            str(one.due.date()) if one.due else "",
            "met" if one.counted else "",
            escape(readable(", ".join(one.timed_on))),
            *map(str, (one.runs, one.hints, one.peeks)),
        )
    return table


def _bar(week: Group) -> str:
    """A glyph for each of the week's items, the furthest first."""
    return "".join(
        f"[{colour}]{level.glyph * week.items[level]}[/]" for level, colour in COLOURS.items()
    )
