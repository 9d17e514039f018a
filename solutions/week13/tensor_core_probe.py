"""Kata week13/tensor_core_probe: which products tensor cores make, and what feeds them."""

from functools import cache

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
    # check
    for name, value, known in (
        ("api", api, APIS),
        ("ab", ab, OPERANDS),
        ("acc", acc, ACCUMULATORS),
        ("arch", arch, ARCHS),
    ):
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}, found {value!r}")
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"shape: expected three positive integers, found {shape}")
    # ask the compiler
    return _exists(api, shape, ab, acc, arch)


@cache
def _exists(api: str, shape: tuple[int, ...], ab: str, acc: str, arch: str) -> bool:
    # write the kernel
    write = _wmma_source if api == "wmma" else _mma_source
    # ask the compiler
    said = refused(write(*shape, ab, acc), arch)
    if said is None:
        return True
    # test the refusal
    known = KNOWN[api], "f16", "f32"
    if (shape, ab, acc) == known:
        raise RuntimeError(f"{api} on {arch}: expected the compiler to know {known}, found {said}")
    return not _exists(api, *known, arch)


def _wmma_source(m: int, n: int, k: int, ab: str, acc: str) -> str:
    # write the kernel
    factor, sum_type = IN_CPP[ab], IN_CPP[acc]
    return f"""
    #include <cuda_fp8.h>
    #include <mma.h>
    using namespace nvcuda::wmma;
    extern "C" __global__ void probe({sum_type}* sums) {{
        fragment<matrix_a, {m}, {n}, {k}, {factor}, row_major> a;
        fragment<matrix_b, {m}, {n}, {k}, {factor}, col_major> b;
        fragment<accumulator, {m}, {n}, {k}, {sum_type}> c;
        load_matrix_sync(c, sums, {n}, mem_row_major);
        mma_sync(c, a, b, c);
        store_matrix_sync(sums, c, {n}, mem_row_major);
    }}
    """


def _mma_source(m: int, n: int, k: int, ab: str, acc: str) -> str:
    # write the kernel
    bits, sum_bits = OPERANDS[ab], ACCUMULATORS[acc]
    a, b, c = (
        size * each // (32 * max(each, 32))
        for size, each in ((m * k, bits), (k * n, bits), (m * n, sum_bits))
    )
    factor = "d" if ab == "f64" else "r"
    total = {"f32": "f", "f64": "d"}.get(acc, "r")
    cpp = {"r": "unsigned", "f": "float", "d": "double"}
    sums = ", ".join(f"%{i}" for i in range(c))
    left = ", ".join(f"%{c + i}" for i in range(a))
    right = ", ".join(f"%{c + a + i}" for i in range(b))
    outputs = ", ".join(f'"+{total}"(c[{i}])' for i in range(c))
    inputs = ", ".join(f'"{factor}"(ab[{i}])' for i in range(a + b))
    return f"""
    extern "C" __global__ void probe({cpp[total]}* c, const {cpp[factor]}* ab) {{
        asm volatile("mma.sync.aligned.m{m}n{n}k{k}.row.col.{acc}.{ab}.{ab}.{acc} "
                     "{{{sums}}}, {{{left}}}, {{{right}}}, {{{sums}}};"
                     : {outputs} : {inputs});
    }}
    """


def tensor_peak(profile: Profile, dtype: str) -> float:
    """
    FLOP/s of all SMs together, at the clock of the tensor figures.

    Raises:
        ValueError: The profile has no FLOP per clock and SM for `dtype`.
    """
    # check
    if dtype not in profile.flops_per_clk_per_sm:
        known = ", ".join(profile.flops_per_clk_per_sm)
        raise ValueError(f"dtype: expected one of {known}, found {dtype!r}")
    # rates
    return profile.sms * profile.flops_per_clk_per_sm[dtype] * profile.clock_hz


def smem_bound(m: int, n: int, k: int, ab_bytes: int, a_in_regs: bool, flops_per_clk: int) -> float:
    """
    Cycles of shared memory for each cycle of the tensor cores, of an m x n x k product.

    Each factor is read once, but A is not where it is held in registers.
    """
    read_bytes = (k * n + (0 if a_in_regs else m * k)) * ab_bytes
    return read_bytes / SMEM_BYTES_PER_CLK / (2 * m * n * k / flops_per_clk)


def min_warp_tile(flops_per_clk: int, ab_bytes: int) -> tuple[int, int]:
    """
    The tile (m, n) with the fewest accumulators of those that shared memory can feed.

    m is a multiple of 16 and n of 8, as of mma.sync. Both factors come from shared memory, and
    their `smem_bound` is 1 at most. Of tiles with as many accumulators it has the least m + n,
    and of those the least m.
    """
    # smallest tile
    best: tuple[int, int, int] | None = None
    m = 16
    while best is None or 8 * m <= best[0]:
        # (m + n) * ab_bytes / 128 <= 2 * m * n / flops_per_clk, solved for n
        left = 256 * m - ab_bytes * flops_per_clk
        if left > 0:
            n = -(-ab_bytes * flops_per_clk * m // (8 * left)) * 8
            tile = m * n, m + n, m
            best = min(best or tile, tile)
        m += 16
    area, _, m = best
    return m, area // m
