"""Commands of a teacher: what to take up next, starting it from blank, and what came of it."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

import click

from harness.base.errors import UsageProblem
from harness.cli import draw, screen, teach, why
from harness.cli.house import KATA, WEEKS, House
from harness.cli.screen import folded, json_option
from harness.content.kata import Kata
from harness.hardware.environment import device_present
from harness.learner import advice
from harness.learner.workspace import HALF

SHOWN = 3


@click.command("next")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=SHOWN,
    show_default=True,
    help="How many to name.",
)
@json_option
@click.pass_obj
def next_kata(house: House, count: int, as_json: bool) -> None:
    """What to practise next, and why."""
    found = house.advice()[:count]
    if as_json:
        screen.as_json(map(asdict, found))
    else:
        teach.advice(found, house.curriculum.katas)


@click.command()
@json_option
@click.pass_obj
def due(house: House, as_json: bool) -> None:
    """What you are about to forget, and when the rest will be due."""
    now, known = house.now(), house.standings()
    found, later = advice.due(known, now), advice.upcoming(known, now)
    if as_json:
        screen.as_json(
            {
                "kata": one.kata,
                "due": str(one.due),
                "recall": one.recall,
                "is_due": one in found,
                "form": "short" if one.short else "whole",
            }
            for one in [*found, *later]
        )
    else:
        teach.due(found, later, now, house.curriculum.katas)


@click.command()
@click.argument("kata", type=KATA)
@click.option("--edit", is_flag=True, help="Open the stub in $EDITOR, or in VS Code from there.")
@click.option(
    "--level",
    type=click.Choice(["blank", "half"]),
    default="blank",
    help="half, in the first round only: the first steps are given, the last are yours.",
)
@click.pass_obj
def start(house: House, kata: Kata, edit: bool, level: str) -> None:
    """Start a kata, or start it again, from the blank stub. Your last file is kept."""
    from harness.authoring.half import half_stub

    command = editor(dict(os.environ)) if edit else []
    stub = house.blank_stub(kata, "start")
    standing = house.standing(kata)
    first = not any(one.solved for one in standing.rounds)
    half = half_stub(kata) if level == "half" and first else None
    if house.workspace.is_swapped(kata.name, kata.file):
        house.workspace.restore(kata.name, kata.file)
    place = half.text.encode() if half else stub
    current = kata.file.read_bytes() if kata.file.is_file() else b""
    untouched = current in (stub, place) or house.submission(kata, "yours").is_blank
    kept = None
    if current != place:
        kept = house.workspace.reset(kata.name, kata.file, place).kept
    house.progress.note("started", kata.name, "half" if half else "")
    if half:
        house.workspace.keep(kata.name, kata.file, HALF)
    if standing.open is not None and standing.open.tried:
        teach.given_up(standing.open)
    if level == "half" and not first:
        click.echo("Half a stub is for the first round: from the second on the stub is blank.")
    shown = house.shown(kata.file)
    teach.started(kata, standing, shown, None if untouched else kept, half)
    begun = house.standing(kata).open
    if begun is not None and begun.half and half is None:
        click.echo("Half of it was given in the last days, so this round is no cold day.")
    if command:
        subprocess.run([*command, str(kata.file)], check=False)


def editor(environment: Mapping[str, str]) -> list[str]:
    """
    The command that opens a file: $VISUAL, $EDITOR, or VS Code in a terminal of its own.

    Raises:
        UsageProblem: there is none of them.
    """
    for name in ("VISUAL", "EDITOR"):
        command = shlex.split(environment.get(name, ""))
        if command and shutil.which(command[0]):
            return command
    if environment.get("TERM_PROGRAM") == "vscode" and shutil.which("code"):
        return ["code"]
    raise UsageProblem(
        "--edit: expected an editor in $VISUAL or $EDITOR, or VS Code's terminal, found none. "
        "Set one: export EDITOR=nano"
    )


@click.command()
@click.argument("kata", type=KATA)
@click.option(
    "--anyway", is_flag=True, help="Before you have solved it; counts as having seen the solution."
)
@click.option("--why", "said", metavar="TEXT", help="Your answer to the kata's question; kept.")
@json_option
@click.pass_obj
def explain(house: House, kata: Kata, anyway: bool, said: str | None, as_json: bool) -> None:
    """
    The reference, its worksheet filled in, and how yours compares.

    A kata that asks for a reason asks you first, in a terminal, and then gives its own answer.
    """
    from harness.learner.predict import worksheet
    from harness.reports.ladder import approaches_of, climb, naive_words, timed_elsewhere
    from harness.reports.measured import kept_results

    standing = house.standing(kata)
    solved = standing.level.owned and standing.open is None
    if not solved and not anyway:
        raise UsageProblem(
            f"explain: expected {kata.name} to be solved in this round, found it "
            f"{standing.level}. Solve it first, or add --anyway: it counts as having seen it."
        )
    quiet = as_json or not solved
    said = why.asked(house, kata, "" if said is None and quiet else said)
    if kata.solution.is_file():
        house.progress.note("solution_seen", kata.name, "explain")
    device = "cuda" if device_present() else "cpu"
    kept = kept_results(house.root)
    others = approaches_of(kata, house.home / "cache", kept)
    if as_json:
        sheet = None
        if any(one.kind == "roofline" for one in kata.speed):
            sheet = teach.sheet_row(worksheet(kata, house.prediction_profile(None)))
        rungs = climb(kata, device, house.home / "cache", yours=solved)
        screen.as_json(
            {
                **teach.reference_row(kata),
                "worksheet": sheet,
                "device": device,
                "ladder": [asdict(rung) for rung in rungs],
                "naive": naive_words(kata, house.home / "cache"),
                "approaches": [asdict(one) for one in others],
                "why": why.as_row(kata, said),
            }
        )
        return
    if kata.solution.is_file():
        teach.reference(kata, house.shown(kata.solution))
    else:
        click.echo("A course released by a teacher has no solutions; here is what else there is.")
    if any(one.kind == "roofline" for one in kata.speed):
        teach.worksheet_filled(kata, worksheet(kata, house.prediction_profile(None)))
    with draw.waiting(f"comparing implementations on {device}"):
        rungs = climb(kata, device, house.home / "cache", yours=solved)
    teach.ladder(rungs, device)
    if naive := naive_words(kata, house.home / "cache"):
        click.echo(folded(f"naive: {naive}"))
    for one in others:
        teach.approach(one)
    if device == "cpu" and (line := timed_elsewhere(kata, kept)):
        click.echo(line)
    why.answered(kata, said)


@click.command()
@click.option(
    "--week",
    "weeks",
    type=WEEKS,
    required=True,
    help="The week to test out of, or several as in 1..4.",
)
@json_option
@click.pass_obj
def placement(house: House, weeks: tuple[int, ...], as_json: bool) -> None:
    """Test out of a week. A few of its katas, solved cold, stand for the rest."""
    with_katas = dict.fromkeys(kata.week for kata in house.curriculum.week_katas(*weeks))
    found = [_placed_out_of(house, week) for week in with_katas]
    if as_json:
        screen.as_json(
            {
                "week": one.week,
                "placed": one.placed,
                "katas": {kata.name: kata.name in one.solved for kata in one.chosen},
                "rest": one.rest,
            }
            for one in found
        )
    else:
        for one in found:
            teach.placement(one.week, one.chosen, one.solved, one.rest)
    sys.exit(0 if all(one.placed for one in found) else 1)


class Placement(NamedTuple):
    """A week: the katas that stand for it, which of them are solved cold, and the others."""

    week: int
    chosen: list[Kata]
    solved: set[str]
    rest: list[str]

    @property
    def placed(self) -> bool:
        """Whether all that stands for the week is solved."""
        return len(self.solved) == len(self.chosen)


def _placed_out_of(house: House, week: int) -> Placement:
    """What stands for a week; once that is solved the rest is noted as placed out of."""
    chosen = advice.placement_of(house.curriculum.katas, week)
    known = house.standings()
    solved = {one.name for one in chosen if any(r.clean for r in known[one.name].rounds)}
    rest = [
        kata.name
        for kata in house.curriculum.katas.values()
        if kata.week == week and kata not in chosen
    ]
    found = Placement(week, chosen, solved, rest)
    if found.placed:
        fresh = [name for name in rest if name not in house.placed_out()]
        for name in fresh:
            house.progress.note("placed", name, f"week {week}")
    return found


COMMANDS = [next_kata, due, start, explain, placement]
