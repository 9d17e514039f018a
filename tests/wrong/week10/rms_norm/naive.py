"""Wrong on purpose: the formulas, an operator at a time, each with a trip through memory."""

import torch
from jaxtyping import Float, Float32
from torch import Tensor


def rms_norm(
    x: Float[Tensor, "rows cols"],
    residual: Float[Tensor, "rows cols"] | None,
    w: Float[Tensor, " cols"],
    eps: float = 1e-6,
    gemma: bool = False,
) -> tuple[Float[Tensor, "rows cols"], Float32[Tensor, " rows"]]:
    h = (x if residual is None else residual.add_(x)).float()
    norm = torch.linalg.vector_norm(h, dim=1)
    rstd = 1 / torch.sqrt(norm * norm / x.shape[1] + eps)
    x_hat = h * rstd[:, None]
    y = (x_hat * (w.float() + 1)).to(x.dtype) if gemma else x_hat.to(x.dtype) * w
    return y, rstd


def rms_norm_bwd(
    dy: Float[Tensor, "rows cols"],
    h: Float[Tensor, "rows cols"],
    w: Float[Tensor, " cols"],
    rstd: Float32[Tensor, " rows"],
    gemma: bool = False,
    groups: int = 256,
) -> tuple[Float[Tensor, "rows cols"], Float[Tensor, " cols"]]:
    x_hat = h.float() * rstd[:, None]
    dx_hat = dy.float() * (w.float() + gemma)
    along_x_hat = (dx_hat * x_hat).mean(dim=1, keepdim=True)
    dh = rstd[:, None] * (dx_hat - x_hat * along_x_hat)
    return dh.to(h.dtype), (dy.float() * x_hat).sum(dim=0).to(h.dtype)
