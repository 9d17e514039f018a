"""Where code is called: on what device, on which simulator, and what is known of its answer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal, Self

import numpy as np

from harness.base.errors import UsageProblem
from harness.content.functions import answers_of, in_oracle
from harness.content.kata import ASYNCHRONOUS, SIMULATED
from harness.judge import kernels
from harness.judge.correctness.matching import assert_matches
from harness.judge.correctness.unordered import sorted_parts
from harness.judge.loading import Loadable

Inputs = dict[str, Any]
Order = Literal["forward", "reversed", "random"]
Policy = Literal["late", "random", "early"]  # when what is in flight lands
REVERSED = 1  # the seed of the order of warps that stands for it, where they run one by one


@dataclass(kw_only=True)
class Setting:
    """
    What a call of a submission needs around it.

    Attributes:
        submission: The implementation.
        oracle: The kata's oracle module.
        device: "cpu" or "cuda".
        function: Which of the kata's functions is called; None for the first.
    """

    submission: Loadable
    oracle: ModuleType
    device: str
    function: str | None = None

    def of(self, function: str | None) -> Self:
        """The same for another of the kata's functions."""
        return self if function == self.function else replace(self, function=function)

    @property
    def entry(self) -> Callable[..., Any]:
        """The function under test."""
        return self.submission.named(self.function) if self.function else self.submission.entry

    def asked(self, name: str) -> Any:  # noqa: ANN401
        """The oracle's function `name` for the function under test; None where it has none."""
        return in_oracle(self.oracle, name, self.function)

    def truth(self, inputs: Inputs) -> Any:  # noqa: ANN401
        """The right answer to `inputs`."""
        return self.asked("reference")(**inputs)

    def assert_matches(self, result: Any, inputs: Inputs, name: str = "result") -> None:  # noqa: ANN401
        """Hold an answer to `inputs` against the truth; one without an order, sorted."""
        __tracebackhide__ = True
        self.assert_equals(result, self.truth(inputs), self.trusted(inputs), name)

    def assert_equals(
        self,
        result: Any,  # noqa: ANN401
        want: Any,  # noqa: ANN401
        trusted: Any,  # noqa: ANN401
        name: str = "result",
    ) -> None:
        """The same where the truth is known already."""
        __tracebackhide__ = True
        if getattr(self.submission.kata, "unordered", False):
            result, want, trusted = (sorted_parts(one) for one in (result, want, trusted))
        assert_matches(result, want, same_precision=trusted, name=name)

    @property
    def answers(self) -> tuple[str, ...]:
        """Names of the oracle's functions that give the answer away."""
        rivals = [one.against for one in self.submission.kata.speed if one.against is not None]
        later = getattr(self.submission.kata, "functions", ())[1:]
        return (*answers_of(later), *rivals)

    @property
    def simulated(self) -> bool:
        """Whether kernels run on a simulator: order is ours, launches are counted or left out."""
        return self.device == "cpu" and self.submission.kata.backend in SIMULATED

    def launchable(self, inputs: Inputs) -> Inputs:
        """`inputs` where the kernels expect them: arrays go to the device, tensors already are."""
        if self.device == "cpu" or self.submission.kata.backend != "numba":
            return inputs
        from numba import cuda

        return {
            name: cuda.to_device(value) if isinstance(value, np.ndarray) else value
            for name, value in inputs.items()
        }

    def callable(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` as it can be called with the oracle's inputs."""
        if self.submission.kata.backend != "jax":
            return fn
        from harness.judge.jax_arrays import given_numpy

        return given_numpy(fn)

    @property
    def asynchronous(self) -> bool:
        """Whether what kernels leave in flight lands at a time that can be chosen."""
        return self.simulated and self.submission.kata.backend in ASYNCHRONOUS

    def ordered(
        self, order: Order, policy: Policy = "late", seed: int = 0
    ) -> AbstractContextManager[Any]:
        """
        Run programs or threads in this order, a random one of `seed`, and count what they do.

        What they leave in flight, where they can, lands by `policy`. Gluon's and Triton's programs
        have no random order.
        """
        if not self.simulated:
            return nullcontext()
        if self.submission.kata.backend == "numba":
            from harness.meters.simt import simt_meter

            return simt_meter(order=order, seed=seed)
        if self.submission.kata.backend == "cuda":
            from harness.meters.ptx import ptx_meter

            schedules = {"forward": None, "reversed": REVERSED, "random": REVERSED + 1 + seed}
            return ptx_meter(schedule=schedules[order])
        if order == "random":
            raise UsageProblem(f"order: expected forward or reversed, found {order!r}.")
        if self.asynchronous:
            from harness.meters.gluon import gluon_meter

            return gluon_meter(order=order, policy=policy)
        from harness.meters.triton_traffic import traffic_meter

        return traffic_meter(order=order)

    def operators(self, meter: Any) -> AbstractContextManager[Any]:  # noqa: ANN401
        """Count what PyTorch's own operators move beside the kernels, in the same `meter`."""
        counted = self.simulated and self.submission.kata.backend != "numba"
        return meter.operators if counted else nullcontext()

    def failures(self) -> AbstractContextManager[list[str]]:
        """Collect what launches raise, where they can be watched."""
        if not self.simulated:
            return nullcontext([])
        return kernels.failures_noted(self.submission.kata.backend)

    def trusted(self, inputs: Inputs) -> Any:  # noqa: ANN401
        """The same formula in the working precision, where the oracle has it."""
        formula = self.asked("same_precision")
        return None if formula is None else formula(**inputs)
