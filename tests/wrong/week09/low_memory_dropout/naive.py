"""Wrong on purpose: a mask of a byte an element is drawn, stored, and saved for later."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


class SeededDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed, offset):
        generator = torch.Generator(x.device).manual_seed(seed + offset)
        mask = torch.empty(x.shape, device=x.device).uniform_(generator=generator) >= p
        ctx.save_for_backward(mask)
        ctx.p = p
        return torch.where(mask, x / (1 - p), 0)

    @staticmethod
    def backward(ctx, dy):
        return torch.where(ctx.saved_tensors[0], dy / (1 - ctx.p), 0), None, None, None


def low_memory_dropout(
    x: Float[Tensor, "*shape"], p: float, seed: int, offset: int = 0
) -> Float[Tensor, "*shape"]:
    return SeededDropout.apply(x, p, seed, offset)


def dropout_rows(
    x: Float[Tensor, "rows cols"], p: float, seeds: Int64[Tensor, " rows"]
) -> Float[Tensor, "rows cols"]:
    return torch.stack([low_memory_dropout(x[r], p, int(seeds[r])) for r in range(len(x))])
