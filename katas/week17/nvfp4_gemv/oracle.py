"""What is right: weights decoded by the table, their product in float64, and codes to feed."""

import torch

from harness.hardware import Cost
from harness.judge import Yardstick
from harness.simulators.block_scaled import E2M1_VALUES, dequantised

GROUP = 16


def make_inputs(*, n, k, dtype, device, seed):
    """Codes of all 16 kinds, scales from 1/8 to 8 but a few at their limits, x of N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(256, (n, k // 2), generator=generator, dtype=torch.uint8)
    scales = torch.exp2(6 * torch.rand(n, k // GROUP, generator=generator) - 3)
    rare = torch.rand(n, k // GROUP, generator=generator)
    scales[rare < 0.03] = 448.0
    scales[rare > 0.97] = 2.0**-9
    x = torch.randn(k, generator=generator)
    return {
        "packed": packed.to(device),
        "scales": scales.to(torch.float8_e4m3fn).to(device),
        "global_scale": torch.tensor(0.0371).to(device),
        "x": x.to(dtype).to(device),
    }


def decoded(packed, scales, global_scale):
    """What the weights stand for, [n, k] float64."""
    values = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], dtype=torch.float64)
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    values = values.to(packed.device)[codes.int()]
    return dequantised(values, scales.float(), (1, GROUP)) * global_scale.double()


def reference(*, packed, scales, global_scale, x):
    return decoded(packed, scales, global_scale) @ x.double()


def same_precision(*, packed, scales, global_scale, x):
    """Float32 products and sums; errors count in the size of what a row adds up."""
    w = decoded(packed, scales, global_scale)
    return Yardstick(w.float() @ x.float(), w.abs() @ x.double().abs())


def cost(*, packed, scales, global_scale, x):
    """Codes, scales and the vector read once, the result written once."""
    n, k = len(packed), len(x)
    return Cost(flops=2 * n * k, bytes=packed.nbytes + scales.nbytes + 4 + x.nbytes + 4 * n)


def half_mv(*, packed, scales, global_scale, x):
    """What it replaces: as many weights in float16. Its values play no part in its time."""
    return torch.mv(_half(len(packed), len(x), x.device), x)


_kept: dict[tuple, torch.Tensor] = {}


def _half(n, k, device):
    if (n, k, device) not in _kept:
        _kept.clear()
        _kept[n, k, device] = torch.ones(n, k, dtype=torch.float16, device=device)
    return _kept[n, k, device]
