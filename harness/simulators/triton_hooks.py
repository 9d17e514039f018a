"""How meters and guards reach into Triton's interpreter; the only place that knows its insides."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from harness.base.errors import HarnessError

Method = Callable[..., Any]

# what is replaced inside Triton, by class of triton.runtime.interpreter
INTERNALS = {
    "InterpreterBuilder": (
        "set_grid_idx",
        "create_masked_load",
        "create_masked_store",
        "create_atomic_rmw",
        "create_atomic_cas",
        "create_dot",
        "create_make_range",
        "create_maxnumf",
        "create_minnumf",
        "create_clampf",
        "create_fp_to_fp",
        "create_fp_to_si",
        "create_fp_to_ui",
        "create_mul",
        "create_add",
        "create_sub",
    ),
    "InterpretedFunction": ("run",),
}


def before(original: Method, note: Callable[..., None]) -> Method:
    """Return `original`, made to call `note` with the same arguments first."""

    @functools.wraps(original)
    def noted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- any method's
        note(*args, **kwargs)
        return original(*args, **kwargs)

    return noted


def named_arguments(
    kernel: Any,  # noqa: ANN401 -- an InterpretedFunction
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """A launch's arguments by the names of the kernel's parameters."""
    return {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}


def extents(kernel: Any, arguments: Mapping[str, Any]) -> Iterator[int]:  # noqa: ANN401
    """Sizes that a launch compiles in: whole constexpr numbers, and the blocks of descriptors."""
    for parameter in inspect.signature(kernel.fn).parameters.values():
        value = arguments.get(parameter.name, parameter.default)
        if "constexpr" in str(parameter.annotation) and type(value) is int:
            yield value
        elif isinstance(value, TensorDescriptor):
            yield from value.block_shape


@contextmanager
def replaced(owner: Any, name: str, method: Method) -> Iterator[None]:  # noqa: ANN401 -- a class
    """Put `method` in the place of `owner.name` while the block runs."""
    original = getattr(owner, name)
    setattr(owner, name, method)
    try:
        yield
    finally:
        setattr(owner, name, original)


def interpreter_classes() -> tuple[Any, Any]:
    """The two classes of Triton's interpreter that are hooked into, once they fit."""
    for owner, names in INTERNALS.items():
        for name in names:
            if not hasattr(getattr(interpreter, owner, None), name):
                raise HarnessError(
                    f"triton {triton.__version__}: expected {owner}.{name} in "
                    "triton.runtime.interpreter, found none. Install Triton 3.6 or 3.7."
                )
    # Triton's own library tells whether kernels are interpreted: it was decorated first
    if not isinstance(tl.cdiv, interpreter.InterpretedFunction):
        raise HarnessError(
            "triton: expected TRITON_INTERPRET=1 from before its import, found compiled kernels. "
            "Run on the CPU: pytest --device cpu."
        )
    _let_one_element_be_an_index()
    return interpreter.InterpreterBuilder, interpreter.InterpretedFunction


def _let_one_element_be_an_index() -> None:
    """
    Have a loop's bounds be taken from tensors of one element, whatever the version of NumPy.

    Triton 3.6 asks NumPy to make a number of an array, which it refuses since 2.4.
    """
    patch = interpreter._patch_lang_tensor
    if getattr(patch, "mended", False):
        return

    def mended(tensor: Any, scope: Any) -> None:  # noqa: ANN401 -- Triton's own
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    mended.mended = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = mended


def operands(argument: Any) -> Iterator[Any]:  # noqa: ANN401 -- whatever a kernel is given
    """Whatever has a dtype in a kernel's argument: tuples and descriptors are looked into."""
    if isinstance(argument, tuple):
        for part in argument:
            yield from operands(part)
    elif isinstance(argument, torch.Tensor):
        yield argument
    elif hasattr(argument, "base"):  # a tensor descriptor, or a tensor seen as another dtype
        yield argument
        yield from operands(argument.base)
