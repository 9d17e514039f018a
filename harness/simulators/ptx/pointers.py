"""The memory of PyTorch's CPU tensors as regions of global memory."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from harness.cuda import TENSOR_MAP_BYTES
from harness.simulators.ptx.arguments import Pointer, Region, TensorMap
from harness.simulators.ptx.formats import u8

MOST_GAPS = 1 << 26  # bytes: where a tensor has more, its rows are taken one by one
MARK = 0x7FFF_0000_0000_0000  # what no address begins with: behind it stand region and offset
OFFSET_BITS = 40


@dataclass(slots=True)
class Span:
    """Bytes of this process from `start` to `end` that tensors among the arguments cover."""

    start: int
    end: int
    names: list[str]
    storage: int


TENSOR_MAP = b"tensor map "  # what stands for one until it is resolved: this, and its number


@dataclass(slots=True)
class Memory:
    """What a launch may touch: the memory of its arguments, each piece of it once."""

    spans: list[Span] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    maps: list[TensorMap] = field(default_factory=list)
    _alive: list[Any] = field(default_factory=list)

    def add(self, tensors: Mapping[str, Any]) -> None:
        """Take in tensors by name; those that overlap become one piece."""
        self._alive += tensors.values()
        self.spans = []
        for span in sorted(
            (span for name, tensor in tensors.items() for span in _spans(name, tensor)),
            key=lambda one: (one.start, one.end),
        ):
            last = self.spans[-1] if self.spans else None
            if last is not None and span.start < last.end:
                last.end = max(last.end, span.end)
                last.names += [name for name in span.names if name not in last.names]
            else:
                self.spans.append(span)
        homes = [None, *(one.storage for one in self.spans)]
        self.regions = [
            Region(
                " and ".join(one.names),
                _bytes(one),
                one.start - one.storage,
                continued=one.storage == home and one.storage != 0,
            )
            for one, home in zip(self.spans, homes[:-1], strict=True)
        ]

    def address(self, where: str, tensor: Any) -> int:  # noqa: ANN401
        """What stands for a tensor's address until `resolved`."""
        if tensor.device.type != "cpu":
            raise TypeError(f"{where}: expected a tensor on the CPU, found one on {tensor.device}")
        return self._marked(int(tensor.data_ptr()))

    def encode(self, given: Any) -> bytes:  # noqa: ANN401 -- a `harness.cuda.TensorMap`
        """What stands for a tensor map until `resolved`."""
        self.maps.append(mapped(given.tensor, given.box, given.swizzle))
        return (TENSOR_MAP + bytes([len(self.maps) - 1])).ljust(TENSOR_MAP_BYTES, b"\0")

    def _marked(self, address: int) -> int:
        for number, span in enumerate(self.spans):
            if span.start <= address < max(span.end, span.start + 1):
                return MARK | number << OFFSET_BITS | (address - span.start)
        return address

    def resolved(self, values: Sequence[bytes]) -> list[object]:
        """The arguments' bytes, with pointers where addresses stand: a number may be one, too."""
        found: list[object] = []
        for content in values:
            if len(content) == TENSOR_MAP_BYTES and content.startswith(TENSOR_MAP):
                found.append(self.maps[content[len(TENSOR_MAP)]])
                continue
            number = int.from_bytes(content, "little") if len(content) == 8 else 0
            if number and number & MARK != MARK:  # 0 is where empty tensors are, and every int 0
                number = self._marked(number)
            if number & MARK == MARK and number >> 63 == 0:
                region = (number & ~MARK) >> OFFSET_BITS
                found.append(Pointer(region, number & ((1 << OFFSET_BITS) - 1)))
            else:
                found.append(content)
        return found


def _spans(name: str, tensor: Any) -> Iterator[Span]:  # noqa: ANN401
    """The memory of a tensor; rows that lie far apart are pieces of their own."""
    size, start = tensor.element_size(), int(tensor.data_ptr())
    kind = str(tensor.dtype).removeprefix("torch.")
    words = f"{name}, a {'x'.join(map(str, tensor.shape))} {kind} tensor"
    storage = int(tensor.untyped_storage().data_ptr())
    pairs = list(zip(tensor.shape, tensor.stride(), strict=True))
    extent = sum((length - 1) * stride for length, stride in pairs) + 1
    if not tensor.numel():
        yield Span(start, start, [words], storage)
        return
    apart: list[tuple[int, int]] = []
    if extent * size > MOST_GAPS and extent > 4 * tensor.numel():
        apart = [(length, stride) for length, stride in pairs if stride * size > MOST_GAPS]
        extent -= sum((length - 1) * stride for length, stride in apart)
    for index in product(*(range(length) for length, _ in apart)):
        shift = sum(at * stride for at, (_, stride) in zip(index, apart, strict=True)) * size
        first = start + shift
        yield Span(first, first + extent * size, [words], storage)


def mapped(tensor: Any, box: Sequence[int], swizzle: int) -> TensorMap:  # noqa: ANN401
    """The tensor map of a CPU tensor, whose bytes are all that matters of its dtype."""
    import torch

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.detach().view(whole[tensor.element_size()])
    return TensorMap(bits.numpy(), tuple(box), swizzle)


def _bytes(span: Span) -> Any:  # noqa: ANN401 -- an array
    """The bytes of a span, to be read and written in place."""
    size = span.end - span.start
    if not size:
        return np.zeros(0, u8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(span.start))
