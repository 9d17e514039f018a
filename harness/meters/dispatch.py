"""
What PyTorch did, counted from its dispatcher: exact on any machine, and slower than no meter.

    with dispatch_meter() as d:   # d.calls d.allocated_bytes d.peak_live_bytes d.copied_bytes …
    with saved_meter() as s:      # s.bytes kept for backward
    alive_bytes()                 # of all tensors that there are
    with flop_meter() as f:       # f.flops of matrix products, convolutions and attention

Counted are operators and their results, on threads that the block starts as well (not on those
of a pool that was there before). What a kernel allocates inside itself is not seen, nor
are tensors that no operator made (`torch.from_numpy`) or the innards of sparse layouts, nor
`tolist()` and `numpy()` of a CPU tensor, which read its memory without asking the dispatcher.
"""

import gc
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self
from weakref import WeakValueDictionary

import torch
from torch import Tensor, UntypedStorage
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from harness.meters.threads import hand_on, hand_on_no_more

# Operators that only move bytes and whose whole result is freshly written.
WHOLE_COPIES = frozenset(
    {
        "aten._to_copy",
        "aten.cat",
        "aten.clone",
        "aten.constant_pad_nd",
        "aten.copy",
        "aten.copy_",
        "aten.flip",
        "aten.gather",
        "aten.index",
        "aten.index_copy",
        "aten.index_put",
        "aten.index_select",
        "aten.masked_select",
        "aten.repeat",
        "aten.roll",
        "aten.scatter",
        "aten.select_scatter",
        "aten.slice_scatter",
        "aten.stack",
        "aten.take",
    }
)

# Those that write a part of their first argument: which argument has as many elements as that.
PARTIAL_COPIES = {"aten.index_copy_": 3, "aten.put_": 1, "aten.scatter_": 2}

# Those that write `self[indices]`.
INDEXED_COPIES = frozenset({"aten.index_put_", "aten._index_put_impl_"})

# Operators whose value or result shape the host must wait for.
BLOCKING_READS = frozenset(
    {
        "aten._local_scalar_dense",
        "aten._unique",
        "aten._unique2",
        "aten.allclose",
        "aten.bincount",
        "aten.equal",
        "aten.is_nonzero",
        "aten.masked_select",
        "aten.nonzero",
        "aten.unique_consecutive",
        "aten.unique_dim",
    }
)


def tensors_in(tree: object) -> list[Tensor]:
    """List the dense tensors anywhere inside nested lists, tuples and dicts."""
    return [
        leaf
        for leaf in tree_leaves(tree)
        if isinstance(leaf, Tensor) and leaf.layout is torch.strided
    ]


class _Storages:
    """Storages met while they live; PyTorch keeps one Python object per storage until it dies."""

    def __init__(self) -> None:
        self._alive: WeakValueDictionary[int, UntypedStorage] = WeakValueDictionary()

    def add(self, storage: UntypedStorage) -> bool:
        """Remember `storage` and say whether it was new."""
        key = storage._cdata
        if key in self._alive:
            return False
        self._alive[key] = storage
        return True

    def live_bytes(self) -> int:
        """Sum what is allocated now: `storage.resize_(0)` frees without an operator."""
        return sum(storage.nbytes() for storage in self._alive.values())


class OperatorWatch(TorchDispatchMode):
    """
    A dispatch mode that hands every operator, those of the backward pass too, to `run`.

    Those of threads that its block starts as well, until it ends: `run` counts under `lock`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lock = threading.RLock()
        self.blocks = 0  # that are under way, one in the other

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self.blocks += 1
        hand_on(self._elsewhere)
        return self

    def __exit__(self, *exception: object) -> None:
        hand_on_no_more(self._elsewhere)
        self.blocks -= 1
        super().__exit__(*exception)  # type: ignore[no-untyped-call]

    def _elsewhere(self) -> "TorchDispatchMode":
        return _OnAThread(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # otherwise the first operator imports torch._dynamo, which takes most of a second
        return False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Let wrapper subclasses (DTensor) unwrap first: the operators inside are what counts."""
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run `func` and return its result, watching."""
        raise NotImplementedError


class _OnAThread(OperatorWatch):
    """Stands for a watch on a thread that its block has started."""

    def __init__(self, watch: OperatorWatch) -> None:
        super().__init__()
        self.watch = watch

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Let the watch run `func`, unless its block has ended."""
        return self.watch.run(func, args, kwargs) if self.watch.blocks else func(*args, **kwargs)


