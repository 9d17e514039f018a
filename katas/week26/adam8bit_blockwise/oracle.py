"""What is right: AdamW in float64, and a search through all levels for the nearest."""

from functools import cache

import torch

from harness.hardware import Cost

STRUCTURED = ("m_map", "v_map")


def levels(signed):
    """The dynamic map in float64, decade by decade."""
    found = [0.0, 1.0]
    for low, parts in zip(range(-7, 0), (1, 2, 4, 8, 16, 32, 64), strict=True):
        parts = parts if signed else 2 * parts
        for j in range(parts):
            level = 10.0**low * (1 + 9 * (2 * j + 1) / (2 * parts))
            found += [level, -level] if signed else [level]
    return torch.tensor(sorted(found), dtype=torch.float64)


def make_inputs(*, n, dtype, device, seed, kind="normal", **numbers):
    """
    Weights N(0, 1), gradients around 0.1, and states as some steps leave them.

    Of the kind "first" states are zeros, of the kind "tiny" gradients are around 1e-12 besides.
    Of the kind "mixed" gradients range over four decades,
    and every third block has neither gradients nor states.
    """
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-n // 256)
    p = torch.randn(n, generator=generator)
    g = 0.1 * torch.randn(n, generator=generator)
    m_code, v_code = (
        torch.randint(low, 256, (n,), generator=generator, dtype=torch.uint8) for low in (0, 60)
    )
    m_abs, v_abs = 0.1 * torch.rand(2, blocks, generator=generator) + 0.01
    if kind == "tiny":
        g *= 1e-11
    if kind in ("first", "tiny"):
        m_code.fill_(127)
        v_code.fill_(0)
        m_abs, v_abs = torch.zeros(2, blocks)
    if kind == "mixed":
        g *= 10 ** (-4 * torch.rand(n, generator=generator))
        for start in range(0, n, 3 * 256):
            g[start : start + 256], m_code[start : start + 256] = 0, 127
            v_code[start : start + 256] = 0
        m_abs[::3] = v_abs[::3] = 0
    tensors = {
        "p": p.to(dtype), "g": g.to(dtype), "m_code": m_code, "v_code": v_code,
        "m_abs": m_abs, "v_abs": v_abs,
        "m_map": levels(signed=True).float(), "v_map": levels(signed=False).float(),
    }  # fmt: skip
    given = {name: one.to(device) for name, one in tensors.items()}
    return given | {"step": 3, "lr": 0.01} | numbers


def _moments(g, m_code, v_code, m_abs, v_abs, m_map, v_map, b1, b2):
    m_abs, v_abs = (one.repeat_interleave(256)[: len(g)] for one in (m_abs, v_abs))
    m = b1 * m_map[m_code.int()] * m_abs + (1 - b1) * g
    return m, b2 * v_map[v_code.int()] * v_abs + (1 - b2) * g * g


def _step(p, g, m_code, v_code, m_abs, v_abs, m_map, v_map,
          step, lr, b1=0.9, b2=0.999, eps=1e-8, wd=0.01, debug=False):  # fmt: skip
    m, v = _moments(g, m_code, v_code, m_abs, v_abs, m_map, v_map, b1, b2)
    update = m / (1 - b1**step) / ((v / (1 - b2**step)).sqrt() + eps)
    return p * (1 - lr * wd) - lr * update


def reference(*, p, g, m_abs, v_abs, m_map, v_map, **rest):
    wide = {"g": g, "m_abs": m_abs, "v_abs": v_abs, "m_map": m_map, "v_map": v_map}
    return _step(p.double(), **{name: one.double() for name, one in wide.items()}, **rest)


def same_precision(*, p, g, **rest):
    return _step(p.float(), g.float(), **rest).to(p.dtype)


def new_states(*, g, m_code, v_code, m_abs, v_abs, b1=0.9, b2=0.999, **_):
    """(m_code, v_code, m_abs, v_abs) after the step, by a search through all levels."""
    maps = levels(signed=True), levels(signed=False)
    wide = (one.double().cpu() for one in (m_abs, v_abs))
    codes = m_code.cpu(), v_code.cpu()
    moments = _moments(g.double().cpu(), *codes, *wide, *maps, b1, b2)
    found = [nearest(one, table) for one, table in zip(moments, maps, strict=True)]
    return *(codes for codes, _ in found), *(scales for _, scales in found)


def nearest(x, table):
    """Codes and largest magnitudes of the blocks of `x`."""
    codes, scales = [], []
    for block in x.split(256):
        scales.append(block.abs().max())
        part = block / scales[-1] if scales[-1] else block
        codes.append((part[:, None] - table).abs().argmin(1))
    if not codes:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.float64)
    return torch.cat(codes), torch.stack(scales)


def nearest_code(x, signed):
    """The code of a moment, given as a share of the block's largest."""
    x = torch.as_tensor(x, dtype=torch.float64)
    found = (x[..., None] - levels(signed)).abs().argmin(-1)
    return found if x.ndim else int(found)


def cost(*, p, m_abs, **_):
    """Weight, gradient and two codes in; weight and two codes out; two scales of a block each."""
    n = p.numel()
    return Cost(flops=15 * n, bytes=(3 * p.element_size() + 4) * n + 16 * m_abs.numel())


@cache
def _fused(n, device):
    """AdamW with float32 weights and moments: 28 bytes a weight and step."""
    weight = torch.zeros(n, device=device, requires_grad=True)
    return torch.optim.AdamW([weight], lr=0.01, fused=True)


def fused_float32(*, p, g, **_):
    """PyTorch's fused AdamW on float32 weights and moments, as many of them."""
    optimizer = _fused(p.numel(), p.device)
    (weight,) = optimizer.param_groups[0]["params"]
    if weight.grad is None:
        weight.grad = g.float()
    optimizer.step()
    return p
