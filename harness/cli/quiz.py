"""The command that asks short questions about katas, and says how each answer comes about."""

import json
import sys
from collections.abc import Iterator, Sequence
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import UsageProblem
from harness.cli import draw, quiz_words, screen, teach
from harness.cli.house import KATA, WEEKS, House
from harness.cli.screen import folded, json_option
from harness.content.kata import Kata
from harness.practice.questions import Question, Unreadable

if TYPE_CHECKING:
    from harness.hardware.profiles import Profile
    from harness.practice.facts import AskedFacts
    from harness.practice.quiz import Ahead, Answer

SEEDS = 1_000_000


@click.command()
@click.argument("katas", type=KATA, nargs=-1)
@click.option("--week", "weeks", type=WEEKS, help="Katas of a week, or of several as in 1..4.")
@click.option("--due", is_flag=True, help="Of what is due, what is most forgotten.")
@click.option("--count", type=click.IntRange(1, 50), default=5, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), help="Ask the same questions again.")
@click.option(
    "--answer",
    "typed",
    multiple=True,
    help="An answer, in place of asking for it; repeat it, in the order of the questions.",
)
@json_option
@click.pass_obj
def quiz(
    house: House,
    katas: tuple[Kata, ...],
    weeks: tuple[int, ...] | None,
    due: bool,
    count: int,
    seed: int | None,
    typed: tuple[str, ...],
    as_json: bool,
) -> None:
    """
    Short, freshly drawn questions: a five-minute review.

    Bytes, FLOP, bounds, results, shapes; once a kata is solved also its mistakes and the tests that
    notice them. Without a name it is about what is due. Passed when 4 of 5 are right.
    """
    from harness.practice.quiz import Ahead, judge, passed, reviewed

    chosen = _chosen(house, katas, weeks, due=due)
    seed = SystemRandom().randrange(SEEDS) if seed is None else seed
    facts = facts_of(house)
    ahead = Ahead(_drawn(house, chosen, facts, count, seed))
    question = _next(ahead)
    if question is None:
        names = ", ".join(kata.name for kata in chosen[:3])
        raise UsageProblem(
            f"quiz: expected a kata that something can be asked of before it is solved, found "
            f"{names}. Solve it first: kata start {chosen[0].name}"
        )
    if not as_json:
        click.echo(quiz_words.opening(seed))
    by_name = {kata.name: kata for kata in chosen}
    answers: list[Answer] = []
    while question is not None:
        click.echo(quiz_words.asked(len(answers) + 1, count, question), err=as_json)
        given = _answer(question, typed, len(answers), err=as_json)
        with draw.waiting("running the test"):
            answers.append(judge(question, given, facts, by_name))
        click.echo(quiz_words.answered(answers[-1]), err=as_json)
        question = _next(ahead)
    if len(typed) > len(answers):
        raise UsageProblem(f"--answer: expected {len(answers)} of them, found {len(typed)}.")
    before = house.standings()
    for name, good in reviewed(answers).items():
        detail = {"form": "quiz", "passed": good, **_counts(name, answers), "seed": seed}
        house.progress.note("short_review", name, json.dumps(detail))
    if as_json:
        screen.as_json(_plain(answers, seed))
    else:
        click.echo(quiz_words.closing(answers, passed(answers)))
        after = house.standings()
        for name in reviewed(answers):
            click.echo(folded(teach.answered(before[name], after[name], house.now())))
    sys.exit(0 if passed(answers) else 1)


def _next(ahead: "Ahead") -> Question | None:
    with draw.waiting("drawing a question"):
        return ahead.next()


def facts_of(house: House) -> "AskedFacts":
    """What questions are made of, kept in the learner's cache."""
    from harness.practice.facts import AskedFacts

    return AskedFacts(folder=house.home / "cache" / "quiz", cache=house.home / "cache")


def _chosen(
    house: House, katas: Sequence[Kata], weeks: tuple[int, ...] | None, *, due: bool
) -> list[Kata]:
    """The katas that are asked about: those named, of a week, due, or else solved last."""
    if bool(katas) + bool(weeks) + due > 1:
        raise UsageProblem("quiz: expected names, --week or --due, found several of them.")
    if katas:
        return list({kata.name: kata for kata in katas}.values())
    from harness.learner.advice import due as due_of

    known = house.standings()
    solved = [one for one in known.values() if one.solved_at is not None]
    if weeks:
        these = house.curriculum.week_katas(*weeks)
        names = {one.kata for one in solved}
        return [kata for kata in these if kata.name in names] or list(these)
    late = due_of(known, house.now())
    if due and not late:
        raise UsageProblem("quiz: expected a kata that is due, found none. `kata due` lists them.")
    if not solved:
        raise UsageProblem(
            "quiz: expected a kata that was solved, found none yet. Name one, as in "
            "`kata quiz vector_add`, or a week: --week 1"
        )
    last = max(solved, key=lambda one: (one.solved_at, one.kata))
    return [house.curriculum.kata((late[0] if late else last).kata)]


def is_open_book(house: House, kata: Kata) -> bool:
    """Whether lines of the reference may be shown: it is solved, and no round is under way."""
    standing = house.standing(kata)
    return standing.solved_at is not None and standing.open is None


def _drawn(
    house: House, katas: Sequence[Kata], facts: "AskedFacts", count: int, seed: int
) -> Iterator[Question]:
    from harness.practice.quiz import Source
    from harness.practice.quiz import draw as draw_questions

    profiles = profiles_of(house)
    sources = [
        Source(
            kata=kata, seed=seed, facts=facts, profiles=profiles, solved=is_open_book(house, kata)
        )
        for kata in katas
    ]
    return draw_questions(sources, count, seed)


def profiles_of(house: House) -> "dict[str, Profile]":
    """Every GPU that is known, by id."""
    from harness.content.course import part_of
    from harness.hardware.profiles import load_profiles

    return load_profiles(part_of(house.root, "hardware_profiles"))


def _answer(question: Question, typed: Sequence[str], at: int, *, err: bool) -> str:
    """What the learner answers; asked again until it can be read."""
    if typed:
        if at == len(typed):
            raise UsageProblem(f"--answer: expected one for each question, found {at}.")
        try:
            question.read(typed[at])
        except Unreadable as error:
            raise UsageProblem(f"--answer: {error}.") from None
        return typed[at]
    while True:
        given: str = click.prompt("answer", type=str, err=err)
        try:
            question.read(given)
        except Unreadable as error:
            click.echo(f"{error}.", err=err)
        else:
            return given


def _counts(name: str, answers: "Sequence[Answer]") -> dict[str, int]:
    """How many questions were about a kata, and how many answers were right."""
    about = [one for one in answers if one.question.kata == name]
    return {"right": sum(one.right for one in about), "of": len(about)}


def _plain(answers: "Sequence[Answer]", seed: int) -> dict[str, Any]:
    from harness.practice.quiz import passed, reviewed

    return {
        "seed": seed,
        "passed": passed(answers),
        "right": sum(one.right for one in answers),
        "reviewed": reviewed(answers),
        "questions": [
            {
                "kata": one.question.kata,
                "kind": one.question.kind,
                "text": one.question.text,
                "choices": list(one.question.choices),
                "rule": one.question.rule,
                "given": one.given,
                "answer": one.question.answer,
                "right": one.right,
                "derivation": list(one.question.derivation),
            }
            for one in answers
        ],
    }


COMMANDS = [quiz]
