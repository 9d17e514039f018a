"""Decide whether an answer is right, and say where it is not."""

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.judge.correctness.yardstick import Yardstick

if TYPE_CHECKING:
    from torch import Tensor

# norm error ||got - want|| / ||want|| that an honest kernel stays under, by result dtype
NORM_LIMITS = {
    "float64": 1e-12,
    "float32": 1e-5,
    "float16": 1e-3,
    "bfloat16": 3e-3,
    "float8_e4m3fn": 5e-2,
    "float8_e5m2": 1e-1,
}
# a map computed in float32 is off by half a unit of its result; a rounded intermediate doubles that
MAP_ULPS = {
    "float64": 4.0,
    "float32": 4.0,
    "float16": 0.6,
    "bfloat16": 0.6,
    "float8_e4m3fn": 0.6,
    "float8_e5m2": 0.6,
}


def assert_matches(
    got: Any,  # noqa: ANN401 -- tensors, arrays, numbers and tuples of them
    want: Any,  # noqa: ANN401
    *,
    same_precision: Any = None,  # noqa: ANN401
    name: str = "result",
) -> None:
    """
    Fail unless `got` is as good an answer as its dtype allows.

    Two limits hold together. The norm error must be under the class limit of the dtype (a lower
    working precision exceeds it), and each element's error must be at most twice the worst error
    of the same formula in the working precision, plus a little rounding (one wrong tile or a
    lost tail exceeds it). Non-finite values must sit exactly where the truth has them.

    Where numbers are rounded to few bits on the way, the trusted answer is a `Yardstick`: both
    limits are then multiples of its errors, in the size of what was added up.

    Args:
        got: The implementation's answer: tensor, array, number, or a tuple of them.
        want: The truth, in float64 where it is a float.
        same_precision: The same formula computed by a trusted library in the working precision,
            or a `Yardstick`. Without it the answer counts as a map: a few units of rounding per
            element.
        name: What is compared, for the message.

    Raises:
        AssertionError: with the place and the size of the worst error; below that line a map of
            the errors, and their likely cause where one fits.
    """
    __tracebackhide__ = True
    if isinstance(want, tuple):
        assert isinstance(got, tuple), f"{name}: expected a tuple, found {type(got).__name__}"
        assert len(got) == len(want), f"{name}: expected {len(want)} values, found {len(got)}"
        trusted = same_precision if same_precision is not None else (None,) * len(want)
        for at, (one, truth, similar) in enumerate(zip(got, want, trusted, strict=True)):
            assert_matches(one, truth, same_precision=similar, name=f"{name}[{at}]")
        return
    assert got is not None or want is None, f"{name}: expected an answer, found None"
    if isinstance(got, int) and isinstance(want, int):  # of any size
        assert got == want, f"{name}: expected {want}, found {got}"
        return
    import torch

    found, truth = _tensor(got), _tensor(want)
    if found.shape != truth.shape:
        expected = f"{name}: expected shape {tuple(truth.shape)}, found {tuple(found.shape)}"
        raise AssertionError(expected + _explained(found, truth, None))
    yardstick = same_precision if isinstance(same_precision, Yardstick) else None
    trusted = same_precision if yardstick is None else yardstick.value
    trusted_tensor = None if trusted is None else _tensor(trusted)
    if trusted_tensor is not None:
        assert found.dtype == trusted_tensor.dtype, (
            f"{name}: expected dtype {trusted_tensor.dtype}, found {found.dtype}"
        )
    elif hasattr(got, "dtype") and hasattr(want, "dtype"):
        assert found.is_floating_point() == truth.is_floating_point(), (
            f"{name}: expected a dtype like {truth.dtype}, found {found.dtype}"
        )
    if not found.dtype.is_floating_point:
        _assert_equal(found, truth, name)
        return
    finite = _assert_same_non_finite(found, truth, name)
    truth = truth.to(found.device, torch.float64)
    if yardstick is not None:
        _assert_as_good(found, truth, yardstick, name)
        return
    if trusted_tensor is not None:
        slack = 2.0 * _worst(trusted_tensor, truth)
        # a handful of results says little about the worst error: one unit of the largest, too
        slack += torch.finfo(found.dtype).eps * _largest(truth)
    else:
        slack = 0.0
    error = torch.where(finite, (found.double() - truth).abs(), 0.0)
    size = torch.where(finite, truth.abs(), 0.0)
    info = torch.finfo(found.dtype)
    rounding = MAP_ULPS[_dtype_name(found)] * info.eps
    limit = slack + rounding * size + info.smallest_normal
    wrong = error > limit
    if bool(wrong.any()):
        described = _describe(name, found, truth, error, limit)
        raise AssertionError(described + _explained(found, truth, wrong))
    norm = float(error.norm() / size.norm()) if float(size.norm()) else 0.0
    allowed = NORM_LIMITS[_dtype_name(found)]
    if norm > allowed:
        raise AssertionError(
            f"{name}: norm error {norm:.2e} is over {allowed:.0e}, the limit for "
            f"{_dtype_name(found)}: every element is a little off, as with a lower working "
            f"precision{_explained(found, truth, wrong)}"
        )


