"""Commands that show: katas on the roofline, and who touches what."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli import draw, screen
from harness.cli.house import KATA, House
from harness.cli.screen import beside, json_option
from harness.content.kata import Kata

if TYPE_CHECKING:
    from harness.hardware.profiles import Profile
    from harness.reports.pictures.recording import Recording
    from harness.reports.pictures.roofline import Entry
    from harness.reports.pictures.timeline import Timeline

NAMED = 3  # katas that a title names

OUT = click.option(
    "-o", "out", type=click.Path(path_type=Path), help="Draw it: a .png or .svg to write."
)


@click.command()
@click.argument("katas", nargs=-1, required=True, type=KATA)
@click.option("--profile", help="Hardware profile; default: this machine's GPU, else H100.")
@OUT
@json_option
@click.pass_obj
def roofline(
    house: House, katas: tuple[Kata, ...], profile: str | None, out: Path | None, as_json: bool
) -> None:
    """Your code on the roofline, beside the reference."""
    from harness.reports.pictures.canvas import check_file
    from harness.reports.pictures.roofline import check_drawable

    if out is not None:
        check_file(out)
    for kata in katas:
        check_drawable(kata)
    device = house.prediction_profile(profile)
    entries = [entry for kata in katas for entry in _entries(house, kata, device)]
    if as_json:
        _draw_roofline(entries, device, katas, out)
        screen.as_json({"profile": device.id, "points": [asdict(entry) for entry in entries]})
        return
    _roofline_table(entries, device)
    for kata in katas:
        if all(entry.kata != kata.name for entry in entries):
            click.echo(
                f"{kata.name}: nothing was measured on {device.id}, and no bytes can be counted"
            )
    names = " ".join(kata.name for kata in katas)
    if out is None or not entries:
        click.echo(f"next: kata roofline {names} --profile {device.id} -o roofline.svg")
        return
    _draw_roofline(entries, device, katas, out)
    click.echo(f"drawn: {out}")


def _draw_roofline(
    entries: "list[Entry]", device: "Profile", katas: Sequence[Kata], out: Path | None
) -> None:
    """Write the picture, where one is asked for and there is something on it."""
    if out is None or not entries:
        return
    from harness.reports.pictures.draw_roofline import draw_roofline

    names = ", ".join(kata.name for kata in katas)
    what = names if len(katas) <= NAMED else f"{len(katas)} katas"
    draw_roofline(entries, device, f"{what} on {device.name}", out)


def _entries(house: House, kata: Kata, profile: "Profile") -> "list[Entry]":
    """What was timed on the profile, and the traffic of what was not."""
    from harness.reports.ladder import climb
    from harness.reports.measured import kept_results
    from harness.reports.pictures import roofline as points

    results = kept_results(house.root)
    timings = {
        **points.reference_timings(results, kata, profile),
        **points.own_timings(house.progress.best(), kata, profile),
    }
    with draw.waiting(f"placing {kata.name}"):
        timed = points.timed_entries(kata, profile, timings)
        if not points.wants_counting(kata, timed):
            return timed
        rungs = climb(kata, "cpu", house.home / "cache", yours=points.is_written(kata))
        return [*timed, *points.counted_entries(kata, rungs, timed)]


def _roofline_table(entries: "list[Entry]", profile: "Profile") -> None:
    """The same figures in words, case by case."""
    peaks = {one.dtype: profile.peak_of(one.dtype) for one in entries if one.cost.flops}
    rates = [f"memory {profile.bandwidth / 1e12:.3g} TB/s"]
    rates += [f"{dtype} {peak / 1e12:.4g} TFLOP/s" for dtype, peak in peaks.items()]
    click.echo(f"{profile.name}: {', '.join(rates)}")
    width = max((len(one.impl) for one in entries), default=0)
    heading = ""
    for one in sorted(entries, key=lambda one: (one.kata, one.case)):
        if heading != (heading := f"{one.kata}: {one.case}"):
            click.echo(heading)
        click.echo(f"  {one.impl:{width}}  {_figures(one)}  {one.source}")


def _figures(one: "Entry") -> str:
    where = f"{one.cost.intensity:8.4g} FLOP/byte"
    if one.seconds is None or one.share is None:
        return f"{where}  {one.cost.bytes / one.least:.2f} x the least possible bytes"
    speeds = f"{one.flops_per_s / 1e12:8.4g} TFLOP/s  {one.bytes_per_s / 1e12:6.3g} TB/s"
    return (
        f"{where}  {speeds}  {one.seconds * 1e6:8,.4g} µs  {one.share:6.1%} of the speed of light"
    )


@click.command()
@click.argument("kata", type=KATA)
@click.option("--case", default=1, show_default=True, help="Which [[cases]] of kata.toml.")
@click.option(
    "--impl", default="yours", show_default=True, help="yours, solution, wrong:naive or a path."
)
@OUT
@json_option
@click.pass_obj
def trace(house: House, kata: Kata, case: int, impl: str, out: Path | None, as_json: bool) -> None:
    """Which program or warp accesses what, and at what cost. In Gluon, also what is in flight."""
    from harness.reports.pictures.canvas import check_file
    from harness.reports.pictures.trace import TIMED, case_words, check_case, recorded, timeline

    if out is not None:
        check_file(out)
    check_case(kata, case)
    submission = house.submission(kata, impl)
    title = f"{kata.name} ({impl}), case {case}: {case_words(kata, case)}"
    show: Callable[[Path], None]
    found: Recording | Timeline
    with draw.waiting(f"{kata.name} on the simulator"):
        if kata.backend in TIMED:
            program = timeline(submission, case)
            said, show = _timeline_words(program), partial(_draw_timeline, program, title)
            found = program
        else:
            touched = recorded(submission, case)
            said, show = _trace_words(touched), partial(_draw_trace, touched, title)
            found = touched
    if submission.kind in ("solution", "wrong"):
        # its lines are printed; most wrong solutions are the reference but for one of them
        house.progress.note("solution_seen", kata.name, "trace")
    if as_json:
        if out is not None:
            show(out)
        screen.as_json(
            {"kata": kata.name, "impl": impl, "case": case, **json.loads(found.as_json())}
        )
        return
    click.echo(title)
    for line in said:
        click.echo(line)
    if out is None:
        click.echo(f"next: kata trace {kata.name} --case {case} --impl {impl} -o trace.svg")
        return
    show(out)
    click.echo(f"drawn: {out}")


def _draw_trace(found: "Recording", title: str, out: Path) -> None:
    from harness.reports.pictures.draw_trace import draw_trace

    draw_trace(found, title, out)


def _draw_timeline(found: "Timeline", title: str, out: Path) -> None:
    from harness.reports.pictures.draw_timeline import draw_timeline

    draw_timeline(found, title, out)


def _timeline_words(found: "Timeline") -> Iterator[str]:
    """The same figures in words, line by line."""
    from harness.reports.pictures.timeline import lines_of

    yield (
        f"program {found.index} of {found.kernel}, one of {found.programs}: {found.steps} "
        "operations"
    )
    lines = lines_of(found)
    width = max((len(line.where) for line in lines), default=0)
    for line in lines:
        yield (
            f"  {line.where:{width}}  {line.kind:9} {line.count:6} times, {line.steps:6.4g} "
            f"operations each    {line.source}"
        )
    for name, share in found.overlaps.items():
        yield f"  {share:6.1%} of {name}"
    if found.bytes_in_flight:
        yield f"  {found.bytes_in_flight:,.0f} bytes in flight at a wait for data"


def _trace_words(found: "Recording") -> Iterator[str]:
    """The same figures in words, line by line."""
    kernels = ", ".join(f"{one.kernel} from {found.unit} {one.first}" for one in found.launches)
    yield f"{found.units} {found.unit}s: {kernels}"
    places = [line.where for line in found.lines] + [bank.where for bank in found.banks]
    width = max(map(len, places), default=0)
    for line in found.lines:
        yield from beside(
            f"  {line.where:{width}}  {line.kind:6} {line.requests:6} requests, "
            f"{line.sectors_per_request:6.4g} sectors each, {line.least_per_request:6.4g} at least",
            line.source,
        )
    for one in found.banks:
        yield from beside(
            f"  {one.where:{width}}  {one.kind:6} {one.requests:6} requests to shared memory, "
            f"{one.wavefronts_per_request:.3g} passes each",
            one.source,
        )


COMMANDS = [roofline, trace]
