"""
What a wrong answer looks like: a map of where it is wrong, and the likely cause.

Everything here is a pure function of the answer and the truth, and runs only once an answer has
been found wrong. A cause is named when its signature fits, else none is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.judge.memory import poisoned_places

MAP_ROWS, MAP_COLS = 8, 16  # cells of the map, at most
LARGEST = 1 << 24  # elements; larger answers get the map only
LOG2_E = math.log2(math.e)
HEAD_DIMS = (16, 32, 64, 80, 96, 128, 192, 256)
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
ROUNDED_ONCE = 0.3  # norm error of values rounded once, over the eps of what they were rounded to


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """
    A wrong answer of at least one axis, on the CPU.

    `found` is the answer in its own dtype, `value` and `want` are answer and truth in float64,
    `wrong` marks the elements that are over their limit.
    """

    found: Tensor
    value: Tensor
    want: Tensor
    wrong: Tensor

    @property
    def eps(self) -> float:
        """The distance from 1 to the next number of the answer's dtype; 0 for integers."""
        dtype = self.found.dtype
        return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def explain(found: Tensor, want: Tensor, wrong: Tensor) -> str:
    """
    Lines to put below the message that `found` is not `want`; empty when there is nothing to say.

    Args:
        found: The answer, of the shape of `want`.
        want: The truth.
        wrong: Which elements are over their limit; all False when only the norm is.
    """
    lines = []
    if wrong.ndim and wrong.any() and not wrong.all():
        lines += error_map(wrong)
    if 0 < wrong.numel() <= LARGEST:
        evidence = Evidence(
            found=_flat_if_scalar(found.cpu()),
            value=_flat_if_scalar(found.cpu().double()),
            want=_flat_if_scalar(want.cpu().double()),
            wrong=_flat_if_scalar(wrong.cpu()),
        )
        lines += [f"likely cause: {cause}" for cause in likely_causes(evidence)]
    return "".join(f"\n{line}" for line in lines)


def explain_shape(found: Tensor, want: Tensor) -> str:
    """A line for an answer of the wrong shape, when its shape says why."""
    if found.ndim >= 2 and found.shape == want.mT.shape:
        return "\nlikely cause: transposed: the last two axes have changed places"
    return ""


def explain_runs(first: Tensor, second: Tensor) -> str:
    """
    Why two answers to the same question differ, as one sentence; empty when they do not.

    NaN counts as equal to itself.
    """
    first, second = first.detach().cpu(), second.detach().cpu()
    if first.shape != second.shape or first.dtype != second.dtype:
        return f"two runs gave {_kind(first)} and {_kind(second)}"
    differs = first.ne(second) & ~(first.isnan() & second.isnan())
    if not differs.any():
        return ""
    much = f"{int(differs.sum())} of {differs.numel()} values differ between two runs: "
    if bool((poisoned_places(first) | poisoned_places(second))[differs].all()):
        return much + "they were never written, or come from uninitialised memory"
    a, b = first[differs].double(), second[differs].double()
    eps = torch.finfo(first.dtype).eps if first.is_floating_point() else 0.0
    if bool(((a - b).abs() <= 64 * eps * torch.maximum(a.abs(), b.abs())).all()):
        return much + "by rounding only, as when sums are added up in another order (atomics)"
    return much + "a race between programs or threads, or uninitialised memory"


def _kind(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)} of {tensor.dtype}"


def _flat_if_scalar(tensor: Tensor) -> Tensor:
    return tensor.reshape(1) if tensor.ndim == 0 else tensor


# ---- the map -------------------------------------------------------------------------------


