"""What a learner foretells of a kata besides its place on the roofline, as questions."""

from itertools import islice
from random import Random

from harness.content.kata import Kata
from harness.practice import call_questions, mistake_questions, roofline_questions
from harness.practice.facts import Facts
from harness.practice.questions import Question

CHOICES = 6  # tests to choose the first failing one from
TRIES = 4  # edits, of which some may be noticed by the shared checks alone
PARTS = ("bytes", "shape", "result", "test")


def bytes_of(kata: Kata, facts: Facts, seed: int) -> Question | None:
    """The bytes that a drawn case moves at the least; that of the worksheet is asked elsewhere."""
    timed = [dict(one.case) for one in kata.speed if one.kind == "roofline"]
    drawn = roofline_questions.drawn_cases(kata, str(seed), facts)
    others = [one for one in drawn if one.case not in timed]
    found = [question for one in others if (question := roofline_questions.bytes_moved(one))]
    return Random(seed).choice(found) if found else None


def answer_of(kata: Kata, facts: Facts, seed: int) -> Question | None:
    """The shape of what a drawn call returns, or its value where it returns no array."""
    calls = facts.calls(kata)
    shape = call_questions.shaped(kata, calls, Random(seed), anything=True)
    return shape or call_questions.returned(kata, calls, Random(seed), solved=False)


def first_failing(kata: Kata, facts: Facts, seed: int, *, solved: bool) -> Question | None:
    """
    Which of the kata's own tests, in the order of its file, fails first on a wrong solution.

    Some of them have to pass on it: where all fail, there is nothing to foretell. The mistake is
    told in words; its lines are shown as well once the kata is solved.
    """
    dice = Random(seed)
    kills, tests = mistake_questions.own_kills(kata), mistake_questions.own_tests(kata)
    known = [one for one in mistake_questions.mistakes(kata) if one.name in kills or not kills]
    if len(tests) < 2:  # nothing to choose from
        return None
    for one in islice(mistake_questions.readable(known, dice), TRIES):
        known_to_fail = set(facts.failing(kata, one.name))
        failing = [name for name in tests if name in known_to_fail]
        if len(failing) in (0, len(tests)):
            continue
        others = [name for name in tests if name != failing[0]]
        picked = [failing[0], *dice.sample(others, min(CHOICES - 1, len(others)))]
        lines = [f"  {line}" for line in one.diff] if solved else []
        fail = f"{len(failing)} fail{'s' * (len(failing) == 1)}"
        count = f"of the {len(tests)} tests of its file {fail}"
        return Question(
            kata=kata.name,
            kind="test",
            text="\n".join(
                [f"A solution makes this mistake: {one.why}.", *lines,
                 "Which of these tests, in the order of the file, is the first to fail?"]
            ),
            form="choice",
            answer=failing[0],
            choices=tuple(sorted(picked, key=tests.index)),
            wrong=one.name,
            derivation=(f"{count}: {', '.join(failing[:4])}{', …' if len(failing) > 4 else ''}",),
        )  # fmt: skip
    return None
