"""Wrong on purpose: an operator at a time, each with a trip through memory and a new tensor."""

import torch
from jaxtyping import Float
from torch import Tensor


def swiglu(
    e: Float[Tensor, "rows cols"], g: Float[Tensor, "rows cols"]
) -> Float[Tensor, "rows cols"]:
    return (torch.nn.functional.silu(e.float()) * g.float()).to(e.dtype)


def swiglu_backward_(
    dh: Float[Tensor, "rows cols"], e: Float[Tensor, "rows cols"], g: Float[Tensor, "rows cols"]
) -> tuple[Float[Tensor, "rows cols"], Float[Tensor, "rows cols"], Float[Tensor, "rows cols"]]:
    sigmoid = torch.sigmoid(e.float())
    de = dh * g * sigmoid * (1 + e * (1 - sigmoid))
    return dh.copy_(swiglu(e, g)), e.copy_(dh * e * sigmoid), g.copy_(de)
