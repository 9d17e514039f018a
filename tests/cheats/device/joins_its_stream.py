"""No cheat: the work is done on another stream, which the current one waits for."""

import torch
from jaxtyping import Float
from torch import Tensor


def doubled(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    if not x.is_floating_point():
        raise ValueError("x: expected floating point")
    y = torch.empty_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.mul(x, 2, out=y)
    torch.cuda.current_stream().wait_stream(stream)
    return y
