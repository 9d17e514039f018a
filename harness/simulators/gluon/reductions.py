"""Functions of `gl` along an axis: sums, extremes, scans, gathers, histograms."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl

from harness.simulators.gluon.context import fault
from harness.simulators.gluon.layouts import ANY, FREE, SliceLayout
from harness.simulators.gluon.tensors import (
    GL,
    Tensor,
    as_tensor,
    check_same_ctas,
    check_whole,
    export,
    running,
)
from harness.simulators.gluon.values import Array, Dtype, KernelValue, numpy_dtype, unwrap

Arrays = list[Array]


def _reduced(
    x: Tensor,
    values: KernelValue,
    axis: int,
    keep_dims: KernelValue = False,
    dtype: Dtype = None,
) -> Tensor:
    """What a reduction of `x` along `axis` gives, with its layout."""
    dtype = dtype or x.dtype
    values = np.asarray(values, numpy_dtype(dtype))
    if unwrap(keep_dims):
        return Tensor(np.expand_dims(values, axis), dtype, x.layout)
    if values.ndim == 0:
        return Tensor(values[()], dtype)
    return Tensor(values, dtype, ANY if isinstance(x.layout, FREE) else SliceLayout(axis, x.layout))


def _along(x: KernelValue, axis: KernelValue, *, scans: bool = False) -> tuple[Tensor, int]:
    """A tensor and a whole axis of it; all of it when none is given. `scans`: in order."""
    running().tick()
    x, axis = as_tensor(x), unwrap(axis)
    if axis is not None and (type(axis) is not int or not -len(x.shape) <= axis < len(x.shape)):
        raise fault(ValueError, f"expected one of {len(x.shape)} axes, found {axis!r}")
    if axis is not None:
        axis += len(x.shape) * (axis < 0)
    # a scan is built for no axis of a tensor that is split: ScanOpToLLVM.cpp asserts
    check_whole(x.layout, None if scans else axis, "a scan" if scans else "a reduction or a gather")
    if axis is None:
        return Tensor(np.ravel(x.values), x.dtype, ANY), 0
    return x, axis


@export(GL)
def _sum(
    x: Tensor, axis: KernelValue = None, keep_dims: KernelValue = False, dtype: KernelValue = None
) -> Tensor:
    x, axis = _along(x, axis)
    own = tl.float32 if x.dtype == tl.bfloat16 else x.dtype
    if x.dtype.is_int() and x.dtype.int_bitwidth < 32:
        own = tl.int32
    dtype = unwrap(dtype) or own
    total = np.sum(x.values, axis=axis, dtype=numpy_dtype(dtype))
    return _reduced(x, total, axis, keep_dims, dtype)


def _extreme(name: str, best: np.ufunc, where: Callable[..., Any]) -> None:
    def find(
        x: Tensor,
        axis: KernelValue = None,
        return_indices: KernelValue = False,
        return_indices_tie_break_left: KernelValue = True,
        keep_dims: KernelValue = False,
    ) -> Any:  # noqa: ANN401 -- a tensor, or two
        x, axis = _along(x, axis)
        found = _reduced(x, best.reduce(x.values, axis=axis), axis, keep_dims)
        if not unwrap(return_indices):
            return found
        return found, _reduced(x, where(x.values, axis=axis), axis, keep_dims, tl.int32)

    GL[name] = find


_extreme("max", np.fmax, np.argmax)
_extreme("min", np.fmin, np.argmin)


@export(GL)
def _xor_sum(x: Tensor, axis: KernelValue = None, keep_dims: KernelValue = False) -> Tensor:
    x, axis = _along(x, axis)
    return _reduced(x, np.bitwise_xor.reduce(x.values, axis=axis), axis, keep_dims)


@export(GL)
def _reduce_or(x: Tensor, axis: KernelValue, keep_dims: KernelValue = False) -> Tensor:
    x, axis = _along(x, axis)
    return _reduced(x, np.bitwise_or.reduce(x.values, axis=axis), axis, keep_dims)


@export(GL)
def _cumsum(x: Tensor, axis: KernelValue = 0, **_: KernelValue) -> Tensor:
    x, axis = _along(x, axis, scans=True)
    return Tensor(np.cumsum(x.values, axis=axis, dtype=x.values.dtype), x.dtype, x.layout)


@export(GL)
def _cumprod(x: Tensor, axis: KernelValue = 0, **_: KernelValue) -> Tensor:
    x, axis = _along(x, axis, scans=True)
    return Tensor(np.cumprod(x.values, axis=axis, dtype=x.values.dtype), x.dtype, x.layout)


def _combined(
    fn: Callable[..., Any], left: Arrays, right: Arrays, like: Sequence[Tensor]
) -> Arrays:
    """One call of a kernel's own combine function on whole arrays."""
    sides = [
        Tensor(values, one.dtype, ANY)
        for side in (left, right)
        for values, one in zip(side, like, strict=True)
    ]
    found = fn(*sides)
    return [one.values for one in (found if isinstance(found, tuple) else (found,))]


