"""The command that shows what the compiler made of a kata's kernels; no GPU is needed."""

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from harness.cli import draw
from harness.cli.house import KATA, House
from harness.content.kata import Kata
from harness.hardware.profiles import load_profiles

if TYPE_CHECKING:
    from rich.table import Table

    from harness.reports.inspection import Build

CASES_SHOWN = 4


@click.command()
@click.argument("kata", type=KATA)
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=("sm_90",),
    show_default=True,
    help="A GPU to build for: sm_75, sm_80, sm_89, sm_90, sm_100, gfx942. Repeat for several.",
)
@click.option("--impl", default="yours", show_default=True, help="yours, solution or a path.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def inspect(
    house: House, kata: Kata, targets: tuple[str, ...], impl: str, *, as_json: bool
) -> None:
    """What the compiler makes of your kernels. Registers to instructions, for any GPU."""
    from harness.reports.inspection import inspect_kernels

    cache = house.home / "cache"
    submission = house.submission(kata, impl)
    profiles = load_profiles(house.root / "hardware_profiles").values()
    with draw.waiting(f"compiling {kata.name} for {', '.join(targets)}"):
        found = inspect_kernels(submission, targets, profiles, cache_dir=cache / "compiled")
    if as_json:
        rows = [_as_row(build) for build in found.builds]
        click.echo(json.dumps({"builds": rows, "failures": found.failures}, indent=2))
    else:
        out = draw.console()
        for build in found.builds:
            out.print(_table(build))
        for target, failures in found.failures.items():
            more = f"\n{len(failures) - 1} more cases fail for {target}" if failures[1:] else ""
            out.print(f"✗ {failures[0]}{more}", markup=False)
    sys.exit(1 if found.failures else 0)


def _table(build: "Build") -> "Table":
    """One kernel for one target: a fact a row."""
    from rich.table import Table

    facts, seen = build.facts, build.instructions
    table = Table(title=f"{facts.name} for {facts.target}", title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("built for", "\n".join(_launches(build)))
    table.add_row("warps, stages", f"{facts.num_warps}, {facts.num_stages}")
    table.add_row("registers", f"{facts.registers} a thread")
    table.add_row("spills", f"{facts.spills} bytes" if facts.spills else "none")
    table.add_row("shared memory", f"{facts.shared_bytes:,} bytes a program")
    table.add_row("occupancy", _occupancy(build))
    table.add_row("global loads", _widths(seen.loads))
    table.add_row("global stores", _widths(seen.stores))
    named = [f"{name} x {count}" for name, count in seen.named.items()]
    table.add_row("instructions", ", ".join(named) or "none of note")
    return table


def _launches(build: "Build") -> list[str]:
    lines = [f"{case}: grid {' x '.join(map(str, grid))}" for case, grid in build.launches.items()]
    more = len(lines) - CASES_SHOWN
    return [*lines[:CASES_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _occupancy(build: "Build") -> str:
    found = build.residency
    limits = " and ".join(found.limits)
    if not found.blocks:
        return f"none: not one program fits ({limits})"
    return f"{found.share:.0%}: {found.blocks} programs an SM, limited by {limits}"


def _widths(counts: Mapping[int, int]) -> str:
    widest_first = sorted(counts.items(), reverse=True)
    return ", ".join(f"{bits} bits x {count}" for bits, count in widest_first) or "none"


def _as_row(build: "Build") -> dict[str, Any]:
    """One build as plain data for ``--json``."""
    facts, seen, fits = build.facts, build.instructions, build.residency
    return {
        "kernel": facts.name,
        "target": facts.target,
        "launches": [{"case": case, "grid": grid} for case, grid in build.launches.items()],
        "num_warps": facts.num_warps,
        "num_stages": facts.num_stages,
        "registers": facts.registers,
        "spills_bytes": facts.spills,
        "shared_bytes": facts.shared_bytes,
        "occupancy": fits.share,
        "programs_per_sm": fits.blocks,
        "limited_by": fits.limits,
        "instructions": dict(seen.named),
        "load_bits": dict(seen.loads),
        "store_bits": dict(seen.stores),
    }


COMMANDS = [inspect]
