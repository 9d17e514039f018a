"""Commands that look after the house: export, import, verify, doctor."""

import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

import click

from harness.base.errors import HarnessError
from harness.base.words import readable
from harness.cli import draw, screen
from harness.cli.house import House
from harness.cli.screen import json_option
from harness.content.course import is_placed, setting_of
from harness.hardware.bridges import bridges
from harness.hardware.environment import device_present
from harness.hardware.packages import JUDGED_WITH, PROJECT, by_hand, unmet_requirements, versions
from harness.learner.folder import placed


@click.command("export")
@click.option("-o", "--output", type=click.File("w"), default="-")
@click.option("--name", default="", help="Your name, for a class report; none unless given.")
@click.pass_obj
def export(house: House, output: TextIO, name: str) -> None:
    """Write every attempt as JSON Lines, to merge elsewhere."""
    count = house.progress.export(output, learner=name)
    click.echo(f"{count} attempts written.", err=True)


@click.command("import")
@click.argument("source", type=click.File("r"))
@click.pass_obj
def import_(house: House, source: TextIO) -> None:
    """Merge an exported history into yours. Doing it twice changes nothing."""
    result = house.progress.import_(source)
    click.echo(f"{result.added} attempts added, {result.already_there} were there already.")


@click.command()
@click.argument("card", metavar="SCORECARD.json", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How many claims to judge again.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the sample.")
@json_option
@click.pass_obj
def verify(house: House, card: Path, sample: int, seed: int, as_json: bool) -> None:
    """Judge again a sample of what a scorecard calls solved. Same code, same seed."""
    from harness.reports.verify import BROKEN, HELD, claims_of
    from harness.reports.verify import verify as verified

    marks = {HELD: "✓", BROKEN: "✗"}
    claims = claims_of(card)
    with draw.waiting(f"judging {min(sample, len(claims))} of {len(claims)} claims again"):
        found = verified(
            claims,
            house.curriculum,
            house.workspace,
            devices=["cpu", "cuda"] if device_present() else ["cpu"],
            sample=sample,
            seed=seed,
        )
    held = sum(one.verdict == HELD for one in found)
    if as_json:
        screen.as_json(asdict(one) for one in found)
        sys.exit(0 if found and held == len(found) else 1)
    for one in found:
        told = f"{marks.get(one.verdict, '?')} {one.kata}: {one.verdict}: {one.why}"
        click.echo(screen.folded(readable(told)))
    click.echo(f"{held} of {len(found)} held, {len(claims)} claims in all.")
    sys.exit(0 if found and held == len(found) else 1)


@click.command()
@json_option
@click.pass_obj
def doctor(house: House, as_json: bool) -> None:
    """What is installed, what is missing, and how to fix it."""
    found, unmet = versions(), unmet_requirements()
    lines = [("python", platform.python_version(), sys.version_info >= (3, 11))]
    sound = [name for name in JUDGED_WITH if name in found and name not in unmet]
    lines += [(name, found[name], True) for name in sound]
    lines += [(name, told, False) for name, told in unmet.items()]
    lines += [("bridged", told, True) for told in bridges()]
    gpu = "present" if device_present() else "none: work is counted, not timed"
    lines += [
        ("GPU driver", gpu, True),
        ("katas", *_told(lambda: str(len(house.curriculum.katas)))),
        *_release(house),
        ("history", *_told(lambda: f"{len(house.progress.attempts())} attempts in {house.home}")),
    ]
    if as_json:
        screen.as_json({"name": name, "found": what, "ok": good} for name, what, good in lines)
        sys.exit(0 if all(good for _, _, good in lines) else 3)
    width = max(len(name) for name, _, _ in lines)
    for name, what, good in lines:
        click.echo(f"{'ok ' if good else '!! '} {name:{width}}  {what}")
    if unmet:
        constraints = house.shown(setting_of(house.root, "constraints.txt"))
        way_out = by_hand(house.root).replace("install", f"install -c {constraints}")
        click.echo(f"To install the versions that were tested together: {way_out}", err=True)
    sys.exit(0 if all(good for _, _, good in lines) else 3)


def _release(house: House) -> list[tuple[str, str, bool]]:
    """In a learner's own folder: whether it is of the release that is installed."""
    if not is_placed(house.root):
        return []
    there, sound = _told(lambda: placed(house.root).version)
    here = version(PROJECT)
    if not sound:
        return [("release", there, False)]
    told = there if there == here else f"expected {here}, found {there}: kata update"
    return [("release", told, there == here)]


def _told(question: Callable[[], str]) -> tuple[str, bool]:
    """The answer, or what is in its way; and whether it is an answer."""
    try:
        return question(), True
    except HarnessError as error:
        return error.message, False


COMMANDS = [export, import_, verify, doctor]
