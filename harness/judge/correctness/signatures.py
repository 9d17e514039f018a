"""
Signatures of typical mistakes: what an answer looks like when this or that was forgotten.

Each test looks at one wrong answer beside the truth and returns a sentence when its signature
fits, else None. They are tried in order, from the special to the general.
"""

import math
from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from harness.judge.correctness.evidence import Evidence, norm_error
from harness.judge.correctness.memory import poisoned_places
from harness.judge.correctness.roundings import low_precision, rounded

LOG2_E = math.log2(math.e)
HEAD_DIMS = (16, 32, 64, 80, 96, 128, 192, 256)
ROW = 8  # values that make a row long enough to have a factor of its own
LAST_OF = 16  # places along an axis, at least: the last of a few may be the wrong one by chance
NEAR = 0.1  # norm error of what was worked out, if not well
LARGEST_RANKED = 1 << 18  # elements of a matrix whose rank is worked out
OVERRUN = 0.8  # share of what was stored over that must be off: some of it may be right by chance


def likely_causes(evidence: Evidence) -> list[str]:
    """What the answer looks like: at most one cause, and where, if memory was left unwritten."""
    if not evidence.wrong.any():
        return [cause for cause in (rounded(evidence), low_precision(evidence)) if cause][:1]
    unwritten = _unwritten(evidence)
    if unwritten:
        return [cause for cause in (unwritten, _region(evidence)) if cause]
    return [cause for test in CAUSES if (cause := test(evidence))][:1]


def _unwritten(evidence: Evidence) -> str | None:
    if not poisoned_places(evidence.found)[evidence.wrong].all():
        return None
    if evidence.value[evidence.wrong].isfinite().any():
        return "never written: it still holds what uninitialised memory was filled with"
    # arithmetic passes on the NaN that unused memory is filled with
    return (
        "never written, or computed from memory outside the input (past its end, or between its "
        "rows): it is the NaN that unused memory was filled with"
    )


def _zeros(evidence: Evidence) -> str | None:
    if evidence.value.any() or not evidence.want.any():
        return None
    return "all zeros: nothing was stored, or what was accumulated was lost"


def _covered_up(evidence: Evidence) -> str | None:
    value, want = evidence.value[evidence.wrong], evidence.want[evidence.wrong]
    if want.isfinite().any() or not value.isfinite().all():
        return None
    kind = "NaN" if want.isnan().all() else "infinity" if want.isinf().all() else "NaN or infinity"
    return (
        f"a finite number where {kind} is right: a guard, a clamp, or a maximum that starts at a "
        "finite number instead of -inf hides what has no finite value"
    )


def _nan_rows(evidence: Evidence) -> str | None:
    if evidence.wrong.ndim < 2 or evidence.wrong.shape[-1] < 2:
        return None
    rows = evidence.wrong.any(dim=-1)
    whole = evidence.value.isnan().all(dim=-1)
    want = evidence.want[rows]
    if not whole[rows].all() or (rows.all() and want.any()):
        return None
    count = int(rows.sum())
    plural = "s" if count > 1 else ""
    where = f"NaN in {count} whole row{plural} and nowhere else, first in row {_first(rows)}"
    if not want.any():
        return f"{where}: a row in which everything is masked is 0 / 0"
    if want.any(dim=-1).all() and (want == 0).any(dim=-1).all():
        return f"{where}: each is partly masked, and -inf is subtracted from -inf there"
    return (
        f"{where}: an exponential overflows because the row's maximum is not subtracted first, "
        "or memory that was never written is used (0 times NaN is NaN)"
    )


