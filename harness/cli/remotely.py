"""`kata run --on`: judge on another machine, and merge its history into this one's."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from harness.base.words import readable
from harness.cli.house import House
from harness.content.kata import Kata
from harness.content.submission import Submission
from harness.running.remote import run_there


def run_on(
    house: House, box: str, chosen: Sequence[Kata], impl: str, options: Sequence[str]
) -> None:
    """Judge `chosen` on `box` with these options of ``kata run``; exits as it does."""
    submissions = [house.submission(kata, impl) for kata in chosen]
    for blank in (one for one in submissions if one.is_blank):
        click.echo(
            f"- {blank.kata.name}: not written yet, not sent to {box}", err="--json" in options
        )
    submissions = [one for one in submissions if not one.is_blank]
    if not submissions:
        sys.exit(1)
    more = {f".kata/stash/swaps/{path.name}": path for path in _swaps(house)}
    if submissions[0].kind == "other":
        more[there := f"sent/{submissions[0].path.name}"] = submissions[0].path
        options = [*options, "--impl", there]
    else:
        options = [*options, "--impl", impl]
    with io.StringIO() as mine:
        house.progress.export(mine)
        history = mine.getvalue()
    names = [one.kata.name for one in submissions]
    click.echo(f"{box}: judging {', '.join(names)} there", err=True)
    returned = run_there(
        box,
        house.root,
        [*names, *options],
        history=history,
        more=more,
        hear=lambda line: click.echo(readable(line)),
    )
    merged = house.progress.import_(io.StringIO(returned.history))
    passed = returned.passed()
    for one in submissions:
        _keep(house, one, passed)
    click.echo(f"{box}: attempts that came back: {merged.added}", err=True)
    sys.exit(returned.exit_code)


def _keep(house: House, submission: Submission, passed: set[str]) -> None:
    """Keep the learner's own file that passed there, as a run here does."""
    known = submission.owner == "yours" and submission.code_hash in passed
    if known and submission.is_unchanged():
        with house.even_without_room():
            house.workspace.keep(submission.kata.name, submission.path, "passed")


def _swaps(house: House) -> list[Path]:
    return sorted((house.workspace.stash / "swaps").glob("*.json"))
