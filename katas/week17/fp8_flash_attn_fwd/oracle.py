"""What is right: float64 attention of what the numbers and scales stand for."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.hardware import Cost
from harness.judge import Yardstick
from harness.simulators.block_scaled import E4M3, block_products, quantised, spread, sum_bits

BLOCK = 128


def make_inputs(*, b, h, s, d, dtype, device, seed, spread_of_scales=0.0, q_size=1.0):
    """
    N(0, 1) in e4m3, scaled to 448 by blocks.

    Values of block i are scaled by 10 to the power of a number between -`spread_of_scales` and
    `spread_of_scales`, drawn for each block; queries by `q_size`.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(size):
        x = torch.randn(b, h, s, d, generator=generator)
        blocks = torch.rand(b, h, -(-s // BLOCK), generator=generator)
        wide = (10 ** (size * (2 * blocks - 1))).repeat_interleave(BLOCK, dim=2)[:, :, :s]
        numbers, scales = quantised(x * wide[..., None], E4M3, (BLOCK, d))
        return numbers.to(torch.float8_e4m3fn).to(device), scales[..., 0].contiguous().to(device)

    (q8, q_scale), (k8, k_scale) = draw(0.0), draw(0.0)
    v8, v_scale = draw(spread_of_scales)
    return {
        "q8": q8, "k8": k8, "v8t": v8.mT.contiguous(),
        "q_scale": q_size * q_scale, "k_scale": k_scale, "v_scale": v_scale, "sm_scale": d**-0.5,
    }  # fmt: skip


def reference(*, q8, k8, v8t, q_scale, k_scale, v_scale, sm_scale):
    """One head after another, since all scores at once may not fit."""
    q, k, v = _exact(q8, q_scale), _exact(k8, k_scale), _exact(v8t.mT, v_scale)
    return _by_head(lambda i: _weights(q[i], k[i], sm_scale) @ v[i], q8)


def same_precision(*, q8, k8, v8t, q_scale, k_scale, v_scale, sm_scale):
    """Weights cast as e4m3 of 256 p, p as of the largest score so far, in tiles of 64 keys."""
    q, k, v = _exact(q8, q_scale), _exact(k8, k_scale), _exact(v8t.mT, v_scale)
    v8 = v8t.mT.flatten(0, 1)
    scales = spread(v_scale.flatten(0, 1)[..., None], (v8.shape[1], 1), (BLOCK, 1))
    bits = sum_bits(q8.device)

    def attend(i):
        scores = q[i] @ k[i].T * sm_scale
        tops = torch.stack([part.amax(dim=1) for part in scores.split(64, dim=1)], dim=1)
        tops = tops.cummax(dim=1).values  # [s, tiles]
        acc = torch.zeros_like(q[i])
        for at, part in enumerate(scores.split(64, dim=1)):
            top, keys = tops[:, at : at + 1], slice(64 * at, 64 * at + 64)
            p8 = E4M3.round(256 * torch.exp(part - top)).float()
            products = block_products(p8, v8[i, keys], every=64, bits=bits)[0].double()
            acc += products * scales[i, 64 * at].double() * torch.exp(top - tops[:, -1:])
        return acc / 256 / torch.exp(scores - tops[:, -1:]).sum(dim=1, keepdim=True)

    size = _by_head(lambda i: _weights(q[i], k[i], sm_scale) @ v[i].abs(), q8)
    return Yardstick(_by_head(attend, q8).half(), size)


def _exact(numbers, scales):
    """[heads, s, d] in float64."""
    wide = scales.double().flatten(0, 1).repeat_interleave(BLOCK, dim=1)
    return numbers.double().flatten(0, 1) * wide[:, : numbers.shape[2], None]


def _weights(q, k, sm_scale):
    return torch.softmax(q @ k.T * sm_scale, dim=1)


def _by_head(attend, q8):
    b, h, s, d = q8.shape
    if not q8.numel():
        return torch.zeros(b, h, s, d, dtype=torch.float64, device=q8.device)
    return torch.stack([attend(i) for i in range(b * h)]).unflatten(0, (b, h))


def cost(*, q8, k8, v8t, q_scale, k_scale, v_scale, sm_scale):
    """Two products and one exponential for each score."""
    b, h, s, d = q8.shape
    scores = b * h * s * s
    return Cost(
        flops=4 * d * scores, bytes=3 * q8.numel() + 2 * q8.numel() + 12 * q_scale.numel(),
        special=scores,
    )  # fmt: skip


def flash_attention_2(*, q8, k8, v8t, q_scale, k_scale, v_scale, sm_scale):
    """FlashAttention-2 in float16, on as many numbers. Their values play no part in its time."""
    x = _half(tuple(q8.shape), q8.device)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(x, x, x, scale=sm_scale)


_kept: dict[tuple, torch.Tensor] = {}


def _half(shape, device):
    if (shape, device) not in _kept:
        _kept.clear()
        _kept[shape, device] = torch.randn(shape, device=device).half()
    return _kept[shape, device]
