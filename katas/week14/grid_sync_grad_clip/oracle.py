"""What is right, what to feed and what it costs: the norm in float64; blocks placed one by one."""

import numpy as np

from harness.hardware import Cost

PERIOD = 1_000_003  # long arrays repeat random values with a prime period


def make_inputs(*, n, dtype, device, seed, share=0.5, blocks=None, block=None, into=False):
    """Gradients of all sizes, to be clipped to `share` of their norm; with `into`, every time."""
    generator = np.random.default_rng(seed)
    size = min(n, PERIOD)
    values = generator.standard_normal(size) * 10.0 ** generator.uniform(-3, 0, size)
    g = np.resize(values, n).astype(dtype)
    inputs = {"g": g, "max_norm": share * max(float(_norm(g)), 1e-3)}
    if blocks is not None:
        inputs["blocks"] = blocks
    if block is not None:
        inputs["block"] = block
    if into:
        # just below the 1e-6 that is added to the norm: what was clipped is clipped again, in many
        # calls by so little that it does not vanish
        inputs |= {"max_norm": 9.99e-7, "norm": np.zeros(1), "partials": np.zeros(1 << 14)}
    return inputs


def reference(*, g, max_norm, norm=None, partials=None, machine=None, blocks=None, block=None):
    with np.errstate(all="ignore"):
        norm = _norm(g)
        return g.astype(np.float64) * np.minimum(1.0, max_norm / (norm + 1e-6)), norm.reshape(1)


def cost(*, g, max_norm, norm=None, partials=None, machine=None, blocks=None, block=None):
    """Read for the norm, read and written to scale."""
    return Cost(flops=4 * g.size, bytes=3 * g.nbytes)


def _norm(g):
    return np.sqrt(np.sum(np.square(g, dtype=np.float64)))


def torch_clip(*, g, max_norm, norm=None, partials=None, machine=None, blocks=None, block=None):
    """The usual way: a norm, a coefficient, a product, in three kernels or more."""
    import torch

    device = "cuda" if hasattr(g, "__cuda_array_interface__") else "cpu"
    values = torch.as_tensor(g, device=device)
    norm = torch.linalg.vector_norm(values)
    values.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return values, norm


def coresident_blocks(threads, regs, smem, machine):
    """Place one block after the other, warp by warp, until one finds no room; on each SM."""
    free_registers = [machine.registers // machine.partitions] * machine.partitions
    free_warps, free_smem = machine.warps, machine.smem_bytes
    wanted = _portions(regs * 32, machine.register_unit)
    for block in range(machine.blocks):
        free_smem -= _portions(smem + machine.smem_reserved, machine.smem_unit)
        for _ in range(0, threads, 32):
            partition = max(range(machine.partitions), key=free_registers.__getitem__)
            free_registers[partition] -= wanted
            free_warps -= 1
        if min(*free_registers, free_warps, free_smem) < 0:
            return machine.sms * block
    return machine.sms * machine.blocks


def _portions(value, unit):
    """Hand out `unit` after `unit` until it is enough."""
    return sum(unit for _ in range(0, value, unit))
