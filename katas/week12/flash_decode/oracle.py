"""What is right, what to feed and what it costs: attention with its scores written out."""

import torch
import torch.nn.functional as F

from harness.hardware import Cost

SCALES = (2.0, 1 / 128)  # scores grow with the square of the inputs
STRUCTURED = ("seq_lens",)


def make_inputs(
    *, b, hq, s, d, dtype, device, seed,
    hkv=None, lens=None, split_size=256, layout="bhsd", garbage=False,
):  # fmt: skip
    """
    Everything N(0, 1).

    `lens` are the lengths of the sequences, as in "33 70 5", all s by default and s at most.
    `layout` is how keys and values lie in memory: "bhsd" contiguous, "bshd" as a projection leaves
    them. `garbage` puts NaN past the ends.
    """
    generator = torch.Generator().manual_seed(seed)
    hkv = hkv or hq

    def draw():
        shape = (b, s, hkv, d) if layout == "bshd" else (b, hkv, s, d)
        x = torch.randn(shape, generator=generator).to(dtype)
        x = x.transpose(1, 2) if layout == "bshd" else x
        if garbage:
            for one, length in zip(x, seq_lens.tolist(), strict=True):
                one[:, length:] = torch.nan
        return x.to(device)

    lengths = [min(int(one), s) for one in lens.split()] if lens else [s] * b
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    q = torch.randn((b, hq, d), generator=generator).to(dtype).to(device)
    k, v = draw(), draw()
    return {"q": q, "k": k, "v": v, "seq_lens": seq_lens.to(device), "split_size": split_size}


def reference(*, q, k, v, seq_lens, split_size=256):
    return _head_by_head(q.double(), k.double(), v.double(), seq_lens)


def same_precision(*, q, k, v, seq_lens, split_size=256):
    """Eager attention in the dtype of the inputs."""
    return _head_by_head(q, k, v, seq_lens)


def _head_by_head(q, k, v, seq_lens):
    o, group = torch.zeros_like(q), q.shape[1] // k.shape[1]
    for i, length in enumerate(seq_lens.tolist()):
        for h in range(q.shape[1] if length else 0):
            keys, values = (x[i, h // group, :length] for x in (k, v))
            o[i, h] = torch.softmax(keys @ q[i, h] * q.shape[-1] ** -0.5, dim=0) @ values
    return o


def cost(*, q, k, v, seq_lens, split_size=256):
    """Every key and value that exists is read once."""
    keys = int(seq_lens.sum()) * k.shape[1] * k.shape[3]
    group = q.shape[1] // k.shape[1]
    return Cost(
        flops=4 * keys * group,
        bytes=(2 * keys + 2 * q.numel()) * q.element_size() + seq_lens.nbytes,
    )


def expanded(*, q, k, v, seq_lens, split_size=256):
    """PyTorch's attention on keys and values repeated for each query head; no sequence is short."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    return F.scaled_dot_product_attention(q[:, :, None], k, v)[:, :, 0]
