"""A wrong answer beside the truth, for those who look for its cause."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


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

    @property
    def tolerance(self) -> float:
        """The norm error that the answer's own rounding may make, with a margin."""
        return max(4 * self.eps, 1e-5)

    def alike(self, other: Tensor, value: Tensor | None = None) -> bool:
        """Whether the answer (or a part of it, `value`) is `other` to within its own rounding."""
        value = self.value if value is None else value
        finite = other.isfinite()
        if not value[finite].isfinite().all() or not other[finite].any():
            return False
        return norm_error(value[finite], other[finite]) <= self.tolerance

    def finite(self) -> tuple[Tensor, Tensor]:
        """Answer and truth, flat, where both are finite."""
        both = self.value.isfinite() & self.want.isfinite()
        return self.value[both], self.want[both]


def norm_error(value: Tensor, want: Tensor) -> float:
    """The norm of the difference over that of `want`; infinite when `want` is zero."""
    size = float(want.norm())
    return float((value - want).norm()) / size if size else math.inf
