"""
How an answer of few-bit numbers is judged: by the error that its own arithmetic has to make.

A kernel that casts to FP8 or FP4 on its way, or whose tensor cores keep short sums, is further
from the truth than its result's dtype allows, and right. Its error is held against that of the
same arithmetic done without a mistake.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from harness.simulators.block_scaled import Block, Format

# of two honest answers the errors are alike, and one mantissa bit fewer doubles them: between
MARGIN = math.sqrt(2)
# float32 sums in another order, over the size of what is added up
ORDER = 2.0**-19


@dataclass(frozen=True, slots=True)
class Yardstick:
    """
    What `same_precision` of an oracle returns where numbers are rounded to few bits on the way.

    Attributes:
        value: The answer of the same arithmetic with the format's own roundings and sums, in the
            dtype of the result.
        size: How much is added up for each element, without signs: the same sums over absolute
            values. Errors are counted in it, so that an element counts as much in a row of
            small scale as in one of large scale.
    """

    value: "Tensor"
    size: "Tensor"

    def __post_init__(self) -> None:
        """Refuse sizes that are not those of the value's elements, with a ValueError."""
        if self.size.shape != self.value.shape:
            raise ValueError(
                f"Yardstick: expected a size for each element of {tuple(self.value.shape)}, found "
                f"sizes of shape {tuple(self.size.shape)}"
            )
        if bool((self.size < 0).any()):
            raise ValueError(
                "Yardstick: expected sums of absolute values as sizes, found less than 0"
            )

    def errors(self, found: "Tensor", truth: "Tensor") -> "Tensor":
        """How far `found` is from the truth, in the size of what was added up; 0 where none was."""
        import torch

        size = self.size.to(found.device, torch.float64)
        off = (found.double() - truth).abs()
        return torch.where((size > 0) & off.isfinite(), off / size, 0.0)

    def most(self, truth: "Tensor") -> tuple[float, float]:
        """
        The limits of an answer: of one element's error, and of their root mean square.

        The second is a sharp one where there are many rows; a few say little about their mean.
        """
        own = self.errors(self.value, truth.to(self.value.device))
        if not own.numel():
            return ORDER, ORDER
        rows = max(1, own.numel() // own.shape[-1]) if own.ndim > 1 else own.numel()
        margin = MARGIN * (1 + 2 / math.sqrt(rows))
        return 2 * float(own.max()) + ORDER, margin * _mean_square(own) + ORDER


def assert_nearest(
    numbers: "Tensor", scales: "Tensor", x: "Tensor", form: "Format", block: "Block"
) -> None:
    """
    Fail unless each number, with its scale, is the one of the format that is nearest to x.

    The scales are taken as they are found: whether they are the right ones is another question.
    Where x lies between two numbers to within the rounding of a float32, either is right.

    Args:
        numbers: [..., rows, columns], in any dtype.
        scales: One for each block, positive.
        x: [..., rows, columns], what was quantised.
        form: What it was rounded to.
        block: Rows and columns that share a scale.

    Raises:
        AssertionError: with the worst place, and what was expected there.
    """
    __tracebackhide__ = True
    import torch

    from harness.simulators.block_scaled import spread

    shape = (x.shape[-2], x.shape[-1])
    assert numbers.shape == x.shape, (
        f"numbers: expected shape {tuple(x.shape)}, found {tuple(numbers.shape)}"
    )
    each = spread(scales.double(), shape, block)
    assert each.shape[-2:] == shape, (
        f"scales: expected one for each block of {block[0]} x {block[1]}, found shape "
        f"{tuple(scales.shape)} for {tuple(x.shape)}"
    )
    assert bool((each > 0).all() & each.isfinite().all()), (
        "scales: expected positive, finite numbers, found "
        f"{scales.double()[~((scales.double() > 0) & scales.double().isfinite())][0].item():g}"
    )
    found, want = numbers.double(), x.double() / each
    best = form.round(want)
    excess = (found - want).abs() - (best - want).abs() - 2.0**-22 * want.abs()
    excess = torch.where(form.round(found) == found, excess, torch.inf)  # also where it is NaN
    if numbers.numel() and float(excess.max()) > 0:
        where = tuple(int(at[0]) for at in torch.nonzero(excess == excess.max(), as_tuple=True))
        raise AssertionError(
            f"numbers: {int((excess > 0).sum())} of {numbers.numel()} are not the nearest of "
            f"{form.name}; worst at {where}: x is {x[where].item():.6g}, by its scale "
            f"{want[where].item():.6g}: expected {best[where].item():g}, found "
            f"{found[where].item():g}"
        )


def _mean_square(errors: "Tensor") -> float:
    return float(errors.square().mean().sqrt())
