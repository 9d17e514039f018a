"""The command that asks what a learner expects before a kata is run, and holds it against facts."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import UsageProblem
from harness.cli import draw, quiz_words, screen, teach
from harness.cli.house import KATA, House
from harness.cli.quiz import SEEDS, facts_of, is_open_book
from harness.cli.screen import json_option
from harness.content.kata import Kata
from harness.practice.questions import Question, Unreadable
from harness.practice.questions import number as read_number

if TYPE_CHECKING:
    from harness.learner.predict import Foretold, Score, Sheet


class Number(click.ParamType):  # type: ignore[type-arg]
    """A finite number in `unit`, typed as in a quiz; above 0 or, where `zero` is one, from 0 on."""

    name = "number"

    def __init__(self, unit: str, *, zero: bool) -> None:
        self.unit, self.zero = unit, zero

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read it; at a prompt it is asked for again."""
        try:
            number = float(read_number(str(value), self.unit))
        except (Unreadable, OverflowError):
            number = math.nan
        if not math.isfinite(number) or number < 0 or (number == 0 and not self.zero):
            least = "from 0 on" if self.zero else "above 0"
            self.fail(f"expected a finite number {least}, found {value!r}.", param, ctx)
        return number


INTENSITY = Number("FLOP per byte", zero=True)  # a copy has no FLOP
TIME = Number("µs", zero=False)
Given = dict[str, str | None]  # part to what was typed as an option


@click.command()
@click.argument("kata", type=KATA)
@click.option("--intensity", type=INTENSITY, help="FLOP per byte; asked for when not given.")
@click.option("--bound", type=click.Choice(["memory", "compute"]))
@click.option("--time", "time_us", type=TIME, help="Microseconds at the speed of light.")
@click.option("--bytes", "moved", help="Bytes moved at the least, as in 12.6 M or 3 * 2**22.")
@click.option("--returns", help="What a drawn call returns: a shape as in [2, 3], or a value.")
@click.option("--test", "first", help="The test that fails first on a drawn mistake.")
@click.option("--profile", help="Hardware profile; default: this machine's GPU, else H100.")
@click.option("--seed", type=click.IntRange(min=0), help="Draw the same call and mistake again.")
@json_option
@click.pass_obj
def predict(
    house: House,
    kata: Kata,
    intensity: float | None,
    bound: str | None,
    time_us: float | None,
    moved: str | None,
    returns: str | None,
    first: str | None,
    profile: str | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """
    Estimate intensity, bound and time; see how close you were.

    Besides these, which are compared with the roofline where the kata is: the bytes of a case, what
    a drawn call returns or its shape, and the first test that fails on a drawn mistake. Enter
    passes over one of them. What you measured, if you did, stands beside it.
    """
    from harness.learner.predict import parts_record, track_record

    seed = SystemRandom().randrange(SEEDS) if seed is None else seed
    sheet = _sheet(house, kata, profile)
    given: Given = {"bytes": moved, "returns": returns, "test": first}
    whole = None not in (intensity, bound, time_us)
    result = None
    if sheet is not None and (not any(given.values()) or intensity or bound or time_us):
        result = _on_the_roofline(house, kata, sheet, intensity, bound, time_us, as_json=as_json)
    # who gives all that was ever asked for is not asked for more
    ask = not (whole or any(given.values()))
    told = list(_foretold(house, kata, given, seed, ask=ask, as_json=as_json))
    if result is None and not told:
        raise UsageProblem(
            f"predict: expected an estimate of {kata.name}, found none. Answer one of the "
            "questions, or give an option: kata predict --help"
        )
    if as_json:
        parts = {"seed": seed, "parts": [asdict(one) for one in told]} if told else {}
        screen.as_json({**(asdict(result) if result else {}), **parts})
        return
    notes = house.progress.notes()
    if result is not None:
        teach.track_record(track_record(notes))
    if told and (line := parts_record(notes)):
        click.echo(line)


def _sheet(house: House, kata: Kata, profile: str | None) -> "Sheet | None":
    """The worksheet of a kata that is compared with the roofline."""
    from harness.learner.predict import worksheet

    device = house.prediction_profile(profile)
    if not any(one.kind == "roofline" for one in kata.speed):
        return None
    return worksheet(kata, device)


def _on_the_roofline(
    house: House,
    kata: Kata,
    sheet: "Sheet",
    intensity: float | None,
    bound: str | None,
    time_us: float | None,
    *,
    as_json: bool,
) -> "Score":
    """Ask for what was not given, score it, keep it, and show it."""
    from harness.learner.predict import Prediction, score

    if not as_json:
        teach.worksheet(kata, sheet)
    guess = Prediction(
        intensity=click.prompt("FLOP per byte", type=INTENSITY) if intensity is None else intensity,
        bound=bound or click.prompt("bound by", type=click.Choice(["memory", "compute"])),
        seconds=1e-6
        * (click.prompt("microseconds at best", type=TIME) if time_us is None else time_us),
    )
    result = score(guess, sheet, house.measured_share(kata, sheet))
    house.progress.note("predicted", kata.name, json.dumps(asdict(result)))
    if not as_json:
        teach.prediction(result)
    return result


def _foretold(
    house: House,
    kata: Kata,
    given: Given,
    seed: int,
    *,
    ask: bool,
    as_json: bool,
) -> "Iterator[Foretold]":
    """The parts beside the roofline: each is asked, scored and kept before the next is drawn."""
    from harness.learner.predict import Foretold

    after = house.standing(kata).solved_at is not None
    for part, make in _parts(house, kata, seed).items():
        typed = given[part]
        if typed is None and not ask:
            continue
        with draw.waiting(f"drawing what to foretell of {kata.name}"):
            question = make()
        if question is None:
            if typed is not None:
                raise UsageProblem(f"--{part}: expected nothing, {kata.name} has no such part.")
            continue
        click.echo(quiz_words.foretell(question), err=as_json)
        try:
            typed = _typed(question, typed, part, err=as_json)
        except click.Abort as error:
            if isinstance(error.__context__, EOFError):
                return  # what is piped in ends here
            raise
        if typed is None:
            continue
        found = Foretold(
            part=question.kind,
            given=question.read(typed),
            truth=question.answer,
            right=question.is_right(typed),
            after=after,
        )
        house.progress.note("foretold", kata.name, json.dumps(asdict(found)))
        click.echo(quiz_words.judged(question, typed, found.right), err=as_json)
        yield found


def _parts(house: House, kata: Kata, seed: int) -> dict[str, Callable[[], Question | None]]:
    """How to make the question of each part."""
    from harness.practice import foretelling

    facts = facts_of(house)
    solved = is_open_book(house, kata)
    return {
        "bytes": lambda: foretelling.bytes_of(kata, facts, seed),
        "returns": lambda: foretelling.answer_of(kata, facts, seed),
        "test": lambda: foretelling.first_failing(kata, facts, seed, solved=solved),
    }


def _typed(question: Question, given: str | None, part: str, *, err: bool) -> str | None:
    """The answer, as an option or at the prompt, until it can be read; None: passed over."""
    while True:
        text: Any = given
        if given is None:
            text = click.prompt("answer", default="", show_default=False, err=err)
        if not text:
            return None
        try:
            question.read(text)
        except Unreadable as error:
            if given is not None:
                raise UsageProblem(f"--{part}: {error}.") from None
            click.echo(f"{error}.", err=err)
        else:
            return str(text)


COMMANDS = [predict]
