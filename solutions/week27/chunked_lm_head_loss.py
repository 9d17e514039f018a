"""Kata week27/chunked_lm_head_loss: any loss of the logits, of a few tokens at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


class _ChunkedLoss(torch.autograd.Function):
    """Gradients of the sum of losses are computed by forward; backward scales them."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        kept: Tensor,
        transform: Callable[..., Tensor],
        rows: int,
        extra: Sequence[Tensor],
    ) -> Tensor:
        # loss of a chunk
        wide = torch.promote_types(hidden.dtype, torch.float32)
        for_hidden, for_weight = ctx.needs_input_grad[:2]
        d_hidden = torch.zeros_like(hidden) if for_hidden else None
        d_weight = torch.zeros_like(weight, dtype=wide) if for_weight else None
        wanted = for_hidden or for_weight
        total = torch.zeros((), dtype=wide, device=hidden.device)
        for start in range(0, len(kept), rows):
            part = kept[start : start + rows]
            states = hidden[part]
            logits = (states @ weight.T).to(wide).requires_grad_(wanted)  # [rows, v]
            with torch.set_grad_enabled(wanted):
                loss = transform(logits, labels[part], *(one[part] for one in extra))
            if loss.shape != ():
                raise ValueError(f"transform: expected a scalar, found shape {[*loss.shape]}")
            total += loss
            if not wanted:
                continue
            # gradient of its logits
            (pull,) = torch.autograd.grad(loss, logits)
            del logits, loss  # before the next are made
            # dX and dW of a chunk
            pull = pull.to(hidden.dtype)
            if d_hidden is not None:
                d_hidden[part] = pull @ weight
            if d_weight is not None:
                _add_product(d_weight, pull.T, states)
        # scale by the upstream gradient
        # not before all chunks are there, one of which may have fewer tokens than the others
        ctx.scale, ctx.dtype = 1 / max(len(kept), 1), hidden.dtype
        ctx.save_for_backward(d_hidden, d_weight)
        return total * ctx.scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        # scale by the upstream gradient
        # divided and scaled at once: a loss scale comes in time for what would underflow; and in
        # float32, since a GPU rounds a scalar tensor to the dtype of what it multiplies;
        # not in place, since backward may be called again
        factor = grad * ctx.scale
        scaled = [
            None if one is None else (one.to(factor.dtype) * factor).to(ctx.dtype)
            for one in ctx.saved_tensors
        ]
        return *scaled, None, None, None, None, None


def chunked_lm_loss(
    hidden: Float[Tensor, "n d"],
    weight: Float[Tensor, "v d"],
    labels: Int[Tensor, " n"],
    transform: Callable[..., Tensor],
    chunk: int | str = "auto",
    ignore: int = -100,
    extra: Sequence[Tensor] = (),
) -> Float[Tensor, ""]:
    """
    The mean of a loss of logits over the tokens that count, `chunk` of them at a time.

    `transform(logits, labels, *extra)` returns the sum of the losses of some tokens: their logits
    are float32 (float64 for float64), `labels` and each of `extra` the entries of these tokens.
    Differentiable in `hidden` and `weight`; autograd finds the gradients of each chunk's logits at
    once, and the sum over chunks is float32 (64). Tokens whose label is `ignore` do not count.
    0 where none does.

    Raises:
        ValueError: `weight` is not as wide as `hidden`, or of another dtype; `labels` is not one
            number for each token, or neither `ignore` nor below v; `chunk` is neither "auto" nor 1
            or more; one of `extra` has no entry for each token; `transform` returns no scalar. The
            message begins with the argument's name.

    Source: Hsu et al. 2024 (Liger Kernel); Wijmans et al. 2024 (Cut Cross-Entropy).
    """
    # check
    n, v = len(hidden), len(weight)
    if weight.shape[1] != hidden.shape[1] or weight.dtype != hidden.dtype:
        expected = f"[v, {hidden.shape[1]}] of {hidden.dtype}"
        raise ValueError(f"weight: expected {expected}, found {[*weight.shape]} of {weight.dtype}")
    if len(labels) != n:
        raise ValueError(f"labels: expected {n}, one a token, found {len(labels)}")
    counts = labels != ignore
    if (counts & ((labels < 0) | (labels >= v))).any():
        raise ValueError(f"labels: expected 0 to {v - 1} or {ignore}, found others")
    if any(one.shape[:1] != (n,) for one in extra):
        raise ValueError(f"extra: expected {n} entries each, found {[one.shape for one in extra]}")
    if chunk == "auto":
        chunk = max(1, n // 16)
    if not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f'chunk: expected "auto" or 1 or more, found {chunk!r}')
    # keep the tokens that count
    if not torch.is_grad_enabled():  # of which needs_input_grad knows nothing
        hidden, weight = hidden.detach(), weight.detach()
    (kept,) = counts.nonzero(as_tuple=True)
    return _ChunkedLoss.apply(hidden, weight, labels, kept, transform, chunk, extra)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to `total`, which is wide; a GPU multiplies narrow operands and adds wide ones."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))
