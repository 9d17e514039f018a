"""Kata week14/layernorm_cp_async: LayerNorm whose next rows are on their way while it reduces one.

HBM: each row is copied once, into shared memory, and written once; gamma and beta come from the
cache.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from harness.cuda import launch

PIECE_BYTES = 16  # what a thread copies at once
MIN_THREADS, MAX_THREADS = 32, 128
MAX_STAGES = 8
SCRATCH_BYTES = 64  # behind the stages: 8 floats for each of two sums
REGISTERS = 128  # of a thread, at most: the kernel's __launch_bounds__ see to it
LATENCY_S = 1e-6  # of memory that is busy

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using T = ELEMENT;  // -DELEMENT=__half or __nv_bfloat16
struct alignas(16) Piece { T held[8]; };

// 16 bytes from global to shared memory; they are on their way when this returns
__device__ void copy_piece(Piece* to, const Piece* from) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from) : "memory");
}

// the thread's copies since its last commit are a group, even if there are none
__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// until all of the thread's groups have landed, but for the newest LEFT
template <int LEFT> __device__ void wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}

// for the thread's pieces, the k-th of which is piece `at` of the row; at most -DPIECES=…
#define EACH_PIECE \
    _Pragma("unroll 4") for (int k = 0, at = threadIdx.x; k < PIECES; k++, at += step) \
        if (at < pieces)

// the sum over the threads of the block; every thread gets it. One barrier: who needs two sums in a
// row gives them two places, as warps may still read the first when others write the second
__device__ float block_sum(float value, float* place) {
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
    if (threadIdx.x % 32 == 0) place[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) value += place[warp];
    return value;
}

extern "C" __global__ void __launch_bounds__(128, 4) layernorm_cp_async(
    const T* x, const T* gamma, const T* beta, T* y, int rows, int cols, long long x_stride,
    float eps) {
    extern __shared__ Piece stages[];  // -DSTAGES=… rows, then SCRATCH_BYTES
    const int pieces = cols / 8, step = blockDim.x;
    float* scratch = (float*)(stages + STAGES * pieces);

    // a thread copies the pieces that it will read itself: its own wait is enough, no barrier
    auto fetch = [&](long long row, int stage) {
        if (row < rows)
            for (int at = threadIdx.x; at < pieces; at += step)
                copy_piece(stages + stage * pieces + at, (const Piece*)(x + row * x_stride) + at);
        commit();  // also where no row is left: the groups are what a wait counts
    };

    // first rows on their way
    for (int ahead = 0; ahead < STAGES - 1; ahead++)
        fetch(blockIdx.x + (long long)ahead * gridDim.x, ahead);
    // few pieces stay in registers, and what they are scaled by does for all rows
    constexpr bool KEEPS = PIECES <= 4;
    Piece kept[KEEPS ? PIECES : 1], scales[KEEPS ? PIECES : 1], shifts[KEEPS ? PIECES : 1];
    const Piece *all_scales = (const Piece*)gamma, *all_shifts = (const Piece*)beta;
    if (KEEPS) EACH_PIECE scales[k] = all_scales[at], shifts[k] = all_shifts[at];

    // fetch and wait
    int stage = 0;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        fetch(row + (STAGES - 1ll) * gridDim.x, (stage + STAGES - 1) % STAGES);
        wait<STAGES - 1>();
        const Piece* here = stages + stage * pieces;
        if (KEEPS) EACH_PIECE kept[k] = here[at];

        // reduce
        float sum = 0;
        EACH_PIECE {
            const Piece piece = KEEPS ? kept[k] : here[at];
            for (int e = 0; e < 8; e++) sum += (float)piece.held[e];
        }
        const float mean = block_sum(sum, scratch) / cols;
        sum = 0;
        EACH_PIECE {
            const Piece piece = KEEPS ? kept[k] : here[at];
            for (int e = 0; e < 8; e++) {
                const float apart = (float)piece.held[e] - mean;
                sum += apart * apart;
            }
        }
        const float rstd = rsqrtf(block_sum(sum, scratch + 8) / cols + eps);
        // store
        EACH_PIECE {
            Piece piece = KEEPS ? kept[k] : here[at];
            const Piece scale = KEEPS ? scales[k] : all_scales[at];
            const Piece shift = KEEPS ? shifts[k] : all_shifts[at];
            for (int e = 0; e < 8; e++) {
                const float unit = ((float)piece.held[e] - mean) * rstd;
                piece.held[e] = T(unit * (float)scale.held[e] + (float)shift.held[e]);
            }
            ((Piece*)(y + row * cols))[at] = piece;
        }
        stage = (stage + 1) % STAGES;
    }
}
"""


class Gpu(NamedTuple):
    """What a launch has to know of a GPU; bandwidth in bytes per second."""

    sms: int
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    bandwidth: float


class Config(NamedTuple):
    """Blocks, threads of each, its dynamic shared memory, and the rows that this has room for."""

    grid: int
    threads: int
    shared_bytes: int
    stages: int


H200 = Gpu(sms=132, smem_per_sm_bytes=233_472, smem_per_block_bytes=232_448, bandwidth=4.8e12)


def this_gpu() -> Gpu:
    """The current GPU; without one, an H200."""
    if not torch.cuda.is_available():
        return H200
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(
        sms=device.multi_processor_count,
        smem_per_sm_bytes=device.shared_memory_per_multiprocessor,
        smem_per_block_bytes=device.shared_memory_per_block_optin,
        bandwidth=2 * device.memory_clock_rate * 1e3 * device.memory_bus_width / 8,
    )


