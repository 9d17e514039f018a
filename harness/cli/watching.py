"""`kata watch`: on every save, how far the code has come, and one key for what helps."""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from harness.cli import draw, results, screen
from harness.cli.house import KATA, House
from harness.cli.practise import How, judge_and_show
from harness.cli.screen import cut, folded, json_option
from harness.content.kata import Kata
from harness.content.submission import Submission
from harness.hardware.environment import device_present
from harness.learner.mastery import COUNTED
from harness.learner.schedule import Form
from harness.running.runner import Outcome, run_kata
from harness.running.stages import Stage, properties_in, stage_of

KEYS = "h hint · r run again · n next kata · l list · s solution · q quit"
CHOICES = "123456789abcdefgijkmop"  # keys that select a kata of the list
STOPPING = frozenset("rnlsq")  # keys that end a run that is under way
POLL_MS = 200
MORE_CHOICES = 3  # of other weeks
COMPARED = {Stage.TINY, Stage.CASES}  # a test of these that passed has seen the shapes, too
Key = Callable[[float | None], str]


@click.command()
@click.argument("kata", type=KATA)
@click.option("--once", is_flag=True, help="Judge once and exit.")
@json_option
@click.pass_obj
def watch(house: House, kata: Kata, once: bool, as_json: bool) -> None:
    """Judge on every save, stage by stage, up to the first failure. A green run is recorded."""
    device = "cuda" if device_present() else "cpu"
    if as_json:
        if not once:
            raise click.UsageError("--json: expected --once as well: a watch never ends.")
        row = _looked(house, kata, device)
        screen.as_json(row)
        sys.exit(0 if row["status"] == "passed" else 1)
    if once:
        sys.exit(0 if _look(house, kata, device) else 1)
    watched: Kata | None = kata
    with _single_keys() as key:
        while watched is not None:
            watched = _watch(house, watched, device, key)


def _watch(house: House, kata: Kata, device: str, key: Key) -> Kata | None:
    """Judge `kata` on every save until it is left for another, which is returned, or for none."""
    from watchfiles import watch as changes

    pressed, stopped = "r", False
    # the folder, since editors replace the file
    for found in changes(kata.folder, rust_timeout=POLL_MS, yield_on_timeout=True):
        pressed = pressed or key(0)
        if any(path == str(kata.file) for _, path in found):
            pressed = pressed or "r"
        while pressed:
            if pressed == "q":
                return None
            if pressed == "r":
                pressed = _look_until_key(house, kata, device, key)
                stopped = bool(pressed)
            else:
                if other := _answer(house, kata, pressed, key):
                    return other
                # whoever stayed wants to see the look that was stopped
                pressed = "r" if stopped else ""
                stopped = False
    return None


class Pressed(Exception):
    """A key that ends the run it was pressed in."""

    def __init__(self, key: str) -> None:
        super().__init__(f"stopped by the key {key}")
        self.key = key


def _look_until_key(house: House, kata: Kata, device: str, key: Key) -> str:
    """A look that keys stop; the one that did, or none. A hint is shown while it goes on."""

    def meanwhile() -> None:
        pressed = key(0)
        if pressed == "h":
            _answer(house, kata, pressed, key)
        elif pressed in STOPPING:
            raise Pressed(pressed)

    try:
        _look(house, kata, device, meanwhile)
    except Pressed as stop:
        return stop.key
    click.echo(KEYS)
    return ""


def _looked(house: House, kata: Kata, device: str) -> dict[str, Any]:
    """One look as plain data; what is kept is the same."""
    if not kata.file.is_file():
        return {"kata": kata.name, "status": "missing", "stages": []}
    submission = house.submission(kata, "yours")
    seen = run_kata(submission, device=device, extra=["--staged", "-x"])
    stages = list(stage_lines(seen, properties_in(kata.tests.read_text(encoding="utf-8"))))
    if seen.status == "passed":
        (seen,) = judge_and_show(house, submission, [device], How(quiet=True))
    elif seen.status in COUNTED:
        _note_red(house, submission)
    # the first red check ends a look, which is no crash
    if red := next((check for check in seen.checks if check.outcome == "failed"), None):
        seen = replace(seen, status="failed", reason=f"{red.name}: {red.message}")
    return {**results.as_row(kata, "yours", seen), "stages": stages}


