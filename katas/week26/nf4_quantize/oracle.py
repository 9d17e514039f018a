"""What is right: the published levels and a search through all of them, in float64."""

from statistics import NormalDist

import torch

SCALES = (16.0, 1 / 128)
# QLoRA, appendix E
PUBLISHED = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def _levels():
    """The same, by the inverse of Python's own normal distribution."""
    outermost = 0.5 - (1 / 30 + 1 / 32) / 2  # beyond one half
    at = [-i / 7 for i in range(7, 0, -1)] + [i / 8 for i in range(9)]
    quantiles = [NormalDist().inv_cdf(0.5 + outermost * one) for one in at]
    return torch.tensor(quantiles, dtype=torch.float64) / quantiles[-1]


LEVELS = _levels()


def make_inputs(*, shape, dtype, device, seed, block=64, kind="normal", transposed=False):
    """
    Weights N(0, 0.02²) that keep their distance from the middle between two levels.

    So whether a weight is divided by the scale, or multiplied by its reciprocal, no code depends
    on it. Of the kind "mixed" every fourth block is of zeros, every fourth has an outlier below
    zero, every fourth is huge and every fourth subnormal.
    """
    generator = torch.Generator().manual_seed(seed)
    n = 1
    for size in shape:
        n *= size
    flat = torch.randn(-(-n // block) * block, generator=generator).mul(0.02).view(-1, block)
    if kind == "mixed":
        flat[0::4] = 0
        flat[1::4, 1] = -7.5
        flat[2::4] /= flat[2::4].abs().amax(1, keepdim=True)
        flat[2::4] *= 0.9 * torch.finfo(dtype).max
        flat[3::4] *= 2e-39 if dtype != torch.float16 else 2e-5
    flat = flat.flatten()[:n].to(dtype)
    w = torch.stack([*_off_the_middle(flat, block)]) if n else flat
    w = w.view(tuple(shape)).to(device)
    if transposed and w.ndim > 1:
        w = w.mT.contiguous().mT
    return {"w": w, "block": block}


def _off_the_middle(flat, block):
    """The same weights, those near the middle between two levels moved to one of them."""
    middles = (LEVELS[1:] + LEVELS[:-1]) / 2
    for start in range(0, len(flat), block):
        part = flat[start : start + block]
        largest = part.double().abs().max()
        if largest == 0:
            yield from part
            continue
        scaled = part.double() / largest
        near = (scaled[:, None] - middles).abs().amin(1) < 4e-3
        moved = LEVELS[(scaled[:, None] - LEVELS).abs().argmin(1)] * largest
        yield from torch.where(near, moved.to(flat.dtype), part)


def reference(*, w, block=64):
    flat = w.detach().double().flatten().cpu()
    codes, absmax = [], []
    for part in flat.split(block) if len(flat) else ():
        absmax.append(part.abs().max())
        scaled = part / absmax[-1] if absmax[-1] else part
        codes += (scaled[:, None] - LEVELS).abs().argmin(1).tolist()
    codes += [7] * (len(codes) % 2)
    packed = [16 * first + second for first, second in zip(codes[::2], codes[1::2], strict=True)]
    return (
        torch.tensor(packed, dtype=torch.uint8),
        torch.stack(absmax) if absmax else torch.zeros(0, dtype=torch.float64),
    )


def make_inputs_nf4_dequantize(*, shape, dtype, device, seed, block=64):
    """Every byte there is, in any order, and scales of which one is 0."""
    generator = torch.Generator().manual_seed(seed)
    n = 1
    for size in shape:
        n *= size
    absmax = torch.rand(-(-n // block), generator=generator)
    absmax[1:2] = 0
    packed = torch.randperm(-(-n // 2), generator=generator) % 256
    tensors = {"packed": packed.to(torch.uint8).to(device), "absmax": absmax.to(device)}
    return tensors | {"shape": tuple(shape), "dtype": dtype, "block": block}


def reference_nf4_dequantize(*, packed, absmax, shape, dtype, block=64):
    codes = [code for byte in packed.tolist() for code in (byte // 16, byte % 16)]
    n = torch.Size(shape).numel()
    values = [LEVELS[codes[i]] * absmax[i // block].double().cpu() for i in range(n)]
    flat = torch.stack(values) if values else torch.zeros(0, dtype=torch.float64)
    return flat.view(shape)


def decade_by_decade(signed):
    """The dynamic map as a sorted list of doubles."""
    levels = [0.0, 1.0]
    for low, parts in zip(range(-7, 0), (1, 2, 4, 8, 16, 32, 64), strict=True):
        parts = parts if signed else 2 * parts
        for j in range(parts):
            level = 10.0**low * (1 + 9 * (2 * j + 1) / (2 * parts))
            levels += [level, -level] if signed else [level]
    return sorted(levels)


def relative_error(w, found):
    """Root mean square error, as a share of the root mean square."""
    return ((found.double() - w.double()).square().mean() / w.double().square().mean()).sqrt()


def int4(w, block=64):
    """What 15 equally spaced levels leave of each block."""
    blocks = w.double().view(-1, block)
    step = blocks.abs().amax(1, keepdim=True) / 7
    return ((blocks / step).round() * step).view(w.shape)
