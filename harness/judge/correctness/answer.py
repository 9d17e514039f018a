"""What a call gave back: its form, whose memory it lies in, and a copy of it."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

Value = Any  # a tensor, an array, a number, or a tuple or list of them

PLAIN_TYPES = (torch.Tensor, np.ndarray, bool, int, float, complex, str, type(None))
# modules whose own array types are answers as well: nobody can derive a type inside them
ARRAY_MODULES = ("numba", "numba_cuda", "jax", "jaxlib")


class Span(NamedTuple):
    """Addresses from `low` to `high` on one device."""

    device: str
    low: int
    high: int

    def meets(self, other: "Span") -> bool:
        """Whether an address is in both."""
        return self.device == other.device and self.low < other.high and other.low < self.high


def parts(value: Value, name: str) -> Iterator[tuple[str, Value]]:
    """Every tensor, array and number in `value`, with its name; tuples and lists are entered."""
    if isinstance(value, (tuple, list)):
        for at, item in enumerate(value):
            yield from parts(item, f"{name}[{at}]")
    else:
        yield name, value


def as_tensor(value: Value) -> torch.Tensor | None:
    """The memory of a tensor or an array as a tensor, not copied; None for anything else."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    value = getattr(value, "_ary", value)  # a device array of Numba's simulator
    if isinstance(value, np.ndarray):
        return _numpy_memory(value)
    if hasattr(value, "__cuda_array_interface__"):
        return torch.as_tensor(value, device="cuda")
    return None


def _numpy_memory(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    shareable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array) if shareable and array.dtype.kind in "biufc" else None


def span(value: Value) -> Span | None:
    """Where the memory behind `value` lies; None when it has none."""
    array = getattr(value, "_ary", value)
    if isinstance(array, np.ndarray):
        return Span("cpu", *byte_bounds(array)) if array.size else None
    tensor = as_tensor(value)
    if tensor is None or not tensor.numel():
        return None
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    return Span(str(tensor.device), start, start + storage.nbytes())


def assert_sound(result: Value, arguments: Mapping[str, Any], *, writes: Collection[str]) -> None:
    """
    Refuse an answer that is not finished, not where it belongs, or not its own.

    Args:
        result: What the call returned.
        arguments: What it was called with.
        writes: Names of the arguments that it may return.

    Raises:
        AssertionError: naming the part of the result and what is wrong with it.
    """
    __tracebackhide__ = True
    inputs = [(name, part) for key, value in arguments.items() for name, part in parts(value, key)]
    homes = {part.device for _, part in inputs if isinstance(part, torch.Tensor)}
    for name, part in parts(result, "result"):
        _assert_plain(name, part)
        if isinstance(part, torch.Tensor):
            _assert_laid_out(name, part)
            found = part.device
            assert not homes or found in homes, (
                f"{name}: expected it on {', '.join(map(str, homes))}, where the inputs are, "
                f"found it on {found}"
            )
        taken = [
            key
            for key, value in inputs
            if key.partition("[")[0] not in writes and _meet(part, value)
        ]
        assert not taken, (
            f"{name} shares memory with the input {taken[0]}: expected memory of its own"
        )


def _assert_plain(name: str, part: Value) -> None:
    kind = type(part)
    known = kind.__module__.partition(".")[0] in ARRAY_MODULES
    if kind in PLAIN_TYPES or isinstance(part, np.generic) or known:
        return
    shown = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(part, (torch.Tensor, np.ndarray)):
        plain = "torch.Tensor" if isinstance(part, torch.Tensor) else "numpy.ndarray"
        raise AssertionError(
            f"{name}: expected a plain {plain}, found its subclass {shown}, whose work may not be "
            "done yet"
        )
    raise AssertionError(
        f"{name}: expected a finished tensor, array, number or a tuple of them, found {shown}"
    )


def _assert_laid_out(name: str, tensor: torch.Tensor) -> None:
    assert tensor.layout == torch.strided, (
        f"{name}: expected a strided tensor, found layout {tensor.layout}"
    )
    shared = [
        axis
        for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
        if size > 1 and stride == 0
    ]
    assert not shared or not tensor.numel(), (
        f"{name}: expected an element of memory for each of its elements, found one shared along "
        f"axis {shared[0]} (stride 0)"
    )


def _meet(part: Value, other: Value) -> bool:
    mine, theirs = span(part), span(other)
    return mine is not None and theirs is not None and mine.meets(theirs)


# ---- copies --------------------------------------------------------------------------------


def copied(value: Value) -> Value:
    """A copy of every tensor and array in `value`; an array of a device becomes a tensor."""
    if isinstance(value, (tuple, list)):
        items = [copied(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, np.ndarray):
        return value.copy()
    tensor = as_tensor(value)
    return value if tensor is None else tensor.clone()


def differences(value: Value, other: Value) -> list[torch.Tensor]:
    """For each tensor and array, whether its bits differ from its copy's: unread 0-d tensors."""
    pairs = zip(parts(value, ""), parts(other, ""), strict=True)
    tensors = [(as_tensor(one), as_tensor(copy)) for (_, one), (_, copy) in pairs]
    return [
        (_bits(one) != _bits(copy)).any()
        for one, copy in tensors
        if one is not None and copy is not None and one.numel()
    ]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes, so that NaN equals itself."""
    return tensor.contiguous().flatten().view(torch.uint8)
