"""Kata week27/chunked_lm_head_loss: any loss of the logits, of a few tokens at a time."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


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
    # TODO(kata): check, keep the tokens that count, loss of a chunk, gradient of its logits, dX and
    # dW of a chunk, scale by the upstream gradient (about 70 lines with helpers)
    raise NotImplementedError
