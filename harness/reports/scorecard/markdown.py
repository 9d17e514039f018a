"""The scorecard as Markdown, for a repository or a chat."""

import re
from collections.abc import Iterator

from harness.base.words import readable
from harness.learner.mastery import Level
from harness.reports.scorecard import Scorecard

BAR = 10
SPECIAL = re.compile(r"[\\`*<>\[\]|~]")  # an underscore inside a word is none


def as_markdown(card: Scorecard) -> str:
    """Totals, what is due, the parts, and the katas that were tried."""
    return "\n".join(_lines(card)) + "\n"


def _lines(card: Scorecard) -> Iterator[str]:
    yield "# GPU katas: scorecard"
    yield ""
    yield f"As of {card.at.date()}: {card.whole.owned} of {card.whole.size} items owned,"
    yield f"{card.whole.items[Level.MASTERED]} mastered; {card.kept} reviews kept in a row."
    if card.due:
        yield ""
        yield f"Due: {', '.join(card.due)}."
    yield ""
    yield "| part | owned | |"
    yield "|---|---:|---|"
    for part in card.parts:
        full = round(BAR * part.owned / part.size) if part.size else 0
        bar = "█" * full + "░" * (BAR - full)
        yield f"| {part.number}. {_text(part.title)} | {part.owned}/{part.size} | {bar} |"
    tried = [kata for kata in card.katas if kata.touched]
    if not tried:
        return
    yield ""
    yield "| kata | week | level | cost | speed on | runs | hints | solution seen | due |"
    yield "|---|---:|---|---|---|---:|---:|---:|---|"
    for kata in tried:
        cells = (
            kata.name,
            kata.week,
            kata.level,
            "met" if kata.counted else "",
            ", ".join(kata.timed_on),
            kata.runs,
            kata.hints,
            kata.peeks,
            kata.due.date() if kata.due else "",
        )
        yield f"| {' | '.join(_text(str(cell)) for cell in cells)} |"


def _text(words: str) -> str:
    """`words` as themselves in a cell: no mark of Markdown, no HTML, no second line."""
    return SPECIAL.sub(r"\\\g<0>", " ".join(readable(words).split()))
