"""The question that a solved kata leaves: asked after the pass, answered in ``kata explain``."""

import sys
from typing import TYPE_CHECKING, Any

import click

from harness.cli.screen import folded
from harness.content.kata import Kata

if TYPE_CHECKING:
    from harness.cli.house import House
    from harness.learner.mastery import Standing

ANSWERED = "why_answered"  # the kind of note that keeps the learner's own sentence


def raised(kata: Kata, after: "Standing") -> None:
    """The question, where the round that a run has just ended went without help."""
    if kata.why is None or not after.rounds or not after.rounds[-1].clean:
        return
    click.echo(folded(f"why: {kata.why.question}"))
    click.echo(f"     say it in a sentence, then: kata explain {kata.name}")


def asked(house: "House", kata: Kata, said: str | None) -> str:
    """
    The learner's sentence, now kept: what was `said`, else what is typed; "" for none.

    Only a terminal is asked, and only while nothing has been said yet.
    """
    if kata.why is None:
        return ""
    before = earlier(house, kata)
    if said is None and not before and sys.stdin.isatty():
        click.echo(folded(f"why: {kata.why.question}"))
        said = click.prompt("in a sentence (Enter: none)", default="", show_default=False)
    said = (said or "").strip()
    if said:
        house.progress.note(ANSWERED, kata.name, said)
    return said or before


def earlier(house: "House", kata: Kata) -> str:
    """What the learner said last; "" for nothing."""
    notes = [one.detail for one in house.progress.notes(kata.name) if one.kind == ANSWERED]
    return notes[-1] if notes else ""


def answered(kata: Kata, said: str) -> None:
    """The question, the learner's sentence and the answer."""
    if kata.why is None:
        return
    click.echo(folded(f"\nwhy: {kata.why.question}"))
    if said:
        click.echo(folded(f"you: {said}"))
    click.echo(folded(" ".join(kata.why.answer.split())))


def as_row(kata: Kata, said: str) -> dict[str, Any] | None:
    """The same as plain data; None where nothing is asked."""
    if kata.why is None:
        return None
    return {"question": kata.why.question, "answer": kata.why.answer.strip(), "yours": said or None}
