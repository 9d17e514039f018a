"""One implementation tried on one kata's own inputs: run, checked, counted and timed."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from harness.base.errors import MetadataError
from harness.content.functions import arguments_in, function_of, in_oracle
from harness.content.kata import (
    ON_THE_HOST,
    STATIC_METERS,
    Case,
    CostThreshold,
    SpeedThreshold,
)
from harness.content.submission import NAIVE
from harness.hardware.profiles import Cost, Profile
from harness.judge.correctness.answer import as_tensor, parts
from harness.judge.correctness.memory import NAN
from harness.judge.guarded import GuardedCall
from harness.judge.honesty.forbidden import forbidden
from harness.judge.honesty.watch import nothing_left_behind
from harness.judge.setting import Inputs, Setting
from harness.judge.timing import measure
from harness.judge.timing.device_state import Probe, smi_probe
from harness.judge.timing.set_aside import nothing_set_aside
from harness.judge.timing.spot_check import DrawnCall, SpotCheck
from harness.judge.timing.threshold import Verdict, judge_cost, judge_ratio, judge_roofline

if TYPE_CHECKING:
    from harness.meters.compiled import KernelFacts

MOVED = {"bytes_moved": 1, "sectors": 32}  # bytes in one of what these meters count
# powers of two, so that inputs are as exact as before; products of two have to fit into float16
SCALES = {
    "float16": (8.0, 1 / 128),
    **dict.fromkeys(("bfloat16", "float32", "float64"), (16.0, 1 / 128)),
}
ARRAY_BACKENDS = ("numba", *ON_THE_HOST)  # their inputs are NumPy arrays
Compile = Callable[[str, Case], "tuple[KernelFacts, ...]"]
Publish = Callable[[measure.Samples, Verdict], None]


@dataclass(kw_only=True)
class Trial(Setting):
    """
    Everything the shared checks need about one submission.

    Attributes:
        seed: Where this test's random numbers start.
        profile: The active hardware profile.
        record: Called with the fields of each measurement.
        compile: Target and case to the kernels the launcher would build.
    """

    seed: int
    profile: Profile
    record: Callable[[dict[str, Any]], None]
    compile: Compile

    @property
    def on_the_host(self) -> bool:
        """Whether the host's clock times it: not every kata uses a GPU that is there."""
        return self.device == "cpu" or self.submission.kata.backend in ON_THE_HOST

    def inputs(self, case: Case, seed_offset: int = 0) -> Inputs:
        """Fresh inputs of `case`, as the oracle makes them."""
        backend = self.submission.kata.backend
        arguments = case_arguments(case, backend)
        make_inputs = in_oracle(self.oracle, "make_inputs", function_of(case))
        inputs = make_inputs(**arguments, device=self.device, seed=self.seed + seed_offset)
        if not isinstance(inputs, dict):
            raise MetadataError(
                f"{self.submission.kata.oracle}: make_inputs: expected a dict of arguments, found "
                f"{type(inputs).__name__}."
            )
        return inputs

    @property
    def cases(self) -> list[Case]:
        """The cases of the function under test that run on this device."""
        cases = [one for one in self.submission.kata.cases if function_of(one) == self.function]
        return [one for one in cases if one.get("only", self.device) == self.device]

    @property
    def structured(self) -> tuple[str, ...]:
        """Arguments that keep their contents: one of their values depends on another."""
        return getattr(self.oracle, "STRUCTURED", ())

    def prepare(self, case: Case, seed_offset: int, scale: float = 1.0) -> GuardedCall:
        """The function of `case` with its inputs, floats times `scale`, in guard bands."""
        inputs = self.inputs(case, seed_offset)
        loose = [value for name, value in inputs.items() if name not in self.structured]
        for view in map(as_tensor, [part for _, part in parts(loose, "")]):
            # numbers of few bits keep theirs: their scales are scaled
            if view is not None and view.is_floating_point() and view.itemsize > 1:
                view.mul_(scale)
        return GuardedCall(self.of(function_of(case)), inputs)

    def scales(self, case: Case) -> tuple[float, ...]:
        """What the inputs of `case` are multiplied by, one after the other."""
        default = SCALES.get(str(case["dtype"]), ())
        return getattr(self.oracle, "SCALES", default)

    def judge_cost(self, threshold: CostThreshold) -> Verdict:
        """Measure a `[[cost]]` entry on its own case, in a call whose answer is checked."""
        assert threshold.case is not None
        if (function := function_of(threshold.case)) != self.function:
            return self.of(function).judge_cost(threshold)
        if threshold.meter in STATIC_METERS:
            assert threshold.target is not None
            facts = self.compile(threshold.target, threshold.case)
            value, ideal, built = _static_value(threshold, facts, self.profile), None, _built(facts)
            if threshold.meter == "spills" and value:
                built += f"; {_spilled(facts, threshold, self.submission.kata.name)}"
        else:
            call = self.prepare(threshold.case, 0)
            result = call.run(pattern=NAN)
            value = _counted(threshold.meter, call.meter)
            call.assert_right(result)
            ideal, built = self._least(threshold.meter, call.original), ""
        verdict = judge_cost(threshold, value, ideal, built)
        self.record_verdict(threshold.name, threshold.meter, verdict)
        return verdict

    def _least(self, meter: str, inputs: Inputs) -> float | None:
        """The least possible of what moves through memory; None for other meters."""
        if meter not in MOVED or self.asked("cost") is None:
            return None
        cost: Cost = self.asked("cost")(**inputs)
        return cost.bytes / MOVED[meter]

    def judge_speed(self, threshold: SpeedThreshold, publish: Publish) -> Verdict:
        """
        Time a `[[speed]]` entry on its own case, then check one of the timed answers.

        `publish` is given the samples of a right answer, and the verdict whatever it is.
        """
        if (function := function_of(threshold.case)) != self.function:
            return self.of(function).judge_speed(threshold, publish)
        inputs = self.inputs(threshold.case)
        arguments = self.launchable(inputs)
        check = SpotCheck(
            self.callable(self.entry),
            arguments,
            lambda number: self.launchable(self.inputs(threshold.case, number)),
            ahead=None if self.on_the_host else room_for(arguments),
            writes=self.submission.kata.writes,
            structured=self.structured,
        )
        required = threshold.required(self.profile.names)
        cold = nullcontext() if self.on_the_host else nothing_set_aside()
        with nothing_left_behind(), cold:
            self._call_watched(check)
            timed = self._time(threshold, check, arguments, required)
            self._call_watched(check)
        call = check.drawn()
        if threshold.kind == "baseline":
            verdict = judge_ratio(timed, self.profile, required, threshold.name)
        else:
            dtype = threshold.dtype or str(threshold.case.get("dtype", "float32"))
            cost = self.asked("cost")(**inputs)
            verdict = judge_roofline(timed, cost, dtype, self.profile, required, threshold.name)
        self._assert_right_while_timed(call)
        publish(timed.mine, verdict)
        self.record_verdict(threshold.name, threshold.kind, verdict)
        return verdict

    def _call_watched(self, check: SpotCheck) -> None:
        """The call that is timed, off the clock: what is forbidden is so at its size, too."""
        names = self.submission.kata.forbidden
        # of the naive version the speed alone is asked for
        if names and self.submission.label != NAIVE:
            check.before(timed=False)
            with forbidden(names, on_the_host=self.device == "cpu"):
                check.call()

    def _time(
        self, threshold: SpeedThreshold, check: SpotCheck, arguments: Inputs, required: float
    ) -> measure.Timed:
        clock, flush, probe = self._instruments(threshold.clock)

        def before() -> None:
            check.before()
            flush()

        if threshold.against is None:
            return measure.measure(check.call, clock, before=before, probe=probe)
        baseline = self.callable(getattr(self.oracle, threshold.against))

        def compared() -> object:
            check.pass_over()
            return baseline(**arguments)

        return measure.compare(
            check.call,
            compared,
            clock,
            before=before,
            probe=probe,
            # a shared CPU never settles to 1 %: there the verdict is enough
            required=required if self.on_the_host else None,
        )

    def _assert_right_while_timed(self, call: DrawnCall) -> None:
        __tracebackhide__ = True
        changed = ", ".join(call.changed)
        assert not changed, f"input {changed} was written to while timed: expected it unchanged"
        self.assert_matches(call.result, call.inputs, name="timed result")

    def record_verdict(self, name: str, meter: str, verdict: Verdict) -> None:
        """Hand one judged threshold to whoever keeps the attempt."""
        self.record({"name": name, "meter": meter, **asdict(verdict)})

    def _instruments(self, clock: str) -> tuple[measure.Clock, measure.Call, Probe | None]:
        """A clock, what to do between calls, and a probe of the device's state."""
        if self.on_the_host:
            # a second thread on a busy machine times the neighbours
            torch.set_num_threads(1)
            return measure.HostClock(), measure.nothing, None
        device_clock = measure.WallClock() if clock == "wall" else measure.EventClock()
        return device_clock, measure.cache_flush(2 * self.profile.llc_bytes), smi_probe()


