"""`kernel[grid](…)` of Gluon run here, program by program, in an order that can be chosen."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from harness.base.errors import HarnessError
from harness.simulators.gluon.binding import Binder
from harness.simulators.gluon.context import not_modelled, now
from harness.simulators.gluon.copies import Descriptor
from harness.simulators.gluon.global_memory import pointer_to
from harness.simulators.gluon.machine import MOST_STEPS, Policy, Program, Tally
from harness.simulators.gluon.tensors import as_tensor, run_now
from harness.simulators.gluon.values import KernelValue, unwrap
from harness.simulators.hazards import Hazard

Order = Literal["forward", "reversed", "shuffled"]
CLUSTERS = (1, 2, 4, 8, 16)  # CTAs; more than 8 only where the GPU allows it
# what a launch takes beside the kernel's parameters
OPTIONS = frozenset(
    {
        "num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion",
        "launch_cooperative_grid", "debug",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    How launches are run.

    Attributes:
        seed: What the order of partitions, of landings and of shuffled programs starts from.
        policy: When what is in flight lands: as "late" as it may, at "random", or "early".
        order: In which order programs run, one after the other.
        collect: Keep hazards and go on, instead of raising the first one.
        strict: Whether what is legal but odd counts as a hazard as well.
        most_steps: Of one program.
    """

    seed: int = 0
    policy: Policy = "late"
    order: Order = "shuffled"
    collect: bool = False
    strict: bool = False
    most_steps: int = MOST_STEPS


