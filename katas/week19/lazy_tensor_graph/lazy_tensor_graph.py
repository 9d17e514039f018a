"""Kata week19/lazy_tensor_graph: operators record; a step compiles each structure once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

Shape = tuple[int, ...]
Constant = float | Shape | None  # the number of an add or mul, the shape of a reshape
Step = tuple[str, tuple[int, ...], Constant]  # op, numbers of its operands, constant

ARGUMENTS = {torch.mm: 2, torch.add: 2, torch.mul: 2, torch.relu: 1, torch.sum: 1, torch.reshape: 2}
KERNELS = {kernel.__name__: kernel for kernel in ARGUMENTS}


@dataclass(eq=False, slots=True)
class Node:
    """A value of the graph: data where `value` is there, otherwise `op` of `operands`."""

    op: str
    operands: tuple["Node", ...]
    constant: Constant
    shape: Shape
    dtype: torch.dtype
    value: Tensor | None = None


def data(t: Tensor) -> Node:
    """A node that is `t` itself."""
    return Node("data", (), None, tuple(t.shape), t.dtype, t)


def record(op: str, operands: Sequence[Node], constant: Constant = None) -> Node:
    """
    The node `op` of `operands`, with its shape and dtype; nothing is computed.

    Raises:
        ValueError: shapes or dtypes do not fit; the message begins with the op.
    """
    shapes = [operand.shape for operand in operands]
    if len({operand.dtype for operand in operands}) > 1:
        raise ValueError(f"{op}: expected one dtype, found {[node.dtype for node in operands]}")
    try:
        if op == "mm":
            (m, k), (other, n) = shapes
            fits, shape = k == other, (m, n)
        elif op == "reshape":
            fits, shape = min(constant, default=0) >= 0, tuple(constant)
            fits = fits and prod(shape) == prod(shapes[0])
        else:
            fits, shape = True, () if op == "sum" else tuple(torch.broadcast_shapes(*shapes))
    except (ValueError, RuntimeError):
        fits = False
    if not fits:
        raise ValueError(f"{op}: expected shapes that fit, found {shapes} and {constant}")
    return Node(op, tuple(operands), constant, shape, operands[0].dtype)


@dataclass(frozen=True, slots=True)
class Program:
    """
    What a step computes, without its data.

    Values have numbers: first the parameters, in their order, then the result of each step.
    `outputs` are the numbers of the values to return, one for each root.
    """

    parameters: tuple[tuple[Shape, torch.dtype], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


def compile_program(program: Program) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """What runs `program` on its parameters; on a real device it takes seconds to build."""

    def run(parameters: Sequence[Tensor]) -> list[Tensor]:
        values = list(parameters)
        for op, operands, constant in program.steps:
            arguments = [values[at] for at in operands]
            if constant is not None:
                arguments.append(constant)
            values.append(KERNELS[op](*arguments))
        return [values[at] for at in program.outputs]

    return run


class LazyTensor:
    """A tensor of a `LazyDevice`; with `shape` and `dtype`. Operators on it record a graph."""

    @property
    def shape(self) -> Shape:
        """Its sizes, known before anything is computed."""
        raise NotImplementedError  # TODO(kata): (1 line)

    @property
    def dtype(self) -> torch.dtype:
        """That of its elements."""
        raise NotImplementedError  # TODO(kata): (1 line)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> "LazyTensor":
        """
        Record `torch.mm`, `add`, `mul`, `relu`, `sum` or `reshape`; called by PyTorch.

        Raises:
            TypeError: another function, or arguments that are not taken; the message begins with
                the function's name.
            ValueError: shapes, dtypes or devices do not fit.
        """
        raise NotImplementedError  # TODO(kata): record (about 30 lines with helpers)

    def add_(self, other: "LazyTensor | float") -> "LazyTensor":
        """
        Add in place: this tensor and its views have other elements from now on.

        Raises:
            ValueError: shapes, dtypes or devices do not fit.
        """
        raise NotImplementedError  # TODO(kata): record (about 5 lines)

    def cpu(self) -> Tensor:
        """
        Its elements as a new tensor, computed now if need be.

        Raises:
            RuntimeError: it has not been computed, inside of `no_sync`.
        """
        raise NotImplementedError  # TODO(kata): read (about 6 lines)

    def item(self) -> float:
        """The one element, computed now if need be; RuntimeError as from `cpu`."""
        raise NotImplementedError  # TODO(kata): (1 line)

    def __bool__(self) -> bool:
        """Whether the one element is not zero; as `item`."""
        raise NotImplementedError  # TODO(kata): (1 line)

    def __repr__(self) -> str:
        """What `print` shows, `lazy(tensor(…))`; RuntimeError as from `cpu`."""
        raise NotImplementedError  # TODO(kata): (1 line)


class LazyDevice:
    """Records what is done to its tensors, and computes when it has to."""

    def __init__(self) -> None:
        raise NotImplementedError  # TODO(kata): (about 5 lines)

    def to_lazy(self, t: Tensor) -> LazyTensor:
        """
        A copy of `t` on this device.

        Raises:
            TypeError: `t` is not of a floating-point dtype; the message begins with "t".
        """
        raise NotImplementedError  # TODO(kata): (3 lines)

    def mark_step(self, roots: Sequence[LazyTensor] | None = None) -> None:
        """
        Compute `roots`, or all tensors that are alive: from now on they are data.

        Raises:
            ValueError: a root is of another device; the message begins with "roots".
        """
        # TODO(kata): roots, trace, look up or compile, run and keep the values (about 50 lines with
        # helpers)
        raise NotImplementedError

    def metrics(self) -> dict[str, int]:
        """Since the device was made: compiles, cache_hits, executions, and nodes executed."""
        raise NotImplementedError  # TODO(kata): (1 line)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Refuse, inside a `with` block, whatever would have to compute a tensor to read it."""
        raise NotImplementedError  # TODO(kata): (about 5 lines)
