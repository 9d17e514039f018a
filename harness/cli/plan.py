"""The command `plan`: the weeks to come, within the hours that the learner has."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from harness.cli import screen
from harness.cli.house import House
from harness.cli.screen import folded, json_option
from harness.learner.advice import BUDGET, MOST_HOURS, RETENTIONS, spent_of
from harness.learner.mastery import memory_of
from harness.learner.schedule import HOURS, NEW_SHARE, WEEKS, Form, PlannedWeek, Task
from harness.learner.schedule import plan as plan_weeks

NAMED = 6  # katas of a line; of the rest only how many


@click.command()
@click.option(
    "--hours",
    type=click.FloatRange(0.5, MOST_HOURS),
    help=f"Hours of a week, remembered. {HOURS:.0f} until you say so.",
)
@click.option(
    "--retention",
    type=click.FloatRange(*RETENTIONS),
    help="The recall at which a kata is due, remembered. 0.8 until you say so.",
)
@click.option("--weeks", type=click.IntRange(1, 104), default=WEEKS, show_default=True)
@json_option
@click.pass_obj
def plan(
    house: House, hours: float | None, retention: float | None, weeks: int, as_json: bool
) -> None:
    """
    The weeks ahead: new katas, reviews and hours.

    It is what becomes of the advice of `kata next` if every review is passed. What you did in the
    last seven days is off the hours of the first week.
    """
    said = {
        name: value
        for name, value in (("hours", hours), ("retention", retention))
        if value is not None
    }
    if said:
        house.progress.note(BUDGET, "", json.dumps(said))
    budget, known, katas = house.budget(), house.standings(), house.curriculum.katas
    now = house.now()
    found = plan_weeks(
        katas,
        memory_of(katas, known, budget.retention),
        now,
        hours=budget.hours,
        weeks=weeks,
        owned=[name for name, one in known.items() if one.level.owned],
        passed_over=house.placed_out(),
        under_way={name: one.open.minutes or 0.0 for name, one in known.items() if one.open},
        spent=spent_of(katas, known, now),
    )
    if as_json:
        screen.as_json({**asdict(budget), "weeks": [_row(one) for one in found]})
        return
    _print(found, budget.hours, chosen=bool(house.progress.notes("")))


def _row(week: PlannedWeek) -> dict[str, Any]:
    """A week as plain data."""
    return {
        "begins": str(week.begins.date()),
        "hours_new": round(week.hours_new, 2),
        "hours_back": round(week.hours_back, 2),
        "hours_done": round(week.done.minutes / 60, 2),
        "waiting": week.waiting,
        "new": [_task(one) for one in week.new],
        "back": [_task(one) for one in week.back],
    }


def _task(task: Task) -> dict[str, Any]:
    return {
        "kata": task.kata,
        "form": task.form,
        "minutes": round(task.minutes, 1),
        "settles": task.settles,
    }


def _print(weeks: Sequence[PlannedWeek], hours: float, *, chosen: bool) -> None:
    """A block of lines for each week that has anything in it."""
    share = f"{NEW_SHARE:.0%} for what is new, {1 - NEW_SHARE:.0%} for reviews"
    click.echo(folded(f"{hours:g} hours a week: {share}; what one does not need, the other has."))
    if not chosen:
        click.echo("Another number of hours, from now on: kata plan --hours H")
    for week in weeks:
        ahead = week.hours_new + week.hours_back
        done = week.done.minutes / 60
        beside = f", after {done:.1f} in the last seven days" if done else ""
        click.echo(f"\nfrom {week.begins.date()}: {ahead:.1f} hours{beside}")
        if week.new:
            click.echo(_line("new", week.hours_new, week.new))
        for form, words in ((Form.SHORT, "five minutes"), (Form.WHOLE, "from blank")):
            if tasks := [one for one in week.back if one.form == form]:
                click.echo(_line(words, sum(one.minutes for one in tasks) / 60, tasks))
        if week.waiting:
            click.echo(f"  {week.waiting} more due, later")
    if not any(week.new or week.back for week in weeks):
        click.echo("Nothing is new and nothing comes back in these weeks.")


def _line(words: str, hours: float, tasks: Sequence[Task]) -> str:
    names = [one.kata for one in tasks[:NAMED]]
    if more := len(tasks) - len(names):
        names.append(f"{more} more")
    return folded(f"  {words:12} {hours:4.1f} h  {', '.join(names)}")


COMMANDS = [plan]
