"""Commands of practice: run a kata, swap the reference in and out, compare, look back."""

import difflib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import click

from harness.base.errors import UsageProblem
from harness.base.files import hash_of, read_file
from harness.cli import draw, results, screen, teach, why
from harness.cli.house import KATA, WEEKS, House
from harness.cli.remotely import run_on
from harness.cli.screen import json_option
from harness.content.kata import Kata
from harness.content.pristine import committed_stub
from harness.content.submission import Submission, reference_of
from harness.hardware.environment import SEEDS, device_present
from harness.hardware.packages import install_extra, missing_extra, missing_for
from harness.hardware.profiles import find_profile
from harness.learner.workspace import StashEntry
from harness.running.attempt import attempt
from harness.running.causes import NOT_MODELLED, stated_cause
from harness.running.runner import Outcome

if TYPE_CHECKING:
    from harness.learner.mastery import Standing

SEED = click.IntRange(0, SEEDS - 1)
MORE_CASES = 3  # on a repeat, besides those that the kata lists


@click.command()
@click.argument("katas", nargs=-1, type=KATA)
@click.option("--week", "weeks", type=WEEKS, help="Every kata of a week, or of weeks as in 1..4.")
@click.option("--all", "everything", is_flag=True, help="Every kata there is.")
@click.option("--impl", default="yours", show_default=True, help="yours, solution or a path.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--seed", type=SEED, help="Replay the inputs of an earlier run.")
@click.option("--profile", help="Hardware profile to judge against.")
@click.option("--brief", is_flag=True, help="Show the brief first.")
@click.option("--brief-once", is_flag=True, help="Show the brief unless it has been shown before.")
@click.option("--install", is_flag=True, help="Install the extra that a kata needs and lacks.")
@click.option("-v", "--verbose", is_flag=True, help="Name every check, also those that passed.")
@click.option("--on", "box", metavar="USER@HOST", help="Judge on another machine, over ssh.")
@json_option
@click.pass_obj
def run(
    house: House,
    katas: tuple[Kata, ...],
    weeks: tuple[int, ...] | None,
    everything: bool,
    impl: str,
    device: str,
    seed: int | None,
    profile: str | None,
    brief: bool,
    brief_once: bool,
    install: bool,
    verbose: bool,
    box: str | None,
    as_json: bool,
) -> None:
    """
    Judge your code, each kata in a process of its own. Without a GPU work is counted.

    Of several katas, those whose file is still the untouched stub are listed and not run.
    """
    chosen = choose(house, katas, weeks, everything)
    if box is not None:
        options = ["--install", f"--device={device}", *(["-v"] if verbose else [])]
        options += [] if seed is None else [f"--seed={seed}"]
        options += [] if profile is None else [f"--profile={profile}"]
        options += ["--json"] if as_json else []
        for kata in chosen if not as_json else ():
            if brief or (brief_once and not house.brief_shown(kata)):
                draw.brief(kata)
                house.note_brief(kata)
        run_on(house, box, chosen, impl, options)
    if profile is not None:
        find_profile(house.root / "hardware_profiles", profile)  # says so when there is none
    gpu = device_present()
    legs = ["cpu", "cuda"] if device == "auto" and gpu else [device]
    legs = ["cpu"] if legs == ["auto"] else legs
    how = How(seed=seed, profile=profile, verbose=verbose, quiet=as_json)
    judged, red, broken, untouched, rows = 0, 0, 0, [], []
    for kata in chosen:
        if install and missing_extra(kata):
            with draw.waiting(f"installing the extra {kata.extra}, once"):
                install_extra(kata)
        if len(chosen) > 1 and (missing := missing_for(kata)):
            click.echo(f"- {kata.name}: skipped: {missing}", err=as_json)
            continue
        submission = house.submission(kata, impl)
        if len(chosen) > 1 and submission.is_blank:
            untouched.append(kata)
            continue
        if not as_json and (brief or (brief_once and not house.brief_shown(kata))):
            draw.brief(kata)
            house.note_brief(kata)
        found = judge_and_show(house, submission, legs, how)
        judged += 1
        rows += [results.as_row(kata, impl, outcome) for outcome in found]
        red += any(outcome.status != "passed" for outcome in found)
        broken += any(stated_cause(outcome.reason) == NOT_MODELLED for outcome in found)
    if as_json:
        screen.as_json(rows)
    elif len(chosen) > 1:
        results.total(judged - red, len(chosen), [one.name for one in untouched])
    sys.exit(3 if broken else 1 if red or untouched else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a kata is judged and how it is shown; `quiet` shows nothing."""

    seed: int | None = None
    profile: str | None = None
    verbose: bool = False
    quiet: bool = False
    meanwhile: Callable[[], None] | None = None


def judge_and_show(
    house: House, submission: Submission, legs: Sequence[str], how: How
) -> list[Outcome]:
    """Judge a submission on each device, and show how it went, what it earned, what is next."""
    kata, before = submission.kata, None
    if submission.label == "yours":
        with house.even_without_room():
            before = house.standing(kata)
    more = _more_cases(kata, before)
    found: list[Outcome] = []
    for leg in legs:
        outcome = judge(house, submission, leg, how, more)
        found.append(outcome)
        if not how.quiet:
            results.outcome(
                kata,
                outcome,
                submission.owner,
                verbose=how.verbose,
                reached=house.reached(kata, outcome.profile)[1],
            )
    if how.quiet:
        return found
    if more:
        click.echo("You have solved this kata before, so extra cases were drawn.")
    if submission.owner == "solution" and submission.label == "yours":
        if house.workspace.is_swapped(kata.name, kata.file):
            click.echo(
                f"Your file is swapped for the reference. To get it back: kata restore {kata.name}"
            )
        before = None
    then = None
    if before is not None and all(one.status == "passed" for one in found):
        with house.even_without_room():
            after = house.standing(kata)
            teach.earned(before, after, house.now())
            if len(after.rounds) > len(before.rounds):
                why.raised(kata, after)
            then = next((one for one in house.advice() if one.kata != kata.name), None)
    worst = next((one for one in found if one.status != "passed"), found[-1])
    results.next_step(kata, worst, submission.owner, house.shown(kata.file), then)
    return found


def choose(
    house: House, katas: tuple[Kata, ...], weeks: tuple[int, ...] | None, everything: bool
) -> list[Kata]:
    """The katas that a command was asked for, in exactly one of the three ways."""
    if [bool(katas), weeks is not None, everything].count(True) != 1:
        raise UsageProblem(
            "kata: expected names, --week N or --all, found none or more than one of them. "
            "`kata list` shows the names."
        )
    if weeks is not None:
        return house.curriculum.week_katas(*weeks)
    return list(katas) or house.curriculum.all_katas()


def _more_cases(kata: Kata, standing: "Standing | None") -> list[str]:
    """Options of pytest that have a kata which was solved before judged on other cases, too."""
    solved = kata.vary and standing is not None and standing.solved_at
    return [f"--vary={MORE_CASES}"] if solved else []


def judge(
    house: House,
    submission: Submission,
    device: str,
    how: How,
    more: Sequence[str] = (),
) -> Outcome:
    """
    Make an attempt, and show that it is under way; `more` are options of pytest.

    `how.meanwhile` is called often; what it raises ends the attempt.
    """
    progress = None
    with house.even_without_room():
        progress = house.progress
    with draw.waiting(f"{submission.kata.name} on {device}"):
        outcome = attempt(
            submission,
            progress,
            house.workspace,
            device=device,
            seed=how.seed,
            profile=how.profile,
            extra=more,
            meanwhile=how.meanwhile,
        )
    house.say_unkept(outcome.unkept)
    return outcome


@click.command()
@click.argument("kata", type=KATA)
@click.pass_obj
def swap(house: House, kata: Kata) -> None:
    """Put the reference solution in place; your file is kept."""
    result = house.workspace.swap(kata.name, kata.file, reference_of(kata))
    house.progress.note("solution_seen", kata.name, "swap")
    draw.swapped(kata, house.shown(kata.file), result)


@click.command()
@click.argument("kata", type=KATA)
@click.pass_obj
def restore(house: House, kata: Kata) -> None:
    """Bring back what was in place before `kata swap`."""
    draw.restored(kata, house.shown(kata.file), house.workspace.restore(kata.name, kata.file))


@click.command()
@click.argument("kata", type=KATA)
@click.pass_obj
def reset(house: House, kata: Kata) -> None:
    """Start again from the blank stub; your file is kept."""
    stub = house.blank_stub(kata, "reset")
    result = house.workspace.reset(kata.name, kata.file, stub)
    house.progress.note("reset", kata.name)
    words = f"{house.shown(kata.file)} is the blank stub again. {draw.kept(result)}"
    click.echo(screen.folded(words.rstrip()))


@click.command()
@click.argument("kata", type=KATA)
@click.pass_obj
def diff(house: House, kata: Kata) -> None:
    """Your file against the reference. Counts as having seen the solution."""
    mine, reference = (
        read_file(path).decode(errors="replace").splitlines()
        for path in (kata.file, reference_of(kata))
    )
    house.progress.note("solution_seen", kata.name, "diff")
    lines = difflib.unified_diff(
        mine,
        reference,
        house.shown(kata.file),
        house.shown(kata.solution),
        lineterm="",
    )
    draw.diff(list(lines))


@click.group()
def stash() -> None:
    """Every kept copy of your files."""


@stash.command("list")
@click.argument("kata", type=KATA, required=False)
@json_option
@click.pass_obj
def stash_list(house: House, kata: Kata | None, as_json: bool) -> None:
    """What was kept, when and why."""
    found = house.workspace.versions(kata.name if kata else None)
    if as_json:
        screen.as_json(
            {"sha256": one.sha256, "time": one.time, "kata": one.kata, "lines": one.lines,
             "why": one.why}
            for one in found
        )  # fmt: skip
    else:
        draw.versions(found)


@stash.command("show")
@click.argument("version")
@click.pass_obj
def stash_show(house: House, version: str) -> None:
    """Print one kept copy; VERSION is the start of its hash."""
    click.echo(house.workspace.read(version).decode(errors="replace"), nl=False)
    _note_earlier_work(house, house.workspace.versions(), version)


@stash.command("apply")
@click.argument("kata", type=KATA)
@click.argument("version")
@click.pass_obj
def stash_apply(house: House, kata: Kata, version: str) -> None:
    """Put a kept copy in place; what is there now is kept first."""
    result = house.workspace.apply(kata.name, kata.file, version)
    click.echo(f"{house.shown(kata.file)} is version {version} again. {draw.kept(result)}".rstrip())
    _note_earlier_work(house, house.workspace.versions(kata.name), version)


def _note_earlier_work(house: House, versions: list[StashEntry], version: str) -> None:
    """Note a copy of `versions` from before the round under way as the solution seen; say so."""
    first = {one.kata: one for one in reversed(versions) if one.sha256.startswith(version)}
    known = house.standings()
    for kata in (house.curriculum.katas[name] for name in first if name in known):
        stub, under_way = committed_stub(kata), known[kata.name].open
        if under_way is None or not under_way.started:
            continue
        kept = first[kata.name]
        blank = stub is not None and kept.sha256 == hash_of(stub)
        if datetime.fromisoformat(kept.time) < under_way.began_at and not blank:
            house.progress.note("solution_seen", kata.name, "stash")
            click.echo(
                f"It was written before this round of {kata.name} began: it counts as having seen "
                "the solution.",
                err=True,
            )


COMMANDS = [run, swap, restore, reset, diff, stash]
