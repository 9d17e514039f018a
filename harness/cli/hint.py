"""`kata hint`: one after the other; the last are lines of the reference, to be put in order."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from harness.base.errors import UsageProblem
from harness.cli import draw, screen, teach
from harness.cli.house import KATA, House
from harness.cli.screen import json_option
from harness.content.kata import Kata

if TYPE_CHECKING:
    from harness.learner.progress import Note
    from harness.practice.lines import Puzzle

SLIPS = 1  # wrong orders that a review may have and still be passed
REVIEW = "short_review"  # kind of the note that keeps one


@click.command()
@click.argument("kata", type=KATA)
@click.option("--lines", is_flag=True, help="The lines to put in order, as a review.")
@click.option("--order", metavar="NUMBERS", help='Your order of the lines, as in "3 1 7".')
@json_option
@click.pass_obj
def hint(house: House, kata: Kata, lines: bool, order: str | None, as_json: bool) -> None:
    """
    The next hint; the last one is lines to put in order.

    Hints are remembered with your attempts. After the three written ones come lines of the
    reference, shuffled, wrong ones beside some of them. Of a kata that you have solved, --lines
    shows them at once: a review. With --order the exit code is 1 where the order is wrong.
    """
    if order is not None:
        puzzle = _puzzle(kata, _times_shown(house, kata)) if _since_shown(house, kata) else None
        if puzzle is None:
            raise UsageProblem(
                f"--order: expected the lines of {kata.name} to be shown first. After the written "
                f"hints: kata hint {kata.name}; as a review: kata hint {kata.name} --lines"
            )
        right = _answer(house, kata, puzzle, puzzle.ordered(order), as_json=as_json)
        sys.exit(0 if right else 1)
    elif lines:
        solved, seen = _is_solved(house, kata), house.progress.hints_seen(kata.name)
        if not solved and seen < len(kata.hints):
            raise UsageProblem(
                f"--lines: expected {kata.name} to be solved, or its {len(kata.hints)} hints to be "
                f"shown, found {seen} of them. The next one: kata hint {kata.name}"
            )
        if not _show_lines(house, kata, as_json=as_json, ask=True):
            raise UsageProblem(
                f"--lines: expected a reference with lines to shuffle in {kata.name}."
            )
    else:
        show_hint(house, kata, as_json=as_json)


def show_hint(house: House, kata: Kata, *, as_json: bool = False, ask: bool = True) -> None:
    """Show the next hint; `ask` for the order of the lines where somebody can type it."""
    seen, of = house.progress.hints_seen(kata.name), len(kata.hints)
    if seen >= of and _show_lines(house, kata, as_json=as_json, ask=ask):
        return
    shown = min(seen, of - 1)
    if seen < of:
        house.progress.note("hint_shown", kata.name, str(seen + 1))
    if as_json:
        words = {"number": shown + 1, "of": of, "hint": kata.hints[shown]}
        screen.as_json({"kata": kata.name, **words})
        return
    click.echo(screen.folded(f"Hint {shown + 1} of {of}: {kata.hints[shown]}"))
    if seen >= of:
        click.echo(f"That was the last one. The reference: kata explain {kata.name} --anyway")


def _is_solved(house: House, kata: Kata) -> bool:
    """Whether it was solved and no round of it is under way: then lines are a review."""
    standing = house.standing(kata)
    return standing.level.owned and standing.open is None


def _show_lines(house: House, kata: Kata, *, as_json: bool, ask: bool) -> bool:
    """Show the lines, drawn anew once the last ones were put in order; whether there are any."""
    since = _since_shown(house, kata)
    fresh = not since or any(one.kind == "lines_ordered" and one.detail == "right" for one in since)
    number = _times_shown(house, kata) + (1 if fresh else 0)
    puzzle = _puzzle(kata, number)
    if puzzle is None:
        return False
    if fresh:
        house.progress.note("lines_shown", kata.name, str(number))
    if not _is_solved(house, kata):
        house.progress.note("hint_shown", kata.name, "lines")
    if as_json:
        row = {"function": puzzle.function, "head": puzzle.head, "above": puzzle.above}
        lines = [asdict(one) for one in puzzle.shown]
        rest = {"below": puzzle.below, "wanted": len(puzzle.right)}
        screen.as_json({"kata": kata.name, **row, "lines": lines, **rest})
        return True
    for line in _drawn(puzzle):
        click.echo(line)
    if _is_review(house, kata, since if not fresh else ()):
        click.echo("Kept as a short review: passed if your first or your second order is right.")
    if ask and _is_terminal():
        _ask(house, kata, puzzle)
        return True
    click.echo(f'In which order? {len(puzzle.right)} numbers: kata hint {kata.name} --order "… …"')
    return True


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _ask(house: House, kata: Kata, puzzle: "Puzzle") -> None:
    """Ask for an order until it is right, or nothing is typed; leave with 1 after a wrong one."""
    right = True
    while order := click.prompt(
        f"{len(puzzle.right)} numbers in order, or nothing", default="", show_default=False
    ).strip():
        try:
            numbers = puzzle.ordered(order)
        except UsageProblem as error:
            click.echo(str(error).removeprefix("--order: "))
            continue
        if right := _answer(house, kata, puzzle, numbers, as_json=False):
            break
    if not right:
        sys.exit(1)


def _drawn(puzzle: "Puzzle") -> Iterator[str]:
    """The puzzle as it stands on the screen."""
    pairs = [f"{one.number} and {one.pair}" for one in puzzle.shown if (one.pair or 0) > one.number]
    wrong = f"; of {', of '.join(pairs)} one is wrong" if pairs else ""
    yield screen.folded(
        f"Lines of {puzzle.function} in a wrong order. Indentation is as it should be{wrong}."
    )
    for text in (*puzzle.head, *puzzle.above):
        yield from (f"      {line}" for line in text.split("\n"))
    for one in puzzle.shown:
        pair = " " if one.pair is None else "┌" if one.pair > one.number else "└"
        first, *more = one.text.split("\n")
        yield f" {pair}{one.number:>2}  {first}"
        yield from (f"      {line}" for line in more)
    for text in puzzle.below:
        yield from (f"      {line}" for line in text.split("\n"))


def _answer(
    house: House, kata: Kata, puzzle: "Puzzle", numbers: tuple[int, ...], *, as_json: bool
) -> bool:
    """Judge an order, keep that it was given and what it comes to, and say so."""
    since, before = _since_shown(house, kata), house.standing(kata)
    right, words = _judged(house, kata, puzzle, numbers)
    house.progress.note("lines_ordered", kata.name, "right" if right else "wrong")
    wrong = sum(one.kind == "lines_ordered" and one.detail == "wrong" for one in since)
    wrong += not right
    ends = _is_review(house, kata, since) and (right or wrong > SLIPS)
    passed = right and wrong <= SLIPS
    if ends:
        row = {"form": "lines", "passed": passed, "wrong": wrong}
        house.progress.note(REVIEW, kata.name, json.dumps(row))
    if as_json:
        said = {"order": numbers, "right": right, "message": words}
        screen.as_json({"kata": kata.name, **said, "reviewed": passed if ends else None})
        return right
    click.echo(screen.folded(f"{'✓' if right else '✗'} {words}"))
    if ends:
        click.echo(screen.folded(teach.answered(before, house.standing(kata), house.now())))
    elif right and not _is_solved(house, kata):
        click.echo("Now write it yourself.")
    return right


def _is_review(house: House, kata: Kata, since: "Sequence[Note]") -> bool:
    """Whether the lines that were shown are a review that has not ended yet."""
    return _is_solved(house, kata) and all(one.kind != REVIEW for one in since)


def _judged(
    house: House, kata: Kata, puzzle: "Puzzle", numbers: tuple[int, ...]
) -> tuple[bool, str]:
    """Whether an order is right, and why: the reference's, or one that the kata's tests pass."""
    from harness.practice.judging import first_failure, judged_text

    off = puzzle.first_off(numbers)
    if off is None:
        return True, "in the order of the reference."
    text = puzzle.text(numbers)
    place = f"Line {numbers[off - 1]}, in place {off}, is the first that does not belong there."
    try:
        compile(text, kata.name, "exec")
    except SyntaxError as error:
        return False, f"no Python in this order: {error.msg}. {place}"
    with draw.waiting(f"{kata.name} on cpu"):
        outcome = judged_text(kata, text, house.home / "cache")
    if outcome.status == "passed":
        return True, "another order than the reference's, and the kata's tests pass."
    failed = first_failure(outcome)
    said = f"{failed.name}: {failed.message}" if failed else outcome.reason
    return False, f"{said}. {place}"


def _puzzle(kata: Kata, number: int) -> "Puzzle | None":
    from harness.practice.lines import puzzle_of

    return puzzle_of(kata, str(number))


def _times_shown(house: House, kata: Kata) -> int:
    return sum(one.kind == "lines_shown" for one in house.progress.notes(kata.name))


def _since_shown(house: House, kata: Kata) -> "list[Note]":
    """What was noted since lines were shown that still stand, newest first, that note the last."""
    since = []
    for one in reversed(house.progress.notes(kata.name)):
        if one.kind == "started":
            break
        since.append(one)
        if one.kind == "lines_shown":
            return since
    return []


COMMANDS = [hint]
