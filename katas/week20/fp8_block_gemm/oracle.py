"""What is right: a float64 product of what numbers and scales stand for."""

import torch

from harness.hardware import Cost
from harness.judge import Yardstick
from harness.simulators.block_scaled import (
    E4M3,
    block_products,
    dequantised,
    quantised,
    spread,
    sum_bits,
)

BLOCK = 128


def make_inputs(*, m, n, k, dtype, device, seed, decades=0.0, zeros=0):
    """
    N(0, 1) in e4m3, each block scaled to 448.

    Args:
        m: Rows of activations.
        n: Rows of weights.
        k: Columns of both.
        dtype: Of the result.
        device: Where the tensors are.
        seed: Of the draw.
        decades: Blocks are first multiplied by 10 to the power of a number between minus and plus
            this, drawn for each.
        zeros: How many rows of blocks begin with a block of zeros, in both.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(rows, block):
        x = torch.randn(rows, k, generator=generator)
        sizes = torch.rand(-(-rows // block[0]), k // BLOCK, generator=generator)
        x *= spread(10 ** (decades * (2 * sizes - 1)), (rows, k), block)
        x[: zeros * block[0], : block[1]] = 0
        numbers, scales = quantised(x, E4M3, block)
        return numbers.to(torch.float8_e4m3fn).to(device), scales.contiguous().to(device)

    aq, a_scale = draw(m, (1, BLOCK))
    wq, w_scale = draw(n, (BLOCK, BLOCK))
    return {"aq": aq, "a_scale": a_scale, "wq": wq, "w_scale": w_scale, "out_dtype": dtype}


def _exact(aq, a_scale, wq, w_scale):
    return dequantised(aq, a_scale, (1, BLOCK)), dequantised(wq, w_scale, (BLOCK, BLOCK)).T


def reference(*, aq, a_scale, wq, w_scale, out_dtype):
    a, w = _exact(aq, a_scale, wq, w_scale)
    return a @ w


def same_precision(*, aq, a_scale, wq, w_scale, out_dtype):
    """Sums of 128 as the device's tensor cores make them, scaled and added up in float32."""
    a, w = _exact(aq, a_scale, wq, w_scale)
    columns = spread(w_scale, (len(wq), w_scale.shape[1]), (BLOCK, 1))
    parts = block_products(aq, wq.T, every=BLOCK, bits=sum_bits(aq.device))  # [k / 128, m, n]
    own = (parts * a_scale.T[:, :, None] * columns.T[:, None, :]).sum(0)
    return Yardstick(own.to(out_dtype), a.abs() @ w.abs())


def cost(*, aq, a_scale, wq, w_scale, out_dtype):
    """Each number and scale read once, the result written once."""
    (m, k), n = aq.shape, len(wq)
    read = aq.nbytes + wq.nbytes + a_scale.nbytes + w_scale.nbytes
    return Cost(flops=2 * m * n * k, bytes=read + m * n * out_dtype.itemsize)


def scaled_mm(*, aq, a_scale, wq, w_scale, out_dtype):
    """The library's product with one scale for each tensor. Their values play no part."""
    one = a_scale.flatten()[0]
    return torch._scaled_mm(
        aq, wq.T, scale_a=one, scale_b=one, out_dtype=out_dtype, use_fast_accum=True
    )
