"""Commands that only look: list, show, coverage, scorecard, profiles."""

import sys
from pathlib import Path

import click

from harness.base.errors import DeviceError, UsageProblem, nearest
from harness.cli import draw, screen, tables
from harness.cli.house import KATA_OR_WEEK, PART, WEEKS, House
from harness.cli.screen import json_option
from harness.content.catalog import Week
from harness.content.kata import BACKENDS, Kata
from harness.learner.levels import Level

CALIBRATION_LIMIT_S = 600
LEVELS = tuple(map(str, Level))
FORMATS = ("terminal", "html", "svg", "md", "json")


@click.command("list")
@click.option("--week", "weeks", type=WEEKS, help="A week, or several as in 1..4.")
@click.option("--part", type=PART, help="A part, as in 2 or II.")
@click.option("--backend", type=click.Choice(BACKENDS))
@click.option("--concept", help="An id such as 09.4.")
@click.option("--status", type=click.Choice(LEVELS))
@json_option
@click.pass_obj
def list_katas(
    house: House,
    weeks: tuple[int, ...] | None,
    part: range | None,
    backend: str | None,
    concept: str | None,
    status: str | None,
    as_json: bool,
) -> None:
    """Every kata, and where you stand with it. In a week the easy ones come first."""
    items = house.curriculum.items
    if concept is not None and concept not in items:
        raise UsageProblem(
            f"--concept: expected an id such as 09.4, found {concept!r}{nearest(concept, items)}. "
            "`kata coverage` lists them."
        )
    standing = house.standings()
    rows = []
    for kata in house.curriculum.katas.values():
        state = str(standing[kata.name].level)
        wanted = (
            (weeks is None or kata.week in weeks)
            and (part is None or kata.week in part)
            and (backend is None or kata.backend == backend)
            and (concept is None or concept in kata.covers)
            and (status is None or state == status)
        )
        if wanted:
            rows.append((kata, state))
    if as_json:
        screen.as_json(tables.as_row(kata, state) for kata, state in rows)
    else:
        tables.katas(sorted(rows, key=lambda row: (row[0].week, row[0].difficulty)))


@click.command()
@click.argument("name", metavar="KATA|weekNN", type=KATA_OR_WEEK)
@json_option
@click.pass_obj
def show(house: House, name: Kata | Week, as_json: bool) -> None:
    """A kata's brief, thresholds and attempts; or a week's plan."""
    if isinstance(name, Week):
        from harness.content.coverage import coverage_of

        if as_json:
            covered = coverage_of(house.curriculum, [name.number]).as_json()
            screen.as_json({"week": name.number, "title": name.title, "goal": name.goal, **covered})
            return

        page = house.root / "katas" / f"week{name.number:02d}" / "README.md"
        draw.week(name, page)
        tables.coverage(coverage_of(house.curriculum, [name.number]))
        draw.reading(name)
        if not page.is_file() or "## Corrections" not in page.read_text(encoding="utf-8"):
            draw.corrections(name)
        return
    if as_json:
        where, reached = house.reached(name)
        row = tables.as_row(name, str(house.standing(name).level))
        screen.as_json({**row, **tables.limits_row(name), "reached": reached, "timed_on": where})
        return
    draw.brief(name)
    house.note_brief(name)
    draw.thresholds(name, *house.reached(name))
    draw.attempts(house.progress.attempts(name.name, limit=5))


@click.command()
@click.option("--week", "weeks", type=WEEKS, help="A week, or several as in 1..4.")
@click.option("--part", type=PART, help="A part, as in 2 or II.")
@json_option
@click.pass_obj
def coverage(
    house: House,
    weeks: tuple[int, ...] | None,
    part: range | None,
    as_json: bool,
) -> None:
    """Which katas cover each concept, exercise and milestone."""
    from harness.content.coverage import coverage_of

    if part is not None:
        weeks = tuple(week for week in weeks or part if week in part)
    found = coverage_of(house.curriculum, weeks)
    if as_json:
        screen.as_json(found.as_json())
    else:
        tables.coverage(found)


