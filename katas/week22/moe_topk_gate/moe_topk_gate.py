"""Kata week22/moe_topk_gate: softmax, top-k and renormalisation of a router in one kernel.

HBM: each logit is read once; a weight and an index are written for each choice, nothing else.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32
from torch import Tensor


@triton.jit
def _gate_kernel(
    logits_ptr, weights_ptr, idx_ptr, T, E, row_stride, K: tl.constexpr,
    RENORMALIZE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # TODO(kata): load the logits, normalizer, rounds of argmax, renormalize and store (about 20
    # lines)
    pass


def moe_topk_gate(
    logits: Float[Tensor, "t e"], k: int, renormalize: bool
) -> tuple[Float[Tensor, "t k"], Int32[Tensor, "t k"]]:
    """
    Choose the `k` experts with the highest logits, for each token, and their weights in float32.

    Choices are ordered by falling logit; of equal logits the lower expert comes first. Weights
    are those of the softmax over all experts, or, renormalised, over the chosen ones.

    Args:
        logits: Rows may lie apart in memory; at least k of each are above -inf.
        k: Experts for each token.
        renormalize: Whether the weights of a token add up to 1.

    Raises:
        ValueError: `logits` is not floating point, not 2-D, or has gaps in its rows, or `k` is
            not from 1 to the number of experts.
    """
    raise NotImplementedError  # TODO(kata): check, launch (about 20 lines)
