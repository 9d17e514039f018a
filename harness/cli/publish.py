"""Commands that hand the course on: as a site, or to a class."""

from importlib.util import find_spec
from pathlib import Path

import click

from harness.base.errors import HarnessError
from harness.cli import draw
from harness.cli.house import House
from harness.content.kata import Kata


@click.command()
@click.option(
    "-o", "out", required=True, type=click.Path(path_type=Path, file_okay=False), metavar="DIR"
)
@click.option(
    "--pictures/--no-pictures",
    default=True,
    show_default=True,
    help="Trace each reference on the simulator; drawn once, then kept.",
)
@click.pass_obj
def site(house: House, out: Path, pictures: bool) -> None:
    """The course as static pages that need no server."""
    from harness.reports.measured import kept_results
    from harness.reports.site import Site
    from harness.reports.site.trace import trace_picture

    if pictures and find_spec("matplotlib") is None:
        raise HarnessError(
            "site: expected matplotlib for the trace pictures, found none. Install it "
            "(pip install matplotlib), or leave them out: --no-pictures"
        )
    drawn = 0
    with draw.waiting("writing pages") as now:

        def picture(kata: Kata) -> Path | None:
            nonlocal drawn
            if not pictures:
                return None
            now(f"{kata.name} on the simulator ...")
            found = trace_picture(kata, house.home / "cache")
            drawn += found is not None
            return found

        pages = Site(
            curriculum=house.curriculum,
            folder=out,
            results=kept_results(house.root),
            picture=picture,
        ).write()
    click.echo(f"{out}: {len(pages)} pages, {drawn} trace pictures")
    click.echo(f"next: open {out / 'index.html'} in a browser, or put the folder on any web server")


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--course",
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="course.toml",
    help="Its `hints` says how many hints of each kata are opened.",
)
@click.pass_obj
def release(house: House, folder: Path, course: Path) -> None:
    """Write the course for learners, without solutions. Unopened hints are left out, too."""
    from harness.authoring.release import WORKFLOW
    from harness.authoring.release import release as written
    from harness.content.syllabus import load_syllabus

    syllabus = load_syllabus(course, house.curriculum)
    count = written(house.root, folder, course, syllabus)
    click.echo(
        f"{folder}: {count} files of the last commit, {syllabus.hints} of 3 hints opened; "
        f"{WORKFLOW} grades on every push"
    )
    click.echo(f"next: cd {folder} && git init && git add -A && git commit, then publish it")


COMMANDS = [site, release]
