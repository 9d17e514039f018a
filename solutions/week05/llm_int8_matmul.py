"""Kata week05/llm_int8_matmul: a few features in floating point, all the others in int8.

Per call: one int8 product over the features that behave, one small product over those that do not.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Int8, Int32
from torch import Tensor

CHUNK = 2**17  # products of codes, 127 · 127 at most: fewer than 2^31 in sum


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
    # check
    if not threshold > 0:
        raise ValueError(f"threshold: expected a number above 0, found {threshold}")
    # outlier features
    # in the dtype of x the threshold itself would be rounded
    return (x.abs().float() >= threshold).any(dim=0).nonzero().flatten()


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
    # check
    for name, operand in (("x", x), ("w", w)):
        if not operand.is_floating_point():
            raise ValueError(f"{name}: expected floating point, found {operand.dtype}")
    if w.shape[0] != x.shape[1]:
        raise ValueError(f"w: expected {x.shape[1]} rows as x has columns, found {w.shape[0]}")
    # outlier features
    outliers = outlier_columns(x, threshold)
    # scales and codes
    # zeros where the outliers were: they leave the scales alone and add nothing to the sums
    x_codes, x_scale = _quantize(x.index_fill(1, outliers, 0), dim=1)  # int8, [tokens, 1]
    w_codes, w_scale = _quantize(w, dim=0)  # int8, [1, n]
    # int8 product
    chunks = zip(x_codes.split(CHUNK, dim=1), w_codes.split(CHUNK), strict=True)
    product = sum(int8_mm(a, b).float() for a, b in chunks)
    # floating-point product
    beside = x.index_select(1, outliers) @ w.index_select(0, outliers)
    # rescale and add
    return (product * x_scale * w_scale + beside).to(x.dtype)


def _quantize(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Codes from -127 to 127 along `dim`, and the scale of each."""
    # scales and codes
    x = x.float()
    # zeros have no magnitude to divide by
    scale = x.abs().amax(dim, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return torch.round(x / scale).to(torch.int8), scale
