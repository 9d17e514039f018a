"""`kata hunt`: the reference with a fault in it; find it, say the line, mend it."""

import random
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import UsageProblem
from harness.cli import draw, results, screen, teach
from harness.cli.house import KATA, House
from harness.cli.practise import SEED
from harness.cli.screen import folded, json_option
from harness.content.kata import Kata
from harness.content.submission import reference_of
from harness.hardware.environment import SEEDS
from harness.running.attempt import attempt

if TYPE_CHECKING:
    from harness.practice.hunt import Hunt, Hunts
    from harness.running.runner import Outcome

LINE = re.compile(r" \(line \d+, in \S+\)")  # of the reference: not as the hunted file has it


@click.command()
@click.argument("kata", type=KATA)
@click.option("--check", is_flag=True, help="Judge the hunted file: what fails, or is it mended?")
@click.option("--case", metavar="WORDS", help='Judge it on one case, as in "rows=1 cols=3".')
@click.option("--line", type=click.IntRange(min=1), help="Is this line of the file at fault?")
@click.option("--because", metavar="SENTENCE", help="Say in a sentence what is wrong.")
@click.option("--give-up", is_flag=True, help="Show the fault and end the hunt.")
@click.option("--seed", type=SEED, help="Draw the fault and the inputs of an earlier hunt.")
@click.option(
    "--anyway", is_flag=True, help="Before you have solved it; counts as having seen the solution."
)
@json_option
@click.pass_obj
def hunt(
    house: House,
    kata: Kata,
    check: bool,
    case: str | None,
    line: int | None,
    because: str | None,
    give_up: bool,
    seed: int | None,
    anyway: bool,
    as_json: bool,
) -> None:
    """
    Find the fault in a broken reference, and mend it.

    A few lines of the reference are wrong. Reproduce, shrink, locate, explain, mend: without an
    option it begins a hunt, or says how far the one under way is. Exit code 1: it still fails, or
    the line is right as it is.
    """
    from harness.practice.hunt import Hunts

    hunts = Hunts(house.root, house.home, house.workspace)
    asked = [check, case is not None, line is not None, because is not None, give_up]
    if asked.count(True) > 1:
        raise UsageProblem(
            "hunt: expected one of --check, --case, --line, --because and --give-up, found several."
        )
    found = hunts.last(kata)
    if found is None or found.ended:
        if any(asked):
            raise UsageProblem(
                f"hunt: expected a hunt of {kata.name} under way, found none. Begin one: "
                f"kata hunt {kata.name}"
            )
        found = _begin(house, hunts, kata, seed=seed, anyway=anyway)
    elif seed is not None:
        raise UsageProblem(
            f"--seed: expected no hunt of {kata.name} under way, found one. End it first: "
            f"kata hunt {kata.name} --give-up"
        )
    if case is not None:
        _shrink(house, hunts, kata, found, case, as_json=as_json)
    elif line is not None:
        _name(hunts, kata, found, line, as_json=as_json)
    elif because is not None:
        found = replace(found, sentence=" ".join(because.split()))
        hunts.save(kata, found)
        _tell(house, hunts, kata, found, as_json=as_json)
    elif check:
        _check(house, hunts, kata, found, as_json=as_json)
    elif give_up:
        _end(house, hunts, kata, found, "given up", as_json=as_json)
    else:
        _tell(house, hunts, kata, found, as_json=as_json)


def _begin(house: House, hunts: "Hunts", kata: Kata, *, seed: int | None, anyway: bool) -> "Hunt":
    """A hunt that is fair: the kata was solved, and no round of it is under way."""
    reference_of(kata)
    standing = house.standing(kata)
    if not (standing.level.owned and standing.open is None):
        if not anyway:
            raise UsageProblem(
                f"hunt: expected {kata.name} to be solved, found "
                f"{'a round of it under way' if standing.open else f'it {standing.level}'}. Solve "
                "it first, or add --anyway: a hunt shows most of the reference, and counts as "
                "having seen it."
            )
        house.progress.note("solution_seen", kata.name, "hunt")
    drawn = random.SystemRandom().randrange(SEEDS) if seed is None else seed
    with draw.waiting(f"hiding a fault in {kata.name}"):
        return hunts.begin(kata, seed=drawn, now=house.now(), replayed=seed is not None)


