"""Signatures of a lower precision: of the result, or of what it was worked out from."""

import torch
from torch import Tensor

from harness.judge.correctness.evidence import Evidence, norm_error

# by growing precision; `tf32` is kept in a float32
ROUNDINGS = ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "tf32", "float32")
EPS = {
    "float8_e5m2": 2**-2,
    "float8_e4m3fn": 2**-3,
    "bfloat16": 2**-7,
    "float16": 2**-10,
    "tf32": 2**-10,
    "float32": 2**-23,
    "float64": 2**-52,
}
# working precisions by name; a coarser one than these is not told from a lost term
WORKING = {"bfloat16": "bfloat16", "float16 or tf32": "float16", "float32": "float32"}
DISTINCT = 8  # values, at least: zeros and ones are numbers of every dtype
LEANING = 0.5  # of rounding errors at random a part of 16 leans by 0.2, one that is scaled by 1
ROUNDED_ONCE = 0.3  # norm error of values rounded once, over the eps of what they were rounded to


def rounded(evidence: Evidence) -> str | None:
    """Every value of the answer is one of a smaller dtype."""
    if evidence.found.dtype in (torch.int32, torch.int64):
        return _rounded_integers(evidence)
    value, want = evidence.finite()
    error = norm_error(value, want)
    if value.unique().numel() < DISTINCT or not evidence.eps:
        return None
    for name in ROUNDINGS:
        if EPS[name] <= evidence.eps or error > EPS[name]:
            continue
        if torch.equal(round_to(value, name), value) and not torch.equal(
            round_to(want, name), want
        ):
            shown = "float16 or tf32" if name == "float16" else name
            return f"every value is a {shown}: the result was rounded to it on the way"
    return None


def _rounded_integers(evidence: Evidence) -> str | None:
    found, error = evidence.found, norm_error(evidence.value, evidence.want)
    kept = found.double() - found.float().double()  # a saturated one may not convert back
    if error > EPS["float32"] or kept.any() or not evidence.want.abs().max() > 2**24:
        return None
    return "every value is a float32, of 24 significant bits: the integers were converted to it"


def round_to(values: Tensor, name: str) -> Tensor:
    """`values`, of float64, rounded to the named dtype and back."""
    if name == "tf32":
        mantissa, exponent = torch.frexp(values)
        return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)
    dtype: torch.dtype = getattr(torch, name)
    return values.to(dtype).double()


def low_precision(evidence: Evidence) -> str | None:
    """Errors as they come from rounding: everywhere alike, and up as often as down."""
    value, want = evidence.finite()
    error = norm_error(value, want)
    parts = min(16, value.numel() // 16)
    if parts < 2 or not 0 < error < 1:
        return None
    pairs = list(zip(value.chunk(parts), want.chunk(parts), strict=True))
    if any(not error / 4 <= norm_error(*pair) <= error * 4 for pair in pairs):
        return None
    if sum(_leaning(*pair) for pair in pairs) > LEANING * parts:
        return None
    fits = [
        name
        for name, dtype in WORKING.items()
        if EPS[dtype] > evidence.eps and 1 / 3 < error / (ROUNDED_ONCE * EPS[dtype]) < 3
    ]
    if not fits or not evidence.eps:
        return None
    return (
        f"errors of one relative size everywhere (norm {error:.1e}), as when inputs or "
        f"intermediate values are rounded to {fits[0]}"
    )


def _leaning(value: Tensor, want: Tensor) -> float:
    """How much the errors follow the truth: 1 for a factor, about 0 for rounding."""
    error = value - want
    scale = float(error.norm() * want.norm())
    return abs(float((error * want).sum())) / scale if scale else 0.0
