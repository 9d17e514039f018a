"""One implementation tried on one kata's own inputs: run, checked, counted and timed."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.errors import MetadataError
from harness.hardware import Cost, Profile, speed_of_light
from harness.judge import timing
from harness.judge.correctness import assert_matches
from harness.judge.memory import Guarded, poisoned_allocations
from harness.judge.submission import Submission
from harness.judge.threshold import Verdict, judge_cost, judge_ratio, judge_roofline
from harness.kata import STATIC_METERS, Case, CostThreshold, SpeedThreshold

if TYPE_CHECKING:
    from harness.meters.compiled import KernelFacts

ARRAY_BACKENDS = ("numba", "python")  # their inputs are NumPy arrays
Inputs = dict[str, Any]
Order = Literal["forward", "reversed"]
Compile = Callable[[str, Case], "tuple[KernelFacts, ...]"]


@dataclass(kw_only=True)
class Trial:
    """
    Everything the shared checks need about one submission.

    Attributes:
        submission: The implementation.
        oracle: The kata's oracle module.
        device: "cpu" or "cuda".
        seed: Where this test's random numbers start.
        profile: The active hardware profile.
        record: Called with the fields of each measurement.
        compile: Target and case to the kernels the launcher would build.
    """

    submission: Submission
    oracle: ModuleType
    device: str
    seed: int
    profile: Profile
    record: Callable[[dict[str, Any]], None]
    compile: Compile

    @property
    def simulated(self) -> bool:
        """Whether kernels run on a simulator, where order is ours and work can be counted."""
        return self.device == "cpu" and self.submission.kata.backend in ("triton", "gluon", "numba")

    def inputs(self, case: Case, seed_offset: int = 0) -> Inputs:
        """Fresh inputs of `case`, as the oracle makes them."""
        backend = self.submission.kata.backend
        arguments = case_arguments(case, backend)
        inputs = self.oracle.make_inputs(
            **arguments, device=self.device, seed=self.seed + seed_offset
        )
        if not isinstance(inputs, dict):
            raise MetadataError(
                f"{self.submission.kata.oracle}: make_inputs: expected a dict of arguments, found "
                f"{type(inputs).__name__}."
            )
        return inputs

    def prepare(self, case: Case, seed_offset: int) -> "GuardedCall":
        """The entry function with the inputs of `case`, fenced and poisoned."""
        return GuardedCall(self, self.inputs(case, seed_offset))

    def launchable(self, inputs: Inputs) -> Inputs:
        """`inputs` where the kernels expect them: arrays go to the device, tensors already are."""
        if self.device == "cpu" or self.submission.kata.backend != "numba":
            return inputs
        from numba import cuda

        return {
            name: cuda.to_device(value) if isinstance(value, np.ndarray) else value
            for name, value in inputs.items()
        }

    def ordered(self, order: Order) -> AbstractContextManager[Any]:
        """Run programs or threads in this order, and count what they do."""
        if not self.simulated:
            return nullcontext()
        if self.submission.kata.backend == "numba":
            from harness.meters.simt import simt_meter

            return simt_meter(order=order)
        from harness.meters.triton_traffic import traffic_meter

        return traffic_meter(order=order)

    def judge_cost(self, threshold: CostThreshold) -> Verdict:
        """Measure a `[[cost]]` entry on its own case and hold it against its limit."""
        assert threshold.case is not None
        if threshold.meter in STATIC_METERS:
            assert threshold.target is not None
            kernels = self.compile(threshold.target, threshold.case)
            value, ideal = _static_value(threshold, kernels, self.profile), None
        else:
            inputs = self.inputs(threshold.case)
            with self.ordered("forward") as meter:
                self.submission.entry(**inputs)
            value = _counted(threshold.meter, meter)
            least = self.oracle.cost(**inputs) if threshold.bound is not None else Cost()
            ideal = least.bytes / 32 if threshold.meter == "sectors" else least.bytes
        verdict = judge_cost(threshold, value, ideal)
        self.record_verdict(threshold.name, threshold.meter, verdict)
        return verdict

    def judge_speed(self, threshold: SpeedThreshold) -> Verdict:
        """Time a `[[speed]]` entry on its own case, then check the timed answer."""
        inputs = self.inputs(threshold.case)
        arguments = self.launchable(inputs)

        def call() -> object:
            return self.submission.entry(**arguments)

        clock, before = self._clock()
        required = threshold.required(self.profile.id)
        if threshold.kind == "baseline":
            assert threshold.against is not None
            baseline = getattr(self.oracle, threshold.against)
            samples = timing.compare(
                call,
                lambda: baseline(**arguments),
                clock,
                before=before,
                # a shared CPU never settles to 1 %: there the verdict is enough
                required=required if self.device == "cpu" else None,
            )
            verdict = judge_ratio(samples, required, threshold.name)
        else:
            samples = timing.measure(call, clock, before=before)
            dtype = threshold.dtype or str(threshold.case.get("dtype", "float32"))
            ideal_s = speed_of_light(self.oracle.cost(**inputs), dtype, self.profile)
            verdict = judge_roofline(samples, ideal_s, required, threshold.name)
        assert_matches(call(), self.oracle.reference(**inputs), same_precision=self.trusted(inputs))
        detail = {"samples": len(samples.values), "p10": samples.quantile(0.1),
                  "median": samples.median, "p90": samples.quantile(0.9)}  # fmt: skip
        self.record_verdict(threshold.name, threshold.kind, verdict, detail)
        return verdict

    def record_verdict(
        self, name: str, meter: str, verdict: Verdict, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Hand one judged threshold to whoever keeps the attempt."""
        fields = asdict(verdict)
        self.record({"name": name, "meter": meter, **fields, "detail": dict(detail or {})})

    def trusted(self, inputs: Inputs) -> Any:  # noqa: ANN401
        """The same formula in the working precision, where the oracle has it."""
        formula = getattr(self.oracle, "same_precision", None)
        return None if formula is None else formula(**inputs)

    def _clock(self) -> tuple[timing.Clock, timing.Call]:
        if self.device == "cpu":
            # a second thread on a busy machine times the neighbours
            torch.set_num_threads(1)
            return timing.HostClock(), lambda: None
        return timing.EventClock(), timing.cache_flush(2 * self.profile.llc_bytes)


