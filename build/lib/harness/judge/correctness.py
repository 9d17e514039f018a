"""Decide whether an answer is right, and say where it is not."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# norm error ||got - want|| / ||want|| that an honest kernel stays under, by result dtype
NORM_LIMITS = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 3e-3}
# a map computed in float32 is off by half a unit of its result; a rounded intermediate doubles that
MAP_ULPS = {"float64": 4.0, "float32": 4.0, "float16": 0.6, "bfloat16": 0.6}


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

    Args:
        got: The implementation's answer: tensor, array, number, or a tuple of them.
        want: The truth, in float64 where it is a float.
        same_precision: The same formula computed by a trusted library in the working precision.
            Without it the answer counts as a map: a few units of rounding per element.
        name: What is compared, for the message.

    Raises:
        AssertionError: with the place and the size of the worst error.
    """
    __tracebackhide__ = True
    if isinstance(want, tuple):
        assert isinstance(got, tuple), f"{name}: expected a tuple, found {type(got).__name__}"
        assert len(got) == len(want), f"{name}: expected {len(want)} values, found {len(got)}"
        trusted = same_precision if same_precision is not None else (None,) * len(want)
        for at, (one, truth, similar) in enumerate(zip(got, want, trusted, strict=True)):
            assert_matches(one, truth, same_precision=similar, name=f"{name}[{at}]")
        return
    import torch

    found, truth = _tensor(got), _tensor(want)
    assert found.shape == truth.shape, (
        f"{name}: expected shape {tuple(truth.shape)}, found {tuple(found.shape)}"
    )
    if not found.dtype.is_floating_point:
        _assert_equal(found, truth, name)
        return
    if same_precision is not None:
        trusted_tensor = _tensor(same_precision)
        assert found.dtype == trusted_tensor.dtype, (
            f"{name}: expected dtype {trusted_tensor.dtype}, found {found.dtype}"
        )
        slack = 2.0 * _worst(trusted_tensor, truth)
    else:
        slack = 0.0
    finite = _assert_same_non_finite(found, truth, name)
    truth = truth.to(found.device, torch.float64)
    error = torch.where(finite, (found.double() - truth).abs(), 0.0)
    size = torch.where(finite, truth.abs(), 0.0)
    info = torch.finfo(found.dtype)
    rounding = MAP_ULPS[_dtype_name(found)] * info.eps
    limit = slack + rounding * size + info.smallest_normal
    if bool((error > limit).any()):
        raise AssertionError(_describe(name, found, truth, error, limit))
    norm = float(error.norm() / size.norm()) if float(size.norm()) else 0.0
    allowed = NORM_LIMITS[_dtype_name(found)]
    assert norm <= allowed, (
        f"{name}: norm error {norm:.2e} is over {allowed:.0e}, the limit for "
        f"{_dtype_name(found)}: every element is a little off, as with a lower working precision"
    )


def _tensor(value: Any) -> "Tensor":  # noqa: ANN401
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach()
    if hasattr(value, "copy_to_host"):
        value = value.copy_to_host()
    return torch.as_tensor(value)


def _dtype_name(tensor: "Tensor") -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _worst(trusted: "Tensor", truth: "Tensor") -> float:
    import torch

    truth = truth.to(trusted.device, torch.float64)
    error = (trusted.double() - truth).abs()
    error = error[torch.isfinite(error)]
    return float(error.max()) if error.numel() else 0.0


def _assert_equal(found: "Tensor", truth: "Tensor", name: str) -> None:
    __tracebackhide__ = True
    different = found != truth.to(found.device)
    if bool(different.any()):
        where = tuple(int(index) for index in different.nonzero()[0])
        raise AssertionError(
            f"{name}: {int(different.sum())} of {found.numel()} values differ; first at {where}: "
            f"expected {truth[where].item()}, found {found[where].item()}"
        )


def _assert_same_non_finite(found: "Tensor", truth: "Tensor", name: str) -> "Tensor":
    """Check that NaN and infinities sit where they should; return the mask of finite places."""
    import torch

    __tracebackhide__ = True
    truth = truth.to(found.device)
    # a finite truth past the dtype's range rounds to infinity, and so may the answer
    rounded = truth.to(found.dtype)
    same = torch.isnan(found) & torch.isnan(rounded)
    same |= torch.isinf(found) & (found == rounded)
    finite = torch.isfinite(found) & torch.isfinite(rounded)
    wrong = ~(same | finite)
    if bool(wrong.any()):
        where = tuple(int(index) for index in wrong.nonzero()[0])
        raise AssertionError(
            f"{name}: {int(wrong.sum())} of {found.numel()} values are not finite where they "
            f"should be, or the reverse; first at {where}: expected {truth[where].item():.6g}, "
            f"found {found[where].item():.6g}{_region(wrong)}"
        )
    return finite


def _describe(name: str, found: "Tensor", truth: "Tensor", error: "Tensor", limit: "Tensor") -> str:
    import torch

    wrong = error > limit
    flat = int((error - limit).argmax())
    where = tuple(int(index) for index in torch.unravel_index(torch.tensor(flat), error.shape))
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
