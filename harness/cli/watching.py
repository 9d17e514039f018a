"""`kata watch`: on every save, how far the code has come, and one key for what helps."""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import click

from harness.cli import draw, results
from harness.cli.house import KATA, House
from harness.cli.practise import judge, more_cases
from harness.content.kata import Kata
from harness.content.submission import Submission
from harness.hardware.environment import device_present
from harness.learner.mastery import COUNTED
from harness.running.runner import Outcome, run_kata
from harness.running.stages import Stage, properties_in, stage_of

KEYS = "h hint · l list · s solution · q quit"
POLL_MS = 200
COMPARED = {Stage.TINY, Stage.CASES}  # a test of these that passed has seen the shapes, too
Key = Callable[[float | None], str]


@click.command()
@click.argument("kata", type=KATA)
@click.option("--once", is_flag=True, help="Look once and leave.")
@click.pass_obj
def watch(house: House, kata: Kata, once: bool) -> None:
    """Judge on every save, stage by stage, up to the first red. All green is kept."""
    from watchfiles import watch as changes

    device = "cuda" if device_present() else "cpu"
    passed = _look(house, kata, device)
    if once:
        sys.exit(0 if passed else 1)
    with _single_keys() as key:
        click.echo(KEYS)
        # the folder, since editors replace the file
        for found in changes(
            kata.folder, rust_timeout=POLL_MS, yield_on_timeout=True, raise_interrupt=False
        ):
            if any(path == str(kata.file) for _, path in found):
                _look(house, kata, device)
                click.echo(KEYS)
            pressed = key(0)
            if pressed == "q":
                break
            if pressed:
                _answer(kata, pressed, key)


def _look(house: House, kata: Kata, device: str) -> bool:
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
        seen = run_kata(submission, device=device, extra=["--staged", "-x"])
    tests = kata.folder / f"test_{kata.name}.py"
    for line in stage_lines(seen, properties_in(tests.read_text(encoding="utf-8"))):
        click.echo(line)
    if seen.status != "passed":
        if seen.status in COUNTED:
            _note_red(house, submission)
        return False
    more = more_cases(house, kata, "yours")
    submission = house.submission(kata, "yours")  # it may have been saved since
    outcome = judge(house, submission, device, None, None, more)
    results.outcome(kata, outcome, submission.owner, house.shown(kata.file), gpu=device_present())
    return outcome.status == "passed"


def _note_red(house: House, seen: Submission) -> None:
    """Note a red look once for each text of the file that somebody wrote."""
    if seen.is_blank():
        return
    kata = seen.kata
    looks = [note.detail for note in house.progress.notes(kata.name) if note.kind == "looked"]
    if looks[-1:] != [seen.code_hash]:
        house.progress.note("looked", kata.name, seen.code_hash)


def stage_lines(seen: Outcome, properties: Collection[str] = ()) -> Iterator[str]:
    """A line for each stage up to the first red one; `properties` are tests by hypothesis."""
    red = next((check for check in seen.checks if check.outcome == "failed"), None)
    if not seen.checks or (red is not None and " does not import: " in red.message):
        yield f"✗ import: {red.message if red else seen.reason}"
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


def _answer(kata: Kata, pressed: str, key: Key) -> None:
    from harness.cli.browse import hint, list_katas
    from harness.cli.practise import diff

    context = click.get_current_context()
    if pressed == "h":
        context.invoke(hint, kata=kata)
    elif pressed == "l":
        context.invoke(list_katas, weeks=(kata.week,))
    elif pressed == "s":
        click.echo("Show the reference? It counts as having seen it: y or n")
        if key(None) == "y":
            context.invoke(diff, kata=kata)


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
