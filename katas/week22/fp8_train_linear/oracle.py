"""What is right: products in float64, of the numbers before they were quantized or after."""

import torch
import torch.nn.functional as F

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
ROWS, BLOCKS = (1, BLOCK), (BLOCK, BLOCK)


def make_inputs(*, tokens, n, k, dtype, device, seed, decades=0.0):
    """
    N(0, 1) activations and weights.

    Args:
        tokens: Rows of x.
        n: Rows of w.
        k: Columns of both.
        dtype: Of both.
        device: Where they are.
        seed: Of the draw.
        decades: Tokens and channels of x, and blocks of w, are multiplied by 10 to the power of a
            number between minus and plus this, drawn for each.
    """
    generator = torch.Generator().manual_seed(seed)

    def sizes(*shape):
        return 10 ** (decades * (2 * torch.rand(*shape, generator=generator) - 1))

    x = torch.randn(tokens, k, generator=generator) * sizes(tokens, 1) * sizes(1, k)
    w = torch.randn(n, k, generator=generator) * spread(
        sizes(n // BLOCK, k // BLOCK), (n, k), BLOCKS
    )
    return {"x": x.to(dtype).to(device), "w": w.to(dtype).to(device)}


def make_inputs_fp8_gemm_nt(*, m, n, k, dtype, device, seed, by_row=0, decades=0.0):
    """N(0, 1) in e4m3; b with a scale for each row (`by_row`) or each block of 128 rows."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows, block):
        x = torch.randn(rows, k, generator=generator)
        sizes = torch.rand(-(-rows // block[0]), k // BLOCK, generator=generator)
        x *= spread(10 ** (decades * (2 * sizes - 1)), (rows, k), block)
        numbers, scales = quantised(x, E4M3, block)
        return numbers.to(torch.float8_e4m3fn).to(device), scales.contiguous().to(device)

    a, a_scale = draw(m, ROWS)
    b, b_scale = draw(n, ROWS if by_row else BLOCKS)
    return {"a": a, "a_scale": a_scale, "b": b, "b_scale": b_scale, "out_dtype": dtype}


def product(a, a_scale, b, b_scale, block):
    """a @ b.T in parts of 128, scaled and added up in float32."""
    columns = spread(b_scale, (len(b), b_scale.shape[1]), (block[0], 1))
    parts = block_products(a, b.T, every=BLOCK, bits=sum_bits(a.device))
    return (parts * a_scale.T[:, :, None] * columns.T[:, None, :]).sum(0)


def quantised_product(a, b, block):
    """A Yardstick of a @ b.T, a quantized along its rows and b by blocks; zeros fill the end."""
    a, b = (F.pad(x, (0, -x.shape[1] % BLOCK)) for x in (a, b))
    value = product(*quantised(a, E4M3, ROWS), *quantised(b, E4M3, block), block)
    return Yardstick(value.to(a.dtype), a.double().abs() @ b.double().abs().T)


def reference(*, x, w):
    return x.double() @ w.double().T


def same_precision(*, x, w):
    return quantised_product(x, w, BLOCKS)


def gradients(x, w, dy):
    """For dx and for dw: the truth in float64, and a Yardstick."""
    return {
        "dx": (dy.double() @ w.double(), quantised_product(dy, w.T, BLOCKS)),
        "dw": (dy.double().T @ x.double(), quantised_product(dy.T, x.T, ROWS)),
    }


def _block(b, b_scale):
    return ROWS if len(b_scale) == len(b) else BLOCKS


def reference_fp8_gemm_nt(*, a, a_scale, b, b_scale, out_dtype):
    return dequantised(a, a_scale, ROWS) @ dequantised(b, b_scale, _block(b, b_scale)).T


def same_precision_fp8_gemm_nt(*, a, a_scale, b, b_scale, out_dtype):
    block = _block(b, b_scale)
    value = product(a, a_scale, b, b_scale, block).to(out_dtype)
    size = dequantised(a, a_scale, ROWS).abs() @ dequantised(b, b_scale, block).abs().T
    return Yardstick(value, size)


def cost(*, x, w):
    """Each number read once, the result written once."""
    (tokens, k), n = x.shape, len(w)
    return Cost(flops=2 * tokens * n * k, bytes=x.nbytes + w.nbytes + tokens * n * x.element_size())


def cost_fp8_gemm_nt(*, a, a_scale, b, b_scale, out_dtype):
    """Each number and scale read once, the result written once."""
    (m, k), n = a.shape, len(b)
    read = a.nbytes + b.nbytes + a_scale.nbytes + b_scale.nbytes
    return Cost(flops=2 * m * n * k, bytes=read + m * n * out_dtype.itemsize)


def bf16_matmul(*, a, a_scale, b, b_scale, out_dtype):
    """What it replaces. Its values play no part in its time."""
    return torch.matmul(*_bf16(a.shape, len(b), a.device))


_kept: dict[tuple, tuple[torch.Tensor, torch.Tensor]] = {}


def _bf16(shape, n, device):
    key = (shape, n, device)
    if key not in _kept:
        _kept.clear()
        x = torch.randn(shape, dtype=torch.bfloat16, device=device)
        _kept[key] = (x, torch.randn(n, shape[1], dtype=torch.bfloat16, device=device).T)
    return _kept[key]
