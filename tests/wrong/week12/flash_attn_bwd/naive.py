"""Wrong on purpose: the five products one after the other, P and its gradient whole in memory."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor


def flash_attn_bwd(
    do: Float[Tensor, "b hq sq d"],
    q: Float[Tensor, "b hq sq d"],
    k: Float[Tensor, "b hkv sk d"],
    v: Float[Tensor, "b hkv sk d"],
    o: Float[Tensor, "b hq sq d"],
    lse: Float32[Tensor, "b hq sq"],
    causal: bool = False,
    sm_scale: float | None = None,
) -> tuple[Float[Tensor, "b hq sq d"], Float[Tensor, "b hkv sk d"], Float[Tensor, "b hkv sk d"]]:
    sq, sk, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    keys, values = (x.repeat_interleave(group, dim=1) for x in (k, v))
    s = (q @ keys.mT).float() * scale
    if causal:
        visible = torch.ones(sq, sk, dtype=torch.bool, device=q.device).tril(sk - sq)
        s = s.masked_fill(~visible, -torch.inf)
    p = torch.softmax(s, dim=-1).nan_to_num(0.0)
    dp = (do @ values.mT).float()
    ds = (p * (dp - (p * dp).sum(dim=-1, keepdim=True)) * scale).to(q.dtype)
    per_head = ds.mT @ q, p.to(q.dtype).mT @ do
    dk, dv = (x.reshape(*k.shape[:2], group, *k.shape[2:]).sum(dim=2) for x in per_head)
    return ds @ keys, dk, dv
