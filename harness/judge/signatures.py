"""
Signatures of typical mistakes: what an answer looks like when this or that was forgotten.

Each test looks at one wrong answer beside the truth and returns a sentence when its signature
fits, else None. They are tried in order, from the special to the general.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from harness.judge.memory import poisoned_places

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
OVERRUN = 0.8  # share of what was stored over that must be off: some of it may be right by chance
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


def likely_causes(evidence: Evidence) -> list[str]:
    """What the answer looks like: at most one cause, and where, if memory was left unwritten."""
    if not evidence.wrong.any():
        return [cause for cause in (_rounded(evidence), _low_precision(evidence)) if cause][:1]
    unwritten = _unwritten(evidence)
    if unwritten:
        return [cause for cause in (unwritten, _region(evidence)) if cause]
    return [cause for test in CAUSES if (cause := test(evidence))][:1]


def _unwritten(evidence: Evidence) -> str | None:
    if not poisoned_places(evidence.found)[evidence.wrong].all():
        return None
    if evidence.value[evidence.wrong].isfinite().any():
        return "never written: what is there is what uninitialised memory was filled with"
    # arithmetic passes on the NaN that unused memory is filled with
    return (
        "never written, or worked out from what is not there (a read past the end of an input, or "
        "between its rows): it is the NaN that unused memory was filled with"
    )


def _zeros(evidence: Evidence) -> str | None:
    if evidence.value.any() or not evidence.want.any():
        return None
    return "all zeros: nothing was stored, or what was accumulated is lost"


def _covered_up(evidence: Evidence) -> str | None:
    value, want = evidence.value[evidence.wrong], evidence.want[evidence.wrong]
    if want.isfinite().any() or not value.isfinite().all():
        return None
    kind = "NaN" if want.isnan().all() else "infinite" if want.isinf().all() else "not finite"
    return (
        f"a number where the truth is {kind}: what has no value was given one (by a guard, a clamp "
        "or a maximum that starts at a number instead of -inf)"
    )


def _nan_rows(evidence: Evidence) -> str | None:
    if evidence.wrong.ndim < 2 or evidence.wrong.shape[-1] < 2:
        return None
    rows = evidence.wrong.any(dim=-1)
    whole = evidence.value.isnan().all(dim=-1)
    want = evidence.want[rows]
    if not whole[rows].all() or (rows.all() and want.any()):
        return None
    where = f"NaN in {int(rows.sum())} whole rows and nowhere else, first in row {_first(rows)}"
    if not want.any():
        return f"{where}: where everything is masked a row is 0 / 0"
    if want.any(dim=-1).all() and (want == 0).any(dim=-1).all():
        return f"{where}: each is masked in part, and -inf is subtracted from -inf there"
    return (
        f"{where}: an exponential overflows where the row's maximum is not subtracted first, or "
        "what was never written takes part (0 times NaN is NaN)"
    )


def _masked_rows(evidence: Evidence) -> str | None:
    """Whole rows are zero on one side and not on the other: the mask differs."""
    value, want = evidence.value, evidence.want
    if evidence.wrong.ndim < 2 or evidence.wrong.shape[-1] < 2 or not value.isfinite().all():
        return None
    shown = value.ne(0).all(dim=-1) & want.eq(0).all(dim=-1)
    hidden = value.eq(0).all(dim=-1) & want.ne(0).all(dim=-1)
    if shown.any():
        return (
            f"{int(shown.sum())} whole rows are not zero where the truth is, first row "
            f"{_first(shown)}: a mask lets through what it should hide, or starts at another corner"
        )
    if hidden.any() and evidence.wrong[~hidden].any():
        return (
            f"{int(hidden.sum())} whole rows are zero where the truth is not, first row "
            f"{_first(hidden)}: a mask hides too much, or these rows are left out"
        )
    return None


def _first(places: Tensor) -> tuple[int, ...]:
    return tuple(places.nonzero()[0].tolist())


def _transposed(evidence: Evidence) -> str | None:
    """Two axes have changed places, in the answer or in memory; the last two are tried first."""
    want = evidence.want
    for one, other in reversed(list(combinations(range(want.ndim), 2))):
        if min(want.shape[one], want.shape[other]) < 2:
            continue
        turned = want.transpose(one, other)
        # read in the wrong order, or written in the wrong order
        candidates = (turned.reshape(want.shape), want.reshape(turned.shape).transpose(one, other))
        if any(_alike(evidence, candidate) for candidate in candidates):
            last_two = (one, other) == (want.ndim - 2, want.ndim - 1)
            axes = "rows and columns" if last_two else f"axes {one} and {other}"
            return f"transposed: {axes} have changed places"
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
    if not name and evidence.want.ndim > 1 and math.prod(evidence.want.shape[:-1]) == 1:
        return None  # one row, scaled like no other: a matter of rows
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


def _row_factors(evidence: Evidence) -> str | None:
    value, want = evidence.value, evidence.want
    if want.ndim < 2 or want.shape[-1] < 8 or not (value.isfinite() & want.isfinite()).all():
        return None
    size = (want * want).sum(dim=-1)
    there = size > 0
    factors = ((value * want).sum(dim=-1) / size.where(there, 1.0)).where(there, 1.0)
    off = (factors - 1).abs() >= 4 * _tolerance(evidence)
    if (factors <= 0).any() or not off.any():
        return None
    if not _alike(evidence, factors[..., None] * want):
        return None
    low, high = float(factors[off].min()), float(factors[off].max())
    return (
        f"{int(off.sum())} of {off.numel()} rows are off by a factor of their own ({low:.3g} to "
        f"{high:.3g}): what each is divided by is wrong (a sum that is not rescaled when the "
        "maximum moves, or that counts what should be masked)"
    )


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


def _overrun(evidence: Evidence) -> str | None:
    """The end of each row lies over the beginning of the next; the first has none before it."""
    for axis in reversed(range(1, evidence.wrong.ndim)):
        size = evidence.wrong.shape[axis]
        slabs = evidence.wrong.reshape(math.prod(evidence.wrong.shape[:axis]), size, -1)
        count = 1 + int(slabs.any(dim=2).any(dim=0).nonzero()[-1])
        if len(slabs) < 2 or count == size or slabs[0].any():
            continue
        if float(slabs[1:, :count].double().mean()) >= OVERRUN:
            return (
                f"only the first {count} of {size} along axis {axis} are wrong, and none of the "
                "very first: what comes before is stored past its end, over them (a store without "
                "a tail mask)"
            )
    return None


def _region(evidence: Evidence) -> str | None:
    """All is right up to some index of an axis, or in memory order, and wrong from there on."""
    ndim = evidence.wrong.ndim
    # what was left undone does not resemble the truth
    undone = not _resembles(evidence.value[evidence.wrong], evidence.want[evidence.wrong])
    for axis in reversed(range(ndim)):
        others = [other for other in range(ndim) if other != axis]
        shares = evidence.wrong.double().mean(dim=others) if others else evidence.wrong.double()
        if cause := _tail_or_head(shares, f"along axis {axis}", undone):
            return cause
    if ndim == 1:
        return None
    return _tail_or_head(evidence.wrong.flatten().double(), "in memory order", undone)


def _resembles(value: Tensor, want: Tensor) -> bool:
    scale = float(value.norm() * want.norm())
    return bool(value.isfinite().all()) and float((value * want).sum()) > 0.5 * scale > 0


def _tail_or_head(shares: Tensor, where: str, undone: bool) -> str | None:
    """What it means that the first elements are right; `shares` of wrong values by index."""
    size = shares.numel()
    right = int((shares > 0).double().argmax())
    left = size - right
    # the largest tile that may have ended there; a chance hit among the wrong ones does no harm
    block = right & -right
    if not right or float(shares[right:].mean()) < 0.9 or (block < 4 and left > 1):
        return None
    if left <= right:
        if left > block:
            return None
        return (
            f"only the last {left} of {size} {where} are wrong: the tail past the last whole "
            "block (no tail mask, a wrong mask, or a grid that is one block short)"
        )
    if not undone:
        return None
    return (
        f"only the first {right} of {size} {where} are right: the first block alone was done, or "
        "every program does the first"
    )


def _slices(evidence: Evidence) -> str | None:
    """Some slices of a leading axis (batches, heads) are wrong, and the others are not."""
    for axis in range(evidence.wrong.ndim - 2):
        size = evidence.wrong.shape[axis]
        shares = evidence.wrong.double().movedim(axis, 0).reshape(size, -1).mean(dim=1)
        bad = shares.nonzero().flatten().tolist()
        if len(bad) < size and float(shares[bad].mean()) >= 0.9:
            shown = ", ".join(map(str, bad[:8])) + (", ..." if len(bad) > 8 else "")
            return (
                f"wrong at {shown} of {size} along axis {axis} and nowhere else: which slice of an "
                "input these read (its index, stride or offset) is wrong"
            )
    return None


def _rounded(evidence: Evidence) -> str | None:
    if evidence.found.dtype in (torch.int32, torch.int64):
        return _rounded_integers(evidence)
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


def _rounded_integers(evidence: Evidence) -> str | None:
    found, error = evidence.found, _norm_error(evidence.value, evidence.want)
    kept = found.double() - found.float().double()  # a saturated one may not convert back
    if error > EPS["float32"] or kept.any() or not evidence.want.abs().max() > 2**24:
        return None
    return "every value is a float32, which holds 24 bits: the integers were converted to it"


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
    _covered_up,
    _zeros,
    _nan_rows,
    _transposed,
    _factor,
    _row_factors,
    _shifted,
    _rounded,
    _overrun,
    _region,
    _masked_rows,
    _slices,
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
