"""What is right, in float64 and without the reference's arithmetic."""

import torch

from harness.simulators.block_scaled import E2M1, E2M1_VALUES, E4M3, block_amax, dequantised

BLOCK = 16
TINY = torch.finfo(torch.float32).tiny


def unpacked(packed):
    """Numbers of E2M1, [m, k] float64."""
    values = torch.tensor([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], dtype=torch.float64)
    codes = torch.stack([packed & 15, packed >> 4], dim=2).flatten(1).long()
    return values.to(packed.device)[codes]


def scales_of(x, block):
    """Scales of the blocks before they are rounded to e4m3, and that of the tensor."""
    most = block_amax(x.double(), block)
    of_tensor = (most.max() / (6 * 448)).clamp_min(TINY)
    return (most / 6 / of_tensor).clamp(2.0**-9, 448.0), of_tensor


def quantised_nearest(x):
    """What `x` stands for in blocks of 1 x 16, rounded to nearest, in float64."""
    scales, of_tensor = scales_of(x, (1, BLOCK))
    scales = E4M3.round(scales) * of_tensor
    each = scales.repeat_interleave(BLOCK, dim=1)
    return dequantised(E2M1.round(x.double() / each), scales, (1, BLOCK))


def matrix(signs):
    """What a block of 16 is multiplied by, from the right, element by element."""
    h = [[(-1) ** (i & j).bit_count() / 4 for i in range(BLOCK)] for j in range(BLOCK)]
    return signs.double()[:, None] * torch.tensor(h, dtype=torch.float64, device=signs.device)


def transformed(x, signs):
    return (x.double().unflatten(1, (-1, BLOCK)) @ matrix(signs)).flatten(1)


def random_signs(seed, device):
    draw = torch.Generator().manual_seed(seed)
    return (2.0 * torch.randint(2, (BLOCK,), generator=draw) - 1).to(device)
