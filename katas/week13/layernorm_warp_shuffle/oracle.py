"""What is right, what to feed and what it costs: the formula in float64; three kernels, to beat."""

import math

import numpy as np
from numba import cuda

from harness.arrays import empty
from harness.hardware import Cost

# long arrays repeat random values with a prime period
PERIOD = 1_000_003


def make_inputs(*, rows, cols, dtype, device, seed, block=None, into=False):
    """Normal values; every row has a mean and a spread of its own."""
    generator = np.random.default_rng(seed)
    x = np.resize(generator.standard_normal(min(rows * cols, PERIOD)), (rows, cols)).astype(dtype)
    x *= generator.uniform(0.5, 2, (rows, 1)).astype(dtype)
    x += generator.uniform(-2, 2, (rows, 1)).astype(dtype)
    inputs = {
        "x": x,
        "gamma": generator.uniform(0.5, 1.5, cols).astype(dtype),
        "beta": generator.uniform(-1, 1, cols).astype(dtype),
        "eps": 1e-5,
    }
    if block is not None:
        inputs["block"] = block
    if into:
        inputs |= {"y": np.zeros_like(x), "mean": np.zeros(rows, dtype)}
        inputs["rstd"] = np.zeros(rows, dtype)
    return inputs


def reference(*, x, gamma, beta, eps, y=None, mean=None, rstd=None, block=None):
    x, gamma, beta = (one.astype(np.float64) for one in (x, gamma, beta))
    mean = np.mean(x, axis=1)
    rstd = 1 / np.sqrt(np.var(x, axis=1) + eps)
    return (x - mean[:, None]) * rstd[:, None] * gamma + beta, mean, rstd


def same_precision(*, x, gamma, beta, eps, y=None, mean=None, rstd=None, block=None):
    """Welford's update, element after element, in float32."""
    mean, m2 = np.zeros(len(x), x.dtype), np.zeros(len(x), x.dtype)
    for at, column in enumerate(x.T, start=1):
        apart = column - mean
        mean += apart / np.float32(at)
        m2 += apart * (column - mean)
    rstd = np.float32(1) / np.sqrt(m2 / np.float32(x.shape[1]) + np.float32(eps))
    return (x - mean[:, None]) * rstd[:, None] * gamma + beta, mean, rstd


def cost(*, x, gamma, beta, eps, y=None, mean=None, rstd=None, block=None):
    """About eight operations an element; x read, y written, the rest once."""
    rows, cols = x.shape
    return Cost(flops=8 * x.size, bytes=2 * x.nbytes + 8 * cols + 8 * rows)


# ---- the naive version, to beat: three kernels, each of which reads x ----------------------------


@cuda.jit(device=True)
def _sum_of(value, room):
    thread, half = cuda.threadIdx.x, cuda.blockDim.x // 2
    room[thread] = value
    cuda.syncthreads()
    while half > 0:
        if thread < half:
            room[thread] += room[thread + half]
        cuda.syncthreads()
        half //= 2
    return room[0]


@cuda.jit
def _means(x, mean) -> None:
    room = cuda.shared.array(256, np.float32)
    row, total = cuda.blockIdx.x, np.float32(0)
    for col in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        total += x[row, col]
    total = _sum_of(total, room)
    if cuda.threadIdx.x == 0:
        mean[row] = total / np.float32(x.shape[1])


@cuda.jit
def _rstds(x, mean, eps, rstd) -> None:
    room = cuda.shared.array(256, np.float32)
    row, total = cuda.blockIdx.x, np.float32(0)
    for col in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        apart = x[row, col] - mean[row]
        total += apart * apart
    total = _sum_of(total, room)
    if cuda.threadIdx.x == 0:
        variance = total / np.float32(x.shape[1])
        rstd[row] = np.float32(1) / np.float32(math.sqrt(variance + eps))


@cuda.jit
def _normalized(x, gamma, beta, mean, rstd, y) -> None:
    row = cuda.blockIdx.x
    for col in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
        y[row, col] = (x[row, col] - mean[row]) * rstd[row] * gamma[col] + beta[col]


def three_kernels(*, x, gamma, beta, eps, y=None, mean=None, rstd=None, block=None):
    rows = len(x)
    y = empty(x.shape, like=x) if y is None else y
    mean = empty(rows, like=x) if mean is None else mean
    rstd = empty(rows, like=x) if rstd is None else rstd
    _means[rows, 256](x, mean)
    _rstds[rows, 256](x, mean, np.float32(eps), rstd)
    _normalized[rows, 256](x, gamma, beta, mean, rstd, y)
    return y, mean, rstd
