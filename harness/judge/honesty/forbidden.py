"""The operators that a kata is about may not be called, in whatever way that is hidden."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile

from harness.base.errors import MetadataError
from harness.judge.correctness.memory import LightMode

REFUSAL = "{} was called: this kata is about writing it yourself"
MODE = "PythonDispatchMode"  # what the profiler calls a dispatch mode at work
# ways from a tensor to an array of NumPy, which has operators of its own
TO_ARRAYS = ("__array__", "__dlpack__", "numpy")


@contextmanager
def forbidden(names: Collection[str], *, on_the_host: bool) -> Iterator[None]:
    """
    Refuse a block that uses one of the aten ops `names`, such as ``aten.mm``.

    On the host also in another thread or behind a dispatch mode that was switched off, which the
    profiler sees, and NumPy in place of it.

    Raises:
        MetadataError: there is no such operator, so that nothing would be refused.
    """
    for name in names:
        space, _, op = name.partition(".")
        if space != "aten" or not hasattr(torch.ops.aten, op):
            raise MetadataError(
                f"forbidden: expected an operator of PyTorch such as aten.mm, found {name!r}."
            )
    if not names:
        yield
    elif not on_the_host:
        with ForbiddenOps(names):
            yield
    else:
        every_thread = _ExperimentalConfig(profile_all_threads=True)
        seen = profile(use_cpu=True, experimental_config=every_thread)
        with seen, _no_arrays(), ForbiddenOps(names):
            yield
        assert seen.kineto_results is not None, "expected the profiler to be left alone"
        called = outermost(seen.kineto_results.events())
        hidden = sorted({name.replace("::", ".") for name in called}.intersection(names))
        assert not hidden, REFUSAL.format(hidden[0])


class ForbiddenOps(LightMode):
    """While active, the aten ops that the kata is about may not be called in this thread."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = names

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 -- torch's own signature
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Refuse a forbidden op, pass on every other."""
        name = str(func.overloadpacket)
        assert name not in self.names, REFUSAL.format(name)
        return func(*args, **(kwargs or {}))


def outermost(events: Iterable[Any]) -> Iterator[str]:
    """
    The ops, ``aten::mm``, that no other op has called for its own ends.

    Those of an op that only stands for others count as called themselves, as in a dispatch mode.
    """
    around: list[Any] = []
    # anyone may annotate a stretch with the name of an op
    found = [event for event in events if not event.is_user_annotation()]
    for event in sorted(found, key=lambda one: (_thread(one), one.start_ns(), -one.end_ns())):
        while around and not _encloses(around[-1], event):
            around.pop()
        if all(_stands_for_others(one.name()) for one in around):
            yield event.name()
        around.append(event)


def _thread(event: Any) -> int:  # noqa: ANN401 -- a profiler's event
    return int(event.start_thread_id())


def _encloses(outer: Any, inner: Any) -> bool:  # noqa: ANN401
    return _thread(outer) == _thread(inner) and bool(inner.start_ns() < outer.end_ns())


@cache
def _stands_for_others(name: str) -> bool:
    """Whether an op is made of ops that a dispatch mode sees; also what an engine tells of."""
    space, _, base = name.partition("::")
    if space != "aten":
        return name != MODE
    # its other overloads, such as one that writes into a given tensor, may be made otherwise
    overload = getattr(torch.ops.aten, base).overloads()[0]
    full = name if overload == "default" else f"{name}.{overload}"
    composite = "CompositeImplicitAutograd"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(full, composite))


@contextmanager
def _no_arrays() -> Iterator[None]:
    """Refuse to hand out tensors as arrays."""

    def refuse(name: str) -> Callable[..., None]:
        def handed_out(*_: object, **__: object) -> None:
            raise AssertionError(REFUSAL.format(f"Tensor.{name}"))

        return handed_out

    with ExitStack() as closed:
        for name in TO_ARRAYS:
            closed.enter_context(mock.patch.object(torch.Tensor, name, refuse(name)))
        yield
