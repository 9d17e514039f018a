"""How lists look: katas, coverage, hardware profiles, and what was measured."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from harness.cli.screen import cut, folded, width
from harness.content.kata import Kata
from harness.learner.levels import LEGEND, Level

if TYPE_CHECKING:
    from harness.content.coverage import Coverage
    from harness.hardware.profiles import Profile

MARKS = {str(level): level.glyph for level in Level}
TERA, GIGA, MEGA, MICRO = 1e12, 1e9, 1e6, 1e-6
RELATIONS = ("bound", "at_most", "at_least", "exactly")
KIBI, MEBI = 2**10, 2**20
THOUSAND = 1000.0  # from here on a time needs no tenths
UNIT = re.compile("_(bytes|hz|s)$")  # in a field's name, which its figure says


def as_row(kata: Kata, state: str) -> dict[str, Any]:
    """One kata as plain data for ``--json``."""
    return {
        "name": kata.name,
        "week": kata.week,
        "title": kata.title,
        "backend": kata.backend,
        "difficulty": kata.difficulty,
        "minutes": kata.minutes,
        "covers": list(kata.covers),
        "requires": list(kata.requires),
        "status": state,
    }


def limits_row(kata: Kata) -> dict[str, Any]:
    """What a kata asks for, counted and timed, as plain data."""
    return {
        "cost": [
            {name: getattr(one, name) for name in ("name", "meter", *RELATIONS)}
            for one in kata.cost
        ],
        "speed": [
            {name: getattr(one, name) for name in ("name", "kind", "fraction", "ratio", "on")}
            for one in kata.speed
        ],
    }


def katas(rows: Sequence[tuple[Kata, str]]) -> None:
    """The list of katas: plain columns, drawn without rich to stay quick."""
    if not rows:
        click.echo("No kata matches. `kata list` without options shows them all.")
        return
    room = max(len(kata.name) for kata, _ in rows)
    for kata, state in rows:
        line = (
            f"{MARKS[state]} week {kata.week:2}  {kata.name:{room}}  {kata.backend:11} "
            f"{kata.difficulty}/5  {kata.minutes:3} min  {kata.title}"
        )
        click.echo(cut(line))
    click.echo(LEGEND)


def coverage(found: "Coverage") -> None:
    """Every item with the katas that cover it, then the totals."""
    from harness.content.coverage import KINDS

    lines = [(item.id, item.name, ", ".join(item.katas) or "no kata yet") for item in found.items]
    in_columns = [f"{key:6} {name:60} {katas}" for key, name, katas in lines]
    room = width()
    if room is None or all(len(line) <= room for line in in_columns):
        for line in in_columns:
            click.echo(line)
    else:
        for key, name, katas in lines:
            click.echo(folded(f"{key:6} {name}: {katas}", indent=7))
    for kind in KINDS:
        covered, everything = found.counts(kind)
        if everything:
            click.echo(f"{kind.replace('_', '-')}: {covered} of {everything} covered")


def profiles(found: Sequence["Profile"]) -> None:
    """One line a profile."""
    click.echo(cut(f"{'profile':14} {'arch':7} {'SMs':>4} {'TB/s':>6} {'TFLOP/s':>8}  GPU"))
    for one in found:
        tensor = one.peak.get("bfloat16", one.peak.get("float16", 0.0))
        click.echo(
            cut(
                f"{one.id:14} {one.arch:7} {one.sms:4} {one.bandwidth / TERA:6.3f} "
                f"{tensor / TERA:8.1f}  {one.name}"
            )
        )
    click.echo("TFLOP/s: dense, 16-bit operands")


def profile_row(found: "Profile") -> dict[str, Any]:
    """A profile as plain data, in units of one: bytes, hertz, FLOP/s, seconds."""
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()
    }


def profile(found: "Profile") -> None:
    """Everything a profile says, in the units of a datasheet."""
    for field in fields(found):
        for name, figure in _figures(field.name, getattr(found, field.name)):
            click.echo(folded(f"{name:30} {figure}", indent=31))


def _figures(name: str, value: object) -> Iterator[tuple[str, str]]:
    """What a field of a profile holds, one line each, with its unit."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _figures(f"{name}.{key}", one)
    elif isinstance(value, tuple):
        yield from ((name, str(one)) for one in value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield UNIT.sub("", name), _in_units(name, value)
    else:
        yield name, str(value)


def _in_units(name: str, value: float) -> str:
    """A figure in the unit that its name stands for."""
    group, _, dtype = name.partition(".")
    if group == "peak" or (group == "measured" and dtype not in ("bandwidth", "launch")):
        return f"{value / TERA:,.4g} TFLOP/s"
    if name.endswith("bandwidth"):
        return f"{value / TERA:.3g} TB/s" if value >= TERA else f"{value / GIGA:.4g} GB/s"
    if group == "memory_bytes":
        return f"{value / GIGA:,.1f} GB"
    if group.endswith("_bytes"):
        return f"{value / MEBI:g} MiB" if value >= MEBI else f"{value / KIBI:g} KiB"
    if group.endswith("_hz"):
        return f"{value / MEGA:,.0f} MHz"
    if group.endswith("_s") or dtype == "launch":
        return f"{value / MICRO:g} µs"
    return f"{value:g}" if value % 1 else f"{value:,.0f}"


def measured(found: Sequence[dict[str, Any]], *, verbose: bool = False) -> None:
    """Thresholds on the clock and what was reached, one line each, the references first."""
    if not found:
        click.echo("Nothing of this has been measured yet: kata measure -o FILE on a GPU machine.")
        return
    names = [_measured_name(row) for row in found]
    rooms = {
        "kata": max(4, *map(len, names)),
        "profile": max(7, *(len(row["profile"]) for row in found)),
        "threshold": max(9, *(len(row["threshold"]) for row in found)),
    }
    heading = "  " + " ".join(f"{name:{room}}" for name, room in rooms.items())
    more = "  p10 to p90, host, baseline, date" if verbose else ""
    click.echo(cut(f"{heading} {'reached':>7} {'limit':>6} {'µs':>7}{more}"))
    for row in sorted(found, key=lambda row: row["impl"] != "solution"):
        spread = [*row["times_us"], "-"]  # p10, median, p90, where they were kept
        median = spread[1] if len(spread) > 3 else spread[0]
        line = (
            f"{'✗' if row['problem'] else '✓' if row['impl'] == 'solution' else '·'} "
            f"{_measured_name(row):{rooms['kata']}} {row['profile']:{rooms['profile']}} "
            f"{row['threshold']:{rooms['threshold']}} {row['value']:7.3f} {row['limit']:6.3g} "
            f"{_tenths(median):>7}"
        )
        if verbose:
            host = ", ".join(f"{one:.1f}" for one in row["host_us"]) or "-"
            around = f"{_tenths(spread[0])} to {_tenths(spread[-2])}" if len(spread) > 1 else "-"
            line += f"  {around}, {host}, {row['date']}, {row['outcome']}"
        click.echo(line)
        if row["problem"]:
            click.echo(folded(f"    {row['problem']}"))


def _measured_name(row: Mapping[str, Any]) -> str:
    """The kata of a row, and which wrong solution of it, if it is none of the reference's."""
    impl = "" if row["impl"] == "solution" else f" {row['impl'].removeprefix('wrong:')}"
    return str(row["kata"]).partition("/")[2] + impl


def _tenths(figure: object) -> str:
    if isinstance(figure, float):
        return f"{figure:.0f}" if figure >= THOUSAND else f"{figure:.1f}"
    return str(figure)


def sweep(rows: Sequence[dict[str, Any]]) -> None:
    """Bus bandwidth, a line a size and a column a collective."""
    ops = list(dict.fromkeys(row["op"] for row in rows))
    click.echo(f"{'bytes':>12}" + "".join(f"{op:>18}" for op in ops) + "   GB/s")
    for nbytes in dict.fromkeys(row["nbytes"] for row in rows):
        found = {row["op"]: row["busbw"] / 1e9 for row in rows if row["nbytes"] == nbytes}
        click.echo(f"{nbytes:12}" + "".join(f"{found[op]:18.3f}" for op in ops))