@click.command()
@click.option("--format", "form", type=click.Choice(FORMATS), default="terminal")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write to this file instead of standard output.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--picture",
    "pictures",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="An SVG or PNG of `kata roofline` or `kata trace`, to include in the HTML.",
)
@click.pass_obj
def scorecard(
    house: House, form: str, output: Path | None, as_json: bool, pictures: tuple[Path, ...]
) -> None:
    """What you own, what is due, what was measured. As text, HTML, SVG, MD or JSON."""
    from harness.base.files import write_atomically
    from harness.reports.scorecard import read_scorecard
    from harness.reports.scorecard.draw import drawn
    from harness.reports.scorecard.terminal import print_scorecard

    form = "json" if as_json else form
    card = read_scorecard(
        house.curriculum, house.progress, house.now(), edited=house.edited_today()
    )
    if form == "terminal":
        if output is not None:
            raise UsageProblem("--output: expected --format html, svg, md or json, found terminal.")
        print_scorecard(card)
        return
    if pictures and form != "html":
        raise UsageProblem(f"--picture: expected --format html, found {form}.")
    text = drawn(card, form, pictures)
    if output is None:
        click.echo(text, nl=False)
        return
    write_atomically(output, text.encode())
    click.echo(f"{output}: {len(text) / 1024:.0f} KiB of {form}")


@click.group()
def profile() -> None:
    """Hardware profiles: the peak figures of each GPU."""


@profile.command("list")
@json_option
@click.pass_obj
def profile_list(house: House, as_json: bool) -> None:
    """Every profile."""
    from harness.hardware.profiles import load_profiles

    found = list(load_profiles(house.root / "hardware_profiles").values())
    if as_json:
        screen.as_json(map(tables.profile_row, found))
    else:
        tables.profiles(found)


@profile.command("show")
@click.argument("profile_id", metavar="PROFILE")
@json_option
@click.pass_obj
def profile_show(house: House, profile_id: str, as_json: bool) -> None:
    """One profile with its sources, and what was measured here."""
    from harness.hardware.profiles import find_profile

    folder = house.root / "hardware_profiles"
    found = find_profile(folder, profile_id, calibrated=house.home / "calibrated")
    if as_json:
        screen.as_json(tables.profile_row(found))
    else:
        tables.profile(found)


@profile.command("detect")
@click.pass_obj
def profile_detect(house: House) -> None:
    """The profile of this machine's GPU."""
    from harness.hardware.environment import device_present, session_profile

    device = "cuda" if device_present() else "cpu"
    found = session_profile(house.root, None, device, None)
    click.echo(f"{found.id}: {found.name}")


@profile.command("calibrate")
@click.pass_obj
def profile_calibrate(house: House) -> None:
    """Measure this machine's GPU at its best. Copy, triad, matmuls and a launch."""
    from harness.base.processes import run_group
    from harness.hardware.environment import device_present

    if not device_present():
        raise DeviceError("calibrate: expected a GPU, found none. Run it on a machine with one.")
    folder = house.home / "calibrated"
    command = [
        sys.executable,
        "-m",
        "harness.judge.timing.calibration",
        str(house.root),
        str(folder),
    ]
    with draw.waiting("measuring, for a minute or two"):
        exit_code, output = run_group(command, CALIBRATION_LIMIT_S, {}, cwd=house.root)
    click.echo(output.strip())
    if exit_code is None or exit_code < 0:
        how = f"signal {-exit_code}" if exit_code else f"its limit of {CALIBRATION_LIMIT_S} s"
        raise DeviceError(
            f"calibrate: expected it to finish, found it ended by {how}. Try again when the "
            "device is idle."
        )
    sys.exit(exit_code)


COMMANDS = [list_katas, show, coverage, scorecard, profile]
