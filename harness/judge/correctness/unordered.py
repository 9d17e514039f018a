"""Answers whose order is free: compared sorted, or as multisets that say what is missing."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

MOST_TOLD = 5  # items of each kind


def sorted_parts(value: Any) -> Any:  # noqa: ANN401 -- tensors, arrays, tuples of them
    """Each array and tensor of an answer, sorted along its last axis; all else as it is."""
    if isinstance(value, (tuple, list)):
        return tuple(map(sorted_parts, value))
    if hasattr(value, "copy_to_host"):
        value = value.copy_to_host()
    if not getattr(value, "ndim", 0):
        return value
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        return value.sort(dim=-1).values
    return np.sort(value, axis=-1)


def assert_unordered(got: Iterable[Any], want: Iterable[Any], name: str = "result") -> None:
    """
    Fail unless `got` has the items of `want`, each as often, in whatever order.

    Items are numbers, text or tuples; of an array or a tensor with several axes they are its
    entries along the first. NaN is equal to itself.

    Raises:
        AssertionError: with what is missing and what is too much.
    """
    __tracebackhide__ = True
    found, expected = Counter(map(_item, _listed(got))), Counter(map(_item, _listed(want)))
    missing, surplus = expected - found, found - expected
    if missing or surplus:
        told = {"missing": missing, "too many": surplus}
        words = "; ".join(f"{kind}: {_told(items)}" for kind, items in told.items() if items)
        raise AssertionError(
            f"{name}: expected {expected.total()} items in any order, found {found.total()}: "
            f"{words}"
        )


def _listed(items: Any) -> Iterable[Any]:  # noqa: ANN401
    if hasattr(items, "copy_to_host"):
        items = items.copy_to_host()
    listed: Iterable[Any] = items.tolist() if hasattr(items, "tolist") else items
    return listed


def _item(value: Any) -> Hashable:  # noqa: ANN401
    if isinstance(value, (list, tuple)):
        return tuple(map(_item, value))
    if hasattr(value, "tolist"):
        return _item(value.tolist())
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def _told(items: "Counter[Hashable]") -> str:
    shown = [f"{item}{f' ({count} times)' if count > 1 else ''}" for item, count in items.items()]
    more = len(shown) - MOST_TOLD
    return ", ".join(shown[:MOST_TOLD]) + (f" and {more} others" if more > 0 else "")
