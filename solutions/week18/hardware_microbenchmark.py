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
DISTANCES = (32, 64, 128, 256, 512)  # bytes: of 8 banks of 4 bytes, to 64 banks of 8

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
    # check
    if op not in OPS:
        raise ValueError(f"op: expected one of {', '.join(OPS)}, found {op!r}")
    if not MIN_N <= n <= MAX_N:
        raise ValueError(f"n: expected {MIN_N} to {MAX_N}, found {n}")
    if not 1 <= ilp <= MAX_ILP:
        raise ValueError(f"ilp: expected 1 to {MAX_ILP}, found {ilp}")
    # chains between two clocks
    # of chains that begin alike the compiler keeps one
    begin = ", ".join(f"first + {chain}" for chain in range(ilp))
    all_chains = " + ".join(f"r[{chain}]" for chain in range(ilp))
    return f"""
    extern "C" __global__ void chain(long long* clocks, float* x) {{
        float first = x[threadIdx.x];
        float r[{ilp}] = {{{begin}}};
        __syncthreads_or(__float_as_int({all_chains}));  // else they may not be there yet
        long long start = clock64();
        #pragma unroll
        for (int step = 0; step < {n}; step++) {{
            #pragma unroll
            for (int i = 0; i < {ilp}; i++) asm volatile("{OPS[op][0]}" : "+f"(r[i]));
        }}
        long long end = clock64();
        x[threadIdx.x] = {all_chains};  // else the chains are not needed
        clocks[2 * threadIdx.x] = start;
        clocks[2 * threadIdx.x + 1] = end;
    }}
    """


def infer_instruction(measure: Measure) -> tuple[int, int]:
    """
    Cycles from an instruction to one that needs its result, and lanes per cycle of all schedulers.

    Raises:
        RuntimeError: no machine takes these times; the message begins with the argument's name.
    """
    # slopes without overhead
    latency = _slope(measure, 1, 1)
    # more instructions in flight than any latency leaves room for
    cycles = _slope(measure, MAX_ILP, MAX_WARPS)
    per_instruction = cycles * SCHEDULERS / (MAX_ILP * MAX_WARPS)
    # round to a possible machine
    interval = _power_of_two("measure: interval", per_instruction, 0.1)
    least, whole = max(interval, MIN_LATENCY), round(latency)
    if abs(latency - whole) > 0.1 or not least <= whole <= MAX_LATENCY:
        raise RuntimeError(
            f"measure: expected a latency of {least} to {MAX_LATENCY} whole cycles, found {latency}"
        )
    return whole, LANES * SCHEDULERS // interval


def infer_banks(measure_smem: MeasureSmem) -> Banks:
    """
    Banks of shared memory, their width, and how many lanes are served together.

    Raises:
        RuntimeError: no machine takes these times; the message begins with the argument's name.
    """

    def cycles(addresses: Sequence[int], access_bytes: int = 4) -> int:
        return _without_outliers(measure_smem, addresses, access_bytes)

    # bank capacity and width
    free = cycles([0] * LANES)
    # two words for half of the lanes each: in one bank if they are `distance` bytes apart
    conflicts = (d for d in DISTANCES if _conflict(cycles(_two_words(d)), free))
    capacity = next(conflicts, 0)
    width = 8 if _conflict(cycles(_two_words(capacity + 4)), free) else 4
    count = capacity // width
    if count not in COUNTS:
        raise RuntimeError(f"measure_smem: expected 16, 32 or 64 banks, found {count}")
    # phases
    one_bank = cycles([lane * capacity for lane in range(LANES)])
    # two wavefronts for each phase, whatever a lane reads
    two = {each: cycles(_two_words(capacity), each) for each in ACCESS_BYTES}

    overhead = 2 * free - two[4]
    wavefront = (one_bank - overhead) / LANES
    lanes = {}
    for each in ACCESS_BYTES:
        phases = _power_of_two("measure_smem: phases", (two[each] - overhead) / wavefront / 2, 0.15)
        lanes[each] = LANES // phases
        full = capacity // max(width, each)
        if lanes[each] not in (min(full, LANES), min(2 * full, LANES)):
            raise RuntimeError(
                f"measure_smem: {full} lanes of {each} bytes fill all banks: expected phases of "
                f"once or twice as many, found {lanes[each]}"
            )
    return Banks(count=count, width=width, lanes_per_phase=lanes)


def _slope(measure: Measure, ilp: int, warps: int) -> float:
    """Cycles for one more instruction in each chain, which no constant overhead changes."""
    short, long = (_without_outliers(measure, n, ilp, warps) for n in (MIN_N, MAX_N))
    return (long - short) / (MAX_N - MIN_N)


def _without_outliers(measure: Callable[..., int], *arguments: object) -> int:
    """Cycles by a measurement that is not too slow: of two in a row at least one."""
    return min(measure(*arguments) for _ in range(2))


def _power_of_two(name: str, value: float, tolerance: float) -> int:
    """The power of two that a measured value is near to."""
    nearest = min(POWERS, key=lambda power: abs(value / power - 1))
    if abs(value / nearest - 1) > tolerance:
        raise RuntimeError(f"{name}: expected one of {POWERS}, found {value}")
    return nearest


def _conflict(cycles: float, free: float) -> bool:
    """Whether that is more than noise; a wavefront takes 100 cycles or more."""
    return cycles > free + 50


def _two_words(distance: int) -> list[int]:
    return [lane % 2 * distance for lane in range(LANES)]
