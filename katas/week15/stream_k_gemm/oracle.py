"""What is right, what to feed and what it costs; a plan by enumeration; a GEMM of whole tiles."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from harness.hardware import Cost


def make_inputs(*, m, n, k, dtype, device, seed, programs=None, a_layout="rows", b_layout="rows"):
    """
    N(0, 1) operands.

    Layouts: "rows" is contiguous, "cols" the transpose of such a matrix, "gaps" every second
    column of one.
    """
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows, cols, layout):
        if layout == "cols":
            return matrix(cols, rows, "rows").T
        step = 2 if layout == "gaps" else 1
        wide = torch.randn(rows, step * cols, generator=generator)
        return wide.to(dtype).to(device)[:, ::step]

    return {"a": matrix(m, k, a_layout), "b": matrix(k, n, b_layout), "programs": programs}


def reference(*, a, b, **_):
    return a.double() @ b.double()


def same_precision(*, a, b, **_):
    return (a.float() @ b.float()).to(a.dtype)


def cost(*, a, b, **_):
    (m, k), n = a.shape, b.shape[1]
    return Cost(flops=2 * m * n * k, bytes=(m * k + k * n + m * n) * a.element_size())


def plan(m, n, k, bm, bn, bk, programs):
    """The same by writing down every iteration and dealing them out one by one."""
    tiles = len(range(0, m, bm)) * len(range(0, n, bn))
    steps = range(len(range(0, k, bk)))
    dealt = [[] for _ in range(programs)]
    while tiles - sum(map(len, dealt)) >= programs:
        done = sum(map(len, dealt))
        for p in range(programs):
            dealt[p].append(done + p)
    units = [[(tile, 0, len(steps)) for tile in mine if steps] for mine in dealt]
    rest = [(tile, step) for tile in range(sum(map(len, dealt)), tiles) for step in steps]
    lengths = [0] * programs
    for i in range(len(rest)):
        lengths[i % programs] += 1
    for p, length in enumerate(lengths):
        share, rest = rest[:length], rest[length:]
        for tile in sorted({tile for tile, _ in share}):
            mine = [step for other, step in share if other == tile]
            units[p].append((tile, mine[0], mine[-1] + 1))
    return units


def library(*, a, b, **_):
    return torch.matmul(a, b)


@triton.jit
def _whole_tiles_kernel(
    a_desc, b_desc, c_desc, K, num_m, num_n,
    BAND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    band, place = tl.program_id(0) // (BAND * num_n), tl.program_id(0) % (BAND * num_n)
    height = min(num_m - band * BAND, BAND)
    row, col = (band * BAND + place % height) * BLOCK_M, place // height * BLOCK_N
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = tl.dot(a_desc.load([row, k]), b_desc.load([k, col]), acc)
    c_desc.store([row, col], acc.to(tl.float16))


def data_parallel(*, a, b, **_):
    """A program for each tile: the last wave is as full as it happens to be."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    hopper = torch.cuda.get_device_capability(a.device)[0] >= 9
    bm, bn, bk, stages = (128, 256, 64, 3) if hopper else (128, 128, 32, 4)
    operands = ((a, [bm, bk]), (b, [bk, bn]), (c, [bm, bn]))
    descriptors = [TensorDescriptor.from_tensor(x, block) for x, block in operands]
    num_m, num_n = triton.cdiv(m, bm), triton.cdiv(n, bn)
    _whole_tiles_kernel[(num_m * num_n,)](
        *descriptors, k, num_m, num_n, BAND=8, BLOCK_M=bm, BLOCK_N=bn, BLOCK_K=bk,
        num_warps=8, num_stages=stages,
    )  # fmt: skip
    return c
