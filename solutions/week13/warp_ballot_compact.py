"""Kata week13/warp_ballot_compact: keep what is above a threshold, a place for each by ballot.

HBM: each element is read once, what is kept is written once, and a warp needs one atomic.
"""

import math

import numpy as np
from numba import cuda

from harness.arrays import Array, beside, empty

WARP = 32
FULL = 0xFFFFFFFF  # a mask that names every lane of a warp
MIN_BLOCK, BLOCK, MAX_BLOCK = WARP, 256, 1024  # threads of a block
GROUPS = 16  # of WARP neighbouring elements, for each warp


@cuda.jit(device=True)
def load(x, first, otherwise, held):
    """Load GROUPS elements a warp's width apart, from `first` on; `otherwise` where x has ended."""
    if first + (GROUPS - 1) * WARP < x.size:
        # without a test for each of them the loads are under way together
        for g in range(GROUPS):
            held[g] = x[first + g * WARP]
    else:
        for g in range(GROUPS):
            held[g] = x[first + g * WARP] if first + g * WARP < x.size else otherwise


@cuda.jit
def compact(x, threshold, out, counter) -> None:
    """
    Write the elements of `x` above `threshold` to the front of `out`; counter[0] says how many.

    Launched with whole warps, in blocks enough that each warp has GROUPS groups of elements.
    counter[0] is 0 before.
    """
    held = cuda.local.array(GROUPS, np.float32)
    votes = cuda.local.array(GROUPS, np.uint32)
    lane = cuda.threadIdx.x % WARP

    # load
    # nothing leaves before the votes: behind the end lanes hold what is not kept
    load(x, cuda.grid(1) // WARP * WARP * GROUPS + lane, threshold, held)
    # vote and count
    kept = 0
    for g in range(GROUPS):
        votes[g] = cuda.ballot_sync(FULL, held[g] > threshold)
        kept += cuda.popc(votes[g])

    # reserve room
    if kept > 0:  # the same in every lane
        place = 0
        if lane == 0:
            place = cuda.atomic.add(counter, 0, kept)
        place = cuda.shfl_sync(FULL, place, 0)
        # store
        for g in range(GROUPS):
            if held[g] > threshold:
                out[place + cuda.popc(votes[g] & cuda.lanemask_lt())] = held[g]
            place += cuda.popc(votes[g])


def prepared(x: Array, threshold: float, out: Array | None, block: int) -> tuple[np.float32, Array]:
    """Check what `warp_ballot_compact` was given; return the threshold in float32, and `out`."""
    if x.ndim != 1:
        raise ValueError(f"x: expected a 1-D array, found {x.ndim}-D")
    if x.dtype != np.float32:
        raise ValueError(f"x: expected float32, found {x.dtype}")
    if math.isnan(threshold):
        raise ValueError("threshold: expected a number, found NaN")
    out = empty(x.size, like=x) if out is None else out
    if out.dtype != np.float32:
        raise ValueError(f"out: expected float32, found {out.dtype}")
    if out.ndim != 1 or out.size < x.size:
        raise ValueError(f"out: expected at least {x.size} elements, found the shape {out.shape}")
    if not MIN_BLOCK <= block <= MAX_BLOCK or block % WARP:
        raise ValueError(f"block: expected a multiple of {WARP} up to {MAX_BLOCK}, found {block}")
    with np.errstate(over="ignore"):
        return np.float32(threshold), out


def warp_ballot_compact(
    x: Array, threshold: float, out: Array | None = None, block: int = BLOCK
) -> Array:
    """
    Return the elements of `x` above `threshold`, as the front of `out`.

    The elements of an aligned group of 32 stand next to each other and in their order; the groups
    come in any order. NaN is not above anything.

    Args:
        x: float32, 1-D, fewer than 2^31 elements.
        threshold: Rounded to float32, as NumPy does.
        out: float32, at least as long as `x`; allocated if not given.
        block: Threads of a block.

    Raises:
        ValueError: `x` is not 1-D or not float32, `threshold` is NaN, `out` is too short or not
            float32, or `block` is not a multiple of 32 from MIN_BLOCK to MAX_BLOCK.
    """
    threshold, out = prepared(x, threshold, out, block)
    if x.size == 0:
        return out[:0]
    counter = beside(np.zeros(1, np.int32), like=x)
    blocks = -(-x.size // (block * GROUPS))
    compact[blocks, block](x, threshold, out, counter)
    return out[: int(counter[0])]