class DispatchMeter(OperatorWatch):
    """
    Counts the operators run inside its `with` block, those of the backward pass included.

    calls            how often each overload ran, `"aten.cat.default"` …
    allocated_bytes  bytes of all storages made by operators inside, meta tensors included
    real_bytes       the part of `allocated_bytes` that is not on the meta device
    peak_live_bytes  the most bytes of such storages, and of those of `held`, alive after any
                     operator: with a rank's shards as `held`, the peak of what it has
    copied_bytes     bytes written by operators that compute nothing: `WHOLE_COPIES`,
                     `PARTIAL_COPIES`, `INDEXED_COPIES`
    host_syncs       operators that make the host wait for the device: `BLOCKING_READS`, copies
                     to the CPU, boolean masks as indices, `repeat_interleave` without
                     `output_size`; counted on the CPU too, where they cost nothing
    """

    def __init__(self, held: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.allocated_bytes = 0
        self.real_bytes = 0
        self.peak_live_bytes = 0
        self.copied_bytes = 0
        self.host_syncs = 0
        self._made = _Storages()
        for tensor in held:
            self._made.add(tensor.untyped_storage())

    def count(self, name: str) -> int:
        """Return the calls of an operator (`"aten.cat"`, all overloads) or of one overload."""
        return sum(
            calls for called, calls in self.calls.items() if f"{called}.".startswith(f"{name}.")
        )

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run `func` and count it."""
        written = bytes_copied_in_place(func, args)
        result = func(*args, **kwargs)
        with self.lock:
            self.calls[str(func)] += 1
            self.copied_bytes += written + _bytes_copied_whole(func, args, result)
            self.host_syncs += _waits_for_device(func, args, kwargs, result)
            self._note_storages(func, args, kwargs, result)
        return result

    def _note_storages(
        self,
        func: Any,  # noqa: ANN401
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: object,
    ) -> None:
        # torch.tensor([...]) allocates unseen and hands the storage to lift_fresh
        given = () if _name(func) == "aten.lift_fresh" else tensors_in((args, kwargs))
        old = {tensor.untyped_storage()._cdata for tensor in given}
        for tensor in tensors_in(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in old and self._made.add(storage):
                self.allocated_bytes += storage.nbytes()
                self.real_bytes += 0 if storage.device.type == "meta" else storage.nbytes()
        self.peak_live_bytes = max(self.peak_live_bytes, self._made.live_bytes())


def _name(func: Any) -> str:  # noqa: ANN401
    return str(func.overloadpacket)


def bytes_copied_in_place(func: Any, args: tuple[Any, ...]) -> int:  # noqa: ANN401
    """Bytes a partial write is about to put into its first argument."""
    name = _name(func)
    if name in PARTIAL_COPIES:
        elements: int = args[PARTIAL_COPIES[name]].numel()
        return elements * int(args[0].itemsize)
    if name in INDEXED_COPIES:
        target, indices = args[:2]
        # an expanded scalar has the target's shape and indexing rules, and costs no memory
        return int(torch.ops.aten.index(target.new_empty(()).expand_as(target), indices).nbytes)
    return 0


def _bytes_copied_whole(func: Any, args: tuple[Any, ...], result: object) -> int:  # noqa: ANN401
    name = _name(func)
    if name == "aten._foreach_copy_":
        return sum(tensor.nbytes for tensor in args[0])
    # view_copy, slice_copy … are the copying twins of the views
    if name in WHOLE_COPIES or name.endswith("_copy"):
        return sum(tensor.nbytes for tensor in tensors_in(result))
    return 0


def _waits_for_device(
    func: Any,  # noqa: ANN401
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    result: object,
) -> bool:
    name = _name(func)
    if name in ("aten._to_copy", "aten.copy_"):
        return _reaches_host(args, kwargs, result)
    if name == "aten.repeat_interleave":
        return kwargs.get("output_size") is None
    if name == "aten.index" or name in INDEXED_COPIES:
        return _indexes_by_mask(args)
    return name in BLOCKING_READS


def _reaches_host(args: tuple[Any, ...], kwargs: Mapping[str, Any], result: object) -> bool:
    tensors = tensors_in((args, result))
    on_device = any(tensor.device.type not in ("cpu", "meta") for tensor in tensors)
    waits = not kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
    return waits and on_device and tensors[-1].device.type == "cpu"


def _indexes_by_mask(args: tuple[Any, ...]) -> bool:
    """Tell `x[mask]` and `x[mask] = y`; with a scalar `y` it is a masked fill and need not wait."""
    masked = any(index is not None and index.dtype == torch.bool for index in args[1])
    return masked and not (len(args) > 2 and args[2].numel() == 1)


def dispatch_meter(*, held: Iterable[Tensor] = ()) -> DispatchMeter:
    """Return a meter of operators for a `with` statement; `held` is alive already, and counts."""
    return DispatchMeter(held)


class SavedMeter:
    """
    Counts in `bytes` the distinct storages autograd keeps for backward, whole, parameters apart.

    A parameter is an `nn.Parameter`, a tensor in `exclude`, or a view of either. What a custom
    Function hangs on its `ctx` without `save_for_backward` goes unseen.
    """

    def __init__(self, exclude: Iterable[Tensor] = ()) -> None:
        self.bytes = 0
        self._excluded = {tensor.untyped_storage()._cdata for tensor in exclude}
        self._kept = _Storages()

    def keep(self, tensor: Tensor) -> Tensor:
        """Note that autograd saves `tensor`, and let it."""
        storage = tensor.untyped_storage()
        owner = tensor if tensor._base is None else tensor._base
        is_parameter = isinstance(owner, Parameter) or storage._cdata in self._excluded
        if not is_parameter and self._kept.add(storage):
            self.bytes += storage.nbytes()
        return tensor


@contextmanager
def saved_meter(*, exclude: Iterable[Tensor] = ()) -> Iterator[SavedMeter]:
    """Meter the bytes kept for backward; `exclude` lists weights that are plain tensors."""
    meter = SavedMeter(exclude)
    with saved_tensors_hooks(meter.keep, lambda kept: kept):
        yield meter


def alive_bytes(at_most: int | None = None) -> int:
    """
    Count the bytes of all tensors alive in this process, gradients too, each storage once.

    The difference of two calls is what was kept in between, by whomever. The thread of a network
    may hold what was sent for a moment after the wait: while more than `at_most` are alive, this
    looks again, for half a second.
    """
    alive, last = _alive_bytes(), time.monotonic() + 0.5
    while at_most is not None and alive > at_most and time.monotonic() < last:
        time.sleep(0.01)
        alive = _alive_bytes()
    return alive


def _alive_bytes() -> int:
    gc.collect()
    found = [one for one in gc.get_objects() if issubclass(type(one), Tensor)]
    found += [one.grad for one in found if one.is_leaf and one.grad is not None]
    storages = _Storages()
    for tensor in tensors_in(found):
        storages.add(tensor.untyped_storage())
    return storages.live_bytes()


class FlopMeter(OperatorWatch):
    """Counts in `flops` what PyTorch has formulas for; a multiply and its add are two."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Count an operator with a formula; of another, those that it is composed of."""
        formula = flop_registry.get(_out_of_place(func._overloadpacket))
        if formula is None:
            with self:
                composed = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if composed is NotImplemented else composed
        result = func(*args, **kwargs)
        with self.lock:
            self.flops += int(formula(*args, **kwargs, out_val=result))
        return result


def _out_of_place(packet: Any) -> Any:  # noqa: ANN401
    """The operator that an in-place one, such as ``addmm_``, computes as."""
    namespace, _, name = packet._qualified_op_name.partition("::")
    return getattr(getattr(torch.ops, namespace), name.removesuffix("_"), packet)


def flop_meter() -> FlopMeter:
    """Return a meter of floating-point operations, to be used in a `with` statement."""
    return FlopMeter()
