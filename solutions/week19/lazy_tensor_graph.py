"""Kata week19/lazy_tensor_graph: operators record; a step compiles each structure once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import prod
from weakref import WeakValueDictionary

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


class _Storage:
    """What a tensor and its views share: the node that has their elements now."""

    def __init__(self, device: "LazyDevice", node: Node) -> None:
        self.device = device
        self.node = node


class LazyTensor:
    """A tensor of a `LazyDevice`; with `shape` and `dtype`. Operators on it record a graph."""

    def __init__(self, storage: _Storage, shape: Shape) -> None:
        self._storage = storage
        self._shape = shape

    @property
    def shape(self) -> Shape:
        """Its sizes, known before anything is computed."""
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        """That of its elements."""
        return self._storage.node.dtype

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
        # record
        op = func.__name__
        if kwargs or ARGUMENTS.get(func) != len(args):
            raise TypeError(
                f"{op}: expected a supported call, found {len(args)} arguments, {kwargs}"
            )
        if op == "reshape":
            source, shape = args
            return LazyTensor(source._storage, record(op, [source._node()], shape).shape)
        node, device = _recorded(op, args)
        return device._tensor(node)

    def _node(self) -> Node:
        """Its elements as they are now, in its own shape."""
        node = self._storage.node
        return node if node.shape == self._shape else record("reshape", [node], self._shape)

    def add_(self, other: "LazyTensor | float") -> "LazyTensor":
        """
        Add in place: this tensor and its views have other elements from now on.

        Raises:
            ValueError: shapes, dtypes or devices do not fit.
        """
        # record
        node, _ = _recorded("add", (self, other))
        if node.shape != self._shape:
            raise ValueError(f"add_: expected the shape {self._shape}, found {node.shape}")
        self._storage.node = node
        return self

    def cpu(self) -> Tensor:
        """
        Its elements as a new tensor, computed now if need be.

        Raises:
            RuntimeError: it has not been computed, inside of `no_sync`.
        """
        # read
        device = self._storage.device
        if self._storage.node.value is None:
            if device._syncs_refused:
                raise RuntimeError("no_sync: expected a computed tensor, found a recorded one")
            device.mark_step([self])
        return self._storage.node.value.reshape(self._shape).clone()

    def item(self) -> float:
        """The one element, computed now if need be; RuntimeError as from `cpu`."""
        return self.cpu().item()

    def __bool__(self) -> bool:
        """Whether the one element is not zero; as `item`."""
        return bool(self.item())

    def __repr__(self) -> str:
        """What `print` shows, `lazy(tensor(…))`; RuntimeError as from `cpu`."""
        return f"lazy({self.cpu()!r})"


def _recorded(op: str, args: Sequence[object]) -> tuple[Node, "LazyDevice"]:
    """The node for `op` of tensors and maybe a number, and the device that they are on."""
    # record
    tensors = [one for one in args if isinstance(one, LazyTensor)]
    numbers = [float(one) for one in args if isinstance(one, int | float)]
    if len(tensors) + len(numbers) < len(args):
        raise TypeError(f"{op}: expected lazy tensors and numbers, found {list(map(type, args))}")
    devices = {tensor._storage.device for tensor in tensors}
    if len(devices) > 1:
        raise ValueError(f"{op}: expected tensors of one device, found {len(devices)}")
    return record(op, [tensor._node() for tensor in tensors], *numbers), devices.pop()


class LazyDevice:
    """Records what is done to its tensors, and computes when it has to."""

    def __init__(self) -> None:
        # in the order in which tensors were made; of those that nobody holds nothing stays
        self._storages: WeakValueDictionary[int, _Storage] = WeakValueDictionary()
        self._numbers = count()
        self._programs: dict[str, Callable[[Sequence[Tensor]], list[Tensor]]] = {}
        self._metrics = {"compiles": 0, "cache_hits": 0, "executions": 0, "nodes": 0}
        self._syncs_refused = False

    def to_lazy(self, t: Tensor) -> LazyTensor:
        """
        A copy of `t` on this device.

        Raises:
            TypeError: `t` is not of a floating-point dtype; the message begins with "t".
        """
        if not t.is_floating_point():
            raise TypeError(f"t: expected a floating-point dtype, found {t.dtype}")
        return self._tensor(data(t.detach().clone()))

    def _tensor(self, node: Node) -> LazyTensor:
        storage = self._storages[next(self._numbers)] = _Storage(self, node)
        return LazyTensor(storage, node.shape)

    def mark_step(self, roots: Sequence[LazyTensor] | None = None) -> None:
        """
        Compute `roots`, or all tensors that are alive: from now on they are data.

        Raises:
            ValueError: a root is of another device; the message begins with "roots".
        """
        # roots
        if roots is None:
            storages = list(self._storages.values())
        else:
            storages = [root._storage for root in roots]
        if any(storage.device is not self for storage in storages):
            raise ValueError("roots: expected tensors of this device, found another's")
        pending = dict.fromkeys(one.node for one in storages if one.node.value is None)
        if not pending:
            return
        # trace
        program, parameters = _traced(pending)
        # look up or compile
        key = repr(program)  # tells -0.0 from 0.0, which are equal
        if key in self._programs:
            self._metrics["cache_hits"] += 1
        else:
            self._programs[key] = compile_program(program)
            self._metrics["compiles"] += 1
        # run and keep the values
        for node, value in zip(pending, self._programs[key](parameters), strict=True):
            node.value, node.operands = value, ()
        self._metrics["executions"] += 1
        self._metrics["nodes"] += len(program.steps)

    def metrics(self) -> dict[str, int]:
        """Since the device was made: compiles, cache_hits, executions, and nodes executed."""
        return dict(self._metrics)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Refuse, inside a `with` block, whatever would have to compute a tensor to read it."""
        before, self._syncs_refused = self._syncs_refused, True
        try:
            yield
        finally:
            self._syncs_refused = before


def _traced(roots: Iterable[Node]) -> tuple[Program, list[Tensor]]:
    """The program that computes `roots`, equal steps once, and the data it is run on."""
    # trace
    order = _operands_first(roots)
    leaves = [node for node in order if node.value is not None]
    numbers = {node: at for at, node in enumerate(leaves)}
    steps: list[Step] = []
    known: dict[str, int] = {}
    for node in order:
        if node.value is None:
            step = (node.op, tuple(numbers[operand] for operand in node.operands), node.constant)
            if repr(step) not in known:
                known[repr(step)] = len(leaves) + len(steps)
                steps.append(step)
            numbers[node] = known[repr(step)]
    program = Program(
        tuple((leaf.shape, leaf.dtype) for leaf in leaves),
        tuple(steps),
        tuple(numbers[root] for root in roots),
    )
    return program, [leaf.value for leaf in leaves]


def _operands_first(roots: Iterable[Node]) -> Iterable[Node]:
    """All nodes that `roots` need; without recursion, a graph may be deep."""
    # trace
    done: dict[Node, None] = {}
    stack = [*roots]
    while stack:
        waiting = [operand for operand in stack[-1].operands if operand not in done]
        if waiting:
            stack += reversed(waiting)
        else:
            done[stack.pop()] = None
    return done
