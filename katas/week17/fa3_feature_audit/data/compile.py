"""Makes the texts beside it: `python compile.py`, with Triton 3.6 or 3.7 and without a GPU."""

import gzip
import re
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

BLOCK_M = 128

# what is kept of PTX and of TTGIR; the rest is arithmetic and what debuggers read
PTX = re.compile(
    r"\.(version|target|visible|reqntid)|[$\w]+:|[{}]|(@!?[%\w]+\s+)?"
    r"(cp\.|mbarrier|wgmma|mma|tcgen05|setmaxnreg|ex2|cvt\S*e4m3|ldmatrix|bra|bar|ld\.global|"
    r"st\.global|fence|ret)"
)
TTGIR = re.compile(r"#(?!loc)|module|tt\.func|\}|.*\b(scf|ttg|ttng|tt)\.")


@triton.jit
def attention(
    q, k, v, o, scale, n, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, DESCRIPTORS: tl.constexpr, SPECIALIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M
    rows = row + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, D)
    q_tile = q.load([row, 0]) if DESCRIPTORS else tl.load(q + rows[:, None] * D + dims[None, :])
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(0, n, BLOCK_N, num_stages=STAGES, warp_specialize=SPECIALIZE):
        if DESCRIPTORS:
            k_tile = k.load([start, 0])
            v_tile = v.load([start, 0])
        else:
            k_tile = tl.load(k + (start + cols)[:, None] * D + dims[None, :])
            v_tile = tl.load(v + (start + cols)[:, None] * D + dims[None, :])
        s = tl.dot(q_tile, k_tile.T) * scale
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * shrink[:, None])
        top = new
    result = (acc / total[:, None]).to(tl.float16)
    if DESCRIPTORS:
        o.store([row, 0], result)
    else:
        tl.store(o + rows[:, None] * D + dims[None, :], result)


@triton.jit
def product(
    q, k, v, o, scale, n, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr, DESCRIPTORS: tl.constexpr, SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """O = Q Vᵀ over long rows; for comparison, no attention at all."""
    row = tl.program_id(0) * BLOCK_M
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, n, D, num_stages=STAGES):
        acc = tl.dot(q.load([row, start]), k.load([0, start]).T, acc)
    o.store([row, 0], acc.to(tl.float16))


def build(
    kernel=attention, *, arch, stages, descriptors=False, specialize=False, dtype="fp16", d=128,
    block_n=64, warps=4,
):  # fmt: skip
    def tensor(rows, columns, dtype):
        return f"tensordesc<{dtype}[{rows}, {columns}]>" if descriptors else f"*{dtype}"

    constants = {
        "D": d, "BLOCK_M": BLOCK_M, "BLOCK_N": block_n, "STAGES": stages,
        "DESCRIPTORS": descriptors, "SPECIALIZE": specialize,
    }  # fmt: skip
    signature = {
        "q": tensor(BLOCK_M, d, dtype), "k": tensor(block_n, d, dtype),
        "v": tensor(block_n, d, dtype), "scale": "fp32", "n": "i32",
        "o": tensor(BLOCK_M, d if kernel is attention else block_n, "fp16"),
    }  # fmt: skip
    order = [*kernel.arg_names]
    signature |= dict.fromkeys(constants, "constexpr")
    aligned = () if descriptors else ("q", "k", "v", "o", "n")
    attributes = {(order.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, {name: signature[name] for name in order}, constants, attributes)
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm


VARIANTS = {
    "sm80": {"arch": 80, "stages": 3},
    "sm90_one_stage": {"arch": 90, "stages": 1, "descriptors": True},
    "sm90_pointers": {"arch": 90, "stages": 3},
    "sm90_descriptors": {"arch": 90, "stages": 2, "descriptors": True},
    "sm90_specialize": {
        "arch": 90, "stages": 3, "descriptors": True, "specialize": True, "warps": 8,
    },
    "sm100_specialize": {
        "arch": 100, "stages": 3, "descriptors": True, "specialize": True, "warps": 8,
    },
    "sm90_fp8": {"arch": 90, "stages": 2, "descriptors": True, "dtype": "fp8e4nv"},
    # the rest is seen by the tests alone
    "sm89_fp8": {"arch": 89, "stages": 2, "dtype": "fp8e4nv"},
    "sm90_unpipelined": {"arch": 90, "stages": 1},
    "sm90_d32": {"arch": 90, "stages": 4, "descriptors": True, "d": 32},
    "sm100": {"arch": 100, "stages": 2, "descriptors": True},
    "sm90_product": {
        "kernel": product, "arch": 90, "stages": 4, "descriptors": True, "d": 64, "block_n": 128,
    },
}  # fmt: skip


def trimmed_ptx(text):
    lines = (re.sub(r"\s*//.*", "", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if PTX.match(line) and not line.startswith("$L__tmp"))


def trimmed_ttgir(text):
    lines = (re.sub(r" loc\(.*\)$", "", line) for line in text.splitlines())
    return "\n".join(line for line in lines if TTGIR.match(line))


if __name__ == "__main__":
    for name, options in VARIANTS.items():
        asm = build(**options)
        for kind, text in (
            ("ptx", trimmed_ptx(asm["ptx"])),
            ("ttgir", trimmed_ttgir(asm["ttgir"])),
        ):
            path = Path(__file__).parent / f"{name}.{kind}.gz"
            path.write_bytes(gzip.compress(text.encode() + b"\n", mtime=0))
