"""What is right: integers by NumPy's rules, scaled in float64; codes and scales to feed."""

import torch

from harness.hardware import Cost

SHIFTS = torch.tensor([0, 8, 16, 24, 4, 12, 20, 28])  # of the codes in a word
STRUCTURED = ("packed", "s", "a")  # s and a keep within a byte what is made of the codes


def make_inputs(*, m, n, k, dtype, device, seed, group=64, extreme=0):
    """
    Any code in any place, s of 1 to 16, and a such that all fifteen steps fit.

    Args:
        m: Rows of activations.
        n: Rows of weights.
        k: Columns of both.
        dtype: Of the activations.
        device: Where the tensors are.
        seed: Of the draw.
        group: Columns that share s and a.
        extreme: 1 has every product be of the largest magnitude, and of one sign.
    """
    generator = torch.Generator().manual_seed(seed)

    def integers(low, high, *shape):
        return torch.randint(low, high + 1, shape, generator=generator)

    codes, xq = integers(0, 15, n, k), integers(-128, 127, m, k)
    s = integers(1, 16, n, k // group)
    # 15 s + a is 255 at most
    a = 9 + (torch.rand(s.shape, generator=generator) * (246.999 - 15 * s)).long()
    if extreme:
        filled = {15: codes, -128: xq, 16: s, 9: a}
        codes, xq, s, a = (torch.full_like(x, value) for value, x in filled.items())
        codes.zero_()
    words = (codes.view(n, k // 8, 8) << SHIFTS).sum(dim=2)
    words = torch.where(words < 2**31, words, words - 2**32)
    return {
        "xq": xq.to(dtype).to(device),
        "x_scale": (0.5 + torch.rand(m, generator=generator)).div(100).to(device),
        "packed": words.to(torch.int32).to(device),
        "s": s.to(torch.uint8).to(device),
        "a": a.to(torch.uint8).to(device),
        "channel_scale": (0.5 + torch.rand(n, generator=generator)).div(1000).to(device),
    }


def weights(packed, s, a):
    """int8 as integers, [n, k] int64."""
    codes = (packed.long()[:, :, None] >> SHIFTS.to(packed.device) & 15).flatten(1)
    group = codes.shape[1] // s.shape[1]
    each = [x.long().repeat_interleave(group, dim=1) for x in (s, a)]
    return codes * each[0] + each[1] - 128


def reference(*, xq, x_scale, packed, s, a, channel_scale):
    # integers below 2**53 are exact in float64
    sums = xq.double() @ weights(packed, s, a).double().T
    return sums * x_scale.double()[:, None] * channel_scale.double()


def same_precision(*, xq, x_scale, packed, s, a, channel_scale):
    sums = xq.double() @ weights(packed, s, a).double().T
    return (sums.float() * x_scale[:, None] * channel_scale).half()


def cost(*, xq, x_scale, packed, s, a, channel_scale):
    """Everything read once, the result written once."""
    (m, k), n = xq.shape, len(packed)
    read = sum(x.nbytes for x in (xq, x_scale, packed, s, a, channel_scale))
    return Cost(flops=2 * m * n * k, bytes=read + 2 * m * n)


def bf16_matmul(*, xq, x_scale, packed, s, a, channel_scale):
    """What it replaces: as many weights in bfloat16. Their values play no part in its time."""
    return torch.matmul(*_bf16(xq.shape, len(packed), xq.device))


_kept: dict[tuple, tuple[torch.Tensor, torch.Tensor]] = {}


def _bf16(shape, n, device):
    key = (shape, n, device)
    if key not in _kept:
        _kept.clear()
        x = torch.ones(shape, dtype=torch.bfloat16, device=device)
        _kept[key] = (x, torch.ones(n, shape[1], dtype=torch.bfloat16, device=device).T)
    return _kept[key]
