"""The scorecard in a terminal."""

from rich.console import Console
from rich.table import Table

from harness.scorecard import Scorecard

BAR = 10  # characters of a full bar


def print_scorecard(card: Scorecard) -> None:
    """One line a week that has katas, then the katas that were tried."""
    table = Table(box=None, pad_edge=False)
    for heading in ("week", "", "katas", "correct", "fast", "concepts touched", ""):
        table.add_column(heading, justify="right" if heading in ("week", "katas") else "left")
    for week in card.weeks:
        if not week.katas:
            continue
        table.add_row(
            str(week.number),
            week.title,
            str(week.katas),
            str(week.correct),
            str(week.fast),
            _bar(week.concepts_touched, week.concepts),
            f"{week.concepts_touched}/{week.concepts}",
        )
    out = Console(highlight=False)
    out.print(table)
    tried = [kata for kata in card.katas if kata.attempts]
    for kata in tried:
        out.print(f"  {kata.name}: {kata.status}, {kata.attempts} attempt(s)")
    concepts = sum(week.concepts for week in card.weeks)
    touched = sum(week.concepts_touched for week in card.weeks)
    empty = sum(not week.katas for week in card.weeks)
    out.print(f"{touched} of {concepts} concepts touched; {empty} weeks have no katas yet.")


def _bar(part: int, whole: int) -> str:
    full = round(BAR * part / whole) if whole else 0
    return "█" * full + "░" * (BAR - full)
