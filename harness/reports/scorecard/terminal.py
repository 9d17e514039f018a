"""The scorecard in a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.base.words import readable
from harness.learner.mastery import Level
from harness.reports.scorecard import Group, KataLine, Scorecard

BAR = 20  # characters of a full bar
COLOURS = {
    Level.MASTERED: "cyan",
    Level.FAST: "green",
    Level.CORRECT: "yellow",
    Level.ATTEMPTED: "magenta",
    Level.UNTRIED: "dim",
}


def print_scorecard(card: Scorecard) -> None:
    """One line a week that has katas, one a kata that was tried, then the sums and what is due."""
    table = Table(box=None, pad_edge=False)
    for heading in ("week", "", "katas", "concepts", "owned"):
        table.add_column(heading, justify="right" if heading in ("week", "katas") else "left")
    for week in card.weeks:
        if katas := sum(week.katas.values()):
            table.add_row(
                str(week.number),
                escape(week.title),
                str(katas),
                _bar(week),
                f"{week.owned}/{week.size}",
            )
    out = Console(highlight=False)
    out.print(table)
    out.print("  ".join(f"[{colour}]█[/] {level}" for level, colour in COLOURS.items()))
    if touched := [kata for kata in card.katas if kata.touched]:
        out.print(_kata_table(touched))
    hints, peeks = sum(kata.hints for kata in touched), sum(kata.peeks for kata in touched)
    out.print(f"Hints shown: {hints}. Rounds with the solution seen: {peeks}.")
    solved = sum(kata.level >= Level.FAST for kata in card.katas)
    levels, size = card.whole.items, card.whole.size
    out.print(f"{solved} of {len(card.katas)} katas solved, {card.kept} reviews kept in a row.")
    out.print(
        f"Of {size} concepts, hands-on and milestones {levels[Level.MASTERED]} mastered and "
        f"{levels[Level.FAST]} fast (each needs all of its katas), {size - card.whole.covered} "
        "without a kata yet."
    )
    if card.due:
        out.print(f"due: {', '.join(card.due)}")
    out.print(f"next: kata {f'start {card.due[0]}' if card.due else 'next'}")


def _kata_table(katas: Sequence[KataLine]) -> Table:
    """Narrow enough for 80 columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("kata", "level", "cost", "speed on"):
        table.add_column(heading, overflow="fold")
    for heading in ("runs", "rounds", "hints", "seen"):
        table.add_column(heading, justify="right")
    table.add_column("due")
    for one in katas:
        table.add_row(
            one.name,
            str(one.level),
            "met" if one.counted else "",
            escape(readable(", ".join(one.timed_on))),
            *map(str, (one.runs, one.rounds, one.hints, one.peeks)),
            str(one.due.date()) if one.due else "",
        )
    return table


def _bar(week: Group) -> str:
    """A bar of the week's items by level, the furthest first."""
    shown, text, seen = 0, "", 0
    for level, colour in COLOURS.items():
        seen += week.items[level]
        width = round(BAR * seen / week.size) - shown
        text += f"[{colour}]{('█' if level else '░') * width}[/]"
        shown += width
    return text
