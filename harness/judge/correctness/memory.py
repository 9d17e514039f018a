"""Memory that tells on its users: poisoned outputs, and guard bands around every tensor."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

GUARD_BYTES = 32_768  # wider than a block that forgot its mask; keeps 256-byte alignment
NAN, LARGE = "nan", "large"  # the two patterns an unwritten element shows
ZERO = "zero"  # and the one that gives nothing away and breaks nothing
LARGE_FLOAT = 1e4
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# NaN with a payload of its own, which no computation makes and most pass on
NAN_BITS = {
    torch.float16: 0x7E5A,
    torch.bfloat16: 0x7FDA,
    torch.float32: 0x7FC0DEAD,
    torch.float64: 0x7FF8DEAD0000DEAD,
}
# NumPy arrays of other dtypes are left as they are
_TORCH_DTYPES = {
    name: getattr(torch, name)
    for name in (
        *("float16", "float32", "float64", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    )
}

to_array = torch.Tensor.numpy  # which a call under test may be denied


def poisoned(count: int, dtype: torch.dtype, device: torch.device, pattern: str) -> torch.Tensor:
    """A tensor of `count` elements that show `pattern`."""
    if pattern == NAN and dtype in NAN_BITS:
        bits, integer = NAN_BITS[dtype], INTEGERS[dtype.itemsize]
        return torch.full((count,), bits, dtype=integer, device=device).view(dtype)
    return torch.full((count,), _pattern(dtype, pattern), dtype=dtype, device=device)


def _pattern(dtype: torch.dtype, pattern: str) -> float | int | bool:
    if pattern == ZERO:
        return 0
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan") if pattern == NAN else min(LARGE_FLOAT, torch.finfo(dtype).max)
    if dtype == torch.bool:
        return pattern == NAN
    return torch.iinfo(dtype).max if pattern == NAN else torch.iinfo(dtype).max // 3


def poisoned_places(tensor: torch.Tensor) -> torch.Tensor:
    """Where a tensor still shows a poison; a small integer may be anything, so never there."""
    if tensor.dtype in NAN_BITS:
        bits = tensor.contiguous().view(INTEGERS[tensor.itemsize])
        return (bits == NAN_BITS[tensor.dtype]) | (tensor == LARGE_FLOAT)
    if tensor.dtype in (torch.int32, torch.int64):
        return (tensor == _pattern(tensor.dtype, NAN)) | (tensor == _pattern(tensor.dtype, LARGE))
    return torch.zeros_like(tensor, dtype=torch.bool)


class Guarded:
    """
    A tensor like `tensor` (values, shape, strides) inside a larger poisoned buffer.

    Gaps between strided rows are poisoned as well, so that a read outside the tensor changes the
    answer and a write outside it is noticed.
    """

    def __init__(self, tensor: torch.Tensor, pattern: str = NAN, *, copy: bool = True) -> None:
        span = 1 + sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        span = span if tensor.numel() else 0
        pad = GUARD_BYTES // tensor.element_size()
        self.buffer = poisoned(span + 2 * pad, tensor.dtype, tensor.device, pattern)
        self.tensor = self.buffer.as_strided(tensor.shape, tensor.stride(), pad)
        self.outside = torch.ones_like(self.buffer, dtype=torch.bool)
        self.outside.as_strided(tensor.shape, tensor.stride(), pad).fill_(False)
        if copy:
            self.tensor.copy_(tensor)
        self.before = self.buffer.clone()

    def disturbed_outside(self) -> int:
        """How many elements outside the tensor have been overwritten."""
        return int((_bits(self.buffer) != _bits(self.before))[self.outside].sum())

    def disturbed(self) -> bool:
        """Whether anything at all, in or outside the tensor, has been overwritten."""
        return not torch.equal(_bits(self.buffer), _bits(self.before))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes as integers, so that NaN compares equal to itself."""
    return tensor.view(INTEGERS.get(tensor.itemsize, torch.uint8))


class LightMode(TorchDispatchMode):
    """A dispatch mode whose first operator does not import torch._dynamo, which takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class PoisonedAllocations(LightMode):
    """While active, uninitialised torch memory is poisoned and fenced by guard bands."""

    def __init__(self, pattern: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pattern = pattern
        self.made: list[Guarded] = []

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 -- torch's own signature
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Let the op run; replace what it left uninitialised."""
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in UNINITIALISED and result.device.type != "meta":
            guarded = Guarded(result, self.pattern, copy=False)
            self.made.append(guarded)
            return guarded.tensor
        return result

    def broken(self) -> int:
        """Elements written outside the tensors that were allocated while active."""
        return sum(guarded.disturbed_outside() for guarded in self.made)


UNINITIALISED = {
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
}


@contextmanager
def poisoned_allocations(pattern: str) -> Iterator[PoisonedAllocations]:
    """Poison what torch and NumPy leave uninitialised while the block runs."""
    empty = np.empty

    def poisoned_empty(*args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401
        return poison_array(empty(*args, **kwargs), pattern)

    def poisoned_like(prototype: Any, **kwargs: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401
        return poison_array(empty_like(prototype, **kwargs), pattern)

    empty_like = np.empty_like
    with (
        mock.patch.object(np, "empty", poisoned_empty),
        mock.patch.object(np, "empty_like", poisoned_like),
        PoisonedAllocations(pattern) as mode,
    ):
        yield mode


def poison_array(array: np.ndarray[Any, Any], pattern: str) -> np.ndarray[Any, Any]:
    """Fill a NumPy array with what an unwritten element shall show."""
    known = _TORCH_DTYPES.get(array.dtype.name)
    if known is not None:
        array[...] = to_array(poisoned(1, known, torch.device("cpu"), pattern))
    return array
