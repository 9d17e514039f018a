"""What is right: machines with hidden parameters, the machine code of a source, and a real GPU."""

import re
import tempfile
from pathlib import Path

from harness.cuda import build, launch
from harness.meters.compiled import disassemble

SMEM_BYTES = 32 * 1024
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")


# ---- machines with hidden parameters -------------------------------------------------------


class _Clock:
    """Noise of 2 cycles; of three measurements in a row at most one is far too slow."""

    def __init__(self, draw):
        self._draw = draw
        self._since_outlier = 2
        self.calls = 0

    def read(self, cycles):
        self.calls += 1
        self._since_outlier += 1
        if self._since_outlier > 2 and self._draw.random() < 0.5:
            self._since_outlier = 0
            cycles += self._draw.choice((60, 900, 20_000))
        return cycles + self._draw.randint(-2, 2)


class Pipe(_Clock):
    """One kind of instruction: four schedulers issue it, every `interval` cycles each."""

    def __init__(self, draw, latency=None, interval=None):
        super().__init__(draw)
        self.interval = interval or draw.choice((1, 1, 2, 4, 8, 16, 32))
        self.latency = latency or draw.randint(max(self.interval, 2), 40)
        self._overhead = draw.randint(20, 2000)

    @property
    def truth(self):
        return self.latency, 128 // self.interval

    def __call__(self, n, ilp, warps):
        if not (8 <= n <= 128 and 1 <= ilp <= 8 and 1 <= warps <= 32):
            raise AssertionError(f"measure: not a kernel: n = {n}, ilp = {ilp}, warps = {warps}")
        busiest = -(-warps // 4)
        return self.read(self._overhead + n * max(self.latency, busiest * ilp * self.interval))


class Smem(_Clock):
    """Shared memory: phases of lanes, in each a wavefront for every word of the busiest bank."""

    def __init__(self, draw, count=None, width=None, lanes=None):
        super().__init__(draw)
        self.count = count or draw.choice((16, 32, 64))
        self.width = width or draw.choice((4, 8))
        self.lanes = lanes or {
            size: min(32, draw.choice((1, 2)) * self.count * self.width // max(size, self.width))
            for size in (4, 8, 16)
        }
        self._overhead = draw.randint(20, 2000)
        self._wavefront = draw.randint(100, 600)

    def bank_of(self, word):
        return word % self.count

    def wavefronts(self, addresses, access_bytes):
        at_once = self.lanes[access_bytes]
        total = 0
        for first in range(0, 32, at_once):
            words = {
                (address + offset) // self.width
                for address in addresses[first : first + at_once]
                for offset in range(0, access_bytes, min(self.width, access_bytes))
            }
            banks = [self.bank_of(word) for word in words]
            total += max(banks.count(bank) for bank in banks)
        return total

    def __call__(self, addresses, access_bytes):
        if access_bytes not in (4, 8, 16) or len(addresses) != 32:
            raise AssertionError(f"measure_smem: {len(addresses)} lanes of {access_bytes} bytes")
        for address in addresses:
            if address % access_bytes or not 0 <= address <= SMEM_BYTES - access_bytes:
                raise AssertionError(f"measure_smem: {access_bytes} bytes at {address}")
        return self.read(
            self._overhead + self._wavefront * self.wavefronts(addresses, access_bytes)
        )


HOPPER = {4: 32, 8: 16, 16: 8}
NO_SMEM = {
    "8 banks": (8, 4, {4: 16, 8: 8, 16: 4}),  # the phases of 16 banks
    "8 banks of 8 bytes": (8, 8, {4: 16, 8: 8, 16: 4}),
    "128 banks": (128, 4, {4: 32, 8: 32, 16: 32}),
    "128 banks of 8 bytes": (128, 8, {4: 32, 8: 32, 16: 32}),
    "phases of 8 lanes": (32, 4, {4: 8, 8: 16, 16: 8}),
}


def no_smem(kind, draw):
    """`measure_smem` of a memory that does not exist."""
    if kind in NO_SMEM:
        return Smem(draw, *NO_SMEM[kind])
    hopper = Smem(draw, 32, 4, HOPPER)
    if kind == "every other row moved on by a bank":
        hopper.bank_of = lambda word: (word + word // 64) % 32
        return hopper
    wavefronts = {
        "no banks": lambda addresses, access_bytes: 1,
        "a lane at a time": lambda addresses, access_bytes: 32,
        "quarters of a phase": lambda addresses, access_bytes: (
            hopper.wavefronts(addresses, access_bytes) * (0.75 if access_bytes == 8 else 1)
        ),
    }[kind]
    return lambda addresses, access_bytes: int(500 + 200 * wavefronts(addresses, access_bytes))


# ---- machine code --------------------------------------------------------------------------


def instructions(source, arch="sm_90"):
    """Before the first read of the clock and before the second: (name, written, registers read)."""
    kernel = build(source, "chain", arch=arch)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "chain.cubin"
        file.write_bytes(kernel.cubin)
        code = INSTRUCTION.findall(disassemble(file))
    reads = [at for at, line in enumerate(code) if "SR_CLOCK" in line]
    if len(reads) != 2:
        raise AssertionError(f"expected 2 reads of the clock in {arch}'s code, found {len(reads)}")
    return (
        [_parts(line) for line in code[: reads[0]]],
        [_parts(line) for line in code[reads[0] + 1 : reads[1]]],
    )


def _parts(line):
    name, _, operands = re.sub(r"^@!?U?P\d+ ", "", line).partition(" ")
    registers = re.findall(r"\bU?R\d+\b", operands)
    if registers and re.match(r"U?R\d+\b", operands):
        return name, registers[0], registers[1:]
    return name, None, registers  # writes a predicate or memory


def on_their_way(code):
    """Registers that are loaded from global memory, and used by nothing in this code."""
    waited_for = set()
    for name, written, read in reversed(code):
        if name.startswith("LDG"):
            if written not in waited_for:
                return [written]
            waited_for.discard(written)
        waited_for.update(read)
    return []


def chains(code):
    """Lengths of the chains: each instruction goes on with the one whose result it reads."""
    chain_of, lengths = {}, []
    for _, written, read in code:
        before = {chain_of[register] for register in read if register in chain_of}
        if len(before) > 1:
            raise AssertionError(f"chains {sorted(before)} meet in {written}")
        chain = before.pop() if before else len(lengths)
        if chain == len(lengths):
            lengths.append(0)
        lengths[chain] += 1
        chain_of = {r: c for r, c in chain_of.items() if c != chain} | {written: chain}
    return lengths


# ---- a real GPU ----------------------------------------------------------------------------

LOADS = 64
LOAD = """
extern "C" __global__ void load(long long* clocks, const int* addresses) {
    __shared__ int4 words[2048];
    unsigned base = (unsigned)__cvta_generic_to_shared(words);
    unsigned address = base + addresses[threadIdx.x % 32];
    for (int i = threadIdx.x; i < 2048; i += blockDim.x) words[i] = make_int4(i, i, i, i);
    __syncthreads_or(address != 1);
    long long start = clock64();
    #pragma unroll
    for (int i = 0; i < 64; i++) {
        unsigned a, b, c, d;
        if (BYTES == 4)
            asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(a) : "r"(address));
        else if (BYTES == 8)
            asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];"
                         : "=r"(a), "=r"(b) : "r"(address));
        else
            asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address));
    }
    __syncthreads();
    long long end = clock64();
    clocks[2 * threadIdx.x] = start;
    clocks[2 * threadIdx.x + 1] = end;
}
"""


def gpu_pipe(kata, op):
    """`measure` of a real GPU, by the kernel under test."""
    import torch

    def measure(n, ilp, warps):
        x = torch.rand(32 * warps, device="cuda")
        return _timed(kata.chain_source(op, n, ilp), "chain", 32 * warps, x, ())

    return measure


def gpu_smem(addresses, access_bytes):
    """`measure_smem` of a real GPU: eight warps, so that shared memory is what they wait for."""
    import torch

    where = torch.tensor(addresses, dtype=torch.int32, device="cuda")
    return _timed(LOAD, "load", 256, where, (f"-DBYTES={access_bytes}",))


def _timed(source, name, threads, argument, options):
    import torch

    clocks = torch.zeros(2 * threads, dtype=torch.int64, device="cuda")
    for _ in range(2):  # the first fills the instruction cache
        launch(source, name, (clocks, argument), grid=(1,), block=(threads,), options=options)
    starts, ends = clocks.cpu().reshape(-1, 2).T
    return int(ends.max() - starts.min())
