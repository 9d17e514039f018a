"""What is right, what to feed and what it costs: the formula, one operator after another."""

import torch

from harness.hardware import Cost

# the levels of NF4: QLoRA, appendix E
LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def make_inputs(*, dtype, device, seed, blocks=0, shape=None):
    """`blocks` blocks of 64, or weights of `shape`: any bytes, any codes, scales around 0.05."""
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(shape or (blocks, 64))
    n_blocks = torch.Size(shape).numel() // 64

    def some(count):
        return torch.randint(256, (count,), generator=generator, dtype=torch.uint8)

    tensors = {
        "packed": some(32 * n_blocks),
        "levels": torch.tensor(LEVELS),
        "codes": some(n_blocks),
        "table": (2 * torch.rand(256, generator=generator) - 1).sort().values,
        "absmax2": 0.01 + 0.02 * torch.rand(-(-n_blocks // 256), generator=generator),
    }
    given = {name: one.to(device) for name, one in tensors.items()}
    return given | {"offset": 0.05, "shape": shape, "dtype": dtype}


def _weights(packed, levels, codes, table, absmax2, offset, shape):
    groups = absmax2.repeat_interleave(256)[: len(codes)]
    scales = table[codes.int()] * groups + offset
    nibbles = torch.stack([packed >> 4, packed & 15], dim=1).view(-1, 64)
    return (levels[nibbles.int()] * scales[:, None]).view(shape)


def reference(*, packed, levels, codes, table, absmax2, offset, shape, dtype):
    numbers = (levels.double(), codes, table.double(), absmax2.double())
    return _weights(packed, *numbers, offset, shape)


def same_precision(*, dtype, **inputs):
    return _weights(**inputs).to(dtype)


def cost(*, packed, codes, absmax2, shape, dtype, **_):
    """Codes of weights and of scales in, weights out; the two small tables are not counted."""
    n = 2 * packed.numel()
    nbytes = packed.numel() + codes.numel() + 4 * absmax2.numel() + n * dtype.itemsize
    return Cost(flops=n + 2 * codes.numel(), bytes=nbytes)


def two_step(*, dtype, **inputs):
    """Scales first, then weights, by PyTorch's operators."""
    return _weights(**inputs).to(dtype)
