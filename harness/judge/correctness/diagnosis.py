"""
What a wrong answer looks like: a map of where it is wrong, and the likely cause.

Everything here is a pure function of the answer and the truth, and runs only once an answer has
been found wrong. The causes are in `signatures.py`.
"""

import torch
from torch import Tensor

from harness.judge.correctness.evidence import Evidence
from harness.judge.correctness.memory import poisoned_places
from harness.judge.correctness.signatures import likely_causes

MAP_ROWS, MAP_COLS = 8, 16  # cells of the map, at most
LARGEST = 1 << 24  # elements; larger answers get the map only


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
        return "\nlikely cause: transposed: the last two axes are swapped"
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
        return much + "by rounding only, as when terms are summed in a different order (atomics)"
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