def room_for(arguments: Inputs) -> int:
    """How many other contents, two at most, fit on the device beside these and a call's work."""
    views = map(as_tensor, [part for _, part in parts([*arguments.values()], "")])
    nbytes = sum(view.nbytes for view in views if view is not None)
    # each is held; as much again is taken by a copy of the inputs, a drawn call and the result
    return min(2, torch.cuda.mem_get_info()[0] // max(nbytes, 1) // 3)


def case_arguments(case: Case, backend: str) -> dict[str, Any]:
    """The keyword arguments of make_inputs: reserved keys gone, `dtype` as the backend's own."""
    arguments = arguments_in(case)
    if isinstance(arguments.get("dtype"), str):
        name = arguments["dtype"]
        arguments["dtype"] = np.dtype(name) if backend in ARRAY_BACKENDS else getattr(torch, name)
    return arguments


def _counted(meter_name: str, meter: Any) -> float:  # noqa: ANN401 -- either simulator's meter
    name = {"bytes_loaded": "loaded_bytes", "bytes_stored": "stored_bytes"}.get(
        meter_name, meter_name
    )
    if not hasattr(meter, name):
        raise MetadataError(
            f"cost: expected a meter that this backend has, found {meter_name!r} with a case."
        )
    return float(getattr(meter, name))


def _built(kernels: "tuple[KernelFacts, ...]") -> str:
    """What the compiler gave the kernel that has the most registers."""
    most = max(kernels, key=lambda kernel: kernel.registers)
    return f"{most.registers} registers a thread, {most.shared_bytes:,} bytes of shared memory"


def _spilled(kernels: "tuple[KernelFacts, ...]", threshold: CostThreshold, name: str) -> str:
    """Which kernel spills, on which case and tile, what may be behind it, and where to look."""
    worst = max(kernels, key=lambda kernel: kernel.spills)
    case = ", ".join(f"{key} = {value}" for key, value in (threshold.case or {}).items())
    tile = "".join(f", {key} = {value}" for key, value in worst.tile.items())
    words = f"{worst.name} spills on {case} with {worst.num_warps} warps{tile}"
    if (loops := worst.product_loops) > 1:
        # flash_attn_fwd, tiles of 128 x 64, D = 128, sm_90: 0 bytes with one loop over the keys,
        # 120 with the same body in two, which are scheduled and spill each for itself
        words += (
            f". It has {loops} loops with products, each with a body of its own that takes "
            "registers and spills for itself: one loop with the mask under a condition needs fewer"
        )
    else:
        words += ". A smaller tile or more warps need fewer registers"
    return f"{words}: kata inspect {name} --target {threshold.target}"


def _static_value(
    threshold: CostThreshold, kernels: "tuple[KernelFacts, ...]", profile: Profile
) -> float:
    if not kernels:
        raise AssertionError(f"{threshold.name}: expected a kernel to be launched, found none")
    if threshold.meter == "occupancy":
        from harness.meters.occupancy import occupancy

        return min(occupancy(kernel, profile) for kernel in kernels)
    field_names = {"registers": "registers", "spills": "spills", "shared_memory": "shared_bytes"}
    return float(max(getattr(kernel, field_names[threshold.meter]) for kernel in kernels))