def _shrink(
    house: House, hunts: "Hunts", kata: Kata, found: "Hunt", words: str, *, as_json: bool
) -> None:
    """Judge the file on one case that the learner thought of."""
    from harness.practice.judging import asked_case, case_words, first_failure, on_case

    case = asked_case(kata, words)
    hunts.current(kata, found)
    with draw.waiting(f"{kata.name} on one case"):
        outcome = on_case(kata, hunts.file(kata), case, house.home / "cache", found.seed)
        failed, told = first_failure(outcome), case_words(case)
        # an input that the reference fails on as well says nothing of the fault
        refused = failed and first_failure(
            on_case(kata, reference_of(kata), case, house.home / "cache", found.seed)
        )
    if refused:
        said = LINE.sub("", refused.message.partition("\n")[0])
        raise UsageProblem(
            f"--case: expected an input that the reference takes, found {told}, on which it fails "
            f"as well: {said}"
        )
    if failed:
        found = replace(found, smallest=told)
        hunts.save(kata, found)
    ran = bool(outcome.checks)
    if as_json:
        said = failed.message if failed else "" if ran else outcome.reason
        row = {"case": case, "right": ran and not failed, "message": said}
        screen.as_json({**_row(hunts, kata, found), **row})
    elif failed:
        click.echo(folded(f"✗ {told}: {failed.message}"))
    else:
        click.echo(folded(f"✓ {told}: right" if ran else f"✗ {told}: {outcome.reason}"))
    sys.exit(0 if ran and not failed else 1)


def _name(hunts: "Hunts", kata: Kata, found: "Hunt", line: int, *, as_json: bool) -> None:
    """Say whether a line is at fault."""
    text = hunts.current(kata, found)
    if line > (most := len(text.splitlines())):
        raise UsageProblem(f"--line: expected 1 to {most}, found {line}.")
    found = found.named(line, text)
    hunts.save(kata, found)
    hit = found.guesses[-1] in found.lines
    if as_json:
        screen.as_json({**_row(hunts, kata, found), "right": hit})
    elif hit:
        click.echo(
            folded(
                f"✓ line {line} is at fault. In a sentence, why? "
                f'kata hunt {kata.name} --because "…"; then mend it'
            )
        )
    else:
        click.echo(folded(f"✗ line {line} is right as it is. {_left(found)}"))
    sys.exit(0 if hit else 1)


def _check(house: House, hunts: "Hunts", kata: Kata, found: "Hunt", *, as_json: bool) -> None:
    """Judge the file by the kata's own tests; where all pass the hunt is over."""
    hunts.current(kata, found)
    submission = house.submission(kata, str(hunts.file(kata)))
    with draw.waiting(f"{kata.name} on cpu"):
        outcome = attempt(submission, None, house.workspace, device="cpu", seed=found.seed)
    found = replace(found, runs=found.runs + 1)
    hunts.save(kata, found)
    if outcome.status == "passed":
        if not found.sentence and not as_json and sys.stdin.isatty():
            said = click.prompt("What was wrong, in a sentence?", default="", show_default=False)
            found = replace(found, sentence=" ".join(said.split()))
        _end(house, hunts, kata, found, "mended", as_json=as_json, outcome=outcome)
        return
    if as_json:
        judged = results.as_row(kata, house.shown(hunts.file(kata)), outcome)
        screen.as_json({**_row(hunts, kata, found), "judged": judged})
    else:
        results.outcome(kata, outcome, house.shown(hunts.file(kata)))
        click.echo(folded(f"next: {_step(house, hunts, kata, found)}"))
    sys.exit(1)


