"""How a teacher looks in a terminal."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from harness.cli.draw import console
from harness.cli.screen import folded
from harness.content.kata import Kata
from harness.learner.advice import command_for, runs_in
from harness.learner.mastery import CLEAN_DAYS, Level

MOST_LATER = 8  # katas that are not due yet

if TYPE_CHECKING:
    from harness.authoring.half import Half
    from harness.learner.advice import Advice
    from harness.learner.mastery import Standing
    from harness.learner.predict import Score, Sheet, TrackRecord
    from harness.learner.rounds import Round
    from harness.reports.ladder import Approach, Rung


def advice(found: "Sequence[Advice]", katas: Mapping[str, Kata]) -> None:
    """One suggestion a line, the reason, and what to type."""
    if not found:
        click.echo("Nothing is in progress, due or new: you have solved every kata there is.")
        return
    for one in found:
        kata = katas[one.kata]
        click.echo(f"{kata.name}  ({one.minutes:.0f} min, difficulty {kata.difficulty}/5)")
        click.echo(folded(f"    {kata.teaches}"))
        click.echo(folded(f"    {one.reason}"))
    click.echo(f"next: {found[0].command}")


def due(
    found: "Sequence[Standing]",
    later: "Sequence[Standing]",
    now: datetime,
    katas: "Mapping[str, Kata]",
) -> None:
    """What is due, how long, and how much of it is likely left; and what will be due `later`."""
    width = max((len(one.kata) for one in [*found, *later]), default=0)
    for one in found:
        assert one.due is not None
        late = max(0, (now - one.due).days)
        click.echo(
            f"{one.kata:{width}}  recall {one.recall or 0:4.0%}  due {one.due.date()}"
            f"{f' ({late} days ago)' if late else ''}  "
            f"{'five minutes' if one.short else 'from blank'}"
        )
    if found:
        first = found[0]
        begin = command_for(katas[first.kata], begun=first.open is not None, short=first.short)
        click.echo(f"next: {begin}")
    else:
        click.echo("Nothing is due today. `kata next` names something new.")
    for one in later[:MOST_LATER]:
        assert one.due is not None
        click.echo(f"{one.kata:{width}}  due {one.due.date()} ({in_days(one.due, now)})")
    if more := later[MOST_LATER:]:
        click.echo(f"{len(more)} more later: kata scorecard")


def in_days(moment: datetime, now: datetime) -> str:
    """How far a day lies ahead, in words."""
    days = (moment.date() - now.date()).days
    return "today" if days < 1 else "tomorrow" if days == 1 else f"in {days} days"


def earned(before: "Standing", after: "Standing", now: datetime) -> None:
    """What a run that passed has earned: level, cold day, and when the kata comes back."""
    words = [f"{after.level.glyph} {after.level}"]
    done = after.rounds[-1] if after.rounds else None
    if done is None or len(after.rounds) == len(before.rounds):
        words.append(f"already solved in this round (another: kata start {after.kata})")
    elif done.clean and after.level < Level.MASTERED:
        words.append(f"cold day {min(len(after.clean_days), CLEAN_DAYS)} of {CLEAN_DAYS}")
    elif not done.clean:
        words.append(f"no cold day: {_help_of(done)}")
    if after.due is not None:
        words.append(f"due again {after.due.date()}, {in_days(after.due, now)}")
    click.echo(folded(f"earned: {' · '.join(words)}"))


def answered(before: "Standing", after: "Standing", now: datetime) -> str:
    """What a short review has come to: when its kata comes back, or why this stays as it was."""
    if after.due is None:
        return f"{after.kata}: comes back once it is solved"
    if len(after.reviews) > len(before.reviews):
        passed = "" if after.reviews[-1].passed else " that was not passed"
        words = f"counts as a review{passed}; due again"
    else:
        since = "you practised it today" if before.short else "its reviews are from blank by now"
        words = f"does not count as a review, since {since}; still due"
    return f"{after.kata}: {words} {after.due.date()}, {in_days(after.due, now)}"


def _help_of(done: "Round") -> str:
    """What kept a round from being cold."""
    if done.solution_seen:
        return "the solution was seen"
    if done.hints:
        return "a hint was shown" if done.hints == 1 else f"{done.hints} hints were shown"
    return "half of the body was given"


def given_up(left: "Round") -> None:
    """What a new start leaves behind."""
    began = f"{left.began_at:%Y-%m-%d %H:%M}"
    seen = ", solution seen" if left.solution_seen else ""
    click.echo(f"The round begun {began} UTC is given up: {runs_in(left)}{seen}, not solved.")


def started(
    kata: Kata, standing: "Standing", shown: str, kept: str | None, half: "Half | None" = None
) -> None:
    """What lies before the learner."""
    again = sum(one.solved for one in standing.rounds)
    what = "half a stub" if half else "the blank stub"
    click.echo(folded(f"{shown} is {what}; the clock is running."))
    if half:
        click.echo(folded(f"Given: {', '.join(half.given)}. Yours: {', '.join(half.left)}."))
    click.echo(f"It usually takes {kata.minutes} minutes.")
    if kept is not None:
        click.echo(f"What was there is kept: kata stash apply {kata.name} {kept[:12]}")
        click.echo("(before this round is solved that counts as having seen the solution)")
    if again:
        times = "once" if again == 1 else f"{again} times"
        click.echo(f"You have solved it {times}.")
        if kata.vary:
            varied = ", ".join(sorted(kata.vary))
            click.echo(f"This time extra cases are drawn, with other values of {varied}.")
    click.echo(f"next: kata show {kata.name}, edit, then {kata.run_command}")


def reference(kata: Kata, shown: str) -> None:
    """The reference, and what it is an example of."""
    from rich.markup import escape
    from rich.syntax import Syntax

    out = console()
    out.print(f"[bold]{escape(kata.title)}[/]: {escape(kata.teaches)}\n")
    out.print(shown, style="dim", markup=False, soft_wrap=True)
    source = kata.solution.read_text(encoding="utf-8")
    # whole lines, whatever the width: the screen may fold them, nothing is cut off
    out.print(Syntax("", "python", theme="ansi_dark").highlight(source), soft_wrap=True)
    out.print("\nThe hints, from a nudge to the answer:")
    for hint in kata.hints:
        click.echo(folded(f"  · {hint}"))
    for source in kata.sources:
        click.echo(folded(f"  see {source}"))


def reference_row(kata: Kata) -> dict[str, Any]:
    """The reference as plain data; its source is None in a course that has no solutions."""
    there = kata.solution.is_file()
    return {
        "kata": kata.name,
        "title": kata.title,
        "teaches": kata.teaches,
        "reference": kata.solution.read_text(encoding="utf-8") if there else None,
        "hints": list(kata.hints),
        "sources": list(kata.sources),
    }


def sheet_row(sheet: "Sheet") -> dict[str, Any]:
    """A filled worksheet as plain data, times in seconds."""
    return {
        "threshold": sheet.name,
        "case": dict(sheet.case),
        "profile": sheet.profile.id,
        "flops": sheet.cost.flops,
        "bytes": sheet.cost.bytes,
        "intensity": sheet.intensity,
        "bound": sheet.bound,
        "seconds": sheet.seconds,
    }


def ladder(rungs: "Sequence[Rung]", device: str) -> None:
    """One column an implementation, one row a threshold."""
    from rich.table import Table

    table = Table(title=f"the ladder, on {device}", title_justify="left", box=None)
    table.add_column("threshold")
    for rung in rungs:
        table.add_column("reference" if rung.name == "solution" else rung.name, justify="right")
    for name in dict.fromkeys(name for rung in rungs for name in rung.values):
        cells = []
        for rung in rungs:
            value = rung.values.get(name)
            colour = "green" if rung.passed.get(name) else "red"
            cells.append("-" if value is None else f"[{colour}]{_figure(value)}[/]")
        table.add_row(name, *cells)
    console().print(table)


def approach(one: "Approach") -> None:
    """What another way says of itself, and what a device has measured of it."""
    click.echo(folded(f"{one.name}: {one.why}"))
    if not one.measured:
        click.echo("    not measured")
        return
    reached = []
    for name, value in one.measured.items():
        beside = one.reference.get(name)
        known = "" if beside is None else f" (the reference {_figure(beside)})"
        reached.append(f"{name} {_figure(value)}{known}")
    click.echo(folded(f"    measured on {one.profile}: {', '.join(reached)}", 4))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def worksheet(kata: Kata, sheet: "Sheet") -> None:
    """What is to be estimated, and the two ceilings."""
    case = ", ".join(f"{name} = {value}" for name, value in sheet.case.items())
    profile = sheet.profile
    click.echo(f"{kata.name}: {case}")
    click.echo(
        f"on {profile.name}: {profile.bandwidth / 1e12:.3g} TB/s, "
        f"{profile.peak_of(sheet.dtype) / 1e12:.4g} TFLOP/s in {sheet.dtype}"
    )


def worksheet_filled(kata: Kata, sheet: "Sheet") -> None:
    """The worksheet of the brief with its blanks filled in."""
    click.echo("\nThe worksheet, filled in:")
    worksheet(kata, sheet)
    peak, bandwidth = sheet.profile.peak_of(sheet.dtype), sheet.profile.bandwidth
    rows = [
        ("work", f"{sheet.cost.flops:,.0f} FLOP, at least {sheet.cost.bytes:,.0f} bytes moved"),
        ("intensity", f"{sheet.intensity:,.4g} FLOP per byte; ridge {peak / bandwidth:,.4g}"),
        ("bound by", sheet.bound),
        ("at best", f"{sheet.seconds * 1e6:,.4g} µs"),
    ]
    for name, words in rows:
        click.echo(f"  {name:10} {words}")


def prediction(found: "Score") -> None:
    """Guess beside the roofline, the measurement under it, and the points."""
    rows = [
        ("FLOP per byte", found.guess.intensity, found.truth.intensity, found.intensity_right),
        ("bound by", found.guess.bound, found.truth.bound, found.bound_right),
        ("µs at best", found.guess.seconds * 1e6, found.truth.seconds * 1e6, found.time_right),
    ]
    for name, guess, truth, right in rows:
        shown = [one if isinstance(one, str) else f"{one:,.4g}" for one in (guess, truth)]
        click.echo(f"{'✓' if right else '✗'} {name:14} you {shown[0]:>10}   it is {shown[1]:>10}")
    if found.measured is not None:
        click.echo(f"  measured       {found.measured * 1e6:,.4g} µs, your best on this profile")
    late = "; it was timed before, so this is recorded as made afterwards" if found.after else ""
    click.echo(f"{found.points} of 3, compared with the roofline{late}")


def track_record(found: "TrackRecord | None") -> None:
    """How the predictions so far went, in a line; nothing before the first."""
    if found is None:
        return
    last = "last prediction" if found.count == 1 else f"last {found.count} predictions"
    click.echo(
        f"your {last}: time within a factor of {found.time_factor:.3g} (median), intensity right "
        f"in {found.intensity_right}, bound in {found.bound_right}"
    )


def placement(week: int, chosen: Sequence[Kata], solved: set[str], rest: Sequence[str]) -> None:
    """What still has to be shown, or what has been."""
    for kata in chosen:
        mark = "✓" if kata.name in solved else "·"
        click.echo(f"{mark} {kata.name}  {kata.minutes} min  covers {', '.join(kata.covers)}")
    if len(solved) == len(chosen):
        click.echo(
            f"You have tested out of week {week}: {', '.join(rest)} will not be suggested. "
            "They count as owned once you solve them."
            if rest
            else f"You have tested out of week {week}: there is nothing else in it."
        )
        return
    left = next(kata for kata in chosen if kata.name not in solved)
    click.echo("Solve these without hints. next: kata start " + left.name)
