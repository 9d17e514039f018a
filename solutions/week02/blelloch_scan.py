"""Kata week02/blelloch_scan: everything to the left of each element, in work that grows with n.

HBM: blocks sum their elements (one read), then scan them with what lies before (one read, one
write); the sums between are next to nothing.
"""

import numpy as np
from numba import cuda

from harness.arrays import Array, empty

BLOCK = 128  # threads: the usual number and the most
PER_THREAD = 8  # neighbouring elements of a thread
ELEMENTS = BLOCK * PER_THREAD  # of a block, at the most
PADDED_ELEMENTS = ELEMENTS + ELEMENTS // 32  # words that hold them, an index going through `pad`
PADDED_BLOCK = BLOCK + BLOCK // 32  # the same for one word a thread

ADD, AFFINE = 0, 1
OPS = {"add": ADD, "affine": AFFINE}
MODULUS = 65521  # of affine maps: the largest prime below 2^16
LOW, WORD = 0xFFFF, 0xFFFFFFFF


@cuda.jit(device=True)
def combine(x, y, op):
    """
    First `x`, then `y`, as a uint32: associative, and for AFFINE not commutative.

    ADD: x + y modulo 2^32. AFFINE: a word is a map t -> a * t + b modulo MODULUS, with a in its
    upper 16 bits and b in its lower ones.
    """
    first, then = np.int64(x), np.int64(y)
    if op == ADD:
        return np.uint32((first + then) & WORD)
    a = (first >> 16) * (then >> 16) % MODULUS
    b = ((first & LOW) * (then >> 16) + (then & LOW)) % MODULUS
    return np.uint32(a << 16 | b)


@cuda.jit(device=True)
def identity(op):
    """The word that changes nothing: 0, or the map t -> t."""
    return np.uint32(0) if op == ADD else np.uint32(1 << 16)


@cuda.jit(device=True)
def pad(i):
    """Where word `i` lies: one word is skipped after every 32."""
    return i + (i >> 5)