def error_map(wrong: Tensor) -> list[str]:
    """
    Draw where `wrong` is True, in at most 8 lines of 16 characters.

    The last two axes are drawn, the others lie on top of each other.
    """
    rows, cols = (1, *wrong.shape)[-2:]
    plane = wrong.reshape(-1, rows, cols).double().mean(dim=0).cpu()
    height, width = -(-rows // MAP_ROWS), -(-cols // MAP_COLS)
    lines = [
        "".join(_symbol(cell) for cell in band.split(width, dim=1)) for band in plane.split(height)
    ]
    legend = f"where it is wrong (each character {height} x {width}; . nowhere, + partly, # all):"
    return [legend, *(f"    {line}" for line in lines)]


def _symbol(cell: Tensor) -> str:
    share = float(cell.mean())
    return "." if share == 0 else "#" if share == 1 else "+"


# ---- causes --------------------------------------------------------------------------------


def likely_causes(evidence: Evidence) -> list[str]:
    """What the answer looks like: at most one cause, and where, if memory was left unwritten."""
    if not evidence.wrong.any():
        return [cause for cause in (_rounded(evidence), _low_precision(evidence)) if cause][:1]
    unwritten = _unwritten(evidence)
    if unwritten:
        return [cause for cause in (unwritten, _region(evidence)) if cause]
    return [cause for test in CAUSES if (cause := test(evidence))][:1]


def _unwritten(evidence: Evidence) -> str | None:
    if poisoned_places(evidence.found)[evidence.wrong].all():
        return "never written: what is there is what uninitialised memory was filled with"
    return None


def _zeros(evidence: Evidence) -> str | None:
    if evidence.value.any() or not evidence.want.any():
        return None
    return "all zeros: nothing was stored, or what was accumulated is lost"


def _nan_rows(evidence: Evidence) -> str | None:
    rows = evidence.wrong.any(dim=-1)
    whole = evidence.value.isnan().all(dim=-1)
    if evidence.wrong.ndim < 2 or rows.all() or not whole[rows].all():
        return None
    first = rows.nonzero()[0].tolist()
    where = f"NaN in {int(rows.sum())} whole rows and nowhere else, first in row {tuple(first)}"
    if evidence.want[rows].any():
        return f"{where}: an exponential overflows where the row's maximum is not subtracted first"
    return f"{where}: where everything is masked a row is 0 / 0"


def _transposed(evidence: Evidence) -> str | None:
    want = evidence.want
    if want.ndim < 2 or min(want.shape[-2:]) < 2:
        return None
    turned = want.mT.reshape(want.shape)
    if _alike(evidence, turned):
        return "transposed: rows and columns have changed places"
    return None


def _factor(evidence: Evidence) -> str | None:
    value, want = _finite(evidence)
    scale = float((want * want).sum())
    if not scale or want.numel() < 2:
        return None
    factor = float((value * want).sum()) / scale
    # also where the reference is a constant: any constant would fit it
    varied = float((want - want.mean()).norm()) > 1e-3 * math.sqrt(scale)
    close_to_one = abs(factor - 1) < 4 * _tolerance(evidence)
    if not varied or not factor or close_to_one or not _alike(evidence, factor * evidence.want):
        return None
    name = factor_name(factor, tuple(evidence.want.shape))
    return f"off by the constant factor {factor:.5g}{f' = {name}' if name else ''}"


def factor_name(factor: float, shape: tuple[int, ...]) -> str:
    """The usual name of a constant that was forgotten, or applied once too often."""
    last = shape[-1]
    names = {"log2(e)": LOG2_E, "1/log2(e)": 1 / LOG2_E, "-1, the sign": -1.0}
    names |= {f"sqrt({last})": math.sqrt(last), f"1/sqrt({last})": 1 / math.sqrt(last)}
    for size in shape:
        if size > 1:
            names |= {f"{size}, the size of an axis": float(size), f"1/{size}": 1 / size}
            names |= {f"{size}/{size - 1}": size / (size - 1), f"{size - 1}/{size}": 1 - 1 / size}
    for dim in HEAD_DIMS:
        names |= {f"sqrt({dim})": math.sqrt(dim), f"1/sqrt({dim})": 1 / math.sqrt(dim)}
    fits = [name for name, value in names.items() if math.isclose(factor, value, rel_tol=1e-3)]
    return fits[0] if fits else ""


def _shifted(evidence: Evidence) -> str | None:
    for axis in reversed(range(evidence.want.ndim)):
        size = evidence.want.shape[axis]
        if size < 3:
            continue
        for source, place in ((0, 1), (1, 0)):
            found = evidence.value.narrow(axis, place, size - 1)
            want = evidence.want.narrow(axis, source, size - 1)
            still = evidence.want.narrow(axis, place, size - 1)
            if _alike(evidence, want, found) and not _alike(evidence, want, still):
                belongs = f"i {'-' if place else '+'} 1"
                return f"shifted by one along axis {axis}: element i holds the value of {belongs}"
    return None


def _region(evidence: Evidence) -> str | None:
    """All is right up to some index of an axis, or in memory order, and wrong from there on."""
    ndim = evidence.wrong.ndim
    for axis in reversed(range(ndim)):
        others = [other for other in range(ndim) if other != axis]
        shares = evidence.wrong.double().mean(dim=others) if others else evidence.wrong.double()
        if cause := _tail_or_head(shares, f"along axis {axis}"):
            return cause
    return _tail_or_head(evidence.wrong.flatten().double(), "in memory order") if ndim > 1 else None


def _tail_or_head(shares: Tensor, where: str) -> str | None:
    """What it means that the first elements are right; `shares` of wrong values by index."""
    size = shares.numel()
    right = int((shares > 0).double().argmax())
    left = size - right
    # where a tile ends, or all but one; a chance hit among the wrong ones does no harm
    block = right & -right
    if not right or float(shares[right:].mean()) < 0.9 or (block < 4 and left > 1):
        return None
    if left <= right:
        return (
            f"only the last {left} of {size} {where} are wrong: the tail past the last whole "
            "block (no tail mask, a wrong mask, or a grid that is one block short)"
        )
    return (
        f"only the first {right} of {size} {where} are right: the first block alone was done, or "
        "every program does the first"
    )


def _rounded(evidence: Evidence) -> str | None:
    value, want = _finite(evidence)
    error = _norm_error(value, want)
    if value.numel() < 8 or not evidence.eps:
        return None
    for name in ROUNDINGS:
        if EPS[name] <= evidence.eps or error > EPS[name]:
            continue
        if torch.equal(round_to(value, name), value) and not torch.equal(
            round_to(want, name), want
        ):
            shown = "float16 or tf32" if name == "float16" else name
            return f"every value is a {shown}: the result was rounded to it on its way"
    return None


def round_to(values: Tensor, name: str) -> Tensor:
    """`values`, of float64, rounded to the named dtype and back."""
    if name == "tf32":
        mantissa, exponent = torch.frexp(values)
        return torch.ldexp((mantissa * 2**11).round() / 2**11, exponent)
    dtype: torch.dtype = getattr(torch, name)
    return values.to(dtype).double()


def _low_precision(evidence: Evidence) -> str | None:
    value, want = _finite(evidence)
    error = _norm_error(value, want)
    parts = min(16, value.numel() // 16)
    if parts < 2 or not 0 < error < 1:
        return None
    pairs = zip(value.chunk(parts), want.chunk(parts), strict=True)
    if any(not error / 4 <= _norm_error(*pair) <= error * 4 for pair in pairs):
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


CAUSES: tuple[Callable[[Evidence], str | None], ...] = (
    _zeros,
    _nan_rows,
    _transposed,
    _factor,
    _shifted,
    _rounded,
    _region,
    _low_precision,
)


# ---- comparing -----------------------------------------------------------------------------


def _tolerance(evidence: Evidence) -> float:
    return max(4 * evidence.eps, 1e-5)


def _alike(evidence: Evidence, other: Tensor, value: Tensor | None = None) -> bool:
    """Whether the answer (or a part of it, `value`) is `other` to within its own rounding."""
    value = evidence.value if value is None else value
    finite = other.isfinite()
    if not value[finite].isfinite().all() or not other[finite].any():
        return False
    return _norm_error(value[finite], other[finite]) <= _tolerance(evidence)


def _finite(evidence: Evidence) -> tuple[Tensor, Tensor]:
    """Answer and truth, flat, where both are finite."""
    both = evidence.value.isfinite() & evidence.want.isfinite()
    return evidence.value[both], evidence.want[both]


def _norm_error(value: Tensor, want: Tensor) -> float:
    size = float(want.norm())
    return float((value - want).norm()) / size if size else math.inf
