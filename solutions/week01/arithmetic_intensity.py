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
    if tensor.numel() == 0:
        return 0
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in axes if stride) * tensor.itemsize


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
        kwargs = kwargs or {}
        # refuse large tensors
        _refuse_large(_tensors((args, kwargs)))
        # run the op
        result = func(*args, **kwargs)
        # bytes moved
        op = func.overloadpacket
        if op not in FREE:
            moved = [*_read(func, args, kwargs), *_tensors(result)]
            cost = Cost(
                calls=1, flops=_flops(op, args, result), bytes=sum(map(compulsory_bytes, moved))
            )
            self.by_op[str(op)] = self.by_op.get(str(op), Cost()) + cost
        return result


def arithmetic_intensity(fn: Callable[..., Any], *args: object) -> float:
    """
    FLOP per compulsory byte of `fn(*args)`, each op going through memory on its own.

    Raises:
        ValueError: "no memory traffic", where nothing is moved; what `CostMode` refuses.
    """
    with CostMode() as mode:
        fn(*args)
    if mode.bytes == 0:
        raise ValueError("no memory traffic: expected an op that reads or writes an element")
    return mode.flops / mode.bytes


def _tensors(tree: object) -> list[Tensor]:
    """The tensors anywhere in `tree`, each once."""
    return [*dict.fromkeys(leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))]


def _refuse_large(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if tensor.device.type != "meta" and tensor.nbytes > LARGEST_REAL_BYTES:
            raise ValueError(
                f"expected at most 1 GiB on {tensor.device}, found {tensor.nbytes} bytes: "
                "use the meta device"
            )


def _read(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """What `func` reads: its operands, without those that it only writes."""
    written = {argument.name for argument in func._schema.arguments if argument.is_out}
    read = {name: value for name, value in kwargs.items() if name not in written}
    skipped = 1 if func.overloadpacket in UNREAD else 0
    return _tensors((args[skipped:], read))


def _flops(op: OpOverloadPacket, args: tuple[Any, ...], result: Tensor | tuple[Tensor, ...]) -> int:
    # FLOPs by convention
    if op in PRODUCTS:
        return PRODUCTS[op](args, result)
    if op in POINTWISE:
        return result.numel()
    if op in PER_INPUT:
        return PER_INPUT[op] * args[0].numel()
    if op in MOVES:
        return 0
    raise ValueError(f"{op}: expected an op with a convention for its FLOPs, found none")


def _product(left: Tensor, result: Tensor) -> int:
    """A multiply and an add for every element of the result and of the axis summed over."""
    return 2 * result.numel() * left.shape[-1]


def _convolution(slid: Tensor, weight: Tensor) -> int:
    """A multiply and an add for every weight at every position of `slid`, in every sample."""
    return 2 * slid.shape[0] * math.prod(slid.shape[2:]) * weight.numel()


def _convolution_forward(args: tuple[Any, ...], result: Tensor) -> int:
    x, weight, _bias, _stride, _padding, _dilation, transposed = args[:7]
    return _convolution(x if transposed else result, weight)


def _convolution_backward(args: tuple[Any, ...], _result: object) -> int:
    """As many as forward for each gradient that is asked for; that of the bias is not counted."""
    grad, x, weight, *_, transposed, _output_padding, _groups, (for_x, for_weight, _) = args
    return (for_x + for_weight) * _convolution(x if transposed else grad, weight)


PRODUCTS: Mapping[OpOverloadPacket, Callable[[tuple[Any, ...], Any], int]] = {
    aten.mm: lambda args, result: _product(args[0], result),
    aten.bmm: lambda args, result: _product(args[0], result),
    aten.addmm: lambda args, result: _product(args[1], result),
    aten.baddbmm: lambda args, result: _product(args[1], result),
    aten.convolution: _convolution_forward,
    aten.convolution_backward: _convolution_backward,
}