def _assert_as_good(found: "Tensor", truth: "Tensor", yardstick: Yardstick, name: str) -> None:
    """Check both limits of an answer whose arithmetic rounds to few bits on the way."""
    __tracebackhide__ = True
    import torch

    error, (most, mean_most) = yardstick.errors(found, truth), yardstick.most(truth)
    size = yardstick.size.to(found.device, torch.float64)
    info = torch.finfo(found.dtype)
    rounding = MAP_ULPS[_dtype_name(found)] * info.eps * truth.abs() + info.smallest_normal
    off, limit = (found.double() - truth).abs(), most * size + rounding
    off, limit = torch.where(off.isfinite(), off, 0.0), limit.nan_to_num(torch.inf)
    wrong = off > limit
    if bool(wrong.any()):
        described = _describe(name, found, truth, off, limit)
        raise AssertionError(described + _explained(found, truth, wrong))
    mean = float(error.square().mean().sqrt()) if error.numel() else 0.0
    if mean > mean_most:
        raise AssertionError(
            f"{name}: the root mean square error is {mean:.2e} of what is added up, over "
            f"{mean_most:.2e}, the limit from the same roundings done right: every element is a "
            "little off, as with one bit fewer in an operand, a coarser scale, or sums kept in a "
            f"shorter number{_explained(found, truth, wrong)}"
        )


def diagnose_runs(first: Any, second: Any) -> str:  # noqa: ANN401
    """
    Why two answers to the same question differ, in a sentence; empty when they are the same.

    What is no tensor, array or number is not compared.

    Args:
        first: One answer: tensor, array, number, or a tuple of them.
        second: Another, to the same inputs.
    """
    from harness.judge.correctness.answer import parts
    from harness.judge.correctness.diagnosis import explain_runs

    ones, others = [[part for _, part in parts(answer, "")] for answer in (first, second)]
    if len(ones) != len(others):
        return f"two runs gave {len(ones)} and {len(others)} values"
    pairs = [pair for pair in zip(ones, others, strict=True) if all(map(_is_numeric, pair))]
    found = (explain_runs(_tensor(one), _tensor(other)) for one, other in pairs)
    return next(filter(None, found), "")


def _is_numeric(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, (bool, int, float)) or hasattr(value, "shape")


def _explained(found: "Tensor", truth: "Tensor", wrong: "Tensor | None") -> str:
    """Lines to put below a message; `wrong` is None where the shapes differ."""
    from harness.judge.correctness.diagnosis import explain, explain_shape

    return explain_shape(found, truth) if wrong is None else explain(found, truth, wrong)


def _tensor(value: Any) -> "Tensor":  # noqa: ANN401
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach()
    if hasattr(value, "copy_to_host"):
        value = value.copy_to_host()
    elif type(value).__module__.startswith("jaxlib"):
        return torch.utils.dlpack.from_dlpack(value)
    # a number of Python has the precision of its own arithmetic
    return torch.as_tensor(value, dtype=torch.float64 if type(value) is float else None)


def _dtype_name(tensor: "Tensor") -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _worst(trusted: "Tensor", truth: "Tensor") -> float:
    import torch

    truth = truth.to(trusted.device, torch.float64)
    error = (trusted.double() - truth).abs()
    error = error[torch.isfinite(error)]
    return float(error.max()) if error.numel() else 0.0


def _largest(truth: "Tensor") -> float:
    import torch

    finite = truth[torch.isfinite(truth)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _assert_equal(found: "Tensor", truth: "Tensor", name: str) -> None:
    __tracebackhide__ = True
    different = found != truth.to(found.device)
    if bool(different.any()):
        where = tuple(int(index) for index in different.nonzero()[0])
        raise AssertionError(
            f"{name}: {int(different.sum())} of {found.numel()} values differ; first at {where}: "
            f"expected {truth[where].item()}, found {found[where].item()}"
            f"{_explained(found, truth, different)}"
        )


def _assert_same_non_finite(found: "Tensor", truth: "Tensor", name: str) -> "Tensor":
    """Check that NaN and infinities sit where they should; return the mask of finite places."""
    import torch

    __tracebackhide__ = True
    truth = truth.to(found.device)
    # a finite truth past the dtype's range rounds to infinity, and so may the answer
    rounded, value = truth.to(found.dtype).double(), found.double()
    same = torch.isnan(value) & torch.isnan(rounded)
    same |= torch.isinf(value) & (value == rounded)
    finite = torch.isfinite(value) & torch.isfinite(rounded)
    wrong = ~(same | finite)
    if bool(wrong.any()):
        where = tuple(int(index) for index in wrong.nonzero()[0])
        raise AssertionError(
            f"{name}: {int(wrong.sum())} of {found.numel()} values are not finite where they "
            f"should be, or the reverse; first at {where}: expected {truth[where].item():.6g}, "
            f"found {found[where].item():.6g}{_region(wrong)}"
            f"{_explained(found, truth, wrong)}"
        )
    return finite


def _describe(name: str, found: "Tensor", truth: "Tensor", error: "Tensor", limit: "Tensor") -> str:
    wrong = error > limit
    flat = int((error - limit).argmax())
    where = tuple(int(index) for index in np.unravel_index(flat, tuple(error.shape)))
    return (
        f"{name}: {int(wrong.sum())} of {error.numel()} values off; worst at {where}: expected "
        f"{truth[where].item():.6g}, found {found[where].item():.6g}, error "
        f"{error[where].item():.3g} over the limit {limit[where].item():.3g}{_region(wrong)}"
    )


def _region(wrong: "Tensor") -> str:
    """The box that holds every wrong value, when it is smaller than the whole."""
    if wrong.ndim == 0 or bool(wrong.all()):
        return ""
    places = wrong.nonzero()
    low, high = places.min(dim=0).values.tolist(), places.max(dim=0).values.tolist()
    box = ", ".join(f"{first}:{last + 1}" for first, last in zip(low, high, strict=True))
    return f"; all of them within [{box}] of {tuple(wrong.shape)}"
