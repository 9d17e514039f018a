"""Kata week01/arithmetic_intensity: count the FLOPs and bytes of every op as it is dispatched."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

LARGEST_REAL_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """How often an op ran, its FLOPs, and the bytes it cannot avoid moving."""

    calls: int = 0
    flops: int = 0
    bytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            calls=self.calls + other.calls,
            flops=self.flops + other.flops,
            bytes=self.bytes + other.bytes,
        )


def _ops(names: str) -> frozenset[OpOverloadPacket]:
    """The aten ops of these names, and their in-place twins where there are any."""
    twins = [f"{name}_" for name in names.split() if hasattr(aten, f"{name}_")]
    return frozenset(getattr(aten, name) for name in [*names.split(), *twins])


# The conventions. A name stands for all overloads of an op: aten.add for aten.add.Tensor too.
POINTWISE = _ops(  # 1 FLOP per element of the result
    "abs add div eq exp ge gelu gt le log lt masked_fill maximum minimum mul ne neg pow "
    "reciprocal relu rsqrt rsub sgn sigmoid silu sqrt sub tanh where "
    "gelu_backward sigmoid_backward silu_backward tanh_backward threshold_backward"
)
PER_INPUT = {  # FLOPs per element of the first argument
    **dict.fromkeys(_ops("amax amin mean prod sum"), 1),
    aten._softmax: 5,
    aten._softmax_backward_data: 4,
    aten.native_layer_norm: 8,
    aten.native_layer_norm_backward: 8,
}
MOVES = _ops(  # no FLOPs, but bytes
    "_to_copy arange cat clone copy_ fill_ full full_like ones ones_like scalar_tensor "
    "select_backward slice_backward stack tril triu zero_ zeros zeros_like"
)
UNREAD = _ops("copy_ fill_ full_like ones_like zero_ zeros_like")  # of these the first argument
FREE = _ops(  # neither: views of memory that is there, or memory that nobody has touched
    "_reshape_alias _unsafe_view alias as_strided detach diagonal empty empty_like empty_strided "
    "expand new_empty permute select slice split split_with_sizes squeeze t transpose unbind "
    "unsqueeze view"
)


def compulsory_bytes(tensor: Tensor) -> int:
    """
    Bytes of the distinct elements that `tensor` shows, however large the storage behind it.

    No two of its elements may share memory, unless along an axis that was expanded (stride 0).
    """
    raise NotImplementedError  # TODO(kata): distinct elements (about 4 lines)


class CostMode(TorchDispatchMode):
    """
    Counts what runs inside its `with` block, the backward pass included, op by op.

    `by_op` maps the name of each op that moves memory ("aten.mm") to its cost; views and
    allocations are not in it.

    Raises:
        ValueError: an op without a convention ran, or one was given a tensor that shows more than
            `LARGEST_REAL_BYTES` and is not on the meta device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_op: dict[str, Cost] = {}

    @property
    def flops(self) -> int:
        """FLOPs so far."""
        return sum(cost.flops for cost in self.by_op.values())

    @property
    def bytes(self) -> int:
        """Compulsory bytes so far."""
        return sum(cost.bytes for cost in self.by_op.values())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # otherwise the first op imports the compiler, which takes most of a second
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run one op (an overload, such as `aten.add.Tensor`), count it, return its result."""
        # TODO(kata): refuse large tensors, run the op, bytes moved, FLOPs by convention (about 55
        # lines with helpers)
        raise NotImplementedError


def arithmetic_intensity(fn: Callable[..., Any], *args: object) -> float:
    """
    FLOP per compulsory byte of `fn(*args)`, each op going through memory on its own.

    Raises:
        ValueError: "no memory traffic", where nothing is moved; what `CostMode` refuses.
    """
    raise NotImplementedError  # TODO(kata): FLOP per byte (about 5 lines)
