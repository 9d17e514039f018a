"""Kata week08/linear_cross_entropy: loss and gradients chunk by chunk, in one pass over the tokens.

The logits of a chunk become its gradient in place, and are gone before the next one's are made.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


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
    # TODO(kata): check, cut into chunks, loss of a chunk, gradients of a chunk, scale the gradients
    # (about 75 lines with helpers)
    raise NotImplementedError


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
    # TODO(kata): check, cut into chunks, shard statistics (about 10 lines)
    raise NotImplementedError
