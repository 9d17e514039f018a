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
    # TODO(kata): check, load and combine in registers, up-sweep, down-sweep, scan from each leaf,
    # launch level by level (about 95 lines with helpers)
    raise NotImplementedError