def blocks_for(n: int, block: int) -> int:
    """Blocks that `n` elements make, PER_THREAD for each of `block` threads; one at least."""
    return max(1, -(-n // (block * PER_THREAD)))


def scratch_size(n: int, block: int) -> int:
    """Two words for each block of each level of a scan of `n` elements."""
    blocks = blocks_for(n, block)
    return 2 * blocks + (scratch_size(blocks, block) if blocks > 1 else 0)


@cuda.jit(device=True)
def load(x, tile, op):
    """Copy the block's part of `x` to `tile`, and combine the thread's own elements of it."""
    # load and combine in registers
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    start = cuda.blockIdx.x * threads * PER_THREAD
    if start + threads * PER_THREAD <= x.size:
        # without a test for each element the loads are under way together
        for r in range(PER_THREAD):
            tile[pad(r * threads + thread)] = x[start + r * threads + thread]
    else:
        for r in range(PER_THREAD):
            i = start + r * threads + thread
            tile[pad(r * threads + thread)] = x[i] if i < x.size else identity(op)
    cuda.syncthreads()

    # the lowest levels of the tree, in a register
    first = thread * PER_THREAD
    total = tile[pad(first)]
    for r in range(1, PER_THREAD):
        total = combine(total, tile[pad(first + r)], op)
    return total


@cuda.jit(device=True)
def up_sweep(sums, op):
    """Combine neighbours, then neighbours among the results; the last word becomes the total."""
    # up-sweep
    threads = cuda.blockDim.x
    reach = 1
    while reach < threads:
        cuda.syncthreads()
        right = 2 * reach * (cuda.threadIdx.x + 1) - 1
        if right < threads:
            sums[pad(right)] = combine(sums[pad(right - reach)], sums[pad(right)], op)
        reach *= 2


@cuda.jit(device=True)
def down_sweep(sums, before, op):
    """Turn the tree of `up_sweep` into what lies to the left of each word, `before` included."""
    # down-sweep
    threads = cuda.blockDim.x
    if cuda.threadIdx.x == 0:  # which has written the total
        sums[pad(threads - 1)] = before
    reach = threads // 2
    while reach > 0:
        cuda.syncthreads()
        right = 2 * reach * (cuda.threadIdx.x + 1) - 1
        if right < threads:
            # left of the left child lies what lies left of the parent; left of the right child
            # lies the left child, too
            parent, left_sum = sums[pad(right)], sums[pad(right - reach)]
            sums[pad(right - reach)] = parent
            sums[pad(right)] = combine(parent, left_sum, op)
        reach //= 2
    cuda.syncthreads()


@cuda.jit
def reduce_blocks(x, totals, op) -> None:
    """Write what each block's elements of `x` combine to, to `totals`."""
    # load and combine in registers
    tile = cuda.shared.array(PADDED_ELEMENTS, np.uint32)
    sums = cuda.shared.array(PADDED_BLOCK, np.uint32)
    sums[pad(cuda.threadIdx.x)] = load(x, tile, op)
    # up-sweep
    up_sweep(sums, op)
    if cuda.threadIdx.x == 0:
        totals[cuda.blockIdx.x] = sums[pad(cuda.blockDim.x - 1)]


@cuda.jit
def scan_blocks(x, offsets, out, op) -> None:
    """
    Write the exclusive scan of `x` to `out`.

    offsets[b] is what lies before block b; a single block has nothing before it.
    """
    # load and combine in registers
    tile = cuda.shared.array(PADDED_ELEMENTS, np.uint32)
    sums = cuda.shared.array(PADDED_BLOCK, np.uint32)
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    sums[pad(thread)] = load(x, tile, op)
    # up-sweep
    up_sweep(sums, op)
    # down-sweep
    # the offset takes the identity's place at the root, and no pass has to add it afterwards
    before = offsets[cuda.blockIdx.x] if cuda.gridDim.x > 1 else identity(op)
    down_sweep(sums, before, op)

    # scan from each leaf
    first = thread * PER_THREAD
    running, element = sums[pad(thread)], tile[pad(first)]
    tile[pad(first)] = running
    for r in range(1, PER_THREAD):
        running = combine(running, element, op)
        element = tile[pad(first + r)]
        tile[pad(first + r)] = running
    cuda.syncthreads()

    start = cuda.blockIdx.x * threads * PER_THREAD
    for r in range(PER_THREAD):
        i = start + r * threads + thread
        if i < x.size:
            out[i] = tile[pad(r * threads + thread)]


def blelloch_scan(
    x: Array,
    op: str = "add",
    out: Array | None = None,
    scratch: Array | None = None,
    block: int = BLOCK,
) -> Array:
    """
    Exclusive scan of a 1-D uint32 array, in the memory where it is.

    It goes into `out` if that is given, which must not overlap `x`, and into a new array
    otherwise; with `out` and `scratch` given nothing is allocated.

    Args:
        x: The words; there may be none.
        op: How two of them combine: a key of OPS.
        out: As long as `x`.
        scratch: At least scratch_size(x.size, block) words, for sums of blocks.
        block: Threads of a block.

    Raises:
        ValueError: `x` is not 1-D or not uint32, `op` is unknown, `out` has another shape or dtype
            than `x`, `scratch` is too small, or `block` is not a power of two up to BLOCK.
    """
    # check
    if x.ndim != 1:
        raise ValueError(f"x: expected a 1-D array, found {x.ndim}-D")
    if x.dtype != np.uint32:
        raise ValueError(f"x: expected uint32, found {x.dtype}")
    if op not in OPS:
        raise ValueError(f"op: expected {' or '.join(OPS)}, found {op!r}")
    if not 1 <= block <= BLOCK or block & (block - 1):
        raise ValueError(f"block: expected a power of two from 1 to {BLOCK}, found {block}")
    out = empty(x.size, like=x) if out is None else out
    if out.shape != x.shape:
        raise ValueError(f"out: expected the shape of x, {x.shape}, found {out.shape}")
    if out.dtype != x.dtype:
        raise ValueError(f"out: expected the dtype of x, {x.dtype}, found {out.dtype}")
    least = scratch_size(x.size, block)
    scratch = empty(least, like=x) if scratch is None else scratch
    if scratch.size < least:
        raise ValueError(f"scratch: expected at least {least} words, found {scratch.size}")

    # launch level by level
    _scan(x, out, scratch, OPS[op], block)
    return out


def _scan(x: Array, out: Array, scratch: Array, op: int, block: int) -> None:
    """Scan the blocks' totals first, if there are several blocks; then each block from there."""
    # launch level by level
    blocks = blocks_for(x.size, block)
    totals, offsets = scratch[:blocks], scratch[blocks : 2 * blocks]
    if blocks > 1:
        reduce_blocks[blocks, block](x, totals, op)
        _scan(totals, offsets, scratch[2 * blocks :], op, block)
    scan_blocks[blocks, block](x, offsets, out, op)
