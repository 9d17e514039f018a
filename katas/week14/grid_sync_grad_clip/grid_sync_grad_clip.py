"""Kata week14/grid_sync_grad_clip: norm and scale of a gradient in one cooperative launch.

HBM: each element is read once for the norm; where it has to shrink, read and written once more.
"""

import math
from dataclasses import dataclass

import numpy as np
from numba import config, cuda

from harness.arrays import Array, beside

WARP = 32
MIN_BLOCK, BLOCK, MAX_BLOCK = WARP, 256, 1024  # threads of a block
WARPS = MAX_BLOCK // WARP  # the most that a block has
AHEAD = 8  # loads that a thread has under way together
EPS = 1e-6  # added to the norm before it divides
SIGNATURE = "void(float32[::1], float64, float64[::1], float64[::1])"  # of clip_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a GPU has for blocks, and in which portions it gives it away."""

    sms: int
    warps: int  # places for warps on an SM
    blocks: int  # places for blocks on an SM
    registers: int  # of an SM, in `partitions` equal shares; no warp straddles two of them
    partitions: int
    register_unit: int  # a warp gets a multiple of so many registers
    smem_bytes: int  # shared memory of an SM
    smem_unit: int  # a block gets a multiple of so many bytes
    smem_reserved: int  # bytes that each block takes on top of what it asks for


SIMULATED = Machine(
    sms=2, warps=8, blocks=4, registers=16384, partitions=4, register_unit=256,
    smem_bytes=8192, smem_unit=128, smem_reserved=1024,
)  # fmt: skip


def this_machine() -> Machine:
    """The GPU that kernels run on; without one, SIMULATED."""
    if config.ENABLE_CUDASIM:
        return SIMULATED
    gpu = cuda.get_current_device()
    return Machine(
        sms=gpu.MULTIPROCESSOR_COUNT,
        warps=gpu.MAX_THREADS_PER_MULTIPROCESSOR // WARP,
        blocks=gpu.MAX_BLOCKS_PER_MULTIPROCESSOR,
        registers=gpu.MAX_REGISTERS_PER_MULTIPROCESSOR,
        partitions=4,
        register_unit=256,
        smem_bytes=gpu.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        smem_unit=128 if gpu.compute_capability >= (8, 0) else 256,
        smem_reserved=gpu.RESERVED_SHARED_MEMORY_PER_BLOCK,
    )


def footprint() -> tuple[int, int]:
    """Registers of a thread and bytes of shared memory of a block, of `clip_blocks` as compiled."""
    if config.ENABLE_CUDASIM:
        return 40, 8 * WARPS
    kernel = clip_blocks.compile(SIGNATURE)
    return kernel.regs_per_thread, kernel.shared_mem_per_block


def max_coresident_blocks(threads: int, regs: int, smem: int, machine: Machine) -> int:
    """
    Blocks of a kernel that a GPU holds at the same time, on all its SMs; 0 if not even one fits.

    Args:
        threads: Threads of a block, 1 to 1024.
        regs: Registers of a thread, 1 to 255.
        smem: Bytes of shared memory that a block asks for, 0 or more.
        machine: The GPU.
    """
    raise NotImplementedError  # TODO(kata): resident blocks (about 15 lines with helpers)


@cuda.jit(device=True)
def load(values, first, step, held):
    """
    Load AHEAD values, `step` apart, from `first` on; behind the end they are 0.

    Indices have no sign: one that has might count from the end, which would be asked each time.
    """
    if first + (AHEAD - 1) * step < values.size:
        # without a test for each of them the loads are under way together
        for r in range(AHEAD):
            held[r] = values[np.uint64(first + r * step)]
    else:
        for r in range(AHEAD):
            held[r] = 0.0
            if first + r * step < values.size:
                held[r] = values[np.uint64(first + r * step)]


@cuda.jit(device=True)
def store(values, first, step, held, scale):
    """Store `scale` times what `load` has held."""
    if first + (AHEAD - 1) * step < values.size:
        for r in range(AHEAD):
            values[np.uint64(first + r * step)] = np.float64(held[r]) * scale
    else:
        for r in range(AHEAD):
            if first + r * step < values.size:
                values[np.uint64(first + r * step)] = np.float64(held[r]) * scale


@cuda.jit(device=True)
def tile_sum(value, width):
    """
    Sum of `value` over the caller's tile, `width` neighbouring lanes of a warp: to each of them.

    `width` is 8, 16 or 32, and a tile begins at a multiple of it. Only the lanes of the tile have
    to make the call.
    """
    raise NotImplementedError  # TODO(kata): tile sum (about 7 lines)


@cuda.jit
def clip_blocks(g, max_norm, partials, norm) -> None:
    """
    Write the norm of `g` to norm[0], and scale `g` down to `max_norm` if that is less.

    Launched once, with blocks of whole warps that are all resident. `partials` has an element for
    each block, or more; nobody has written to it.
    """
    # TODO(kata): tile sum, squares of a block, wait for the grid, norm and clip (about 30 lines
    # with helpers)
    raise NotImplementedError


def prepared(g: Array, max_norm: float, norm: Array | None, block: int) -> Array:
    """Check what `grid_sync_grad_clip` was given; return `norm`, given or new."""
    if g.ndim != 1:
        raise ValueError(f"g: expected a 1-D array, found {g.ndim}-D")
    if g.dtype != np.float32:
        raise ValueError(f"g: expected float32, found {g.dtype}")
    if g.size > 1 and g.strides != (g.dtype.itemsize,):
        raise ValueError(f"g: expected contiguous elements, found {g.strides[0]} bytes apart")
    if not max_norm > 0:
        raise ValueError(f"max_norm: expected a positive number, found {max_norm}")
    if not MIN_BLOCK <= block <= MAX_BLOCK or block % WARP:
        raise ValueError(f"block: expected a multiple of {WARP} up to {MAX_BLOCK}, found {block}")
    norm = beside(np.zeros(1), like=g) if norm is None else norm
    if norm.dtype != np.float64 or norm.shape != (1,):
        raise ValueError(f"norm: expected one float64, found {norm.dtype} of shape {norm.shape}")
    return norm


def workspace(partials: Array | None, blocks: int, like: Array) -> Array:
    """Check that `partials` has a float64 for each block; return it, or a new one."""
    partials = beside(np.zeros(blocks), like=like) if partials is None else partials
    if partials.dtype != np.float64 or partials.ndim != 1 or partials.size < blocks:
        raise ValueError(
            f"partials: expected {blocks} float64 or more, found {partials.dtype} of shape "
            f"{partials.shape}"
        )
    return partials


def grid_sync_grad_clip(
    g: Array,
    max_norm: float,
    norm: Array | None = None,
    partials: Array | None = None,
    machine: Machine | None = None,
    blocks: int | None = None,
    block: int = BLOCK,
) -> tuple[Array, Array]:
    """
    Scale `g` in place by min(1, max_norm / (norm + EPS)), and return it and its former norm.

    Args:
        g: float32, 1-D, contiguous.
        max_norm: Positive.
        norm: One float64; allocated if not given.
        partials: float64, an element for each block or more; allocated if not given.
        machine: Whose SMs have to hold all blocks; `this_machine()` if not given.
        blocks: Blocks to launch; as many as are resident and have an element to begin with if not
            given, and at least one.
        block: Threads of a block.

    Raises:
        ValueError: What `prepared` and `workspace` refuse; `blocks` is below 1 or more than are
            resident; not even one block is, and the message names `block`.
    """
    raise NotImplementedError  # TODO(kata): check and launch (about 10 lines)
