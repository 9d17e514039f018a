"""
Bytes that PyTorch's own operators read and write: the least that each of them can move.

    with OperatorTraffic() as t:
        y = x * 2 + 1
    t.read_bytes, t.written_bytes

An operator reads each tensor it is given once, an expanded one as far as it has memory, and
writes each tensor that it makes or changes. Views and uninitialised memory are free; a look-up
reads what it looks up. What reads a CPU tensor without an operator (`numpy()`) is not seen.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

from harness.meters.dispatch import (
    INDEXED_COPIES,
    PARTIAL_COPIES,
    OperatorWatch,
    bytes_copied_in_place,
    tensors_in,
)

UNINITIALISED = ("aten.empty", "aten.new_empty")  # what the names of free allocations begin with
# of their first argument they read as much as they return
LOOKUPS = frozenset(
    {"aten.embedding", "aten.gather", "aten.index", "aten.index_select", "aten.take"}
)
# what was in their first argument before does not matter
OVERWRITING = frozenset(
    {
        "aten.bernoulli_",
        "aten.copy_",
        "aten.exponential_",
        "aten.fill_",
        "aten.normal_",
        "aten.random_",
        "aten.uniform_",
        "aten.zero_",
        *PARTIAL_COPIES,
        *INDEXED_COPIES,
    }
)


class OperatorTraffic(OperatorWatch):
    """
    Counts what the operators inside its `with` block move.

    read_bytes      bytes of the tensors they are given
    written_bytes   bytes of the tensors they make or change
    """

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0
        self.written_bytes = 0
        self._aside = 0

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Count nothing inside this block."""
        self._aside += 1
        try:
            yield
        finally:
            self._aside -= 1

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run `func` and count what it moved."""
        if self._aside or func.namespace != "aten":
            return func(*args, **kwargs)
        name = str(func.overloadpacket)
        written_in_part = bytes_copied_in_place(func, args)
        result = func(*args, **kwargs)
        if name.startswith(UNINITIALISED) or torch.Tag.inplace_view in func.tags:
            return result
        read, changed = _operands(func, args, kwargs)
        made = _made(result, tensors_in((args, kwargs)))
        if changed or made or not tensors_in(result):  # else a view
            with self.lock:
                self.read_bytes += _bytes_read(name, read, made)
                self.written_bytes += written_in_part or _total(changed)
                self.written_bytes += _total(made)
        return result


def _operands(
    func: Any,  # noqa: ANN401 -- an operator
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that an operator reads, and those that it changes; in place is both."""
    read: list[Tensor] = []
    changed: list[Tensor] = []
    schema = func._schema.arguments
    given = dict(zip((one.name for one in schema), args, strict=False)) | dict(kwargs)
    overwrites = str(func.overloadpacket) in OVERWRITING
    for one in schema:
        tensors = tensors_in(given.get(one.name))
        writes = one.alias_info is not None and one.alias_info.is_write
        if writes:
            changed += tensors
        if not writes or not (one.kwarg_only or overwrites):
            read += tensors
    return read, changed


def _made(result: object, given: list[Tensor]) -> list[Tensor]:
    """The tensors of `result` in memory of their own."""
    old = {tensor.untyped_storage()._cdata for tensor in given}
    return [one for one in tensors_in(result) if one.untyped_storage()._cdata not in old]


def _bytes_read(name: str, read: list[Tensor], made: list[Tensor]) -> int:
    if name in LOOKUPS and read:
        return min(_total(read[:1]), _total(made)) + _total(read[1:])
    return _total(read)


def _total(tensors: list[Tensor]) -> int:
    """Bytes of memory behind `tensors`: an expanded axis has one element."""
    return sum(
        tensor.itemsize
        * prod(
            size
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            if stride or not size
        )
        for tensor in tensors
    )