@dataclass
class GuardedCall:
    """One set of inputs inside guard bands, and what the calls on it did to memory."""

    trial: Trial
    original: Inputs
    guards: dict[str, Guarded] = field(default_factory=dict)
    broken: int = 0

    def __post_init__(self) -> None:
        """Move every tensor and array into its own fenced buffer."""
        self.fenced: Inputs = {}
        for name, value in self.original.items():
            if isinstance(value, torch.Tensor):
                self.guards[name] = Guarded(value)
                self.fenced[name] = self.guards[name].tensor
            elif isinstance(value, np.ndarray) and self.trial.device == "cpu":
                self.guards[name] = Guarded(torch.from_numpy(value))
                self.fenced[name] = self.guards[name].tensor.numpy()
            else:
                self.fenced[name] = value

    def run(self, *, pattern: str, order: Order = "forward", checked: bool = False) -> Any:  # noqa: ANN401
        """Call the entry function on poisoned memory; `checked` enforces its annotations."""
        entry = self.trial.submission.entry
        if checked:
            from beartype import beartype
            from jaxtyping import jaxtyped

            entry = jaxtyped(entry, typechecker=beartype)
        arguments = self.trial.launchable(self.fenced)
        forbidden = ForbiddenOps(self.trial.submission.kata.forbidden)
        with self.trial.ordered(order), poisoned_allocations(pattern) as memory, forbidden:
            result = entry(**arguments)
        if self.trial.device == "cuda":
            torch.cuda.synchronize()
        self.broken += memory.broken()
        return result

    def refill(self, inputs: Inputs) -> None:
        """Write new values into the storage that earlier calls saw."""
        self.original = inputs
        for name, guarded in self.guards.items():
            guarded.tensor.copy_(torch.as_tensor(inputs[name]))

    def assert_right(self, result: Any) -> None:  # noqa: ANN401
        """Compare with the oracle, computed on untouched copies of the inputs."""
        __tracebackhide__ = True
        want = self.trial.oracle.reference(**self.original)
        assert_matches(result, want, same_precision=self.trial.trusted(self.original))


class ForbiddenOps(TorchDispatchMode):
    """While active, the aten ops that the kata is about may not be called."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = names

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 -- torch's own signature
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Refuse a forbidden op, pass on every other."""
        name = str(func.overloadpacket)
        assert name not in self.names, f"{name} was called: this kata is about writing it yourself"
        return func(*args, **(kwargs or {}))


def case_arguments(case: Case, backend: str) -> dict[str, Any]:
    """The keyword arguments of make_inputs: reserved keys gone, `dtype` as the backend's own."""
    arguments = {name: value for name, value in case.items() if name != "only"}
    if isinstance(arguments.get("dtype"), str):
        name = arguments["dtype"]
        arguments["dtype"] = np.dtype(name) if backend in ARRAY_BACKENDS else getattr(torch, name)
    return arguments


def _counted(meter_name: str, meter: Any) -> float:  # noqa: ANN401 -- either simulator's meter
    names = {
        "bytes_moved": "bytes_moved",
        "bytes_loaded": "loaded_bytes",
        "bytes_stored": "stored_bytes",
        "sectors": "sectors",
        "launches": "launches",
    }
    return float(getattr(meter, names[meter_name]))


def _static_value(
    threshold: CostThreshold, kernels: "tuple[KernelFacts, ...]", profile: Profile
) -> float:
    if not kernels:
        raise AssertionError(f"{threshold.name}: expected a kernel to be launched, found none")
    if threshold.meter == "occupancy":
        from harness.meters.compiled import occupancy

        return min(occupancy(kernel, profile) for kernel in kernels)
    field_names = {"registers": "registers", "spills": "spills", "shared_memory": "shared_bytes"}
    return float(max(getattr(kernel, field_names[threshold.meter]) for kernel in kernels))
