"""Agents and messages: any order, races found in each of them, deadlocks told."""

import random
from dataclasses import dataclass

import numpy as np
import pytest

from harness.simulators.fabric import Access, Agent, Fabric, Flight, Race, caller, schedules


@dataclass(eq=False, kw_only=True)
class Letter(Flight):
    text: str
    carries: int


class Person(Agent):
    def __repr__(self):
        return f"person {self.rank}"

    def write(self, text, to, after=0):
        number = self._fabric.number()
        person = self._fabric.agents[to]
        self._fabric.flying.append(
            Letter(number=number, to=person, after=after, text=text, carries=self._knows)
        )
        return 1 << number

    def touch(self, of, *, writes):
        fabric, number = self._fabric, self._fabric.number()
        access = Access(number, f"{self} touches", writes, 0, 1, caller())
        fabric.agents[of]._memory.judge("page", access, self._knows)
        self._knows |= 1 << number

    def note(self):
        self._at_once("note", "page", 0, 1, writes=True)


class Post(Fabric):
    def __init__(self, *works):
        super().__init__()
        self.letters = []
        for rank, work in enumerate(works):
            self.letters.append([])
            self.begin(work, Person(self, rank, {"page": np.zeros(2)}))

    def ready(self, agent):
        return not agent._doing or bool(self.letters[agent.rank])

    def resume(self, agent):
        if not agent._doing:
            return None
        letter = self.letters[agent.rank].pop(0)
        agent._knows |= letter.carries
        return letter.text

    def asked(self, agent, wait):
        assert wait == "letter", f"{agent} yields {wait!r}"

    def land(self, flight):
        self.letters[flight.to.rank].append(flight)

    def waits(self, agent):
        return "waits for a letter"


def test_messages_arrive_in_any_order_but_after_those_they_follow():
    seen = set()

    def writes(person):
        first = person.write("a", 1)
        person.write("b", 1, after=first)
        person.write("c", 1)
        return
        yield

    def reads(person):
        one, two, three = (yield "letter"), (yield "letter"), (yield "letter")
        seen.add(one + two + three)

    for choose in [None, *schedules(random.Random(1), 2, 40)]:
        Post(writes, reads).run(choose)
    assert seen == {"abc", "acb", "cab"}


@pytest.mark.parametrize("told", [True, False])
def test_what_nothing_orders_is_a_race_in_every_order(told):
    def first(person):
        person.note()
        person.write("done", 1)
        return
        yield

    def second(person):
        if told:
            yield "letter"
        person.touch(0, writes=False)

    for choose in [None, *schedules(random.Random(2), 2, 10)]:
        if told:
            Post(first, second).run(choose)
        else:
            with pytest.raises(Race, match=r"(?s)test_fabric\.py:.*test_fabric\.py:"):
                Post(first, second).run(choose)


def test_readers_are_no_race():
    def work(person):
        person.touch(0, writes=False)
        return
        yield

    Post(work, work).run()


def test_ranges_and_names_are_checked():
    agent = Post(lambda person: iter(())).agents[0]
    with pytest.raises(ValueError, match="'page' has 2 elements"):
        agent._at_once("note", "page", 1, 3, writes=False)
    with pytest.raises(ValueError, match="no buffer 'book'"):
        agent._at_once("note", "book", 0, 1, writes=False)


def test_who_waits_for_nothing_is_told():
    def waits(person):
        yield "letter"

    with pytest.raises(AssertionError, match=r"deadlock\n\s+person 0 waits for a letter"):
        Post(waits, waits).run(random.Random(3).choice)


def test_what_is_no_generator_is_told():
    with pytest.raises(AssertionError, match="expected a generator"):
        Post(lambda person: None)


def test_what_is_still_under_way_arrives():
    def writes(person):
        person.write("late", 0)
        return
        yield

    post = Post(writes).run(lambda actions: actions[0])
    assert [letter.text for letter in post.letters[0]] == ["late"]
