"""A quiz: questions about katas, drawn by a seed, and what came of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from random import Random
from threading import Thread

from harness.content.kata import Kata
from harness.hardware.roofline import Profile
from harness.practice import call_questions, line_questions, mistake_questions, roofline_questions
from harness.practice.facts import Facts
from harness.practice.questions import Question

QUESTIONS = 5
PASSES = 0.8  # the share that has to be right
REVIEWED = 3  # questions about a kata from which a quiz is a review of it
# harmless before a kata was solved; the others show lines of the reference or its mistakes
OPEN = ("bytes", "FLOP", "intensity", "bound", "time", "result", "shape", "dtype", "refusal")
CLOSED = ("mistake", "test", "limit", "count", "line")
LARGE_BYTES, LARGE_SHARE = 1 << 20, 0.8
TRIES = 4  # draws of a kind before another one is taken


@dataclass(kw_only=True)
class Source:
    """
    What questions about one kata are made of; the same seed makes the same.

    Attributes:
        solved: Whether questions may show what the reference does.
        profiles: GPUs by id, to choose from.
    """

    kata: Kata
    seed: int
    facts: Facts
    profiles: Mapping[str, Profile]
    solved: bool

    def make(self, kind: str, dice: Random) -> Question | None:
        """A question of one kind; None where the kata has nothing for it."""
        kata, facts = self.kata, self.facts
        match kind:
            case "mistake":
                return mistake_questions.described(kata, dice)
            case "test":
                return mistake_questions.noticed(kata, dice)
            case "limit":
                return mistake_questions.missed(kata, dice)
            case "line" if kata.backend not in line_questions.BACKENDS:
                return None
            case "line":
                return line_questions.dearest(kata, facts.lines(kata), dice)
            case "count":
                return mistake_questions.counted(kata, dice)
            case "result":
                calls = facts.calls(kata)
                return call_questions.returned(kata, calls, dice, solved=self.solved)
            case "shape":
                return call_questions.shaped(kata, facts.calls(kata), dice)
            case "dtype":
                return call_questions.typed(kata, facts.calls(kata), dice)
            case "refusal":
                return call_questions.refused(kata, facts.calls(kata), dice)
        return self._of_roofline(kind, dice)

    def _of_roofline(self, kind: str, dice: Random) -> Question | None:
        drawn = roofline_questions.drawn_cases(self.kata, str(self.seed), self.facts)
        if kind in ("bound", "time"):
            timed = [one.case for one in self.kata.speed if one.kind == "roofline"]
            drawn = [one for one in drawn if one.dtype] if timed else []
        if not drawn:
            return None
        # of tiny cases the launch takes longest: one of them now and then
        large = [one for one in drawn if one.work.cost.bytes >= LARGE_BYTES]
        if large and kind == "bound" and dice.random() < LARGE_SHARE:
            drawn = large
        one = dice.choice(drawn)
        if kind in ("bound", "time"):
            known = [self.profiles[name] for name in roofline_questions.DEVICES
                     if name in self.profiles]  # fmt: skip
            profile = dice.choice(known or list(self.profiles.values()))
            about = roofline_questions.bound if kind == "bound" else roofline_questions.time
            return about(one, profile)
        plain: dict[str, Callable[[roofline_questions.Drawn], Question | None]] = {
            "bytes": roofline_questions.bytes_moved,
            "FLOP": roofline_questions.flops,
            "intensity": roofline_questions.intensity,
        }
        return plain[kind](one)


def draw(sources: Sequence[Source], count: int, seed: int) -> Iterator[Question]:
    """
    `count` questions, or as many as there are, kata by kata in turn; the same seed gives the same.

    Of each kata the kinds differ as long as there are others. Each is made when it is asked for.
    """
    dice = Random(f"{seed}:turns")
    streams = [_questions(one, seed) for one in dice.sample(list(sources), len(sources))]
    yield from islice(_in_turn(streams), count)


def _in_turn(streams: list[Iterator[Question]]) -> Iterator[Question]:
    """One of each stream, again and again, until all have ended."""
    while streams:
        for stream in list(streams):
            question = next(stream, None)
            if question is None:
                streams.remove(stream)
            else:
                yield question


def _questions(source: Source, seed: int) -> Iterator[Question]:
    """Different questions about one kata, the kinds in turn, until nothing new comes."""
    dice = Random(f"{seed}:{source.kata.name}")
    kinds = [*OPEN, *(CLOSED if source.solved else ())]
    seen: set[str] = set()  # texts, and mistakes: one question's answer gives the next one away
    while kinds:
        dice.shuffle(kinds)
        for kind in list(kinds):
            for _ in range(TRIES):
                question = source.make(kind, dice)
                if question is not None and seen.isdisjoint({question.text, question.wrong}):
                    break
            else:
                kinds.remove(kind)
                continue
            seen |= {question.text, question.wrong} - {""}
            yield question


class Ahead:
    """Makes questions on a thread of its own, while the one before is being answered."""

    def __init__(self, questions: Iterator[Question]) -> None:
        self._made: SimpleQueue[Question | Exception | None] = SimpleQueue()
        Thread(target=self._make, args=(questions,), daemon=True).start()

    def _make(self, questions: Iterator[Question]) -> None:
        try:
            for one in questions:
                self._made.put(one)
            self._made.put(None)
        except Exception as error:  # noqa: BLE001 -- raised where the question is asked for
            self._made.put(error)

    def next(self) -> Question | None:
        """The next one, as soon as it is made; None after the last."""
        found = self._made.get()
        if isinstance(found, Exception):
            raise found
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question, what was typed, and whether that was right."""

    question: Question
    given: str
    right: bool


def judge(question: Question, given: str, facts: Facts, katas: Mapping[str, Kata]) -> Answer:
    """
    Hold an answer against the question; the tests are run where only they can tell.

    Raises:
        Unreadable: it is no answer.
    """
    right = question.is_right(given)
    chosen = question.read(given)
    if not right and chosen in question.open:
        right = chosen in facts.failing(katas[question.kata], question.wrong, [chosen])
    return Answer(question=question, given=given, right=right)


def passed(answers: Sequence[Answer]) -> bool:
    """Whether enough of them are right: 4 of 5."""
    return bool(answers) and sum(one.right for one in answers) >= PASSES * len(answers)


def reviewed(answers: Sequence[Answer]) -> dict[str, bool]:
    """Katas that were asked about often enough for a review, and whether they passed."""
    found: dict[str, list[Answer]] = {}
    for one in answers:
        found.setdefault(one.question.kata, []).append(one)
    return {name: passed(some) for name, some in found.items() if len(some) >= REVIEWED}
