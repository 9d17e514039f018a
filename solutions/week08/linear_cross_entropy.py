"""Kata week08/linear_cross_entropy: loss and gradients chunk by chunk, in one pass over the tokens.

The logits of a chunk become its gradient in place, and are gone before the next one's are made.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


class _LinearCrossEntropy(torch.autograd.Function):
    """Gradients are computed by forward, for an upstream gradient of 1; backward scales them."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        w: Tensor,
        target: Tensor,
        ignore_index: int,
        reduction: str,
        rows: int,
    ) -> Tensor:
        # cut into chunks
        wide = torch.promote_types(x.dtype, torch.float32)
        for_x, for_w = ctx.needs_input_grad[:2]
        dx = torch.empty_like(x) if for_x else None
        dw = torch.zeros_like(w, dtype=wide) if for_w else None
        ignored = (target == ignore_index)[:, None]
        labels = target[:, None].masked_fill(ignored, 0)
        # of all tokens: a chunk may have more or fewer than its share
        one = torch.ones((), dtype=torch.int64, device=x.device)
        n = (~ignored).sum() if reduction == "mean" else one
        # gradients of logits are at most 1: lifted, they are numbers in float16 down to 2**-39
        lift = 2.0**15 if x.dtype == torch.float16 else 1.0
        scale = (n.clamp_min(1).to(wide) * lift).reciprocal()
        total = torch.zeros((), dtype=wide, device=x.device)
        minus_one = torch.full((rows, 1), -1, dtype=wide, device=x.device)
        # loss of a chunk
        for start in range(0, len(x), rows):
            part = slice(start, start + rows)
            tokens = x[part].masked_fill(ignored[part], 0)  # 0 times infinity would be NaN
            log_p = F.log_softmax(_product(tokens, w.T), dim=1)  # [rows, v]
            total -= log_p.gather(1, labels[part]).masked_fill(ignored[part], 0).sum()
            if not (for_x or for_w):
                continue
            # gradients of a chunk
            dlogits = log_p.exp_().scatter_add_(1, labels[part], minus_one[: len(tokens)])
            dlogits = (dlogits if lift == 1 else dlogits.mul_(lift)).to(x.dtype)
            dlogits = dlogits.masked_fill_(ignored[part], 0)
            if dx is not None:
                dx[part] = (_product(dlogits, w) * scale).masked_fill_(ignored[part], 0)
            if dw is not None:
                _add_product(dw, dlogits.T, tokens)
        # scale the gradients
        ctx.save_for_backward(dx, None if dw is None else dw.mul_(scale).to(w.dtype))
        return (total / n).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        # scale the gradients
        # not in place: backward may be called again
        scaled = [None if kept is None else kept * grad for kept in ctx.saved_tensors]
        return *scaled, None, None, None, None


def linear_cross_entropy(
    x: Float[Tensor, "t d"],
    w: Float[Tensor, "v d"],
    target: Int[Tensor, " t"],
    ignore_index: int = -100,
    reduction: str = "mean",
    chunk_bytes: int | None = None,
) -> Float[Tensor, ""]:
    """
    Cross entropy of the logits x wᵀ, which never exist all at once; differentiable in `x` and `w`.

    Tokens whose target is `ignore_index` count for nothing; "mean" is over all others, "sum" adds
    them up. Sums over the vocabulary and over tokens are float32 (float64 for float64), and the
    loss and the gradients are rounded to the dtype of `x` and `w` in the end. A chunk is
    as many tokens as `chunk_bytes` hold logits of, in float32 (or 64), one at least; None leaves
    it to the function.

    Raises:
        ValueError: `w` is not as wide as `x`, or of another dtype; `target` is not one number for
            each token, or neither `ignore_index` nor below v; `reduction` is neither; or
            `chunk_bytes` below 1. The message begins with the argument's name.

    Source: Wijmans et al. 2024 (Cut Cross-Entropy); Hsu et al. 2024 (Liger Kernel).
    """
    # check
    _check(x, w, target)
    v = len(w)
    if ((target != ignore_index) & ((target < 0) | (target >= v))).any():
        raise ValueError(f"target: expected 0 to {v - 1} or {ignore_index}, found others")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction: expected mean or sum, found {reduction!r}")
    # cut into chunks
    rows = _rows(x, v, chunk_bytes)
    if chunk_bytes is None:
        rows = max(rows, len(x) // 8)  # few chunks: each reads and writes all of dw
    if not torch.is_grad_enabled():  # of which needs_input_grad knows nothing
        x, w = x.detach(), w.detach()
    return _LinearCrossEntropy.apply(x, w, target, ignore_index, reduction, rows)


@torch.no_grad()
def shard_stats(
    x: Float[Tensor, "t d"],
    w: Float[Tensor, "v d"],
    target: Int[Tensor, " t"],
    first: int,
    chunk_bytes: int | None = None,
) -> tuple[Float[Tensor, " t"], Float[Tensor, " t"]]:
    """
    What a rank with the rows from `first` on of a larger `w` knows: log-sum-exp and label logit.

    Of each token, over the logits of this shard alone, float32 (float64 for float64); the label's
    logit is -inf where the label is not in the shard. No gradients. Chunks as above.

    Raises:
        ValueError: `w` is not as wide as `x`, or of another dtype; `target` is not one number for
            each token; `chunk_bytes` is below 1. The message begins with the argument's name.
    """
    # check
    _check(x, w, target)
    # cut into chunks
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = _rows(x, len(w), chunk_bytes)
    # shard statistics
    lse, label = (torch.empty(len(x), dtype=wide, device=x.device) for _ in range(2))
    elsewhere = (target < first) | (target >= first + len(w))
    places = (target - first).masked_fill(elsewhere, 0)[:, None]
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        logits = _product(x[part], w.T)  # [rows, v]
        lse[part] = logits.logsumexp(dim=1)
        label[part] = logits.gather(1, places[part])[:, 0]
    return lse, label.masked_fill_(elsewhere, -torch.inf)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """In float32, or 64; a GPU's tensor cores add narrow products up in float32 anyway."""
    wide = torch.promote_types(a.dtype, torch.float32)
    if a.is_cuda and a.dtype != wide:
        return torch.mm(a, b, out_dtype=wide)
    return a.to(wide) @ b.to(wide)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to `total`, which is wide, as `_product` computes it."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))


def _rows(x: Tensor, v: int, chunk_bytes: int | None) -> int:
    if chunk_bytes is None:
        return max(1, x.numel() // v)  # logits as large as x
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes: expected 1 or more, found {chunk_bytes}")
    return max(1, chunk_bytes // (v * max(x.itemsize, 4)))


def _check(x: Tensor, w: Tensor, target: Tensor) -> None:
    if w.shape[1] != x.shape[1] or w.dtype != x.dtype:
        expected = f"[v, {x.shape[1]}] of {x.dtype}"
        raise ValueError(f"w: expected {expected}, found {list(w.shape)} of {w.dtype}")
    if len(target) != len(x):
        raise ValueError(f"target: expected {len(x)}, one a token, found {len(target)}")
