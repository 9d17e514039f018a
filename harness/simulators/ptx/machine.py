"""Decode a kernel, run it wave by wave, and say what came of it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.simulators.ptx.alu import ARITHMETIC
from harness.simulators.ptx.arguments import Arguments, Launch
from harness.simulators.ptx.parse import Parser
from harness.simulators.ptx.program import Instruction, PtxError, Unsupported
from harness.simulators.ptx.scheduler import Control, Decoded, Step
from harness.simulators.ptx.state import Found, Module
from harness.simulators.ptx.wgmma import Wgmma

LEAVES = ("bra", "ret", "exit", "trap")  # look at their predicate themselves
CARRIES = ("addc", "subc", "madc")


@dataclass(slots=True)
class Run:
    """
    What a launch did.

    Attributes:
        counters: By name, summed over all lines.
        found: Hazards, in the order in which they were found.
        lines: The counters of each line of the source.
        opcodes: Warps that executed each instruction.
        printed: What printf said.
        ended: Whether all threads came to their end.
        shared_bytes: Of a block, static and dynamic.
    """

    counters: Counter[str]
    found: list[Found]
    lines: dict[int, Counter[str]]
    opcodes: Counter[str]
    printed: list[str] = field(default_factory=list)
    ended: bool = True
    shared_bytes: int = 0

    @property
    def names(self) -> set[str]:
        """The names of the hazards."""
        return {one.name for one in self.found}

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts of shared memory beyond those that the widths of accesses take."""
        return sum(
            self.counters[f"shared_{what}_wavefronts"] - self.counters[f"shared_{what}_ideal"]
            for what in ("load", "store")
        )


def read_ptx(text: str) -> Module:
    """Parse a PTX text."""
    parser = Parser(text)
    return Module(parser.functions, parser.variables, parser.target)


def run_kernel(module: Module, kernel: str, launch: Launch, arguments: Arguments) -> Run:
    """
    Run a kernel; the contents of the arguments' regions are what it leaves in them.

    Raises:
        Unsupported: It executed an instruction that is not modelled.
    """
    return Machine(module, kernel, launch, arguments).run()


def run_arrays(
    module: Module,
    kernel: str | None = None,
    *,
    grid: int | Sequence[int] = 1,
    block: int | Sequence[int] = 32,
    arguments: Sequence[object] = (),
    shared_bytes: int = 0,
    cluster: int = 0,
    cooperative: bool = False,
    schedule: int | None = None,
    checked: bool = True,
    most_steps: int = 1_000_000,
) -> Run:
    """Run a kernel on NumPy arrays, which are changed in place; the first one without a name."""
    launch = Launch(
        grid=_three(grid),
        block=_three(block),
        shared_bytes=shared_bytes,
        cluster=cluster,
        cooperative=cooperative,
        schedule=schedule,
        checked=checked,
        most_steps=most_steps,
    )
    name = kernel or next(one.name for one in module.functions.values() if one.entry)
    return run_kernel(module, name, launch, Arguments.of(arguments))


def _three(sizes: int | Sequence[int]) -> tuple[int, int, int]:
    given = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


class Machine(Wgmma):
    """A kernel with its instructions decoded."""

    def run(self) -> Run:
        """Run every wave of blocks."""
        schedule, ended = self.launch.schedule, True
        random = None if schedule is None else np.random.default_rng(schedule)
        with np.errstate(all="ignore"):
            self._decode()
            self.start_order()
            try:
                for first in range(0, self.grid_blocks, self.blocks):
                    self._start(first)
                    self.run_wave(random)
                    self.check_landed()
                    self.finish_transfers()
            except PtxError:  # it has been reported
                ended = False
        for region, number in self.regions:
            if region.contents.flags.writeable:
                region.contents[...] = self.global_memory.contents(number)
        return self._told(ended=ended)

    def _start(self, first: int) -> None:
        self.start_blocks(first)
        self.start_schedule()
        self.start_barriers()
        self.start_copies()
        self.start_clusters()
        self.start_mbarriers()
        self.start_bulk()
        self.start_wgmma()

    def _told(self, *, ended: bool) -> Run:
        total: Counter[str] = Counter()
        lines: dict[int, Counter[str]] = {}
        opcodes: Counter[str] = Counter()
        for ins, tally, warps, threads in zip(
            self.code, self.tallies, self.warp_executions, self.thread_executions, strict=True
        ):
            if warps:
                counts = tally + Counter(warp_instructions=warps, thread_instructions=threads)
                total.update(counts)
                lines.setdefault(ins.line, Counter()).update(counts)
                opcodes[ins.name] += warps
        total["steps"] = self.steps
        return Run(
            total, list(self.found.values()), lines, opcodes, self.printed, ended,
            self.shared_bytes,
        )  # fmt: skip

    # ---- decoding --------------------------------------------------------------------------

    def _decode(self) -> None:
        """A step for each instruction; one that is not modelled only raises if it is executed."""
        self.members = {}
        self.plain = []
        self.control = []
        self.start_blocks(0)  # what decoding looks at: registers and constants
        for ins in self.code:
            try:
                step, control = self._decoded(ins)
            except (KeyError, IndexError, ValueError, AssertionError, Unsupported) as error:
                step, control = None, _refusing(ins, error)
            if ins.guard and ins.op not in LEAVES:
                step = self._guarded(ins, step) if step is not None else None
                control = self._guarded_control(ins, control) if control is not None else None
            self.plain.append(step)
            self.control.append(control if control is not None else _never)

    def _decoded(self, ins: Instruction) -> Decoded:
        if ins.op in CARRIES or "cc" in ins.mods:
            return self.with_carry(ins)
        maker: Callable[[Instruction], Decoded] | None = getattr(self, f"op_{ins.op}", None)
        if maker is not None:
            return maker(ins)
        if ins.op not in ARITHMETIC:
            raise Unsupported("no such opcode")
        return self.arithmetic(ins)

    def _guarded(self, ins: Instruction, step: Step) -> Step:
        def guarded() -> None:
            taken, mask = self.taken(ins), self.mask
            if taken.any():
                self.set_mask(taken)
                step()
                self.set_mask(mask)

        return guarded

    def _guarded_control(self, ins: Instruction, control: Control) -> Control:
        def guarded(pc: int) -> int:
            taken, mask = self.taken(ins), self.mask
            if not taken.any():
                return self.following[pc]
            rest = mask & ~taken
            if rest.any():
                self.push(self.scheduled, self.following[pc], rest)
                self.set_mask(taken)
            return control(pc)

        return guarded


def _refusing(ins: Instruction, why: Exception) -> Control:
    def refuse(pc: int) -> int:
        raise Unsupported(f"{ins.name} ({why}), line {ins.line}: {ins.text}")

    return refuse


def _never(pc: int) -> int:
    raise AssertionError("a plain instruction has no control")
