"""
Calls checked while they are timed, so that none can be honest in the one and not in the other.

Before each call one element of every floating-point input takes its neighbour's value: the same
storage, other contents, so that no answer can be kept from an earlier call. One call, drawn at
random from the later ones, is compared with the reference once the clock has stopped.
"""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from harness.judge.answer import Value, as_tensor, assert_sound, copied, differences, parts

Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCall:
    """One call as it was timed: copies of what it was given and gave back, and what it changed."""

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
    """

    def __init__(
        self, entry: Callable[..., Any], arguments: Inputs, *, writes: Collection[str] = ()
    ) -> None:
        self._entry = entry
        self._arguments = arguments
        self._writes = writes
        self._random = random.SystemRandom()
        views = [as_tensor(part) for _, part in parts(list(arguments.values()), "")]
        floats = [view for view in views if view is not None and view.is_floating_point()]
        self._nudges = [Nudge(view, self._random) for view in floats if view.numel() > 1]
        self._calls = 0
        self._window = 0
        self._awaited = False
        self._given: Inputs | None = None
        self._got: list[Value] = []
        self._kept: tuple[Inputs, Value, dict[str, list[torch.Tensor]]] | None = None

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
        inputs, result, changed = self._kept
        return DrawnCall(
            inputs={name: _like(value, self._arguments[name]) for name, value in inputs.items()},
            result=result,
            changed=tuple(name for name, found in changed.items() if any(map(bool, found))),
        )

    def _settle(self) -> None:
        """Keep the last call if it was drawn; nothing here waits for the device."""
        if self._given is not None and self._got:
            (result,) = self._got
            assert_sound(result, self._arguments, writes=self._writes)
            changed = {
                name: differences(value, self._given[name])
                for name, value in self._arguments.items()
                if name not in self._writes
            }
            self._kept = self._given, copied(result), changed
        self._given, self._got, self._awaited = None, [], False


def _like(held: Value, argument: Value) -> Value:
    """A copy that was held as a tensor, in the form that the oracle knows its inputs in."""
    if isinstance(held, torch.Tensor) and not isinstance(argument, torch.Tensor):
        return held.cpu().numpy()
    return held


class Nudge:
    """Gives one element of a tensor its neighbour's value, and the last one its own back."""

    def __init__(self, tensor: torch.Tensor, draw: random.Random) -> None:
        self._tensor = tensor
        self._random = draw
        self._place: torch.Tensor | None = None
        self._own = tensor.new_empty(())

    def __call__(self) -> None:
        """Change one element, drawn at random."""
        self.undo()
        at = self._random.randrange(self._tensor.numel())
        self._place = self._element(at)
        self._own = self._place.clone()
        self._place.copy_(self._element(at - 1 if at else 1))

    def undo(self) -> None:
        """Give the changed element its own value back."""
        if self._place is not None:
            self._place.copy_(self._own)

    def _element(self, at: int) -> torch.Tensor:
        where = np.unravel_index(at, tuple(self._tensor.shape))
        return self._tensor[tuple(int(index) for index in where)]
