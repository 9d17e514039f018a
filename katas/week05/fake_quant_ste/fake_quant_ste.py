"""Kata week05/fake_quant_ste: quantize in the forward pass, pass the gradient straight through.

Kept for backward: one bool for each element. Nothing here is an integer in memory: weights are
rounded to where integers would put them, and stay floats that an optimizer can move.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class Student(nn.Module):
    """Two linear layers around a ReLU; `quantize` is applied to each weight where it is used."""

    def __init__(
        self, w1: Float[Tensor, "hidden inputs"], w2: Float[Tensor, "outputs hidden"]
    ) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Parameter(w1.clone()), nn.Parameter(w2.clone())

    def forward(
        self, x: Float[Tensor, "n inputs"], quantize: Callable[[Tensor], Tensor] = lambda w: w
    ) -> Float[Tensor, "n outputs"]:
        """Return the outputs; of the weights as they are, unless there is a `quantize`."""
        return F.relu(x @ quantize(self.w1).T) @ quantize(self.w2).T


def fake_quantize(
    x: Float[Tensor, "*shape"],
    scale: Float[Tensor, "*channels"],
    zero_point: Int[Tensor, "*channels"],
    qmin: int,
    qmax: int,
    axis: int | None = None,
) -> Float[Tensor, "*shape"]:
    """
    `x` rounded to the nearest code from `qmin` to `qmax`, and back: (code - zero_point) · scale.

    `scale` (float32) and `zero_point` (int32) are 0-d, or hold one number for each index of
    `axis`. Computed in float32; the result has the dtype of `x`. Ties go to even codes. The
    gradient passes unchanged where the code was not clamped, and is 0 where it was. NaN stays NaN
    and has no gradient.

    Raises:
        ValueError: `qmin` is not below `qmax`; `x` has no such `axis`; `scale` is of
            another shape than `axis` asks for, or not finite and above 0 everywhere. The message
            begins with the argument's name.

    Source: Nagel et al. 2021, sections 2.1 and 4.1; Bengio et al. 2013 for the estimator.
    """
    # TODO(kata): check, round to codes, clamp and remember where, pass the gradient through (about
    # 35 lines with helpers)
    raise NotImplementedError


def absmax_scale(
    w: Float[Tensor, "*shape"], bits: int, axis: int | None = None
) -> tuple[Float[Tensor, "*channels"], Int[Tensor, "*channels"]]:
    """
    Scale and zero point that put the largest magnitude of `w` at the code 2^(bits - 1) - 1.

    One pair for all of `w` (0-d), or one for each index of `axis`. The scale is float32, has no
    gradient, and is never below the smallest normal number of float32; the zero points are 0,
    int32.

    Raises:
        ValueError: `bits` is not within 2 to 16, or `w` has no such `axis`; the message
            begins with the argument's name.
    """
    raise NotImplementedError  # TODO(kata): check, scale from the largest magnitude (about 9 lines)


def qat_fit(
    model: Student,
    x: Float[Tensor, "n inputs"],
    y: Float[Tensor, "n outputs"],
    steps: int,
    bits: int,
) -> None:
    """
    Train `model` in place, so that its weights do well once rounded to `bits` bits.

    Each step is one forward pass on all of `x`, with both weights quantized by rows to symmetric
    codes, the mean squared error against `y`, and a step of Adam on the float weights, whose
    rate falls in a line from 0.01 at the first step to 0.01 / steps at the last.

    Raises:
        ValueError: as `absmax_scale`.
    """
    raise NotImplementedError  # TODO(kata): train through the rounding (about 10 lines)
