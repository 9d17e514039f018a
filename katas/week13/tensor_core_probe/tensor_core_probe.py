"""Kata week13/tensor_core_probe: which products tensor cores make, and what feeds them."""

from harness.cuda import BuildFailed, build
from harness.hardware import Profile

APIS = ("wmma", "mma.sync")
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
# types as PTX calls them, and their bits
OPERANDS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "e4m3": 8, "e5m2": 8}
ACCUMULATORS = {"f16": 16, "f32": 32, "f64": 64, "s32": 32}
# the same types in C++, with <mma.h> and <cuda_fp8.h>
IN_CPP = {
    "f16": "half",
    "bf16": "__nv_bfloat16",
    "tf32": "nvcuda::wmma::precision::tf32",
    "f64": "double",
    "s8": "signed char",
    "e4m3": "__nv_fp8_e4m3",
    "e5m2": "__nv_fp8_e5m2",
    "f32": "float",
    "s32": "int",
}
# f16 into f32, on each of ARCHS
KNOWN = {"wmma": (16, 16, 16), "mma.sync": (16, 8, 8)}
SMEM_BYTES_PER_CLK = 128  # of an SM


def refused(source: str, arch: str) -> str | None:
    """What the compiler, as far as machine code, says against a kernel `probe`; None: nothing."""
    try:
        build(source, "probe", arch=arch)
    except BuildFailed as said:
        return str(said)
    return None


def tensor_core_probe(api: str, shape: tuple[int, ...], ab: str, acc: str, arch: str) -> bool:
    """
    Whether `arch` can make products of `shape` (m, n, k), asked of the compiler.

    Each question is compiled once. A refusal counts only where the compiler takes the product of
    `KNOWN` for the same API and architecture.

    Args:
        api: "wmma", or "mma.sync" with A by rows and B by columns.
        shape: m, n and k.
        ab: The type of the factors.
        acc: The type of the accumulators, both of them.
        arch: One of `ARCHS`.

    Raises:
        ValueError: an argument is not known, or `shape` is not three positive integers.
        RuntimeError: the compiler refuses what is known to exist.
    """
    # TODO(kata): check, write the kernel, ask the compiler, test the refusal (about 55 lines with
    # helpers)
    raise NotImplementedError


def tensor_peak(profile: Profile, dtype: str) -> float:
    """
    FLOP/s of all SMs together, at the clock of the tensor figures.

    Raises:
        ValueError: The profile has no FLOP per clock and SM for `dtype`.
    """
    raise NotImplementedError  # TODO(kata): check, rates (about 4 lines)


def smem_bound(m: int, n: int, k: int, ab_bytes: int, a_in_regs: bool, flops_per_clk: int) -> float:
    """
    Cycles of shared memory for each cycle of the tensor cores, of an m x n x k product.

    Each factor is read once, but A is not where it is held in registers.
    """
    raise NotImplementedError  # TODO(kata): rates (2 lines)


def min_warp_tile(flops_per_clk: int, ab_bytes: int) -> tuple[int, int]:
    """
    The tile (m, n) with the fewest accumulators of those that shared memory can feed.

    m is a multiple of 16 and n of 8, as of mma.sync. Both factors come from shared memory, and
    their `smem_bound` is 1 at most. Of tiles with as many accumulators it has the least m + n,
    and of those the least m.
    """
    raise NotImplementedError  # TODO(kata): smallest tile (about 10 lines)