def _end(
    house: House,
    hunts: "Hunts",
    kata: Kata,
    found: "Hunt",
    how: str,
    *,
    as_json: bool,
    outcome: "Outcome | None" = None,
) -> None:
    """Close the hunt, keep how it went, and show what the fault was."""
    found = replace(found, ended=how)
    hunts.save(kata, found)
    before = house.standing(kata)
    house.progress.note("short_review", kata.name, found.note(house.now()))
    minutes = found.minutes(house.now())
    if as_json:
        judged = results.as_row(kata, "hunt", outcome) if outcome else None
        row = {"minutes": round(minutes, 1), "why": found.why, "lines": found.lines}
        screen.as_json({**_row(hunts, kata, found), **row, "mend": found.mend, "judged": judged})
        return
    mark = "✓" if found.passed else "✗"
    wrong, runs = _counted(found.misses, "wrong line"), _counted(found.runs, "time")
    click.echo(f"{mark} {how} in {minutes:.0f} min, {wrong}, judged {runs}")
    places = ", ".join(map(str, found.lines))
    many = "s" * (len(found.lines) > 1)
    told = f"line{many} {places} of what was handed out; {found.test} fails on it"
    click.echo(folded(f"the fault: {told}"))
    click.echo(folded(f"why:       {found.why}"))
    click.echo(folded(f"you said:  {found.sentence or 'nothing'}"))
    for text in found.mend:
        click.echo(f"    {screen.cut(text)}")
    click.echo(folded(teach.answered(before, house.standing(kata), house.now())))
    if how == "mended" and not found.passed:
        click.echo(folded("Too many wrong lines: as a review it has failed."))
    click.echo(
        folded(f"The file is gone, a copy is kept: kata stash list {kata.name}. next: kata next")
    )


def _tell(house: House, hunts: "Hunts", kata: Kata, found: "Hunt", *, as_json: bool) -> None:
    """How far a hunt is, and what to do."""
    hunts.current(kata, found)
    if as_json:
        screen.as_json(_row(hunts, kata, found))
        return
    file, name = house.shown(hunts.file(kata)), kata.name
    click.echo(
        folded(
            f"{file} is the reference of {name} with a fault in it: one of its lines, or a few, "
            "or one that is missing."
        )
    )
    steps = {
        "reproduce": (found.runs > 0, f"kata hunt {name} --check: which test fails, on what input"),
        "shrink": (bool(found.smallest), _smaller(kata, found)),
        "locate": (found.located, f"kata hunt {name} --line N: right or not. {_left(found)}"),
        "explain": (bool(found.sentence), f'kata hunt {name} --because "what goes wrong and when"'),
        "mend": (False, f"edit {file}, then kata hunt {name} --check"),
    }
    for number, (step, (done, words)) in enumerate(steps.items(), start=1):
        click.echo(folded(f"{'✓' if done else number} {step:<10}{words}", indent=12))
    click.echo(f"  give up   kata hunt {name} --give-up")


def _smaller(kata: Kata, found: "Hunt") -> str:
    """How to come to the smallest input that fails."""
    if found.smallest:
        return f"fails on {found.smallest}; on less? kata hunt {kata.name} --case WORDS"
    case = next((case for case in kata.cases if case.get("only", "cpu") == "cpu"), None)
    if case is None:
        return "on how little does it still fail? Leave out what the failing test does not need"
    from harness.practice.judging import case_words

    return f'kata hunt {kata.name} --case "{case_words(case)}": on how little does it still fail?'


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _left(found: "Hunt") -> str:
    from harness.practice.hunt import FREE_GUESSES

    left = FREE_GUESSES - found.misses
    if left < 0:
        return "One too many: mend it all the same; as a review it has failed."
    if left == 0:
        return "With the next wrong one the review has failed."
    return f"{left} wrong one{'s are' if left != 1 else ' is'} free."


def _step(house: House, hunts: "Hunts", kata: Kata, found: "Hunt") -> str:
    """What comes next while something still fails."""
    if found.located:
        return f"mend it in {house.shown(hunts.file(kata))}, then kata hunt {kata.name} --check"
    return f"the smallest input that fails, then its line: kata hunt {kata.name}"


def _row(hunts: "Hunts", kata: Kata, found: "Hunt") -> dict[str, Any]:
    """A hunt as plain data; what is at fault is told when it is over."""
    return {
        "kata": kata.name,
        "file": str(hunts.file(kata)),
        "state": found.ended or "open",
        "passed": found.passed if found.ended else None,
        "seed": found.seed,
        "guesses": found.guesses,
        "misses": found.misses,
        "located": found.located,
        "sentence": found.sentence,
        "runs": found.runs,
    }


COMMANDS = [hunt]
