"""The scorecard as Markdown, for a repository or a chat."""

import re
from collections.abc import Iterator

from harness.base.words import readable
from harness.learner.mastery import CLEAN_DAYS
from harness.reports.scorecard import Scorecard
from harness.reports.scorecard.terminal import totals

BAR = 10
HEADINGS = ("kata", "week", "level", "cold days", "due", "cost", "speed on", "runs", "hints",
            "solution seen")  # fmt: skip
SPECIAL = re.compile(r"[\\`*<>\[\]|~]")  # an underscore inside a word is none


def as_markdown(card: Scorecard) -> str:
    """Totals, what is due, the parts, and the katas that were tried."""
    return "\n".join(_lines(card)) + "\n"


def _lines(card: Scorecard) -> Iterator[str]:
    yield "# GPU katas: scorecard"
    yield ""
    yield f"As of {card.at.date()}:"
    yield from totals(card)
    if card.next:
        yield ""
        yield f"Next: {card.next.kata} ({card.next.reason})."
    if card.due:
        yield ""
        yield f"Due: {', '.join(card.due)}."
    yield ""
    yield "| part | owned | |"
    yield "|---|---:|---|"
    for part in card.parts:
        if not part.tried:
            continue
        full = round(BAR * part.owned / part.size) if part.size else 0
        bar = "█" * full + "░" * (BAR - full)
        yield f"| {part.number}. {_text(part.title)} | {part.owned}/{part.size} | {bar} |"
    tried = [kata for kata in card.katas if kata.touched]
    if not tried:
        return
    yield ""
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|---|---:|---|---|---|---|---|---:|---:|---:|"
    for kata in tried:
        cells = (
            kata.name,
            kata.week,
            f"{kata.level.glyph} {kata.level}",
            f"{min(kata.clean_days, CLEAN_DAYS)} of {CLEAN_DAYS}",
            kata.due.date() if kata.due else "",
            "met" if kata.counted else "",
            ", ".join(kata.timed_on),
            kata.runs,
            kata.hints,
            kata.peeks,
        )
        yield f"| {' | '.join(_text(str(cell)) for cell in cells)} |"


def _text(words: str) -> str:
    """`words` as themselves in a cell: no mark of Markdown, no HTML, no second line."""
    return SPECIAL.sub(r"\\\g<0>", " ".join(readable(words).split()))