def resident_blocks(threads: int, shared_bytes: int, gpu: Gpu) -> int:
    """Blocks that a multiprocessor holds at once; each has 1 KiB of shared memory set aside."""
    by_registers = 65_536 // (REGISTERS * threads)
    return min(by_registers, gpu.smem_per_sm_bytes // (shared_bytes + 1024))


def launch_config(rows: int, cols: int, itemsize: int, gpu: Gpu) -> Config:
    """
    The launch that keeps enough bytes on their way, and all its blocks on the GPU at once.

    Raises:
        ValueError: `rows` or `cols` is below 1, a row is not a whole number of pieces, or two rows
            and the scratch do not fit into a block's shared memory.
    """
    # check
    if rows < 1:
        raise ValueError(f"rows: expected at least 1, found {rows}")
    row_bytes = cols * itemsize
    if cols < 1 or row_bytes % PIECE_BYTES:
        raise ValueError(f"cols: expected rows of {PIECE_BYTES}-byte pieces, found {row_bytes} B")
    most = min((gpu.smem_per_block_bytes - SCRATCH_BYTES) // row_bytes, MAX_STAGES)
    if most < 2:
        raise ValueError(
            f"cols: expected two rows to fit into {gpu.smem_per_block_bytes} bytes of shared "
            f"memory, found rows of {row_bytes}"
        )
    # stages by Little's law
    warps = -(-row_bytes // (PIECE_BYTES * 32))
    threads = min(32 * warps, MAX_THREADS)

    def in_flight(stages: int) -> int:
        return gpu.sms * blocks(stages) * (stages - 1) * row_bytes

    def blocks(stages: int) -> int:
        return resident_blocks(threads, stages * row_bytes + SCRATCH_BYTES, gpu)

    # Little's law; more than it asks for counts for nothing, and max returns the first of equals
    wanted = gpu.bandwidth * LATENCY_S
    stages = max(range(2, most + 1), key=lambda stages: min(in_flight(stages), wanted))
    grid = min(rows, gpu.sms * blocks(stages))
    return Config(grid, threads, stages * row_bytes + SCRATCH_BYTES, stages)


def layernorm_cp_async(
    x: Float[Tensor, "rows cols"],
    gamma: Float[Tensor, " cols"],
    beta: Float[Tensor, " cols"],
    eps: float = 1e-5,
    grid: int | None = None,
    stages: int | None = None,
) -> Float[Tensor, "rows cols"]:
    """
    (x - mean) / sqrt(variance + eps) * gamma + beta for each row, contiguous, in the dtype of `x`.

    float16 or bfloat16, with all arithmetic in float32. Rows may lie apart in memory, by a multiple
    of 16 bytes, and are read in place.

    Args:
        x: The rows.
        gamma: One number a column, in the dtype of `x`, contiguous.
        beta: Likewise.
        eps: Added to the (biased) variance; positive.
        grid: Blocks; without it as `launch_config` says.
        stages: Rows that a block has room for, 2 to MAX_STAGES; without it as `launch_config` says.

    Raises:
        ValueError: A dtype, shape or alignment, `eps`, `grid` or `stages` is none of these, or what
            `launch_config` refuses.
    """
    # check
    if x.ndim != 2 or x.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"x: expected 2-D float16 or bfloat16, found {x.ndim}-D {x.dtype}")
    rows, cols = x.shape
    gpu = this_gpu()
    config = launch_config(max(rows, 1), cols, x.itemsize, gpu)
    for name, given in (("gamma", gamma), ("beta", beta)):
        if given.shape != (cols,) or given.dtype != x.dtype:
            raise ValueError(f"{name}: expected {cols} of {x.dtype}, found {given.shape}")
    for name, given in (("x", x), ("gamma", gamma), ("beta", beta)):
        places = given.data_ptr(), (given.stride(0) * given.itemsize if given is x else 0)
        if given.stride(-1) != 1 or any(place % PIECE_BYTES for place in places):
            raise ValueError(
                f"{name}: expected neighbouring elements from a multiple of {PIECE_BYTES} bytes "
                f"on, found strides {given.stride()}"
            )
    if not eps > 0:
        raise ValueError(f"eps: expected a positive number, found {eps}")
    if grid is not None and grid < 1:
        raise ValueError(f"grid: expected at least 1 block, found {grid}")
    stages = config.stages if stages is None else stages
    shared_bytes = stages * cols * x.itemsize + SCRATCH_BYTES
    if not 2 <= stages <= MAX_STAGES or shared_bytes > gpu.smem_per_block_bytes:
        raise ValueError(f"stages: expected 2 to {MAX_STAGES} that fit, found {stages}")

    # store
    y = torch.empty(rows, cols, dtype=x.dtype, device=x.device)
    if rows:
        pieces = -(-cols * x.itemsize // (PIECE_BYTES * config.threads))
        kind = "__half" if x.dtype == torch.float16 else "__nv_bfloat16"
        launch(
            SOURCE,
            "layernorm_cp_async",
            (x, gamma, beta, y, rows, cols, x.stride(0), eps),
            grid=(config.grid if grid is None else grid,),
            block=(config.threads,),
            shared_bytes=shared_bytes,
            options=(f"-DELEMENT={kind}", f"-DSTAGES={stages}", f"-DPIECES={pieces}"),
        )
    return y
