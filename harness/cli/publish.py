"""Commands that hand the course on: as a site."""

from pathlib import Path

import click

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
    """The course as static pages, to be read without a server."""
    from harness.reports.measured import kept_results
    from harness.reports.pictures.canvas import check_file
    from harness.reports.site import Site
    from harness.reports.site.trace import trace_picture

    if pictures:
        check_file(house.home.parent / "trace.svg")  # matplotlib
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


COMMANDS = [site]
