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
    raise NotImplementedError  # TODO(kata): count the tiles, expert of each tile (about 9 lines)


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
    # TODO(kata): rows of the tile, sum the products (about 20 lines)
    pass


@triton.jit
def _dw_kernel(
    x_ptr, dy_ptr, dw_ptr, offsets_ptr, N, K, x_strides, dy_strides,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # TODO(kata): rows of the tile, sum the products (about 8 lines)
    pass


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
    raise NotImplementedError  # TODO(kata): check, launch (about 30 lines with helpers)


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
    raise NotImplementedError  # TODO(kata): check, launch (about 15 lines)


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
