"""What is right: real layers, and a list of every tensor that is kept."""

import math

import torch
import torch.nn.functional as F
from torch import nn

# s, b, h, a: one token, one head, more heads than channels of one, and no two sizes alike
SHAPES = ((1, 1, 4, 2), (5, 3, 8, 1), (7, 2, 16, 8), (16, 1, 12, 3), (9, 4, 20, 5))


class Layer(nn.Module):
    """
    A pre-norm GPT layer, on [s, b, h]; one tensor-parallel rank's part of it where tp is above 1.

    What the ranks would add up is left as it is: its size is what counts.
    """

    def __init__(self, h, a, *, p=0.0, flash=False, tp=1, dtype=torch.float32):
        super().__init__()
        self.heads, self.d, self.flash = a // tp, h // a, flash
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.out = nn.Linear(h, 3 * h // tp), nn.Linear(h // tp, h)
        self.up, self.down = nn.Linear(h, 4 * h // tp), nn.Linear(4 * h // tp, h)
        self.drop = nn.Dropout(p) if p else nn.Identity()
        self.to(dtype)

    def forward(self, x):
        x = x + self.drop(self.attend(self.qkv(self.norm1(x))))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))

    def attend(self, qkv):
        s, b, _ = qkv.shape
        if self.flash:
            q, k, v = (
                part.reshape(s, b, self.heads, self.d).permute(1, 2, 0, 3).contiguous()
                for part in qkv.chunk(3, dim=-1)
            )
            out = F.scaled_dot_product_attention(q, k, v)
            # one head's output lies there by tokens: a GPU's does with more heads too, a CPU's not
            return self.out(out.transpose(1, 2).flatten(2)).transpose(0, 1)
        q, k, v = (
            part.reshape(s, b * self.heads, self.d).transpose(0, 1) for part in qkv.chunk(3, dim=-1)
        )
        weights = (torch.bmm(q, k.mT) * self.d**-0.5).softmax(dim=-1)
        return self.out(torch.bmm(self.drop(weights), v).transpose(0, 1).reshape(s, b, -1))


def tensors(s, b, h, a, *, elt, dropout, mask_bytes, stat_bytes, flash, tp, sp, recompute):
    """Yield shape and bytes an element of every tensor that one rank keeps."""
    own = s // tp if sp else s  # the rank's part of the sequence, where that is divided
    if recompute == "full":
        yield (own, b, h), elt
        return
    for _norm in range(2):
        yield (own, b, h), elt  # its input
        yield (own, b), stat_bytes  # mean
        yield (own, b), stat_bytes  # reciprocal deviation
        yield (own, b, h), elt  # its output, which the linear layer after it keeps
        if dropout:
            yield (own, b, h), mask_bytes  # of the dropout before the residual is added
    for _q_k_v in range(3):
        yield (s, b, a // tp, h // a), elt
    yield (s, b, h // tp), elt  # into the output projection
    yield (s, b, 4 * h // tp), elt  # into GELU
    yield (s, b, 4 * h // tp), elt  # out of it
    if recompute == "selective":
        return
    if flash:
        yield (b, a // tp, s), 4  # log-sum-exp
        return
    yield (b, a // tp, s, s), elt  # softmax
    if dropout:
        yield (b, a // tp, s, s), mask_bytes
        yield (b, a // tp, s, s), elt


def total(*sizes, **switches):
    return sum(math.prod(shape) * size for shape, size in tensors(*sizes, **switches))
