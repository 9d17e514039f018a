"""
Calls checked while they are timed, so that none can be honest in the one and not in the other.

Before each call the same storage is given other contents, so that no answer can be kept from an
earlier call: one row of every floating-point input (the last axis; one element of a vector) takes
its neighbour's values, which nobody notices who looks at a few of them; now and then, and in each
call where there is no such input, all are what another seed makes. One of the later calls, drawn
at random when it has returned, is compared with the reference once the clock has stopped.
"""

import math
import random
import sys
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from harness.judge.correctness.answer import (
    Value,
    as_tensor,
    assert_sound,
    copied,
    differences,
    parts,
)
from harness.judge.honesty.watch import hooks

Inputs = dict[str, Any]
Make = Callable[[int], Inputs]
Contents = dict[str, list[torch.Tensor]]

MAKING_S = 1.0  # what is spent on making contents between calls
KEPT = 4  # contents that are held, to be used again


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
        make: Arguments of the same form with other contents, by the number of their seed.
        ahead: How many of them to make now, where nothing may be made between two calls; None
            makes them between calls.
        writes: Names of the arguments that it may change and return.
        structured: Names of the arguments that keep their contents, because one of their values
            depends on another.
    """

    def __init__(
        self,
        entry: Callable[..., Any],
        arguments: Inputs,
        make: Make,
        *,
        ahead: int | None = None,
        writes: Collection[str] = (),
        structured: Collection[str] = (),
    ) -> None:
        self._entry = entry
        self._arguments = arguments
        self._writes = writes
        self._random = random.SystemRandom()
        kept = {name: copied(arguments[name]) for name in structured}
        self._refill = Refill(
            arguments, lambda number: make(number) | kept, self._random, ahead=ahead
        )
        loose = [value for name, value in arguments.items() if name not in structured]
        floats = [view for view in _tensors(loose) if view.is_floating_point()]
        self._nudges = [Nudge(view, self._random) for view in floats if view.numel() > 1]
        self._hooks = hooks()
        self._changes = 0
        self._calls = 0
        self._window = 0
        self._awaited = False
        self._given: Inputs = {}
        self._got: list[Value] = []
        self._kept: tuple[Inputs, Value] | None = None

    def call(self) -> None:
        """The timed call."""
        result = self._entry(**self._arguments)
        # here, where a hook that works in between is on the clock
        if hooks() != self._hooks:
            sys.setprofile(self._hooks[0])
            sys.settrace(self._hooks[1])
            raise AssertionError(
                "a hook of the interpreter was left behind by a timed call: expected all work to "
                "be done when it returns"
            )
        # one without a `before` of its own may have written over what the last one gave back
        self._awaited, self._got = False, [result] if self._awaited else []

    def pass_over(self) -> None:
        """Something else is called on the arguments now, and may write to them."""
        self._awaited = False

    def before(self, *, timed: bool = True) -> None:
        """Ahead of each call, off the clock: new contents, kept for the case that it is drawn."""
        self._settle()
        self._change()
        self._given = {name: copied(value) for name, value in self._arguments.items()}
        self._awaited = timed  # one that is not has been watched, and may know it

    def drawn(self) -> DrawnCall:
        """The call that was drawn, its arrays on the host; the inputs get their contents back."""
        self._settle()
        for nudge in self._nudges:
            nudge.undo()
        self._refill.undo()
        assert self._kept is not None, "expected at least one call between the marks, found none"
        inputs, result = self._kept
        return DrawnCall(
            inputs={name: _like(value, self._arguments[name]) for name, value in inputs.items()},
            result=result,
            changed=tuple(name for name in self._refill.changed() if name not in self._writes),
        )

    def _change(self) -> None:
        for nudge in self._nudges:
            nudge.undo()
        self._changes += 1
        # at the end of each stretch that a call is drawn from, so that most of it is nudged only
        if not self._nudges or self._changes & (self._changes + 1) == 0:
            self._refill()
        for nudge in self._nudges:
            nudge()

    def _settle(self) -> None:
        """Draw whether the last call is the one to keep; nothing here waits for the device."""
        if self._got:
            (result,) = self._got
            self._calls += 1
            # a draw starts afresh at each power of two, which leaves the warm-up behind; of the n
            # calls since then each is the one that is kept with probability 1 / n
            self._window = 1 if self._calls & (self._calls - 1) == 0 else self._window + 1
            if self._random.randrange(self._window) == 0:
                assert_sound(result, self._arguments, writes=self._writes)
                self._kept = self._given, copied(result)
        self._given, self._got, self._awaited = {}, [], False


def _like(held: Value, argument: Value) -> Value:
    """A copy that was held as a tensor, in the form that the oracle knows its inputs in."""
    if isinstance(held, torch.Tensor) and not isinstance(argument, torch.Tensor):
        return held.cpu().numpy()
    return held


def _tensors(value: Value) -> list[torch.Tensor]:
    """The memory of every tensor and array in `value` that has any."""
    views = [as_tensor(part) for _, part in parts(value, "")]
    return [view for view in views if view is not None and view.numel()]


class Refill:
    """
    Gives tensors and arrays the contents that other seeds make; other values stay as they are.

    Where another seed makes another form (a shape, a number), nothing is written.

    Args:
        inputs: What is written to.
        make: Called with 1, 2, … for `inputs` with other contents.
        draw: Chooses among contents that there are already.
        ahead: How many to make now. None makes them when they are needed, until that has taken
            `MAKING_S` seconds.
    """

    def __init__(
        self, inputs: Inputs, make: Make, draw: random.Random, *, ahead: int | None = None
    ) -> None:
        self._inputs = inputs
        self._make = make
        self._random = draw
        self._homes = {name: _tensors(value) for name, value in inputs.items()}
        self._own: Contents = {name: copied(homes) for name, homes in self._homes.items()}
        self._written = self._own
        self._changes: dict[str, list[torch.Tensor]] = {name: [] for name in inputs}
        self._held: deque[Contents] = deque(maxlen=KEPT)
        self._count = 0
        self._left_s = MAKING_S if any(self._homes.values()) else 0.0
        if ahead is not None:
            for _ in range(ahead):
                self._make_more()
            self._left_s = 0.0

    def __call__(self) -> None:
        """Write contents that are new, or drawn from those that are held."""
        more = self._left_s > 0
        if more:
            self._make_more()
        if self._held:
            count = len(self._held)
            self._write(self._held[count - 1 if more else self._random.randrange(count)])

    def undo(self) -> None:
        """Write the contents that there were at first."""
        self._write(self._own)

    def changed(self) -> tuple[str, ...]:
        """Names of the inputs in which something else than what was written has been found."""
        return tuple(name for name, found in self._changes.items() if any(map(bool, found)))

    def _make_more(self) -> None:
        start = perf_counter()
        self._count += 1
        made = self._make(self._count)
        self._left_s -= perf_counter() - start
        if all(_form(made[name]) == _form(value) for name, value in self._inputs.items()):
            self._held.append({name: _tensors(made[name]) for name in self._inputs})
        else:
            self._left_s = 0.0

    def _write(self, contents: Contents) -> None:
        for name, homes in self._homes.items():
            self._changes[name] += differences(homes, self._written[name])
            for home, content in zip(homes, contents[name], strict=True):
                home.copy_(content)
        self._written = contents


def _form(value: Value) -> list[object]:
    """Shape and dtype of each tensor and array, and what every other part shows itself as."""
    views = [(part, as_tensor(part)) for _, part in parts(value, "")]
    return [repr(part) if view is None else (tuple(view.shape), view.dtype) for part, view in views]


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
