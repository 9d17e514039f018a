"""Wrong on purpose: the textbook formula, scores and weights and all, in three library calls."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor


def flash_attn_fwd(
    q: Float[Tensor, "b hq sq d"],
    k: Float[Tensor, "b hkv sk d"],
    v: Float[Tensor, "b hkv sk d"],
    causal: bool = False,
    sm_scale: float | None = None,
) -> tuple[Float[Tensor, "b hq sq d"], Float32[Tensor, "b hq sq"]]:
    sq, sk, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = q.float() @ k.float().mT * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
    if causal:
        visible = torch.ones(sq, sk, dtype=torch.bool, device=q.device).tril(sk - sq)
        scores = scores.masked_fill(~visible, -torch.inf)
    o = torch.softmax(scores, dim=-1).nan_to_num(0.0) @ v.float()
    return o.to(q.dtype), torch.logsumexp(scores, dim=-1)
