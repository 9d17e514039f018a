"""Kata week07/pipeline_1f1b: the order in which pipeline stages work, and what it costs.

The model is cut into p * v parts of some layers each: chunk c of stage s is part c * p + s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Op(NamedTuple):
    """What a stage does at a time: one pass of one micro-batch through one of its chunks."""

    kind: Literal["F", "B"]
    micro: int
    chunk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sim:
    """
    What a schedule comes to.

    `makespan` lasts from the first op to the end of the last. `bubble_fraction` is the share of
    it that the stages, taken together, stand idle. `peak_live` has, for each stage, how many
    passes it holds activations of at most.
    """

    makespan: float
    bubble_fraction: float
    peak_live: list[int]


def gpipe(p: int, m: int) -> list[list[Op]]:
    """
    Return each stage's ops: all forwards, then all backwards.

    Raises:
        ValueError: `p` or `m` is below 1; the message names which.
    """
    raise NotImplementedError  # TODO(kata): check, order the passes (about 6 lines with helpers)


def one_f_one_b(p: int, m: int) -> list[list[Op]]:
    """
    Return each stage's ops: as fast as `gpipe`, with activations of at most p - s passes alive.

    Raises:
        ValueError: `p` or `m` is below 1; the message names which.
    """
    # TODO(kata): check, order the passes, warm up, alternate and drain (about 9 lines with helpers)
    raise NotImplementedError


def interleaved(p: int, m: int, v: int) -> list[list[Op]]:
    """
    Return each stage's ops over `v` chunks per stage: a v-th of the bubble.

    With one chunk it is `one_f_one_b`.

    Raises:
        ValueError: `p`, `m` or `v` is below 1, or `m` is not a multiple of `p`; the message
            names which.
    """
    raise NotImplementedError  # TODO(kata): check, order the passes, warm up (about 10 lines)


def simulate(schedule: Sequence[Sequence[Op]], t_f: float, t_b: float, t_comm: float) -> Sim:
    """
    Run each stage's ops in their order, each as soon as what it needs is there.

    An op takes `t_f` or `t_b` seconds; what it sends to another stage is there `t_comm` later, and
    delays neither of them otherwise.

    Raises:
        ValueError: no stage can go on, though there are ops left: "schedule: …".
    """
    # TODO(kata): run what is ready, measure (about 35 lines with helpers)
    raise NotImplementedError
