"""Kata week06/topk_topp_sampling: draw tokens by top-k and top-p, and sort no logits.

HBM: with a small top_k a row is read twice: for a bound that k logits reach, and to collect those
that do. The rest happens in shared memory.
"""

import math

import numpy as np
from numba import cuda

from harness.arrays import Array, empty

WARP = 32
FULL = 0xFFFFFFFF  # a mask that names every lane of a warp
MIN_BLOCK, BLOCK, MAX_BLOCK = WARP, 512, 512  # threads; 512 leave each 128 registers

WARPS = MAX_BLOCK // WARP
AHEAD = 16  # loads that a thread has under way together
TOKEN_BITS = 24  # a vocabulary has at most 2^24 tokens


@cuda.jit(device=True)
def ordered(x):
    """
    A float32 as an int64 from 0 to 2^32 - 1: the larger the float, the larger the integer.

    -0.0 and 0.0 give the same; NaN, of either sign, gives the largest.
    """
    if x != x:
        return np.int64(FULL)
    bits = np.int64(np.float32(x + np.float32(0)).view(np.int32))  # -0.0 + 0.0 is 0.0
    if bits < 0:
        return -1 - bits
    return bits + np.int64(1 << 31)


@cuda.jit(device=True)
def rank_of(x, token):
    """Logit and token in one integer, the better the larger: no two tokens have the same."""
    return (ordered(x) << TOKEN_BITS) + ((1 << TOKEN_BITS) - 1 - token)


@cuda.jit(device=True)
def token_of(rank):
    """The token of `rank_of`."""
    return (1 << TOKEN_BITS) - 1 - (rank & ((1 << TOKEN_BITS) - 1))


@cuda.jit(device=True)
def load(values, first, n, held):
    """Load the thread's next AHEAD values, which lie a block apart; those past n are -inf."""
    step = cuda.blockDim.x
    if first + (AHEAD - 1) * step < n:
        # without a test for each of them the loads are under way together
        for r in range(AHEAD):
            held[r] = values[np.uint64(first + r * step)]
    else:
        for r in range(AHEAD):
            held[r] = -math.inf
            if first + r * step < n:
                held[r] = values[np.uint64(first + r * step)]


@cuda.jit(device=True)
def largest_of(values, n, of_warps):
    """The largest value, or NaN if there is one; `of_warps` is room for one of each warp."""
    held = cuda.local.array(AHEAD, np.float32)
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    largest, broken = np.float32(-math.inf), np.int32(0)
    for first in range(thread, n, AHEAD * threads):
        load(values, first, n, held)
        for r in range(AHEAD):
            largest = max(largest, held[r])
            if held[r] != held[r]:
                broken = np.int32(1)
    for apart in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(FULL, largest, apart))
    of_warps[thread // WARP] = largest
    if cuda.syncthreads_or(broken):
        return np.float32(math.nan)
    for warp in range(threads // WARP):
        largest = max(largest, of_warps[warp])
    return largest


@cuda.jit(device=True)
def sum_of_lower_lanes(value):
    """Sum of `value` over the lanes below the thread's own."""
    upto = value
    for apart in (1, 2, 4, 8, 16):
        below = cuda.shfl_up_sync(FULL, upto, apart)
        if cuda.threadIdx.x % WARP >= apart:
            upto += below
    return upto - value


def topk_topp_sampling(
    logits: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    u: Array,
    out: Array | None = None,
    block: int = BLOCK,
) -> Array:
    """
    Draw one token from each row of `logits`, with parameters of its own.

    Top-k of logits / temperature first, then top-p of what softmax makes of the survivors, then
    the token at which the running probability passes `u`, all in the order of rank: larger logits
    first, equal ones by token. -1 where a row has a NaN, nothing but -inf, or a parameter outside
    its range.

    Args:
        logits: float32, at most 2^24 of a row.
        temperature: float32, finite and not negative; 0 takes the first token.
        top_k: int32, not negative; 0 keeps all, as does what exceeds the vocabulary.
        top_p: float32 in (0, 1].
        u: float32 in [0, 1).
        out: int32; allocated if not given.
        block: Threads of a block.

    Raises:
        ValueError: `logits` is not 2-D or has no tokens, an array has another dtype or not one
            element for each row, or `block` is not a multiple of 32 up to MAX_BLOCK.
    """
    # TODO(kata): check, launch, collect the survivors, walk down the digits, find the nucleus, draw
    # (about 200 lines with helpers)
    raise NotImplementedError