@dataclass(kw_only=True)
class Simulator:
    """
    Runs launches, counts what they do, and keeps what is wrong with them.

    Attributes:
        settings: How.
        hazards: What was found, where it is collected; each pair of lines once.
        notes: What is legal but odd.
        tally: What was done.
        programs: Those that were run, kept when `keep_programs` is set.
        extents: Sizes compiled into kernels: whole constants, boxes of descriptors.
        around: What each launch is run inside of.
    """

    settings: Settings = field(default_factory=Settings)
    hazards: list[Hazard] = field(default_factory=list)
    notes: list[Hazard] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    keep_programs: bool = False
    programs: list[Program] = field(default_factory=list)
    extents: set[int] = field(default_factory=set)
    around: Callable[[], AbstractContextManager[None]] = nullcontext

    def __post_init__(self) -> None:
        """Begin the random numbers."""
        self._rng = random.Random(self.settings.seed)

    def drawn(self) -> Settings:
        """The same settings with a seed of their own, the next one each time."""
        return replace(self.settings, seed=self._rng.getrandbits(32))

    def report(self, hazard: Hazard, *, legal: bool = False) -> None:
        """Raise a hazard, or keep it."""
        legal = legal and not self.settings.strict
        if not legal and not self.settings.collect:
            raise hazard
        kept = self.notes if legal else self.hazards
        if hazard.key not in [one.key for one in kept]:
            kept.append(hazard)

    def launch(
        self,
        kernel: KernelValue,
        grid: KernelValue,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """
        Run a kernel on a grid.

        Raises:
            Hazard: The first one, unless they are collected.
            NotModelled: The kernel uses what the simulator lacks.
        """
        num_ctas = int(unwrap(kwargs.get("num_ctas", 1)))
        if num_ctas not in CLUSTERS:
            raise ValueError(f"num_ctas: expected one of {CLUSTERS}, found {num_ctas}")
        if num_ctas > 1 and not hasattr(hopper, "cluster"):
            raise not_modelled("a cluster (num_ctas) before Triton 3.7, which gave it a barrier")
        parameters = kernel.signature.parameters
        given = {
            name: value
            for name, value in kwargs.items()
            if name in parameters or name not in OPTIONS
        }
        bound = kernel.signature.bind(*args, **given)
        bound.apply_defaults()
        named = dict(bound.arguments)
        constants = {one.name for one in kernel.params if one.is_constexpr}
        binder = Binder()
        actual = [
            binder.bind(unwrap(value)) if name in constants else _argument(name, value)
            for name, value in named.items()
        ]
        self._note_extents(named, constants)
        sizes = [*(grid(named) if callable(grid) else grid), 1, 1][:3]
        fn = binder.function(kernel.fn)
        self.tally.launches += 1
        before = now.listener
        now.listener = self
        try:
            with np.errstate(all="ignore"), self.around():
                for index in self._order([int(size) for size in sizes]):
                    program = Program(
                        index,
                        sizes,
                        int(unwrap(kwargs.get("num_warps", 4))),
                        rng=self._rng,
                        policy=self.settings.policy,
                        tally=self.tally,
                        most_steps=self.settings.most_steps,
                        kernel=kernel.__name__,
                        num_ctas=num_ctas,
                    )
                    if self.keep_programs:
                        self.programs.append(program)
                    run_now(program)
                    program.run(fn, actual)
        finally:
            run_now(None)
            now.listener = before

    def _order(self, sizes: Sequence[int]) -> list[tuple[int, int, int]]:
        indices = [
            (x, y, z) for z in range(sizes[2]) for y in range(sizes[1]) for x in range(sizes[0])
        ]
        if self.settings.order == "shuffled":
            self._rng.shuffle(indices)
        return indices[::-1] if self.settings.order == "reversed" else indices

    def _note_extents(self, arguments: Mapping[str, Any], constants: set[str]) -> None:
        """Note sizes that the launch compiles in: whole constants, and the boxes of descriptors."""
        for name, value in arguments.items():
            if isinstance(value, TensorDescriptor):
                self.extents.update(int(size) for size in value.block_shape)
            elif name in constants and type(unwrap(value)) is int:
                self.extents.add(unwrap(value))


def _argument(name: str, value: Any) -> KernelValue:  # noqa: ANN401
    """A launch's argument as the kernel has it."""
    if isinstance(value, torch.Tensor):
        return pointer_to(value, name)
    if isinstance(value, TensorDescriptor):
        return Descriptor(
            pointer_to(value.base, name),
            value.shape,
            value.strides,
            value.block_shape,
            value.layout,
            getattr(value, "padding", "zero"),
            name,
        )
    if isinstance(value, (tuple, list)):
        return type(value)(_argument(f"{name}[{at}]", one) for at, one in enumerate(value))
    return as_tensor(value) if isinstance(value, (bool, int, float)) else unwrap(value)


# ---- in the place of a GPU ------------------------------------------------------------------


@dataclass(slots=True)
class _Surroundings:
    simulator: Simulator | None = None


current = _Surroundings()


def install(settings: Settings | None = None) -> None:
    """
    Have launches of Gluon kernels run here, from now on, afresh with these settings.

    Raises:
        HarnessError: This version of Triton has no launches as they are known.
    """
    if not hasattr(GluonJITFunction, "run"):
        raise HarnessError(
            "triton: expected GluonJITFunction.run, found none. Install Triton 3.6 or 3.7."
        )
    current.simulator = Simulator(settings=settings or Settings())
    GluonJITFunction.run = _run


def _run(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:  # noqa: ANN401
    """What a launch does: Triton's own name and signature."""
    assert current.simulator is not None
    if not warmup:
        current.simulator.launch(kernel, grid, args, kwargs)


@contextmanager
def simulating(*, keep_programs: bool = False, **changes: Any) -> Iterator[Simulator]:  # noqa: ANN401
    """
    Run the launches inside the block on a simulator of their own.

    Args:
        keep_programs: Whether it keeps what it runs, to be looked at afterwards.
        changes: Of `Settings`; the others are as in the launches around it, but for the seed,
            which they draw.
    """
    outer = current.simulator
    settings = outer.drawn() if outer else Settings()
    simulator = Simulator(settings=replace(settings, **changes), keep_programs=keep_programs)
    installed = "run" in vars(GluonJITFunction)
    if not installed:
        GluonJITFunction.run = _run
    current.simulator = simulator
    try:
        yield simulator
        if simulator.hazards and not changes.get("collect", settings.collect):
            raise simulator.hazards[0]  # whoever ran inside had them kept instead
    finally:
        current.simulator = outer
        if not installed:
            del GluonJITFunction.run
