"""Kata week13/radix_topk: the k largest of each row by radix select, and no sort.

HBM: a row is read five times, once for each digit of the k-th largest key and once to collect.
"""

import numpy as np
from numba import cuda

from harness.arrays import Array, empty

WARP = 32
FULL = 0xFFFFFFFF  # a mask that names every lane of a warp
MIN_BLOCK, BLOCK, MAX_BLOCK = WARP, 512, 512  # threads of a block, of 128 registers
WARPS = MAX_BLOCK // WARP  # the most that a block has
DIGIT_BITS = 8
BINS = 1 << DIGIT_BITS
BINS_PER_LANE = BINS // WARP
AHEAD = 16  # loads that a thread has under way together


@cuda.jit(device=True)
def bits_of(x):
    """The bits of a float32, as an int64 from 0 to 2^32 - 1."""
    return np.int64(np.float32(x).view(np.int32)) & FULL


@cuda.jit(device=True)
def load(values, first, held):
    """Load AHEAD values a warp's width apart, from `first` on; behind the end nothing is loaded."""
    if first + (AHEAD - 1) * WARP < values.size:
        # without a test for each of them the loads are under way together
        for r in range(AHEAD):
            held[r] = values[first + r * WARP]
    else:
        for r in range(AHEAD):
            if first + r * WARP < values.size:
                held[r] = values[first + r * WARP]


@cuda.jit(device=True)
def float_key(bits):
    """
    Turn the bits of a float32 into an int64 from 0 to 2^32 - 1 that orders as the floats do.

    -0.0 and 0.0 have the same key; NaN, of any sign and payload, has the largest.
    """
    # order-preserving key
    # of negative floats the larger bits are the smaller float, from -0.0 down
    key = -bits & FULL if bits >> 31 else bits | 1 << 31
    return FULL if bits & 0x7FFFFFFF > 0x7F800000 else key


@cuda.jit(device=True)
def sum_of_lower_lanes(value):
    """Sum of `value` over the lanes below the thread's own."""
    upto = value
    for apart in (1, 2, 4, 8, 16):
        below = cuda.shfl_up_sync(FULL, upto, apart)
        if cuda.threadIdx.x % WARP >= apart:
            upto += below
    return upto - value


@cuda.jit(device=True)
def kth_key(row, k, counts, found):
    """Return the k-th largest key of a row, and how many are larger."""
    held = cuda.local.array(AHEAD, np.float32)
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    mine = thread // WARP * WARP * AHEAD + thread % WARP
    prefix, above = 0, 0
    # count digits
    for shift in (24, 16, 8, 0):
        for b in range(thread, BINS, threads):
            counts[b] = 0
        cuda.syncthreads()
        for first in range(mine, row.size, AHEAD * threads):
            load(row, first, held)
            left = row.size - first
            for r in range(AHEAD):
                # the next digit of a key that begins with the prefix; of others, out of range
                b = (float_key(bits_of(held[r])) >> shift) - prefix * BINS
                if r * WARP < left and 0 <= b < BINS:
                    cuda.atomic.add(counts, np.uint32(b), 1)
        cuda.syncthreads()

        # choose the bin
        if thread < WARP:  # each lane sums neighbouring bins, the first lane the highest
            highest = BINS - 1 - thread * BINS_PER_LANE
            own = 0
            for r in range(BINS_PER_LANE):
                own += counts[highest - r]
            upto = above + sum_of_lower_lanes(own)
            for r in range(BINS_PER_LANE):
                if upto < k <= upto + counts[highest - r]:
                    found[0], found[1] = highest - r, upto
                upto += counts[highest - r]
        cuda.syncthreads()
        prefix, above = prefix * BINS + found[0], found[1]
    return prefix, above


