"""The state of a kernel that runs: sizes, registers, memory, the active mask, and what is told."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.simulators.ptx.arguments import (
    Arguments,
    Launch,
    Pointer,
    Region,
    TensorMap,
    packed,
    placed,
)
from harness.simulators.ptx.formats import SIZE, UINT, Array, i32, i64, u8, u64
from harness.simulators.ptx.layout import lay_out
from harness.simulators.ptx.memory import Buffer, GlobalMemory, LocalMemory
from harness.simulators.ptx.program import Function, Instruction, Unsupported, Variable
from harness.simulators.ptx.shared import SharedMemory

WAVE_THREADS = 4096  # that run side by side: more cost memory and save little time
MEMBERS = 32  # of a warp


@dataclass(slots=True)
class Found:
    """A hazard as the machine knows it: its name, both lines, what happened, how often."""

    name: str
    line: int
    before: int | None
    text: str
    count: int = 0


@dataclass(frozen=True, slots=True)
class Module:
    """What a PTX text holds."""

    functions: dict[str, Function]
    variables: dict[str, Variable]
    target: str


class State:
    """
    One launch.

    Registers are arrays with one element for each thread of a wave of blocks; every block is
    padded to whole warps. The mask says which threads the current instruction is for.
    """

    def __init__(self, module: Module, kernel: str, launch: Launch, arguments: Arguments) -> None:
        self.module, self.launch = module, launch
        self.function = module.functions[kernel]
        self.checked = launch.checked
        gx, gy, gz = launch.grid
        bx, by, bz = launch.block
        self.grid_blocks = gx * gy * gz
        self.own_threads = bx * by * bz  # of a block
        self.block_warps = -(-self.own_threads // MEMBERS)
        self.block_threads = self.block_warps * MEMBERS
        self.cluster = self._cluster()
        self.clock_warps = self.block_warps * self.cluster  # warps that share a clock
        self.blocks = self._blocks_of_a_wave()
        self.threads = self.blocks * self.block_threads
        self.warps = self.blocks * self.block_warps
        layout = lay_out(module.functions, kernel)
        self.code, self.following, self.targets = layout.code, layout.following, layout.targets
        self.register_types = layout.registers
        self.registers: list[Array] = [np.zeros(0)] * len(self.register_types)
        self.slots: dict[tuple[str, int], int] = {}
        self.granule = self._granule()
        self.remembered: dict[Any, Any] = {}  # what counting has found for a pattern of addresses
        self.found: dict[Any, Found] = {}
        self.printed: list[str] = []
        self.tallies: list[Counter[str]] = [Counter() for _ in self.code]
        self.warp_executions = [0] * len(self.code)
        self.thread_executions = [0] * len(self.code)
        self.thread = np.arange(self.threads)
        self.lane = self.thread & (MEMBERS - 1)
        self.steps = 0
        self.spin = 0  # signs that a loop waits for other threads
        self.scheduled = 0  # the unit that runs
        self._lay_out_memory(arguments)

    def _cluster(self) -> int:
        asked = self.function.cluster or (1,)
        cluster = self.launch.cluster or int(np.prod(asked))
        if any(size > 1 for size in asked[1:]) or self.launch.grid[0] % cluster:
            raise Unsupported(f"clusters of {asked} in a grid of {self.launch.grid}")
        return cluster

    def _blocks_of_a_wave(self) -> int:
        if self.launch.cooperative:
            return self.grid_blocks
        threads = WAVE_THREADS if self.launch.schedule is None else 1
        blocks = min(self.grid_blocks, threads // self.block_threads)
        return max(1, blocks // self.cluster) * self.cluster

    def _granule(self) -> int:
        """The bytes of the smallest piece of shared memory that an instruction touches."""
        least = 16
        for ins in self.code:
            elsewhere = {"global", "param", "local", "const"} & set(ins.mods)
            if ins.op in ("ld", "st", "atom", "red") and not elsewhere:
                count = 4 if "v4" in ins.mods else 2 if "v2" in ins.mods else 1
                least = min(least, SIZE.get(ins.mods[-1], 4) * count)
            elif ins.op == "wmma" and ins.mods[0] in ("load", "store"):
                least = min(least, SIZE.get(ins.mods[-1], 4))
            elif ins.op == "cp" and ins.mods[-1] != "commit_group" and len(ins.args) > 2:
                least = min(least, getattr(ins.args[2], "bits", 4))
        return max(1, least)

    # ---- memory ----------------------------------------------------------------------------

    def _lay_out_memory(self, arguments: Arguments) -> None:
        self.global_memory = GlobalMemory(self)
        self.symbols: dict[str, int] = {}  # addresses
        self.tensor_maps: list[tuple[TensorMap, Buffer]] = []
        self.regions: list[tuple[Region, int]] = []  # each with its buffer's number
        for region in arguments.regions:
            self.regions.append((region, len(self.global_memory.buffers)))
            home = 0 if region.continued else None
            self.global_memory.add(region.name, region.contents, region.lead, home)
        self._place_parameters(arguments)
        self._place_shared()
        self._place_variables()
        self.global_memory.seal()

    def _place_parameters(self, arguments: Arguments) -> None:
        self.parameters: dict[str, int] = {}  # offsets
        content = bytearray()
        declared = self.function.parameters
        values = [*arguments.values, *[None] * (len(declared) - len(arguments.values))]
        for parameter, value in zip(declared, values, strict=True):
            content += bytes(placed(len(content), parameter) - len(content))
            self.parameters[parameter.name] = len(content)
            if isinstance(value, Pointer):
                _, number = self.regions[value.region]
                start = self.global_memory.buffers[number].start + value.offset
                value = start.to_bytes(8, "little")
            elif isinstance(value, TensorMap):
                value = self._mapped(value, parameter.size)
            content += packed(parameter, value)
        self.parameter_bytes = bytes(content) + bytes(16)
        self.parameters_start = self.global_memory.add(
            "the kernel's parameters", np.frombuffer(self.parameter_bytes, u8)
        )

    def _mapped(self, tensor_map: TensorMap, size: int) -> bytes:
        """A tensor map's array goes into global memory, its number into the parameter."""
        name = f"tensor map {len(self.tensor_maps)}"
        contents = tensor_map.contents
        number = len(self.global_memory.buffers)
        self.global_memory.add(name, contents)
        self.regions.append((Region(name, contents), number))
        self.tensor_maps.append((tensor_map, self.global_memory.buffers[number]))
        return len(self.tensor_maps).to_bytes(8, "little") + bytes(size - 8)

    def _place_shared(self) -> None:
        """Static variables with gaps in between, which keep their banks; then what is dynamic."""
        at, pieces = 0, []
        shared = [one for one in self.module.variables.values() if one.space == "shared"]
        for one in shared:
            if one.size:
                align = max(128, one.align)
                at = -(-at // align) * align
                self.symbols[one.name] = at
                pieces.append((at, one.size))
                at += one.size + 1
        at = -(-at // 128) * 128
        for one in shared:
            if not one.size:
                align = max(1024, one.align)
                at = -(-at // align) * align
                self.symbols[one.name] = at
        dynamic = self.launch.shared_bytes
        self.shared_bytes = sum(size for _, size in pieces) + dynamic
        if dynamic:
            pieces.append((at, dynamic))
        self.shared_size = -(-(at + dynamic + 128) // 128) * 128
        self.shared_valid = np.zeros(self.shared_size, bool)
        for start, size in pieces:
            self.shared_valid[start : start + size] = True

    def _place_variables(self) -> None:
        self.workspace = 0
        if self.launch.cooperative:  # what a barrier of the whole grid counts in
            self.workspace = self.global_memory.add("the grid's workspace", np.zeros(64, u8))
        self.local_size = 0
        for one in self.module.variables.values():
            if one.space in ("global", "const"):
                content = np.zeros(one.size, u8)
                if one.contents:
                    content[: len(one.contents)] = np.frombuffer(one.contents, u8)
                self.symbols[one.name] = self.global_memory.add(one.name, content)
            elif one.space == "local":
                at = -(-self.local_size // one.align) * one.align
                self.symbols[one.name] = at
                self.local_size = at + one.size

    # ---- a wave of blocks ------------------------------------------------------------------

    def start_blocks(self, first: int) -> None:
        """Begin with the blocks from `first` on: registers, shared memory and clocks anew."""
        here = min(self.blocks, self.grid_blocks - first)
        self.block_ids = first + np.arange(self.blocks)
        self.special = self._special_registers()
        for index, kind in enumerate(self.register_types):
            raw = bool if kind == "pred" else UINT[min(8, SIZE[kind])]
            # what is read before it is written is no zero: all bits set are a NaN, or -1
            nothing = False if raw is bool else np.iinfo(raw).max
            self.registers[index] = np.full(self.threads, nothing, raw)
        self.shared: SharedMemory = SharedMemory(self)
        self.local = LocalMemory(self, self.local_size)
        clusters, warps = self.blocks // self.cluster, self.clock_warps
        # clocks[cluster, w, v]: the last epoch of warp v that warp w knows about
        self.clocks = np.zeros((clusters, warps, warps), i32) + np.eye(warps, dtype=i32)
        self.warp_syncs = np.zeros(self.warps, i32)
        within, block = self.thread % self.block_threads, self.thread // self.block_threads
        self.never = np.asarray((within >= self.own_threads) | (block >= here))
        self.exited: Array = self.never.copy()
        self.exit_pc = np.full(self.threads, -1)
        self.carry = np.zeros(self.threads, bool)

    def _special_registers(self) -> dict[str, Array]:
        grid, block = self.launch.grid, self.launch.block
        lane = self.lane.astype(u64)
        one = np.uint64(1)
        equal = one << lane
        within = self.thread % self.block_threads
        number = self.block_ids[self.thread // self.block_threads]
        own = (within % block[0], within // block[0] % block[1], within // (block[0] * block[1]))
        ids = (number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1]))
        found: dict[str, Any] = {
            "%laneid": self.lane,
            "%warpid": within // MEMBERS,
            "%nwarpid": self.block_warps,
            "%smid": number,
            "%nsmid": self.grid_blocks,
            "%gridid": 0,
            "%envreg1": self.workspace >> 32,
            "%envreg2": self.workspace & 0xFFFFFFFF,
            "%lanemask_eq": equal,
            "%lanemask_lt": equal - one,
            "%lanemask_le": equal * u64(2) - one,
            "%lanemask_gt": u64(0xFFFFFFFF) ^ (equal * u64(2) - one),
            "%lanemask_ge": u64(0xFFFFFFFF) ^ (equal - one),
            "%dynamic_smem_size": self.launch.shared_bytes,
            "%total_smem_size": self.shared_bytes,
            "%cluster_ctarank": number % self.cluster,
            "%cluster_nctarank": self.cluster,
            "%is_explicit_cluster": int(self.cluster > 1),
        }
        for at, axis in enumerate("xyz"):
            along = self.cluster if axis == "x" else 1
            found |= {
                f"%tid.{axis}": own[at],
                f"%ntid.{axis}": block[at],
                f"%ctaid.{axis}": ids[at],
                f"%nctaid.{axis}": grid[at],
                f"%cluster_ctaid.{axis}": ids[at] % along,
                f"%cluster_nctaid.{axis}": along,
                f"%clusterid.{axis}": ids[at] // along,
                f"%nclusterid.{axis}": grid[at] // along,
            }
        return {
            name: np.broadcast_to(np.asarray(value), (self.threads,)).astype(u64)
            for name, value in found.items()
        }

    # ---- what is told ----------------------------------------------------------------------

    def line_of(self, pc: int) -> int | None:
        """The source line of an instruction."""
        return self.code[int(pc)].line if pc >= 0 else None

    def who(self, thread: int) -> str:
        """A thread of the wave in words."""
        block, within = divmod(int(thread), self.block_threads)
        return f"thread {within} (warp {within // MEMBERS}) of block {self.block_ids[block]}:"

    def report(
        self, name: str, ins: Instruction, text: str, count: int = 1, before: int | None = None
    ) -> None:
        """Note a hazard; `before` is the line of what it conflicts with."""
        key = (name, ins.line, before)
        self.found.setdefault(key, Found(name, ins.line, before, text)).count += count

    def tally(self, ins: Instruction, counts: dict[str, int]) -> None:
        """Add to what the instruction has done."""
        tally = self.tallies[ins.pc]
        for name, count in counts.items():
            tally[name] += count

    # ---- the active mask -------------------------------------------------------------------

    def set_mask(self, mask: Array) -> None:
        """Let the next instruction be for these threads."""
        self.mask = mask
        self.full = bool(mask.all())
        self._active = self.thread if self.full else None
        self.warps_here = np.asarray(mask.reshape(-1, MEMBERS).any(1))
        self.active_warps = int(np.count_nonzero(self.warps_here))
        self._whole: bool | None = None

    def active(self) -> Array:
        """The numbers of the active threads."""
        if self._active is None:
            self._active = np.flatnonzero(self.mask)
        return self._active

    def mask_key(self) -> bytes | None:
        """What tells this mask from others."""
        return None if self.full else self.active().tobytes()

    def whole_warps(self) -> bool:
        """Whether every warp that is here is here with all of its threads that have not exited."""
        if self._whole is None:
            here = (self.mask | self.exited).reshape(-1, MEMBERS).all(1)
            self._whole = bool((here | ~self.warps_here).all())
        return self._whole

    def nobody(self) -> Array:
        """A mask without threads."""
        return np.zeros(self.threads, bool)

    def each(self, value: Array) -> Array:
        """A value for each thread, where one may stand for all."""
        return np.broadcast_to(value, (self.threads,))

    def lanes_of(self, value: Array, threads: Array) -> Array:
        """The values of some threads, where one may stand for all."""
        return np.full(len(threads), value[0]) if value.shape[0] == 1 else value[threads]

    # ---- what other parts fill in ----------------------------------------------------------

    def global_race(
        self,
        ins: Instruction,
        threads: Array,
        at: Array,
        size: int,
        what: str,
        same: Array | None = None,
    ) -> None:
        """Look for accesses of other blocks to the same bytes of global memory."""

    def publish(self, warps: Array) -> Array:
        """Release: others may learn of what these warps did so far, and of nothing they do next."""
        cluster, warp = warps // self.clock_warps, warps % self.clock_warps
        rows: Array = self.clocks[cluster, warp].copy()
        self.clocks[cluster, warp, warp] += 1
        return rows

    def int_of(self, value: Array, thread: int) -> int:
        """One thread's value as a number."""
        return int(value[0] if value.shape[0] == 1 else value[thread])


EPOCH = i64(32)  # bits below an epoch in a stamp