def _overflowed(evidence: Evidence) -> str | None:
    """Infinity over infinity is NaN, and a number over infinity is zero, in the same row."""
    value, missing = evidence.value, evidence.value.isnan()
    rows = missing.any(dim=-1)
    beside = value[rows][~missing[rows]]
    if not rows.any() or not beside.numel() or beside.any():
        return None
    want = evidence.want[rows]
    largest = want.argmax(dim=-1, keepdim=True)
    if not want.isfinite().all() or not missing[rows].gather(-1, largest).all():
        return None
    return (
        f"NaN and otherwise only zeros in {int(rows.sum())} rows, first in row {_first(rows)}: an "
        "exponential overflows because the row's maximum is not subtracted first, and the row is "
        "divided by infinity"
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
            f"{int(shown.sum())} whole rows should be zero and are not, first row {_first(shown)}: "
            "a mask lets through what it should hide, or is aligned to the wrong corner"
        )
    if hidden.any() and evidence.wrong[~hidden].any():
        return (
            f"{int(hidden.sum())} whole rows are zero and should not be, first row "
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
        if any(evidence.alike(candidate) for candidate in candidates):
            last_two = (one, other) == (want.ndim - 2, want.ndim - 1)
            axes = "rows and columns" if last_two else f"axes {one} and {other}"
            return f"transposed: {axes} are swapped"
    return None


def _factor(evidence: Evidence) -> str | None:
    """One factor for all; where each row has its own, it only looks like one."""
    value, want = evidence.finite()
    scale = float((want * want).sum())
    if not scale or want.numel() < 2:
        return None
    factor = float((value * want).sum()) / scale
    # also where the reference is a constant: any constant would fit it
    varied = float((want - want.mean()).norm()) > 1e-3 * math.sqrt(scale)
    close_to_one = abs(factor - 1) < 4 * evidence.tolerance
    if not varied or not factor or close_to_one or not evidence.alike(factor * evidence.want):
        return None
    if evidence.want.ndim > 1 and _fits_rows_better(evidence, factor):
        return None
    name = factor_name(factor, tuple(evidence.want.shape))
    if not name and evidence.want.ndim > 1 and math.prod(evidence.want.shape[:-1]) == 1:
        return None  # one row, scaled like no other: a matter of rows
    return f"off by the constant factor {factor:.5g}{f' = {name}' if name else ''}"


def _fits_rows_better(evidence: Evidence, factor: float) -> bool:
    """Whether a factor for each row explains much more than `factor` does for all of them."""
    value, want = evidence.value, evidence.want
    if want.shape[-1] < ROW or not (value.isfinite() & want.isfinite()).all():
        return False
    own = _factors_of_rows(value, want)
    return norm_error(own * want, value) < 0.5 * norm_error(factor * want, value)


def _factors_of_rows(value: Tensor, want: Tensor) -> Tensor:
    """What each row of `want` is best multiplied by to give `value`, [..., 1]; 1 for zeros."""
    size = (want * want).sum(dim=-1, keepdim=True)
    there = size > 0
    fit = (value * want).sum(dim=-1, keepdim=True) / size.where(there, 1.0)
    return fit.where(there, 1.0)


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
    if want.ndim < 2 or want.shape[-1] < ROW or not (value.isfinite() & want.isfinite()).all():
        return None
    factors = _factors_of_rows(value, want)
    off = (factors - 1).abs() >= evidence.tolerance / 2
    if (factors <= 0).any() or not off.any() or not evidence.alike(factors * want):
        return None
    if norm_error(factors * want, value) > 0.3 * norm_error(want, value):
        return None  # rounding as much as factors
    low, high = float(factors[off].min()), float(factors[off].max())
    return (
        f"{int(off.sum())} of {off.numel()} rows are each off by a factor of their own "
        f"({low:.3g} to {high:.3g}): the divisor is wrong (a sum that is not rescaled when the "
        "maximum changes, or that includes what should be masked)"
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
            if evidence.alike(want, found) and not evidence.alike(want, still):
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
                f"only the first {count} of {size} along axis {axis} are wrong, and none in the "
                "very first slice: each slice is stored past its end, over the next (a store "
                "without a tail mask)"
            )
    return None


def _region(evidence: Evidence) -> str | None:
    """All is right up to some index of an axis, or in memory order, and wrong from there on."""
    ndim = evidence.wrong.ndim
    value, want = evidence.value[evidence.wrong], evidence.want[evidence.wrong]
    if norm_error(value, want) < NEAR:
        return None  # rounded, but done
    # what was left undone does not resemble the truth
    undone = not _resembles(value, want)
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
        if left > block or (left == 1 and size < LAST_OF):
            return None
        return (
            f"only the last {left} of {size} {where} are wrong: the tail past the last whole "
            "block (no tail mask, a wrong mask, or a grid that is one block short)"
        )
    if not undone:
        return None
    return (
        f"only the first {right} of {size} {where} are right: only the first block was computed, "
        "or every program computes the first"
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
                f"wrong only at {shown} of {size} along axis {axis}: these read the wrong slice of "
                "an input (a wrong index, stride or offset)"
            )
    return None


def _low_rank(evidence: Evidence) -> str | None:
    """Of a product of matrices, what a few terms of each sum make."""
    value, want = evidence.value, evidence.want
    if want.ndim != 2 or min(want.shape) < ROW or want.numel() > LARGEST_RANKED:
        return None
    off = value - want
    if not off.isfinite().all() or float(evidence.wrong.double().mean()) < 0.5:
        return None
    if any(
        norm_error(off.mean(dim=axis, keepdim=True).expand_as(off), off) < 0.1 for axis in (0, 1)
    ):
        return None  # the same in each row or column: a bias, of any making
    sizes = torch.linalg.svdvals(off)
    # what is left once the largest are taken away, after 1, 2, …
    left = (sizes * sizes).flip(0).cumsum(0).flip(0).sqrt()[1:]
    rank = 1 + int((left > evidence.tolerance * want.norm()).sum())
    if rank > min(want.shape) // 4:
        return None
    return (
        f"the error is a matrix of rank {rank}, as when a matrix product omits {rank} "
        f"term{'s' if rank > 1 else ''} of each of its sums over k (a tail), or counts "
        f"{'them' if rank > 1 else 'it'} twice"
    )


CAUSES: tuple[Callable[[Evidence], str | None], ...] = (
    _covered_up,
    _zeros,
    _nan_rows,
    _overflowed,
    _transposed,
    _factor,
    _row_factors,
    _shifted,
    rounded,
    _overrun,
    _region,
    _masked_rows,
    _slices,
    _low_rank,
    low_precision,
)
