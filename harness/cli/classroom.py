"""Commands of an instructor: a class in one table, and its submissions graded."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from harness.base.files import write_atomically
from harness.cli.draw import console
from harness.cli.house import House
from harness.hardware.environment import device_present

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.group("class")
def class_() -> None:
    """For instructors: a class in one table, its submissions graded."""


@class_.command("report")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--html", type=click.Path(path_type=Path), help="Write one HTML page, too.")
@click.pass_obj
def report(house: House, folder: Path, html: Path | None) -> None:
    """Many learners' exports (NAME.jsonl) as one table."""
    from rich.markup import escape
    from rich.table import Table

    from harness.reports.classroom import read_class

    pupils = read_class(folder, house.curriculum, house.now())
    table = Table(box=None, pad_edge=False)
    for heading in ("learner", "runs", "solved", "mastered", "hints", "solution seen", "last run"):
        table.add_column(heading, justify="left" if heading == "learner" else "right")
    for one in pupils:
        counts = (one.runs, one.solved, one.mastered, one.hints, one.peeks)
        table.add_row(escape(one.name), *map(str, counts), one.last)
    console().print(table)
    if html is not None:
        from harness.reports.scorecard.html import class_as_html

        write_atomically(html, class_as_html(pupils).encode())
        click.echo(f"{html}: {len(pupils)} learners")


@class_.command("grade")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("-j", "--jobs", default=2, show_default=True, help="Submissions at a time.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Grades as JSON lines.")
@click.pass_obj
def grade(house: House, folder: Path, jobs: int, output: Path | None) -> None:
    """Judge every LEARNER/KATA.py, each in a process of its own (needs the extra `class`)."""
    from harness.reports.classroom import grade as graded
    from harness.reports.classroom import submissions_in

    handed_in = submissions_in(folder, house.curriculum)
    device = "cuda" if device_present() else "cpu"
    grades = []
    for one in graded(handed_in, device=device, jobs=jobs):
        mark = "✓" if one.status == "passed" else "✗"
        click.echo(f"{mark} {one.learner} {one.kata}: {one.passed}/{one.checks}, {one.reason}")
        grades.append(one)
    if output is not None:
        lines = "".join(json.dumps(asdict(one)) + "\n" for one in grades)
        write_atomically(output, lines.encode())
    sys.exit(0 if all(one.status == "passed" for one in grades) else 1)


COMMANDS = [class_]