def _look(
    house: House, kata: Kata, device: str, meanwhile: Callable[[], None] | None = None
) -> bool:
    """One look, and a verdict that is kept when there is nothing red."""
    click.clear()
    if not kata.file.is_file():
        click.echo(
            f"✗ {house.shown(kata.file)}: expected your file, found none. "
            f"`kata reset {kata.name}` puts the blank stub there."
        )
        return False
    submission = house.submission(kata, "yours")
    with draw.waiting(f"{kata.name} on {device}"):
        seen = run_kata(submission, device=device, extra=["--staged", "-x"], meanwhile=meanwhile)
    for line in stage_lines(seen, properties_in(kata.tests.read_text(encoding="utf-8"))):
        click.echo(folded(line))
    if seen.status != "passed":
        if seen.status in COUNTED:
            _note_red(house, submission)
        return False
    (outcome,) = judge_and_show(house, submission, [device], How(meanwhile=meanwhile))
    return outcome.status == "passed"


def _note_red(house: House, seen: Submission) -> None:
    """Note a red look once for each text of the file that somebody wrote."""
    if seen.is_blank:
        return
    kata = seen.kata
    looks = [note.detail for note in house.progress.notes(kata.name) if note.kind == "looked"]
    if looks[-1:] != [seen.code_hash]:
        house.progress.note("looked", kata.name, seen.code_hash)


def stage_lines(seen: Outcome, properties: Collection[str] = ()) -> Iterator[str]:
    """A line for each stage up to the first red one; `properties` are tests by hypothesis."""
    red = next((check for check in seen.checks if check.outcome == "failed"), None)
    if red is not None and " does not import: " in red.message:
        yield f"✗ import: {red.message}"
        return
    if not seen.checks:  # where it ended is in the words: an import, or the first test
        yield f"✗ {seen.reason}"
        return
    yield "✓ import"
    stages = {
        check.name: stage_of(check.name, said=check.message, properties=properties)
        for check in seen.checks
    }
    compared = any(
        check.outcome == "passed" and stages[check.name] in COMPARED for check in seen.checks
    )
    for stage in Stage:
        here = [check for check in seen.checks if stages[check.name] == stage]
        if red is not None and red in here:
            yield f"✗ {stage.value}: {red.name}: {red.message}"
            return
        if here:
            yield f"✓ {stage.value} ({len(here)})"
        elif stage == Stage.SHAPES and compared:
            yield f"✓ {stage.value}"
    if seen.status != "passed":
        yield f"✗ {seen.reason}"


def _answer(house: House, kata: Kata, pressed: str, key: Key) -> Kata | None:
    """Do what a key asks for; the kata to go on with, if it is another."""
    from harness.cli.hint import show_hint
    from harness.cli.learn import start
    from harness.cli.practise import diff

    context = click.get_current_context()
    if pressed == "h":
        show_hint(house, kata, ask=False)
    elif pressed == "l":
        return _selected(house, kata, key)
    elif pressed == "n":
        others = (one for one in house.advice() if one.kata != kata.name)
        then = next((one for one in others if one.form != Form.SHORT), None)
        if then is None:
            click.echo("There is no other kata to take up at the moment.")
            return None
        other = house.curriculum.kata(then.kata)
        if not then.begun:
            context.invoke(start, kata=other)
        return other
    elif pressed == "s":
        click.echo("Show the reference? It counts as having seen it: y or n")
        if key(None) == "y":
            context.invoke(diff, kata=kata)
    return None


def _selected(house: House, kata: Kata, key: Key) -> Kata | None:
    """Ask which kata of the week, or of what is advised, to watch; None to stay."""
    here = [one.name for one in house.curriculum.week_katas(kata.week)]
    names = list(dict.fromkeys([*here, *(one.kata for one in house.advice()[:MORE_CHOICES])]))
    choices = dict(zip(CHOICES, names, strict=False))
    known = house.standings()
    for letter, name in choices.items():
        one = house.curriculum.kata(name)
        click.echo(
            cut(f"{letter}  {known[name].level.glyph} week {one.week:2}  {name}: {one.title}")
        )
    click.echo("which one? any other key: stay here")
    chosen = choices.get(key(None) or "")
    return house.curriculum.kata(chosen) if chosen and chosen != kata.name else None


@contextmanager
def _single_keys() -> Iterator[Key]:
    """
    A function that waits so many seconds, or for ever, for a key, and returns it or nothing.

    There are no keys without a terminal.
    """
    if not sys.stdin.isatty():
        yield lambda _: ""
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def key(timeout_s: float | None) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
        # past Python's buffer, of which select knows nothing
        return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""

    try:
        yield key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


COMMANDS = [watch]
