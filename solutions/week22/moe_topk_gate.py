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
    # load the logits
    tokens = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    experts = tl.arange(0, BLOCK_E)[None, :]
    slots = tl.arange(0, BLOCK_K)[None, :]
    rows = tokens.to(tl.int64)[:, None]
    present = tokens[:, None] < T

    x = tl.load(
        logits_ptr + rows * row_stride + experts, mask=present & (experts < E), other=-float("inf")
    ).to(tl.float32)  # [BLOCK_T, BLOCK_E]
    # normalizer
    top = tl.max(x, axis=1, keep_dims=True)  # [BLOCK_T, 1]
    total = tl.sum(tl.exp(x - top), axis=1, keep_dims=True)

    # rounds of argmax
    weights = tl.zeros([BLOCK_T, BLOCK_K], tl.float32)
    idx = tl.zeros([BLOCK_T, BLOCK_K], tl.int32)
    for slot in range(K):
        # of equal logits the leftmost
        best, winner = tl.max(x, axis=1, return_indices=True, keep_dims=True)
        weights = tl.where(slots == slot, tl.exp(best - top), weights)
        idx = tl.where(slots == slot, winner, idx)
        # among logits there is always something below; probabilities may all have become 0
        x = tl.where(experts == winner, -float("inf"), x)

    # renormalize and store
    if RENORMALIZE:
        total = tl.sum(weights, axis=1, keep_dims=True)
    places = rows * K + slots
    tl.store(weights_ptr + places, weights / total, mask=present & (slots < K))
    tl.store(idx_ptr + places, idx, mask=present & (slots < K))


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
    # check
    if not logits.is_floating_point() or logits.ndim != 2:
        found = f"{logits.dtype} of shape {tuple(logits.shape)}"
        raise ValueError(f"logits: expected [tokens, experts] of floats, found {found}")
    T, E = logits.shape
    if E > 1 and logits.stride(1) != 1:
        raise ValueError(f"logits: expected contiguous rows, found strides {logits.stride()}")
    if not 1 <= k <= E:
        raise ValueError(f"k: expected 1 to {E} experts for each token, found {k}")

    # launch
    weights = torch.empty(T, k, dtype=torch.float32, device=logits.device)
    idx = torch.empty(T, k, dtype=torch.int32, device=logits.device)
    if T:
        BLOCK_E = triton.next_power_of_2(E)
        # a warp has whole rows, several of them, and reduces without shared memory
        BLOCK_T = max(2048 // BLOCK_E, 4)
        _gate_kernel[(triton.cdiv(T, BLOCK_T),)](
            logits, weights, idx, T, E, logits.stride(0), K=k, RENORMALIZE=renormalize,
            BLOCK_T=BLOCK_T, BLOCK_E=BLOCK_E, BLOCK_K=triton.next_power_of_2(k), num_warps=4,
        )  # fmt: skip
    return weights, idx
