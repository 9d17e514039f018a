"""What is right, what to feed and what it costs; swizzles bit by bit, and the banks of a tile."""

import numpy as np
from numba import cuda

from harness.hardware import Cost
from harness.simulators.simt.memory_model import wavefronts

# large matrices repeat random values with a prime period: an index that is off by a row, a tile
# or any other power of two lands on another value
PERIOD = 1_000_003


def make_inputs(*, rows, cols, device, seed, into=False):
    """A matrix; `into` adds an array for its transpose."""
    values = np.random.default_rng(seed).standard_normal(min(rows * cols, PERIOD), np.float32)
    inputs = {"x": np.resize(values, (rows, cols))}
    return inputs | {"out": np.zeros((cols, rows), np.float32)} if into else inputs


def reference(*, x, out=None):
    """Nothing is rounded: in the working precision already, this is the truth."""
    return x.T


def cost(*, x, out=None):
    return Cost(bytes=2 * x.nbytes)


@cuda.jit
def _naive_kernel(x, out):
    col, row = cuda.grid(2)
    if row < x.shape[0] and col < x.shape[1]:
        out[col, row] = x[row, col]


def naive(*, x, out):
    """One thread an element, no shared memory."""
    rows, cols = x.shape
    _naive_kernel[(-(-cols // 32), -(-rows // 8)), (32, 8)](x, out)
    return out


def swizzled(b, m, s, offset):
    """Bit after bit, of an int or of an array of them."""
    for bit in range(m, m + b):
        offset = offset ^ (offset >> (bit + s) & 1) << bit
    return offset


def conflict_free(b, m, s, elem_bytes, tile):
    """Every request of a warp, rows written and columns read, through the simulator's banks."""
    rows, cols = tile
    place = swizzled(b, m, s, np.arange(rows * cols)).reshape(tile) * elem_bytes
    for offsets, store in ((place, True), (place.T, False)):
        requests = np.ascontiguousarray(offsets).reshape(-1, 32)
        active = np.ones(requests.shape, dtype=bool)
        passes = wavefronts(requests, active, elem_bytes, store=store)
        if passes.max() > max(1, elem_bytes // 4):
            return False
    return True
