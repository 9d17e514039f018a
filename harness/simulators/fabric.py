"""
Agents that run at the same time, and messages between them that arrive in any order.

An agent is a generator that yields what it waits for. Two accesses to the same elements of a
buffer, one of them a write, that nothing orders are a race: found by what the agents know to be
done, not by luck, so that one run names it whatever its schedule.

Each access and each message has a number; what somebody knows to be done is a set of numbers, as
the bits of an int. A subclass of `Fabric` says when an agent can go on, what a message does when
it lands, and what an agent knows after a wait.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, Self, TypeVar

from numpy.typing import NDArray

from harness.simulators.hazards import Place

Array = NDArray[Any]


class Race(AssertionError):
    """Two accesses to the same elements, one of them a write, that nothing orders."""


@dataclass(frozen=True, slots=True)
class Access:
    """Elements start to stop, not included, of one buffer, read or written by `number`."""

    number: int
    what: str
    writes: bool
    start: int
    stop: int
    here: Place


class Memory:
    """The buffers of one agent, and who accessed them."""

    def __init__(self, buffers: Mapping[str, Array]) -> None:
        self.buffers = {name: values.copy() for name, values in buffers.items()}
        self._accesses: dict[str, list[Access]] = {name: [] for name in buffers}

    def judge(self, name: str, new: Access, known: int) -> None:
        """Keep an access; raise a Race with one before it that `known` does not have as done."""
        if name not in self.buffers:
            raise ValueError(f"{new.what}: there is no buffer {name!r}")
        size = len(self.buffers[name])
        if not 0 <= new.start <= new.stop <= size:
            raise ValueError(f"{new.what}: {name!r} has {size} elements")
        kept = []
        for old in self._accesses[name]:
            meets = new.start < old.stop and old.start < new.stop
            if meets and (new.writes or old.writes) and not known >> old.number & 1:
                raise Race(
                    f"{new.what}\n  now:    {new.here}\n"
                    f"  nothing orders it after: {old.what}\n  before: {old.here}"
                )
            if not (new.writes and new.start <= old.start and old.stop <= new.stop):
                kept.append(old)
        self._accesses[name] = [*kept, new]


class Agent:
    """Who takes part: what it waits for, what it knows to be done, and its own memory."""

    def __init__(self, fabric: "Fabric[Any, Any]", rank: int, buffers: Mapping[str, Array]) -> None:
        self.rank = rank
        self._fabric, self._memory = fabric, Memory(buffers)
        self._doing: Any = None
        self._knows, self._alive = 0, True

    def _at_once(self, what: str, name: str, start: int, stop: int, *, writes: bool) -> None:
        """Judge an access of the agent itself that is done when this returns."""
        number = self._fabric.number()
        text = f"{self}, {what}({name!r}, {start}:{stop})"
        access = Access(number, text, writes, start, stop, caller(3))
        self._memory.judge(name, access, self._knows)
        self._knows |= 1 << number


@dataclass(eq=False, kw_only=True)
class Flight:
    """Something under way to an agent: may land when all of `after` have; in time at `lands`."""

    number: int
    to: Agent
    after: int = 0
    lands: int = 0


A = TypeVar("A", bound=Agent)
F = TypeVar("F", bound=Flight)


class Fabric(ABC, Generic[A, F]):
    """
    Agents and what is under way between them.

    `run` takes a rule of who goes next: a function of the agents that can go on and the flights
    that may land, or none for the earliest in time.
    """

    def __init__(self) -> None:
        self.agents: list[A] = []
        self.flying: list[F] = []
        self.arrived = self.now = self._numbers = 0
        self.timed = False
        self._work: dict[A, Iterator[object]] = {}

    def begin(self, work: Callable[[A], Iterator[object]], agent: A) -> None:
        """Let an agent take part, with the generator that `work` makes of it."""
        self.agents.append(agent)
        one = work(agent)
        assert isinstance(one, Iterator), f"{agent}: returns {one!r}, expected a generator"
        self._work[agent] = one

    def number(self) -> int:
        """The number of the next access or message."""
        self._numbers += 1
        return self._numbers

    @abstractmethod
    def ready(self, agent: A) -> bool:
        """Whether what the agent waits for has come."""

    @abstractmethod
    def resume(self, agent: A) -> object:
        """What the wait of an agent ends with; and what it knows from now on."""

    @abstractmethod
    def asked(self, agent: A, wait: object) -> None:
        """An agent has yielded this; raise an AssertionError if it is no wait of its own."""

    @abstractmethod
    def land(self, flight: F) -> None:
        """What happens when something arrives."""

    @abstractmethod
    def waits(self, agent: A) -> str:
        """What an agent waits for, in words."""

    def ended(self, agent: A) -> None:
        """An agent's generator has ended."""

    def next_in_time(self, landing: list[F]) -> A | F | None:
        """Of those that no agent has to be asked for, the earliest."""
        first = min(landing, key=lambda flight: flight.lands, default=None)
        if first is not None:
            self.now = max(self.now, first.lands)
        return first

    def run(self, choose: Callable[[list[Any]], Any] | None = None) -> Self:
        """Let all agents run to their ends, and everything arrive."""
        self.timed = choose is None
        while any(agent._alive for agent in self.agents):
            able = [agent for agent in self.agents if agent._alive and self.ready(agent)]
            landing = self._landing()
            if choose is None:
                action = able[0] if able else self.next_in_time(landing)
            else:
                action = choose([*able, *landing]) if able or landing else None
            assert action is not None, f"deadlock\n{self._who_waits()}"
            if isinstance(action, Agent):
                self.go_on(action)
            else:
                self._land(action)
        while self.flying:  # what nobody waited for
            self._land(self._landing()[0])
        return self

    def go_on(self, agent: A) -> None:
        """Let an agent run to its next wait."""
        self.step(agent, self.resume(agent))

    def step(self, agent: A, value: object) -> None:
        """Hand a value to an agent's generator, which runs to its next wait or to its end."""
        agent._doing = None
        try:
            wait = self._work[agent].send(value)  # type: ignore[attr-defined]
        except StopIteration:
            agent._alive = False
            self.ended(agent)
            return
        self.asked(agent, wait)
        agent._doing = wait

    def _landing(self) -> list[F]:
        return [one for one in self.flying if not one.after & ~self.arrived]

    def _land(self, flight: F) -> None:
        self.flying.remove(flight)
        self.land(flight)
        self.arrived |= 1 << flight.number

    def _who_waits(self) -> str:
        alive = [agent for agent in self.agents if agent._alive]
        return "\n".join(f"    {agent} {self.waits(agent)}" for agent in alive)


def caller(depth: int = 2) -> Place:
    """The line that called: 2 for whoever called the caller of this."""
    frame = sys._getframe(depth)
    return Place(file=frame.f_code.co_filename, line=frame.f_lineno)


def schedules(
    random: Random, ranks: int, trials: int
) -> Iterator[Callable[[Sequence[Any]], object]]:
    """Rules of who goes next: messages late, messages early, an agent kept back, any order."""

    def late(one: Callable[[Any], bool]) -> Callable[[Sequence[Any]], object]:
        return lambda actions: ([a for a in actions if not one(a)] or actions)[0]

    yield late(lambda action: isinstance(action, Flight))
    yield late(lambda action: isinstance(action, Agent))
    yield lambda actions: actions[-1]  # the newest message
    for rank in range(ranks):
        yield late(lambda action, rank=rank: getattr(action, "rank", None) == rank)  # type: ignore[misc]
        yield late(lambda action, rank=rank: _bound_for(action) == rank)  # type: ignore[misc]
    for _ in range(trials):
        yield random.choice


def _bound_for(action: object) -> int | None:
    return action.to.rank if isinstance(action, Flight) else None
