"""Commands of a teacher: a class in one table, its submissions graded."""

import csv
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import HarnessError, UsageProblem
from harness.base.files import write_atomically
from harness.base.words import readable
from harness.cli.draw import console
from harness.cli.house import House
from harness.hardware.environment import device_present

if TYPE_CHECKING:
    from harness.content.syllabus import Assignment, Syllabus
    from harness.reports.classroom import Line, Pupil

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
NEW = click.Path(path_type=Path)
COURSE = click.option(
    "--course", type=FILE, metavar="course.toml", help="Assignments, due dates and points."
)


@click.group("class")
def class_() -> None:
    """For teachers: a class in one table, submissions graded."""


@class_.command("report")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--html", type=NEW, help="Also write one HTML page.")
@COURSE
@click.pass_obj
def report(house: House, folder: Path, html: Path | None, course: Path | None) -> None:
    """Many learners' exports (NAME.jsonl) as one table."""
    from rich.markup import escape
    from rich.table import Table

    from harness.reports.classroom import read_class

    pupils = read_class(folder, house.curriculum, house.now())
    assignments = _syllabus(house, course).assignments if course else ()
    table = Table(box=None, pad_edge=False)
    for heading in ("learner", "runs", "solved", "mastered", "hints", "solution seen", "last run"):
        table.add_column(heading, justify="left" if heading == "learner" else "right")
    in_time = Table(box=None, pad_edge=False)
    in_time.add_column("learner")
    for assignment in assignments:
        in_time.add_column(escape(assignment.name), justify="right")
    for one in pupils:
        name = escape(readable(one.name))
        counts = (one.runs, one.solved, one.mastered, one.hints, one.peeks)
        table.add_row(name, *map(str, counts), one.last)
        in_time.add_row(name, *(_done(one, assignment) for assignment in assignments))
    console().print(table)
    if assignments:
        console().print("\nsolved on time, of all katas of an assignment")
        console().print(in_time)
    if html is not None:
        from harness.reports.scorecard.html import class_as_html

        write_atomically(html, class_as_html(pupils, assignments).encode())
        click.echo(f"{html}: {len(pupils)} learner{'' if len(pupils) == 1 else 's'}")


def _done(one: "Pupil", assignment: "Assignment") -> str:
    in_time, late = one.solved_of(assignment)
    return f"{in_time}/{len(assignment.katas)}" + (f", {late} late" if late else "")


def _syllabus(house: House, course: Path) -> "Syllabus":
    from harness.content.syllabus import load_syllabus

    return load_syllabus(course, house.curriculum)


def _devices() -> list[str]:
    return ["cpu", "cuda"] if device_present() else ["cpu"]


@class_.command("grade")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("-j", "--jobs", default=2, show_default=True, help="Submissions at a time.")
@click.option("-o", "--output", type=NEW, help="Grades as JSON lines.")
@COURSE
@click.option("--csv", "sheet", type=NEW, help="Points as a table for a spreadsheet.")
@click.pass_obj
def grade(
    house: House, folder: Path, jobs: int, output: Path | None, course: Path | None,
    sheet: Path | None,
) -> None:  # fmt: skip
    """Judge every LEARNER/KATA.py, and give points. Needs the extra `class`."""
    from harness.reports.classroom import grade as graded
    from harness.reports.classroom import gradebook, submissions_in

    if sheet is not None and course is None:
        raise UsageProblem("--csv: expected --course with it, found none: it says the points.")
    syllabus = _syllabus(house, course) if course else None
    handed_in = submissions_in(folder, house.curriculum)
    devices = _devices()
    grades = []
    for one in graded(handed_in, devices=devices, jobs=jobs):
        mark = "✓" if one.status == "passed" else "✗"
        click.echo(f"{mark} {one.learner} {one.kata}: {one.passed}/{one.checks}, {one.reason}")
        grades.append(one)
    if output is not None:
        lines = "".join(json.dumps(asdict(one)) + "\n" for one in grades)
        write_atomically(output, lines.encode())
    if syllabus is not None:
        book = gradebook(grades, syllabus, house.curriculum.katas, devices)
        _print_points(book, syllabus)
        if sheet is not None:
            write_atomically(sheet, _as_csv(book, syllabus).encode())
    sys.exit(0 if all(one.status == "passed" for one in grades) else 1)


def _print_points(book: "Sequence[Line]", syllabus: "Syllabus") -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=escape(syllabus.title), title_justify="left")
    table.add_column("learner")
    for one in syllabus.assignments:
        table.add_column(escape(one.name), justify="right")
    table.add_column("total", justify="right")
    for line in book:
        points = [*(line.points[one.name] for one in syllabus.assignments), line.total]
        table.add_row(escape(readable(line.learner)), *(f"{a:g}/{b:g}" for a, b in points))
    console().print(table)


def _as_csv(book: "Sequence[Line]", syllabus: "Syllabus") -> str:
    text = StringIO()
    sheet = csv.writer(text)
    names = [one.name for one in syllabus.assignments]
    sheet.writerow(["learner", *names, "total", "of"])
    for line in book:
        sheet.writerow([line.learner, *(line.points[name][0] for name in names), *line.total])
    return text.getvalue()


class Moment(click.ParamType[datetime]):
    """A time with its zone."""

    name = "TIME"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Read ISO 8601."""
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            self.fail(f"expected a time as in 2027-02-14T18:00:00+01:00, found {value!r}")
        return moment


@class_.command("autograde")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--course", type=FILE, metavar="course.toml", required=True)
@click.option("--assignment", help="Only the one of this name.")
@click.option("--at", type=Moment(), help="When it was handed in; default: now.")
@click.option("-o", "--output", type=NEW, help="Gradescope's results.json.")
@click.option("--summary", type=NEW, help="A file to add the same to, as a table in Markdown.")
@click.pass_obj
def autograde(
    house: House, folder: Path, course: Path, assignment: str | None, at: datetime | None,
    output: Path | None, summary: Path | None,
) -> None:  # fmt: skip
    """Judge what one learner handed in: files KATA.py in DIR."""
    from harness.reports.grading import TROUBLE, as_gradescope, as_table, assess, total

    syllabus = _syllabus(house, course)
    chosen = [syllabus.assignment(assignment)] if assignment else syllabus.assignments
    began = time.monotonic()
    marks = []
    for one, mark in assess(
        folder,
        chosen,
        house.curriculum.katas,
        at=at or house.now(),
        late=syllabus.late,
        devices=_devices(),
        cache=house.home / "cache",
    ):
        points = "not judged here" if mark.met is None else f"{mark.score:g}/{mark.most:g}"
        sign = "-" if mark.met is None else "✓" if mark.met else "✗"
        first = readable(mark.words.partition("\n")[0])
        said = f": {first}" if first and mark.met is not None else ""
        click.echo(f"{sign} {one.name}: {mark.kata}, {mark.part}, {points}{said}")
        marks.append((one, mark))
    score, most = total(mark for _, mark in marks)
    click.echo(f"{score:g} of {most:g} points")
    if output is not None:
        write_atomically(output, as_gradescope(marks, spent_s=time.monotonic() - began).encode())
    if summary is not None:
        with summary.open("a", encoding="utf-8") as stream:
            stream.write(as_table(marks))
    if any(mark.words.startswith(TROUBLE) for _, mark in marks):
        raise HarnessError("autograde: expected every kata to be judged, found trouble; see above.")
    sys.exit(0 if score == most else 1)


COMMANDS = [class_]
