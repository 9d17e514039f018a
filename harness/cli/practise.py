"""Commands of practice: run a kata, swap the reference in and out, compare, look back."""

import difflib
import sys
from collections.abc import Sequence
from datetime import datetime

import click

from harness.base.errors import UsageProblem
from harness.base.files import hash_of, read_file
from harness.cli import draw, results
from harness.cli.house import KATA, WEEKS, House
from harness.cli.remotely import run_on
from harness.content.kata import Kata
from harness.content.pristine import committed_stub
from harness.content.submission import Submission
from harness.hardware.environment import SEEDS, device_present
from harness.hardware.packages import install_extra, missing_extra
from harness.hardware.profiles import find_profile
from harness.learner.workspace import StashEntry
from harness.running.attempt import attempt
from harness.running.runner import Outcome

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
@click.option("--install", is_flag=True, help="Install the extra that a kata needs and lacks.")
@click.option("-v", "--verbose", is_flag=True, help="Name every check, also those that passed.")
@click.option("--on", "box", metavar="USER@HOST", help="Judge on another machine, over ssh.")
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
    install: bool,
    verbose: bool,
    box: str | None,
) -> None:
    """Judge your code, each kata in a process of its own. Without a GPU work is counted."""
    chosen = choose(house, katas, weeks, everything)
    if box is not None:
        options = ["--install", f"--device={device}", *(["-v"] if verbose else [])]
        options += [] if seed is None else [f"--seed={seed}"]
        options += [] if profile is None else [f"--profile={profile}"]
        for kata in chosen if brief else ():
            draw.brief(kata)
        run_on(house, box, chosen, impl, options)
    if profile is not None:
        find_profile(house.root / "hardware_profiles", profile)  # says so when there is none
    gpu = device_present()
    legs = ["cpu", "cuda"] if device == "auto" and gpu else [device]
    legs = ["cpu"] if legs == ["auto"] else legs
    passed = True
    for kata in chosen:
        if install and missing_extra(kata):
            with draw.waiting(f"installing the extra {kata.extra}, once"):
                install_extra(kata)
        if len(chosen) > 1 and (missing := missing_extra(kata)):
            click.echo(f"- {kata.name}: skipped: {missing}")
            continue
        if brief:
            draw.brief(kata)
        more = more_cases(house, kata, impl)
        for leg in legs:
            submission = house.submission(kata, impl)
            outcome = judge(house, submission, leg, seed, profile, more)
            results.outcome(
                kata,
                outcome,
                submission.owner,
                house.shown(kata.file),
                gpu=gpu,
                verbose=verbose,
            )
            passed = passed and outcome.status == "passed"
        if more:
            click.echo("You solved it before: cases were drawn besides those that are listed.")
        swapped = impl == "yours" and submission.owner == "solution"
        if swapped and house.workspace.is_swapped(kata.name, kata.file):
            click.echo(f"The reference stands in place of your file: kata restore {kata.name}")
    sys.exit(0 if passed else 1)


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


def more_cases(house: House, kata: Kata, impl: str) -> list[str]:
    """Options of pytest that have a kata which was solved before judged on other cases, too."""
    repeats = None
    if impl == "yours" and kata.vary:
        with house.even_without_room():
            repeats = house.standing(kata).solved_at
    return [f"--vary={MORE_CASES}"] if repeats else []


def judge(
    house: House,
    submission: Submission,
    device: str,
    seed: int | None,
    profile: str | None,
    more: Sequence[str],
) -> Outcome:
    """Make an attempt, and show that it is under way; `more` are options of pytest."""
    progress = None
    with house.even_without_room():
        progress = house.progress
    with draw.waiting(f"{submission.kata.name} on {device}"):
        return attempt(
            submission,
            progress,
            house.workspace,
            device=device,
            seed=seed,
            profile=profile,
            extra=more,
            room=house.even_without_room,
        )


@click.command()
@click.argument("kata", type=KATA)
@click.pass_obj
def swap(house: House, kata: Kata) -> None:
    """Put the reference solution in place; your file is kept."""
    result = house.workspace.swap(kata.name, kata.file, kata.solution)
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
    click.echo(f"{house.shown(kata.file)} is the blank stub again. {draw.kept(result)}".rstrip())


@click.command()
@click.argument("kata", type=KATA)
@click.pass_obj
def diff(house: House, kata: Kata) -> None:
    """Your file against the reference. It counts as having seen it."""
    mine, reference = (
        read_file(path).decode(errors="replace").splitlines() for path in (kata.file, kata.solution)
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
    """Every copy of your files that was ever kept."""


@stash.command("list")
@click.argument("kata", type=KATA, required=False)
@click.pass_obj
def stash_list(house: House, kata: Kata | None) -> None:
    """What was kept, when and why."""
    draw.versions(house.workspace.versions(kata.name if kata else None))


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
