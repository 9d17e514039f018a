"""Kata week23/moe_grouped_gemm: products of groups of any size in one launch, without padding.

Rows are grouped by expert. A tile belongs to one expert, and a list says which, and where it is.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile shape, tile rows that share a band, and how a program is built."""

    m: int
    n: int
    k: int
    group_m: int = 8
    warps: int = 8
    stages: int = 3


CPU = Config(m=16, n=64, k=32)
POINTER = Config(m=128, n=64, k=32, stages=4)
DESCRIPTOR = Config(m=128, n=256, k=64)
GRADIENT = Config(m=64, n=128, k=32, stages=4)  # m columns of x, n of dy, k rows


def tile_schedule(
    offsets: Int32[Tensor, " ends"], rows: int, block_m: int
) -> tuple[Int32[Tensor, " tiles"], Int32[Tensor, " tiles"], Int32[Tensor, ""]]:
    """
    Tiles of `block_m` rows, none of which has rows of two experts.

    The host does not wait for the device: the list is as long as it could have to be, which is
    rows // block_m + experts, and -1 where there are no more tiles.

    Args:
        offsets: Expert e has rows offsets[e] to offsets[e + 1] - 1, as many experts as offsets - 1.
        rows: offsets[-1], which is on the device.
        block_m: Rows of a tile.

    Returns:
        For each tile its expert and its first row, in the order of rows; how many tiles there are.
    """
    # count the tiles
    experts = len(offsets) - 1
    tiles = -(-offsets.diff() // block_m)  # a sum could pass 2^31
    ends = tiles.cumsum(0, dtype=torch.int32)
    # expert of each tile
    at = torch.arange(rows // block_m + experts, dtype=torch.int32, device=offsets.device)
    expert = torch.searchsorted(ends, at, right=True, out_int32=True)
    there = at < ends[-1]
    some = expert.clamp(max=experts - 1)
    row = offsets[some] + (at - ends[some] + tiles[some]) * block_m
    return torch.where(there, expert, -1), torch.where(there, row, -1), ends[-1]


@triton.jit
def _grouped_pid(pid, num_m, num_n, GROUP_M: tl.constexpr):
    """Row and column of tile `pid`: bands of GROUP_M tile rows, each walked column by column."""
    first_m = pid // (GROUP_M * num_n) * GROUP_M
    height = min(num_m - first_m, GROUP_M)
    return first_m + pid % (GROUP_M * num_n) % height, pid % (GROUP_M * num_n) // height


@triton.jit
def _load_tile(x, row, col, rows, cols, strides, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """x[row : row + HEIGHT, col : col + WIDTH], zero from `rows` and `cols` on."""
    i = (row + tl.arange(0, HEIGHT))[:, None]
    j = (col + tl.arange(0, WIDTH))[None, :]
    offsets = i.to(tl.int64) * strides[0] + j.to(tl.int64) * strides[1]
    return tl.load(x + offsets, mask=(i < rows) & (j < cols), other=0.0)


@triton.jit
def _store_tile(x_ptr, tile, row, col, rows, cols, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Store to x[row : row + HEIGHT, col : col + WIDTH], contiguous, short of `rows` and `cols`."""
    i = (row + tl.arange(0, HEIGHT))[:, None]
    j = (col + tl.arange(0, WIDTH))[None, :]
    tile = tile.to(x_ptr.dtype.element_ty)
    tl.store(x_ptr + i.to(tl.int64) * cols + j, tile, mask=(i < rows) & (j < cols))


@triton.jit
def _grouped_gemm_kernel(
    x, w, y_ptr, offsets_ptr, tile_expert_ptr, tile_row_ptr, num_tiles_ptr, N, K,
    x_strides, w_strides, BY_DESCRIPTOR: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # rows of the tile
    num_m, num_n = tl.load(num_tiles_ptr), tl.cdiv(N, BLOCK_N)
    # flattened into one loop with the one over K, so that the next tile's loads start early
    for tile in tl.range(tl.program_id(0), num_m * num_n, tl.num_programs(0), flatten=True):
        m, n = _grouped_pid(tile, num_m, num_n, GROUP_M)
        row, col = tl.load(tile_row_ptr + m), n * BLOCK_N
        expert = tl.load(tile_expert_ptr + m)
        end = tl.load(offsets_ptr + expert + 1)
        # sum the products
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, K, BLOCK_K):
            if BY_DESCRIPTOR:
                # past the end come rows of the next expert, which are not stored
                x_tile = x.load([row, k])
                w_tile = w.load([expert, k, col]).reshape(BLOCK_K, BLOCK_N)
            else:
                x_tile = _load_tile(x, row, k, end, K, x_strides, BLOCK_M, BLOCK_K)
                of_expert = w + expert.to(tl.int64) * w_strides[0]
                strides = (w_strides[1], w_strides[2])
                w_tile = _load_tile(of_expert, k, col, K, N, strides, BLOCK_K, BLOCK_N)
            acc = tl.dot(x_tile, w_tile, acc)
        _store_tile(y_ptr, acc, row, col, end, N, BLOCK_M, BLOCK_N)


@triton.jit
def _dw_kernel(
    x_ptr, dy_ptr, dw_ptr, offsets_ptr, N, K, x_strides, dy_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # rows of the tile
    expert, k, n = tl.program_id(2), tl.program_id(1) * BLOCK_M, tl.program_id(0) * BLOCK_N
    begin, end = tl.load(offsets_ptr + expert), tl.load(offsets_ptr + expert + 1)
    # sum the products
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for row in range(begin, end, BLOCK_K):
        x_tile = _load_tile(x_ptr, row, k, end, K, x_strides, BLOCK_K, BLOCK_M)
        dy_tile = _load_tile(dy_ptr, row, n, end, N, dy_strides, BLOCK_K, BLOCK_N)
        acc = tl.dot(x_tile.T, dy_tile, acc)
    _store_tile(dw_ptr + expert.to(tl.int64) * K * N, acc, k, n, K, N, BLOCK_M, BLOCK_N)


def moe_grouped_gemm(
    x: Float[Tensor, "rows k"], w: Float[Tensor, "experts k n"], offsets: Int32[Tensor, " ends"]
) -> Float[Tensor, "rows n"]:
    """
    Rows offsets[e] to offsets[e + 1] - 1 of `x` times w[e], for each expert e, in one launch.

    Sums are float32, rounded once, to the dtype of the operands. The host waits for nothing.

    Args:
        x: Rows grouped by expert; float16 or bfloat16, in any layout.
        w: Of the same dtype, in any layout.
        offsets: Rises from 0 to the number of rows; contiguous.

    Raises:
        ValueError: shapes, dtypes or devices do not fit, or `offsets` is not contiguous; the
            message begins with the argument's name.

    Source: Gale et al. 2022 (MegaBlocks, arXiv 2211.15841), section 5; Triton tutorial 08.
    """
    # check
    _check_rows("x", x)
    if w.ndim != 3 or w.shape[1] != x.shape[1] or not len(w):
        raise ValueError(f"w: expected [experts, {x.shape[1]}, n], found {tuple(w.shape)}")
    _check_like_x("w", w, x)
    _check_offsets(offsets, x)
    if len(offsets) != len(w) + 1:
        raise ValueError(f"offsets: expected {len(w) + 1}, found {len(offsets)}")
    # launch
    y = torch.empty(len(x), w.shape[2], dtype=x.dtype, device=x.device)
    if y.numel():
        _launch(x, w, offsets, y)
    return y


def grouped_gemm_dw(
    x: Float[Tensor, "rows k"], dy: Float[Tensor, "rows n"], offsets: Int32[Tensor, " ends"]
) -> Float[Tensor, "experts k n"]:
    """
    The gradient of w: for each expert the transpose of its rows of `x` times its rows of `dy`.

    Sums are float32, rounded once, to the dtype of the operands; an expert without rows has 0.

    Args:
        x: As in `moe_grouped_gemm`.
        dy: Of the same dtype, in any layout.
        offsets: As in `moe_grouped_gemm`.

    Raises:
        ValueError: as `moe_grouped_gemm`.
    """
    # check
    _check_rows("x", x)
    if dy.ndim != 2 or len(dy) != len(x):
        raise ValueError(f"dy: expected [{len(x)}, n], found {tuple(dy.shape)}")
    _check_like_x("dy", dy, x)
    _check_offsets(offsets, x)
    # launch
    (_, k), n, experts = x.shape, dy.shape[1], len(offsets) - 1
    dw = torch.empty(experts, k, n, dtype=x.dtype, device=x.device)
    if dw.numel():
        config = GRADIENT if x.is_cuda else CPU
        _dw_kernel[(triton.cdiv(n, config.n), triton.cdiv(k, config.m), experts)](
            x, dy, dw, offsets, n, k, x.stride(), dy.stride(),
            BLOCK_M=config.m, BLOCK_N=config.n, BLOCK_K=config.k,
            num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
    return dw


def _check_rows(name: str, x: Tensor) -> None:
    if x.ndim != 2 or x.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"{name}: expected 2-D float16 or bfloat16, found {x.dtype} {tuple(x.shape)}"
        )


def _check_like_x(name: str, other: Tensor, x: Tensor) -> None:
    if other.dtype != x.dtype or other.device != x.device:
        raise ValueError(
            f"{name}: expected {x.dtype} on {x.device} as x has, found {other.dtype} on "
            f"{other.device}"
        )


def _check_offsets(offsets: Tensor, x: Tensor) -> None:
    if offsets.ndim != 1 or len(offsets) < 2 or offsets.dtype != torch.int32:
        raise ValueError(
            f"offsets: expected 1-D int32, at least 2, found {offsets.dtype} {tuple(offsets.shape)}"
        )
    if offsets.device != x.device:
        raise ValueError(f"offsets: expected them on {x.device}, found them on {offsets.device}")
    if not offsets.is_contiguous():
        raise ValueError(f"offsets: expected them contiguous, found strides {offsets.stride()}")


def _launch(x: Tensor, w: Tensor, offsets: Tensor, y: Tensor, config: Config | None = None) -> None:
    by_descriptor = _is_describable(x) and _is_describable(w)
    if config is None:
        config = (DESCRIPTOR if by_descriptor else POINTER) if x.is_cuda else CPU
    rows, n = y.shape
    schedule = tile_schedule(offsets, rows, config.m)
    tiles = len(schedule[0]) * triton.cdiv(n, config.n)
    operands = (x, w)
    if by_descriptor:
        operands = (
            TensorDescriptor.from_tensor(x, [config.m, config.k]),
            TensorDescriptor.from_tensor(w, [1, config.k, config.n]),
        )
    _grouped_gemm_kernel[(min(tiles, _programs(x)),)](
        *operands, y, offsets, *schedule, n, x.shape[1], x.stride(), w.stride(),
        BY_DESCRIPTOR=by_descriptor, GROUP_M=config.group_m,
        BLOCK_M=config.m, BLOCK_N=config.n, BLOCK_K=config.k,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def _programs(x: Tensor) -> int:
    """One program for each multiprocessor, each working through several tiles."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 4


def _is_describable(x: Tensor) -> bool:
    """Whether the chip's tensor memory accelerator takes `x`, or the interpreter in its place."""
    aligned = all(stride % 8 == 0 and stride > 0 for stride in x.stride()[:-1])
    if not (x.numel() and x.stride(-1) == 1 and aligned and x.data_ptr() % 16 == 0):
        return False
    return not x.is_cuda or triton.runtime.driver.active.get_current_target().arch >= 90
