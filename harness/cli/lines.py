"""The command that shows a kernel's source with what each line costs beside it."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import UsageProblem
from harness.base.files import write_atomically
from harness.cli import draw
from harness.cli.house import KATA, House
from harness.cli.screen import cut
from harness.content.kata import Kata

if TYPE_CHECKING:
    from harness.reports.listing import Listing, Row

HEADS = {
    "instructions": "instr",
    "requests": "requests",
    "sectors": "sectors",
    "bytes_moved": "bytes",
    "wavefronts": "wavefr",
    "conflicts": "conflicts",
}


@click.command()
@click.argument("kata", type=KATA)
@click.option("--case", default=1, show_default=True, help="Which [[cases]] of kata.toml.")
@click.option(
    "--impl", default="yours", show_default=True, help="yours, solution, wrong:naive or a path."
)
@click.option("--target", default="sm_90", show_default=True, help="The GPU to compile for.")
@click.option("--json", "as_json", is_flag=True)
@click.option(
    "--html",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="As a page, to this file or else to standard output.",
)
@click.pass_obj
def lines(
    house: House, kata: Kata, case: int, impl: str, target: str, *, as_json: bool, html: Path | None
) -> None:
    """Line by line: instructions, sectors, bytes and bank conflicts. No GPU is needed."""
    from harness.reports.listing import listed

    if as_json and html is not None:
        raise UsageProblem("--html: expected no --json with it, found both. Leave one out.")
    submission = house.submission(kata, impl)
    with draw.waiting(f"{kata.name} line by line"):
        found = listed(submission, case, target)
    if submission.kind in ("solution", "wrong"):
        house.progress.note("solution_seen", kata.name, "lines")
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=2))
        return
    if html is not None:
        _write_page(found, kata, case, impl, html)
        return
    kernels = ", ".join(f"{name} x {count}" for name, count in found.kernels.items())
    click.echo(f"{kata.name} ({impl}), case {case}, {found.how}: {kernels}")
    for text in _table(found):
        click.echo(cut(text))
    for hazard in found.hazards:
        click.echo(hazard)


def _write_page(found: "Listing", kata: Kata, case: int, impl: str, file: Path) -> None:
    from harness.reports.listing_page import as_html

    page = as_html(found, kata, case, impl)
    if file == Path("-"):
        click.echo(page)
        return
    write_atomically(file, page.encode())
    click.echo(f"{file}: {len(page) / 1024:.0f} KiB of html")


def _table(found: "Listing") -> list[str]:
    """Each line behind its counts; columns in which nothing was counted are left out."""
    shown = found.columns
    cells = [[_cell(row, name) for name in shown] for row in found.rows]
    widths = [
        max(len(HEADS[name]), *(len(row[at]) for row in cells)) for at, name in enumerate(shown)
    ]
    heads = " ".join(HEADS[name].rjust(width) for name, width in zip(shown, widths, strict=True))
    number = max((len(str(row.line)) for row in found.rows), default=1)
    told = [f"{heads}  {found.file}"]
    for row, cell in zip(found.rows, cells, strict=True):
        counts = " ".join(one.rjust(width) for one, width in zip(cell, widths, strict=True))
        told.append(f"{counts}  {row.line:{number}}  {row.text[found.indent :]}".rstrip())
    return told


def _cell(row: "Row", name: str) -> str:
    value = getattr(row, name)
    return f"{value:,}" if value else ""


COMMANDS = [lines]
