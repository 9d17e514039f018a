"""
Ranks that are killed on purpose, and what they leave behind.

    from harness.simulators.deaths import Moment, point

    def save(rank, world, path):
        with path.open("wb") as file:
            file.write(b"half")
            point("half written")    # a moment at which this process can be killed
            file.write(b"rest")
        return rank

    ends = ranks.ends(2, save, path, dies={1: Moment("half written")})    # the fixture
    assert ends[1].killed
    assert ends[0].value == 0

`point` belongs into what a test hands to the code under test: a disk, a model, a clock. It does
nothing but in a rank that is to die there: that one sends itself SIGKILL, so no `finally` runs and
what Python has buffered is lost, while what has been given to the operating system stays.
`Moment("half written", 3)` is the third time that this point is passed, `Moment(nth=3)` the third
point of any name. `End.points` of a run in which nobody dies lists the moments there are; a rank
that does not come to its moment ends as if it had none.

A rank that dies or raises ends nobody else here: the others see what they see of it, as a
connection closed by its peer. With `together` they are killed at the first death, at whatever they
are doing, as an agent or a node's failure would. With `joined=False` there is no group to join, and
an end costs a fork: hundredths of a second. `run_mortals` is the same without the fixture.
"""

import os
import pickle
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.base.errors import UsageProblem
from harness.simulators.ranks import replies_of


class Moment(NamedTuple):
    """The `nth` time, from 1, that a rank passes the point `name`, or any point for ""."""

    name: str = ""
    nth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a rank ended: killed, with an error, or with a value and the points that it passed."""

    killed: bool = False
    error: Exception | None = None
    value: Any = None
    points: tuple[str, ...] = ()


class _Life:
    """What a rank passes, and when it is to die."""

    def __init__(self, dies: Moment | None) -> None:
        self.passed: list[str] = []
        self._dies = dies
        self._lock = threading.Lock()

    def passes(self, name: str) -> None:
        with self._lock:
            self.passed.append(name)
            if self._dies is None or self._dies.name not in ("", name):
                return
            of_these = [one for one in self.passed if self._dies.name in ("", one)]
            if len(of_these) == self._dies.nth:
                os.kill(os.getpid(), signal.SIGKILL)


_life = _Life(None)


def point(name: str) -> None:
    """Pass a moment at which this process may be killed; does nothing outside `run_mortals`."""
    _life.passes(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mortal:
    """What each rank calls."""

    fn: Callable[..., object]
    dies: Mapping[int, Moment]

    def __call__(self, rank: int, world: int, *args: object) -> tuple[object, tuple[str, ...]]:
        global _life
        _life = _Life(self.dies.get(rank))
        return self.fn(rank, world, *args), tuple(_life.passed)


def run_mortals(
    world: int,
    fn: Callable[..., object],
    *args: object,
    dies: Mapping[int, Moment],
    joined: bool = True,
    together: bool = False,
    timeout_s: float = 20.0,
) -> list[End]:
    """
    Run `fn(rank, world, *args)` on forked ranks, kill rank r at `dies[r]`; return all ends.

    RanksHung when a rank that lives is not done in `timeout_s`; RankFailed when one leaves by
    other ways than SIGKILL; the NotImplementedError of a stub, which is no end of a rank.
    """
    __tracebackhide__ = True
    for rank, moment in dies.items():
        if not 0 <= rank < world or moment.nth < 1:
            raise UsageProblem(
                f"run_mortals: expected ranks below {world} and moments from 1 on, found rank "
                f"{rank} and {moment}."
            )
    replies = replies_of(
        world,
        _Mortal(fn=fn, dies=dies),
        args,
        timeout_s=timeout_s,
        joined=joined,
        mortal=True,
        together=together,
    )
    ends = []
    for rank, reply in enumerate(replies):
        if reply.succeeded:
            value, points = pickle.loads(reply.pickled)
            ends.append(End(value=value, points=points))
        elif reply.killed:
            ends.append(End(killed=True))
        else:
            error = reply.error(f"rank {rank} of {world}")
            if isinstance(error, NotImplementedError) and not error.args:
                raise error
            ends.append(End(error=error))
    return ends
