"""Kata week18/hardware_microbenchmark: what a machine does, inferred from how long it takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

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
LANES = 32
SCHEDULERS = 4  # of a multiprocessor; each issues one instruction of 32 lanes a cycle
ACCESS_BYTES = (4, 8, 16)
CAPACITIES = (64, 128, 256, 512)  # bytes in all banks, of machines that there are

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
        ilp: Chains, by turns.

    Raises:
        ValueError: an argument is out of range; the message begins with its name.

    Source: arXiv 2208.11174, for the idea of chains between two reads of the clock.
    """
    if op not in OPS:
        raise ValueError(f"op: expected one of {', '.join(OPS)}, found {op!r}")
    if not MIN_N <= n <= MAX_N:
        raise ValueError(f"n: expected {MIN_N} to {MAX_N}, found {n}")
    if not 1 <= ilp <= MAX_ILP:
        raise ValueError(f"ilp: expected 1 to {MAX_ILP}, found {ilp}")
    return f"""
    extern "C" __global__ void chain(long long* clocks, float* x) {{
        float r[{ilp}];
        bool any = false;
        #pragma unroll
        for (int i = 0; i < {ilp}; i++) {{
            r[i] = x[threadIdx.x] * (i + 0.5f);
            any |= r[i] != 0;
        }}
        __syncthreads_or(any);  // else values may still be on their way when the clock is read
        long long start = clock64();
        #pragma unroll
        for (int step = 0; step < {n}; step++) {{
            #pragma unroll
            for (int i = 0; i < {ilp}; i++) asm volatile("{OPS[op][0]}" : "+f"(r[i]));
        }}
        long long end = clock64();
        float sum = 0;
        #pragma unroll
        for (int i = 0; i < {ilp}; i++) sum += r[i];
        x[threadIdx.x] = sum;  // else the chains are not needed
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
    latency = _slope(measure, 1, 1)
    if latency < 0.9 or abs(latency - round(latency)) > 0.1:
        raise RuntimeError(f"measure: expected a latency of whole cycles, found {latency}")
    # more instructions on their way than any latency can hide
    cycles = _slope(measure, MAX_ILP, MAX_WARPS)
    interval = cycles * SCHEDULERS / (MAX_ILP * MAX_WARPS)
    per_clk = LANES * SCHEDULERS / _power_of_two("measure: interval", interval, 0.1)
    return round(latency), int(per_clk)


def infer_banks(measure_smem: MeasureSmem) -> Banks:
    """
    Banks of shared memory, their width, and how many lanes are served together.

    Raises:
        RuntimeError: no machine takes these times; the message begins with the argument's name.
    """

    def cycles(addresses: Sequence[int], access_bytes: int = 4) -> float:
        return median(measure_smem(addresses, access_bytes) for _ in range(3))

    free = cycles([0] * LANES)
    # two words for half of the lanes each: in one bank if they are `distance` bytes apart
    apart = {128: cycles(_two_words(128))}
    nearer = 64 if _conflict(apart[128], free) else 256
    apart[nearer] = cycles(_two_words(nearer))
    capacity = min((d for d in apart if _conflict(apart[d], free)), default=512)
    width = 8 if _conflict(cycles(_two_words(capacity + 4)), free) else 4
    one_bank = cycles([lane * capacity for lane in range(LANES)])
    pairs = {each: cycles(_pairs(capacity, width, each), each) for each in ACCESS_BYTES}

    overhead = 2 * free - pairs[4]
    wavefront = (one_bank - overhead) / LANES
    if wavefront <= 0:
        raise RuntimeError(
            f"measure_smem: expected conflicts to take time, found {free} to {one_bank} cycles"
        )
    for distance, found in apart.items():
        expected = free if distance < capacity else pairs[4]
        if abs(found - expected) > wavefront / 4:
            raise RuntimeError(
                f"measure_smem: of words {distance} bytes apart expected {expected}, found {found}"
            )
    phases = {each: (pairs[each] - overhead) / wavefront / 2 for each in ACCESS_BYTES}
    lanes = {
        each: LANES // _power_of_two("measure_smem: phases", phases[each], 0.15)
        for each in ACCESS_BYTES
    }
    return Banks(count=capacity // width, width=width, lanes_per_phase=lanes)


def _slope(measure: Measure, ilp: int, warps: int) -> float:
    """Cycles for one more instruction in each chain, which no constant overhead changes."""
    short, long = (median(measure(n, ilp, warps) for _ in range(3)) for n in (MIN_N, MAX_N))
    return (long - short) / (MAX_N - MIN_N)


def _power_of_two(name: str, value: float, tolerance: float) -> int:
    """The power of two, of 1 to `LANES`, that a measured value is near to."""
    nearest = min((1, 2, 4, 8, 16, LANES), key=lambda power: abs(value / power - 1))
    if abs(value / nearest - 1) > tolerance:
        raise RuntimeError(f"{name}: expected a power of two of 1 to {LANES}, found {value}")
    return nearest


def _conflict(cycles: float, free: float) -> bool:
    """Whether that is more than noise; a wavefront takes 100 cycles or more."""
    return cycles > free + 50


def _two_words(distance: int) -> list[int]:
    return [lane % 2 * distance for lane in range(LANES)]


def _pairs(capacity: int, width: int, access_bytes: int) -> list[int]:
    """
    Neighbouring lanes read two words of the same banks, and other lanes those of other banks.

    However many lanes are served together, each phase then takes two wavefronts.
    """
    step = max(width, access_bytes)
    places = capacity // step
    return [
        pair % places * step + (2 * (pair // places) + odd) * capacity
        for pair in range(LANES // 2)
        for odd in range(2)
    ]