@export(GL)
def _reduce(
    x: KernelValue,
    axis: KernelValue,
    combine_fn: Callable[..., Any],
    keep_dims: KernelValue = False,
) -> Any:  # noqa: ANN401 -- a tensor, or as many as were given
    tensors = x if isinstance(x, tuple) else (x,)
    axis = _along(tensors[0], axis)[1]
    now = [np.moveaxis(one.values, axis, -1) for one in tensors]
    while (length := now[0].shape[-1]) > 1:  # a tree over neighbours
        even = length // 2 * 2
        pairs = _combined(
            combine_fn,
            [one[..., 0:even:2] for one in now],
            [one[..., 1:even:2] for one in now],
            tensors,
        )
        now = [
            np.concatenate([pair, one[..., even:]], -1)
            for pair, one in zip(pairs, now, strict=True)
        ]
    results = tuple(
        _reduced(one, values[..., 0], axis, keep_dims)
        for one, values in zip(tensors, now, strict=True)
    )
    return results if isinstance(x, tuple) else results[0]


@export(GL)
def _associative_scan(
    x: KernelValue, axis: KernelValue, combine_fn: Callable[..., Any], reverse: KernelValue = False
) -> Any:  # noqa: ANN401 -- a tensor, or as many as were given
    tensors = x if isinstance(x, tuple) else (x,)
    axis = _along(tensors[0], axis, scans=True)[1]
    step = -1 if unwrap(reverse) else 1
    now = [np.moveaxis(one.values, axis, -1)[..., ::step] for one in tensors]
    distance = 1
    while distance < now[0].shape[-1]:
        sums = _combined(
            combine_fn,
            [one[..., :-distance] for one in now],
            [one[..., distance:] for one in now],
            tensors,
        )
        now = [
            np.concatenate([one[..., :distance], part], -1)
            for one, part in zip(now, sums, strict=True)
        ]
        distance *= 2
    results = tuple(
        Tensor(np.moveaxis(values[..., ::step], -1, axis), one.dtype, one.layout)
        for one, values in zip(tensors, now, strict=True)
    )
    return results if isinstance(x, tuple) else results[0]


@export(GL)
def _gather(source: Tensor, index: Tensor, axis: KernelValue) -> Tensor:
    source, axis = _along(source, axis)
    check_same_ctas(source.layout, index.layout, index.shape, "gather")
    values = np.take_along_axis(source.values, index.values, axis)
    return Tensor(values, source.dtype, index.layout)


@export(GL)
def _histogram(
    x: Tensor, num_bins: KernelValue, mask: KernelValue = None, layout: KernelValue = None
) -> Tensor:
    check_whole(x.layout, None, "a histogram")
    values = x.values if mask is None else x.values[mask.values]
    counts = np.bincount(values.ravel(), minlength=unwrap(num_bins)).astype(np.int32)
    return Tensor(counts, tl.int32, unwrap(layout) or ANY)
