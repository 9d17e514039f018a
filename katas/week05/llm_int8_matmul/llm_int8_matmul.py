"""Kata week05/llm_int8_matmul: a few features in floating point, all the others in int8.

Per call: one int8 product over the features that behave, one small product over those that do not.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8, Int32
from torch import Tensor


def int8_mm(a: Int8[Tensor, "m k"], b: Int8[Tensor, "k n"]) -> Int32[Tensor, "m n"]:
    """
    `a @ b`, added up in int32, which wraps around past 2^31.

    A GPU's int8 matrix cores want sizes in steps of 32: their operands are padded here.
    """
    if not a.is_cuda:
        return torch._int_mm(a, b)
    (m, k), n = a.shape, b.shape[1]
    more_m, more_k, more_n = (-size % 32 if size else 32 for size in (m, k, n))
    return torch._int_mm(F.pad(a, (0, more_k, 0, more_m)), F.pad(b, (0, more_n, 0, more_k)))[:m, :n]


def per_tensor_int8_matmul(
    x: Float[Tensor, "tokens k"], w: Float[Tensor, "k n"]
) -> Float[Tensor, "tokens n"]:
    """`x @ w` in int8, the simple way: one scale for all of `x`, and one for all of `w`."""
    x_scale, w_scale = x.abs().max().float() / 127, w.abs().max().float() / 127
    x_codes, w_codes = torch.round(x / x_scale), torch.round(w / w_scale)
    product = int8_mm(x_codes.to(torch.int8), w_codes.to(torch.int8))
    return (product * (x_scale * w_scale)).to(x.dtype)


def outlier_columns(x: Float[Tensor, "tokens k"], threshold: float) -> Int[Tensor, " outliers"]:
    """
    Ascending indices (int64) of the features that reach `threshold` in magnitude in any token.

    Raises:
        ValueError: `threshold` is not above 0.

    Source: Dettmers et al. 2022, section 3.2.
    """
    raise NotImplementedError  # TODO(kata): check, outlier features (3 lines)


def llm_int8_matmul(
    x: Float[Tensor, "tokens k"], w: Float[Tensor, "k n"], threshold: float = 6.0
) -> Float[Tensor, "tokens n"]:
    """
    `x @ w`: outlier features of `x` in floating point, all others in int8 by `int8_mm`.

    The result has the dtype of `x`. Scales are float32: of a token, its largest magnitude among
    the features that are not outliers over 127; of an output, the largest magnitude in its column
    of `w` over 127, whichever features are outliers.

    Raises:
        ValueError: `x` or `w` is not floating-point, `w` has another k than `x`, or
            `threshold` is not above 0. The message names which.

    Source: Dettmers et al. 2022, sections 2 and 3.
    """
    # TODO(kata): check, outlier features, scales and codes, int8 product, floating-point product,
    # rescale and add (about 15 lines with helpers)
    raise NotImplementedError