@cuda.jit(device=True)
def collect(row, k, kth, above, tallies, values, indices):
    """Write the elements whose keys are larger than `kth`, and the first of those equal to it."""
    held = cuda.local.array(AHEAD, np.float32)
    larger = cuda.local.array(AHEAD, np.uint32)
    equal = cuda.local.array(AHEAD, np.uint32)
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    lane, warp = thread % WARP, thread // WARP
    ties = k - above
    larger_before, equal_before, turn = 0, 0, 0
    # vote on winners
    # every thread takes part in every step: behind the end it has nothing to vote for
    for start in range(0, row.size, AHEAD * threads):
        first = start + warp * WARP * AHEAD + lane
        load(row, first, held)
        left = row.size - first
        here = 0  # larger ones, and equal ones 16 bits higher: a block has fewer than 2^16 at once
        for r in range(AHEAD):
            key = float_key(bits_of(held[r])) if r * WARP < left else -1
            larger[r] = cuda.ballot_sync(FULL, key > kth)
            equal[r] = cuda.ballot_sync(FULL, key == kth)
            here += cuda.popc(larger[r]) + (cuda.popc(equal[r]) << 16)

        # place and store
        # two sets of tallies in turn: one barrier is enough
        if lane == 0:
            tallies[turn, warp] = here
        cuda.syncthreads()
        tally = tallies[turn, lane] if lane < threads // WARP else 0
        lower = sum_of_lower_lanes(tally)
        mine = cuda.shfl_sync(FULL, lower, warp)
        step = cuda.shfl_sync(FULL, lower + tally, WARP - 1)
        larger_mine, equal_mine = larger_before + (mine & 0xFFFF), equal_before + (mine >> 16)
        larger_before += step & 0xFFFF
        equal_before += step >> 16
        turn = 1 - turn

        below = cuda.lanemask_lt()
        for r in range(AHEAD):
            if larger[r] | equal[r]:  # the same in every lane, and mostly not so
                rank = equal_mine + cuda.popc(equal[r] & below)
                if larger[r] >> lane & 1 or (equal[r] >> lane & 1 and rank < ties):
                    place = larger_mine + cuda.popc(larger[r] & below) + min(rank, ties)
                    values[place], indices[place] = held[r], first + r * WARP
                larger_mine += cuda.popc(larger[r])
                equal_mine += cuda.popc(equal[r])


@cuda.jit
def select_rows(x, k, values, indices) -> None:
    """
    Write the k largest elements of each row of `x` and their columns, in the order of columns.

    A block for each row; of MIN_BLOCK to MAX_BLOCK threads, whole warps.
    """
    counts = cuda.shared.array(BINS, np.int32)
    found = cuda.shared.array(2, np.int64)
    tallies = cuda.shared.array((2, WARPS), np.int32)
    row = cuda.blockIdx.x
    # count digits
    kth, above = kth_key(x[row], k, counts, found)
    # vote on winners
    collect(x[row], k, kth, above, tallies, values[row], indices[row])


def prepared(
    x: Array, k: int, values: Array | None, indices: Array | None, block: int
) -> tuple[Array, Array]:
    """Check what `radix_topk` was given, and return the results' arrays, new or given."""
    if x.ndim != 2:
        raise ValueError(f"x: expected a 2-D array, found {x.ndim}-D")
    if x.dtype != np.float32:
        raise ValueError(f"x: expected float32, found {x.dtype}")
    rows, vocab = x.shape
    if not 1 <= k <= vocab:
        raise ValueError(f"k: expected 1 to {vocab}, the length of a row, found {k}")
    if not MIN_BLOCK <= block <= MAX_BLOCK or block % WARP:
        raise ValueError(f"block: expected a multiple of {WARP} up to {MAX_BLOCK}, found {block}")
    values = empty((rows, k), like=x) if values is None else values
    indices = empty((rows, k), like=x).view(np.int32) if indices is None else indices
    for name, array, dtype in (("values", values, np.float32), ("indices", indices, np.int32)):
        if array.dtype != dtype:
            raise ValueError(f"{name}: expected {np.dtype(dtype)}, found {array.dtype}")
        if array.shape != (rows, k):
            raise ValueError(f"{name}: expected the shape {(rows, k)}, found {array.shape}")
    return values, indices


def radix_topk(
    x: Array,
    k: int,
    values: Array | None = None,
    indices: Array | None = None,
    block: int = BLOCK,
) -> tuple[Array, Array]:
    """
    The k largest elements of each row and their columns, by ascending column.

    NaN is larger than all numbers; of equal elements those in the lower columns are taken.

    Args:
        x: float32, 2-D, rows shorter than 2^31; rows may lie apart in memory.
        k: From 1 to the length of a row.
        values: float32, k for each row; allocated if not given.
        indices: int32; likewise.
        block: Threads of a block, which has a row.

    Raises:
        ValueError: `x` is not 2-D or not float32, `k` is out of range, a result has another shape
            or dtype, or `block` is not a multiple of 32 from MIN_BLOCK to MAX_BLOCK.
    """
    values, indices = prepared(x, k, values, indices, block)
    if len(x):
        select_rows[len(x), block](x, k, values, indices)
    return values, indices
