"""The command that shows a kernel's source with what each line costs beside it."""

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from harness.cli import draw
from harness.cli.house import KATA, House
from harness.cli.screen import cut
from harness.content.kata import Kata

if TYPE_CHECKING:
    from harness.reports.listing import Listing, Row

COLUMNS = {
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
@click.pass_obj
def lines(house: House, kata: Kata, case: int, impl: str, target: str, *, as_json: bool) -> None:
    """Line by line: instructions, sectors, bytes and bank conflicts. No GPU is needed."""
    from harness.reports.listing import listed

    submission = house.submission(kata, impl)
    with draw.waiting(f"{kata.name} line by line"):
        found = listed(submission, case, target)
    if submission.kind in ("solution", "wrong"):
        house.progress.note("solution_seen", kata.name, "lines")
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=2))
        return
    kernels = ", ".join(f"{name} x {count}" for name, count in found.kernels.items())
    click.echo(f"{kata.name} ({impl}), case {case}, {found.how}: {kernels}")
    for text in _table(found):
        click.echo(cut(text))
    for hazard in found.hazards:
        click.echo(hazard)


def _table(found: "Listing") -> list[str]:
    """Each line behind its counts; columns in which nothing was counted are left out."""
    shown = [name for name in COLUMNS if any(getattr(row, name) for row in found.rows)]
    cells = [[_cell(row, name) for name in shown] for row in found.rows]
    widths = [
        max(len(COLUMNS[name]), *(len(row[at]) for row in cells)) for at, name in enumerate(shown)
    ]
    heads = " ".join(COLUMNS[name].rjust(width) for name, width in zip(shown, widths, strict=True))
    indent = min((len(row.text) - len(row.text.lstrip()) for row in found.rows if row.text.strip()),
                 default=0)  # fmt: skip
    number = max((len(str(row.line)) for row in found.rows), default=1)
    told = [f"{heads}  {found.file}"]
    for row, cell in zip(found.rows, cells, strict=True):
        counts = " ".join(one.rjust(width) for one, width in zip(cell, widths, strict=True))
        told.append(f"{counts}  {row.line:{number}}  {row.text[indent:]}".rstrip())
    return told


def _cell(row: "Row", name: str) -> str:
    value = getattr(row, name)
    return f"{value:,}" if value else ""


COMMANDS = [lines]
