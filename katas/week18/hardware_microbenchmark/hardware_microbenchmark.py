"""Kata week18/hardware_microbenchmark: what a machine does, inferred from how long it takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# one instruction in PTX, on the register that it reads and writes, and its name in SASS
OPS = {
    "ffma": ("fma.rn.f32 %0, %0, %0, %0;", "FFMA"),
    "fadd": ("add.rn.f32 %0, %0, %0;", "FADD"),
    "ex2": ("ex2.approx.ftz.f32 %0, %0;", "MUFU.EX2"),
}
# instructions of a chain: eight of the longest still fit the instruction cache
MIN_N, MAX_N = 8, 128
MAX_ILP = 8
MAX_WARPS = 32  # of a block
MIN_LATENCY, MAX_LATENCY = 2, 40  # cycles
LANES = 32
SCHEDULERS = 4  # of a multiprocessor; each issues one instruction of 32 lanes a cycle
POWERS = (1, 2, 4, 8, 16, 32)  # intervals, and what phases and their lanes can be
ACCESS_BYTES = (4, 8, 16)
COUNTS = (16, 32, 64)  # of banks

# cycles of a block of `warps` warps, each of which has `ilp` chains of `n` instructions
Measure = Callable[[int, int, int], int]
# cycles of a loop in which a warp's lanes read so many bytes from their addresses
MeasureSmem = Callable[[Sequence[int], int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Banks:
    """
    Shared memory.

    Attributes:
        count: How many banks there are.
        width: Bytes that a bank delivers at a time, of one word.
        lanes_per_phase: For 4, 8 and 16 bytes a lane: how many lanes are served together.
    """

    count: int
    width: int
    lanes_per_phase: dict[int, int]


def chain_source(op: str, n: int, ilp: int) -> str:
    """
    CUDA C++ of a kernel `chain` that times `ilp` independent chains of `n` instructions each.

    Args:
        op: One of `OPS`.
        n: Instructions of a chain, each of which needs the result of the one before.
        ilp: Chains, interleaved.

    Raises:
        ValueError: an argument is out of range; the message begins with its name.

    Source: arXiv 2208.11174, for the idea of chains between two reads of the clock.
    """
    raise NotImplementedError  # TODO(kata): check, chains between two clocks (about 25 lines)


def infer_instruction(measure: Measure) -> tuple[int, int]:
    """
    Cycles from an instruction to one that needs its result, and lanes per cycle of all schedulers.

    Raises:
        RuntimeError: no machine takes these times; the message begins with the argument's name.
    """
    # TODO(kata): slopes without overhead, round to a possible machine (about 20 lines with helpers)
    raise NotImplementedError


def infer_banks(measure_smem: MeasureSmem) -> Banks:
    """
    Banks of shared memory, their width, and how many lanes are served together.

    Raises:
        RuntimeError: no machine takes these times; the message begins with the argument's name.
    """
    # TODO(kata): bank capacity and width, phases (about 30 lines with helpers)
    raise NotImplementedError
