"""A call inside guard bands and on poisoned memory, and what may be said of its answer."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np
import torch

from harness.judge import kernels
from harness.judge.correctness.answer import (
    as_tensor,
    assert_sound,
    copied,
    differences,
    parts,
    span,
)
from harness.judge.correctness.matching import diagnose_runs
from harness.judge.correctness.memory import NAN, ZERO, Guarded, poisoned_allocations
from harness.judge.honesty.forbidden import forbidden
from harness.judge.honesty.watch import nothing_left_behind, sealed
from harness.judge.setting import Inputs, Order, Policy, Setting

ACCESSES_PER_PROGRAM = 1500  # of threads, simulated in the time of one of Triton's programs


def held_to_annotations(entry: Callable[..., Any]) -> Callable[..., Any]:
    """`entry` that refuses what its annotations do not fit; as it is, where it is no function."""
    if not isinstance(entry, FunctionType) or not entry.__name__.isidentifier():
        return entry
    from beartype import beartype
    from jaxtyping import TypeCheckError, jaxtyped

    checked = jaxtyped(entry, typechecker=beartype)

    def call(**arguments: object) -> Any:  # noqa: ANN401
        try:
            return checked(**arguments)
        except TypeCheckError as error:
            raise AssertionError(_misfit(str(error))) from None

    return call


def _misfit(text: str) -> str:
    """What jaxtyping says over several lines, in one."""
    told = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    what = "the result" if "the return value" in text.partition("\n")[0] else "an argument"
    found = told.get("Actual value", "something else")
    asked = told.get("Expected type", "what the annotation says").removesuffix(".")
    asked = asked.removeprefix("<class '").removesuffix("'>")
    hint = " (is a return missing?)" if found == "None" else ""
    return f"{what}: expected {asked}, found {found}{hint}"


@dataclass
class GuardedCall:
    """
    One set of inputs inside guard bands, and what the calls on it did to memory.

    Attributes:
        trial: Whose code is called, and where.
        original: The inputs, as the oracle made them; never handed out.
        guards: The fenced copies that are.
        broken: Elements written outside the memory asked for, over all calls.
        arguments: What the last call was given.
        meter: What counted the last call, on a simulator.
    """

    trial: Setting
    original: Inputs
    guards: dict[str, Guarded] = field(default_factory=dict)
    broken: int = 0
    arguments: Inputs = field(default_factory=dict)
    meter: Any = None

    def __post_init__(self) -> None:
        """Move every tensor and array into its own fenced buffer."""
        self.fenced: Inputs = {}
        self._returned: Any = None
        for name, value in self.original.items():
            if isinstance(value, torch.Tensor):
                self.guards[name] = Guarded(value)
                self.fenced[name] = self.guards[name].tensor
            elif isinstance(value, np.ndarray) and self.trial.device == "cpu":
                self.guards[name] = Guarded(torch.from_numpy(value))
                self.fenced[name] = self.guards[name].tensor.numpy()
            else:
                self.fenced[name] = value

    def run(
        self,
        *,
        pattern: str,
        order: Order = "forward",
        policy: Policy = "late",
        seed: int = 0,
        checked: bool = False,
    ) -> Any:  # noqa: ANN401
        """Call the entry function on poisoned memory; `checked` enforces its annotations."""
        entry, kata = self.trial.entry, self.trial.submission.kata
        if checked:
            entry = held_to_annotations(entry)
        entry = self.trial.callable(entry)
        self.arguments = self.trial.launchable(self.fenced)
        with nothing_left_behind(), sealed(self.trial.oracle, self.trial.answers):
            with ExitStack() as around:
                self.meter = around.enter_context(self.trial.ordered(order, policy, seed))
                failures = around.enter_context(self.trial.failures())
                memory = around.enter_context(poisoned_allocations(pattern))
                around.enter_context(
                    forbidden(kata.forbidden, on_the_host=self.trial.device == "cpu")
                )
                # innermost: what the poisoning does is not the code's under test
                around.enter_context(self.trial.operators(self.meter))
                result = entry(**self.arguments)
            # at once, behind whatever the call has put into the current stream
            self._returned = copied(result)
        assert not failures, f"a kernel failed and the failure was hidden: {failures[0]}"
        if self.trial.device == "cuda":
            torch.cuda.synchronize()
        self.broken += memory.broken()
        return result

    @property
    def work(self) -> int:
        """What a simulator did in the last call: programs, or accesses that take as long."""
        if self.trial.submission.kata.backend == "numba":
            return int(self.meter.accesses) // ACCESSES_PER_PROGRAM
        return int(self.meter.programs)

    def refill(self, inputs: Inputs) -> None:
        """Write new values into the storage that earlier calls saw."""
        self.original = inputs
        for name, value in inputs.items():
            if name in self.guards:
                self.guards[name].tensor.copy_(torch.as_tensor(value))
            elif isinstance(value, np.ndarray):
                self.fenced[name][...] = value
            else:
                self.fenced[name] = value

    def assert_kept(self, result: Any, copy: Any) -> None:  # noqa: ANN401
        """
        Check that an earlier call's answer is still what it was: `copy` was taken at once.

        What lies in the memory of an argument changes with it.
        """
        __tracebackhide__ = True
        homes = [span(one) for value in self.arguments.values() for _, one in parts(value, "")]
        own = [
            (part, before)
            for (_, part), (_, before) in zip(parts(result, ""), parts(copy, ""), strict=True)
            if (mine := span(part)) and not any(home and mine.meets(home) for home in homes)
        ]
        changed = differences([part for part, _ in own], [before for _, before in own])
        assert not any(map(bool, changed)), (
            "the result of an earlier call was written to by a later one: expected memory of its "
            "own for each result"
        )

    def assert_right(self, result: Any) -> None:  # noqa: ANN401
        """Check the form of an answer, then compare it with the oracle's on untouched inputs."""
        __tracebackhide__ = True
        assert_sound(result, self.arguments, writes=self.trial.submission.kata.writes)
        try:
            self.trial.assert_matches(result, self.original)
        finally:
            # right or wrong, it has to be what the call gave back
            changed = any(bool(differs) for differs in differences(result, self._returned))
            assert not changed, (
                "the result changed after the call had returned: work was left on another thread, "
                "process or stream"
            )

    def assert_from_kernels(self, result: Any) -> None:  # noqa: ANN401
        """
        Check that an answer is the kernels' work: without them it must not come out right.

        Only a simulator can tell, and an answer without elements needs no kernel. The inputs are
        written anew.
        """
        __tracebackhide__ = True
        tensors = [as_tensor(part) for _, part in parts(result, "")]
        if not self.trial.simulated or all(one is not None and not one.numel() for one in tensors):
            return
        backend = self.trial.submission.kata.backend
        launches = self.meter.launches
        assert launches, f"no kernel was launched: expected the answer from a {backend} kernel"
        self.refill(self.original)
        try:
            with kernels.left_out(backend, at_most=launches), poisoned_allocations(ZERO):
                without = self.trial.entry(**self.arguments)
            self.trial.assert_matches(without, self.original)
        except Exception:  # noqa: BLE001 -- however it goes wrong, it needs its kernels
            return
        raise AssertionError(
            "the answer comes out right when no kernel does anything: expected it from the kernels"
        )

    def assert_repeats(self, times: int = 50) -> None:
        """Check that the same inputs give the same bits, so many times, in either order."""
        __tracebackhide__ = True
        first = copied(self.run(pattern=NAN))
        for at in range(2, times + 1):
            self.refill(self.original)
            again = self.run(pattern=NAN, order="forward" if at % 2 else "reversed")
            difference = diagnose_runs(first, again)
            assert not difference, f"run {at} of {times} on the same inputs: {difference}"
