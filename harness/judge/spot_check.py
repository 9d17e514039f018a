"""
Calls checked while they are timed, so that none can be honest in the one and not in the other.

Before each call one row of every floating-point input (the last axis; one element of a vector)
takes its neighbour's values: the same storage, other contents, so that no answer can be kept from
an earlier call. One call, drawn at random from the later ones, is compared with the reference once
the clock has stopped.
"""

import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from harness.judge.answer import Value, as_tensor, assert_sound, copied, fingerprint, parts

Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCall:
    """
    One call as it was timed: copies of what it was given and gave back.

    `changed` are the inputs that the calls, this one or another, have written to.
    """

    inputs: Inputs
    result: Value
    changed: tuple[str, ...]


class SpotCheck:
    """
    Stands between a clock and the function that it times.

    Args:
        entry: The function.
        arguments: What it is called with; their contents change between calls.
        writes: Names of the arguments that it may change and return.
        structured: Names of the arguments that keep their contents, because one of their values
            depends on another.
    """

    def __init__(
        self,
        entry: Callable[..., Any],
        arguments: Inputs,
        *,
        writes: Collection[str] = (),
        structured: Collection[str] = (),
    ) -> None:
        self._entry = entry
        self._arguments = arguments
        self._writes = writes
        self._random = random.SystemRandom()
        self._before = self._fingerprints()
        loose = [value for name, value in arguments.items() if name not in structured]
        views = [as_tensor(part) for _, part in parts(loose, "")]
        floats = [view for view in views if view is not None and view.is_floating_point()]
        self._nudges = [Nudge(view, self._random) for view in floats if view.numel() > 1]
        self._calls = 0
        self._window = 0
        self._awaited = False
        self._given: Inputs | None = None
        self._got: list[Value] = []
        self._kept: tuple[Inputs, Value] | None = None

    def call(self) -> None:
        """The timed call."""
        result = self._entry(**self._arguments)
        if self._awaited:
            self._awaited, self._got = False, [result]

    def before(self) -> None:
        """Ahead of each call, untimed: new contents, and a draw whether this is the one to keep."""
        self._settle()
        for nudge in self._nudges:
            nudge()
        self._calls += 1
        # a draw starts afresh at each power of two, which leaves the warm-up behind; of the n
        # calls since then each is the one that is kept with probability 1 / n
        self._window = 1 if self._calls & (self._calls - 1) == 0 else self._window + 1
        if self._random.randrange(self._window) == 0:
            self._given = {name: copied(value) for name, value in self._arguments.items()}
            self._awaited = True

    def drawn(self) -> DrawnCall:
        """The call that was drawn, its arrays on the host; the inputs get their contents back."""
        self._settle()
        for nudge in self._nudges:
            nudge.undo()
        assert self._kept is not None, "expected at least one call between the marks, found none"
        inputs, result = self._kept
        after = self._fingerprints()
        return DrawnCall(
            inputs={name: _like(value, self._arguments[name]) for name, value in inputs.items()},
            result=result,
            changed=tuple(name for name in after if after[name] != self._before[name]),
        )

    def _settle(self) -> None:
        """Keep the last call if it was drawn; nothing here waits for the device."""
        if self._given is not None and self._got:
            (result,) = self._got
            assert_sound(result, self._arguments, writes=self._writes)
            self._kept = self._given, copied(result)
        self._given, self._got, self._awaited = None, [], False

    def _fingerprints(self) -> dict[str, tuple[int, ...]]:
        return {
            name: fingerprint(value)
            for name, value in self._arguments.items()
            if name not in self._writes
        }


def _like(held: Value, argument: Value) -> Value:
    """A copy that was held as a tensor, in the form that the oracle knows its inputs in."""
    if isinstance(held, torch.Tensor) and not isinstance(argument, torch.Tensor):
        return held.cpu().numpy()
    return held


class Nudge:
    """Gives one row of a tensor its neighbour's values, and the last one its own back."""

    def __init__(self, tensor: torch.Tensor, draw: random.Random) -> None:
        self._tensor = tensor
        self._random = draw
        shape = tuple(tensor.shape)
        self._shape = shape[:-1] if math.prod(shape[:-1]) > 1 else shape
        self._row: torch.Tensor | None = None
        self._own: torch.Tensor | None = None

    def __call__(self) -> None:
        """Change one row, drawn at random."""
        self.undo()
        at = self._random.randrange(math.prod(self._shape))
        self._row = self._row_at(at)
        self._own = self._row.clone()
        self._row.copy_(self._row_at(at - 1 if at else 1))

    def undo(self) -> None:
        """Give the changed row its own values back."""
        if self._row is not None and self._own is not None:
            self._row.copy_(self._own)
        self._row = self._own = None

    def _row_at(self, at: int) -> torch.Tensor:
        where = np.unravel_index(at, self._shape)
        return self._tensor[tuple(int(index) for index in where)]
