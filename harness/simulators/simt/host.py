"""Numba's simulator with its block manager replaced: `kernel[grid, block](…)` lands here."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module, metadata
from typing import Any, Protocol

import numpy as np

from harness.base.errors import HarnessError, UsageProblem
from harness.simulators.simt.arrays import Array, Buffer, KernelArray
from harness.simulators.simt.device import KernelCuda
from harness.simulators.simt.machine import Dim3, Settings
from harness.simulators.simt.scheduler import Launch


class Observer(Protocol):
    """Who watches the launches made while it is in charge."""

    def array(self, raw: Array, buffer: Buffer, launch: Launch) -> KernelArray:
        """Wrap one array of a kernel."""

    def transferred(self, host: Array, device: Array) -> None:
        """Note that `device` starts as a copy of `host`, or the other way round."""

    def finished(self, launch: Launch) -> None:
        """Note the end of a launch."""


class Nobody:
    """Watches nothing."""

    def array(self, raw: Array, buffer: Buffer, launch: Launch) -> KernelArray:
        """Wrap one array of a kernel."""
        return KernelArray(raw, buffer)

    def transferred(self, host: Array, device: Array) -> None:
        """Ignore a copy."""

    def finished(self, launch: Launch) -> None:
        """Ignore the end of a launch."""


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """The machine that launches run on now, who watches it, and what a running launch lends."""

    settings: Settings
    observer: Observer
    lend: Callable[[Any], None] | None = None


current = Surroundings(settings=Settings(), observer=Nobody())


@dataclass(frozen=True, slots=True, kw_only=True)
class NumbaParts:
    """The parts of Numba's simulator this one is built on."""

    kernel_class: Any
    cuda_class: Any
    overload_class: Any
    device_array_class: Any
    hint_class: Any
    by_reference: Any
    current_cuda: Callable[[], object]
    set_current_cuda: Callable[[object], AbstractContextManager[None]]
    swap_globals: Callable[[object, object], AbstractContextManager[None]]
    normalize: Callable[[object, object], tuple[tuple[int, ...], tuple[int, ...]]]
    as_dtype: Callable[[object], np.dtype[Any]]


PARTS = {
    "kernel_class": ("simulator.kernel", "FakeCUDAKernel"),
    "overload_class": ("simulator.kernel", "FakeOverload"),
    "current_cuda": ("simulator.kernel", "_get_kernel_context"),
    "set_current_cuda": ("simulator.kernel", "_push_kernel_context"),
    "cuda_class": ("simulator.kernelapi", "FakeCUDAModule"),
    "swap_globals": ("simulator.kernelapi", "swapped_cuda_module"),
    "device_array_class": ("simulator.cudadrv.devicearray", "FakeCUDAArray"),
    "hint_class": ("simulator.args", "ArgHint"),
    "by_reference": ("simulator.args", "InOut"),
    "normalize": ("errors", "normalize_kernel_dimensions"),
    "as_dtype": ("np.numpy_support", "as_dtype"),
}
UNSEEN = ("lineinfo", "max_registers")  # options of `cuda.jit` that only compiled code shows
NOT_INSTALLED = "(not installed)"
# where Numba has them itself, whose simulator serves on macOS: numba-cuda is not built for it
OF_NUMBA = {
    "hint_class": "numba.cuda.args",
    "by_reference": "numba.cuda.args",
    "as_dtype": "numba.np.numpy_support",
}


@cache
def numba_parts() -> NumbaParts:
    """
    Find those parts.

    Raises:
        HarnessError: This version of numba-cuda lacks some, or the simulator is switched off.
    """
    found, missing = {}, []
    own = OF_NUMBA if _version() == NOT_INSTALLED else {}
    for part, (module, name) in PARTS.items():
        place = own.get(part, f"numba.cuda.{module}")
        try:
            found[part] = getattr(import_module(place), name)
        except (ImportError, AttributeError):
            missing.append(f"{place}.{name}")
    if missing:
        raise HarnessError(
            f"numba-cuda {_version()}: expected {', '.join(missing)}, found no such thing. "
            "Install the pinned numba-cuda."
        )
    if not import_module("numba").config.ENABLE_CUDASIM:
        raise HarnessError(
            "numba: expected NUMBA_ENABLE_CUDASIM=1 before numba is first imported, found the "
            "simulator switched off. Set it in the environment."
        )
    return NumbaParts(**found)


def _version() -> str:
    try:
        return metadata.version("numba-cuda")
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def install() -> None:
    """
    Make every `@cuda.jit` kernel of this process run on this simulator; again is no harm.

    Kernels that exist already are included. From now on `@cuda.jit` takes the options in `UNSEEN`.

    Raises:
        HarnessError: numba-cuda is missing or of an unknown make, or its simulator is off.
    """
    parts = numba_parts()
    if not hasattr(parts.kernel_class, "simt_stock_call"):
        parts.kernel_class.simt_stock_call = parts.kernel_class.__call__
        parts.kernel_class.__call__ = _call
        parts.kernel_class.__getitem__ = _configured
        parts.overload_class.max_cooperative_grid_blocks = _resident_blocks
        module: Any = import_module("numba.cuda")
        module.jit = _without_unseen(module.jit)


def _without_unseen(jit: Callable[..., Any]) -> Callable[..., Any]:
    """`cuda.jit` of the simulator, which refuses an option that it does not know."""

    @wraps(jit)
    def taking(*args: object, **options: object) -> object:
        return jit(*args, **{name: options[name] for name in options if name not in UNSEEN})

    return taking


@contextmanager
def launching(settings: Settings, observer: Observer | None = None) -> Iterator[None]:
    """
    Run the launches of the `with` block on this machine, watched by `observer`.

    Raises:
        UsageProblem: Somebody watches already.
        HarnessError: As `install`.
    """
    install()
    before = current.settings, current.observer
    if observer and not isinstance(current.observer, Nobody):
        raise UsageProblem("simt: expected one meter at a time, found one inside another's block.")
    current.settings = settings
    current.observer = observer or current.observer
    try:
        yield
    finally:
        current.settings, current.observer = before


def _configured(kernel: Any, configuration: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """`kernel[grid, block, stream, shared]`: a copy, where stock would configure the original."""
    configured = copy(kernel)
    configured.grid_dim, configured.block_dim = numba_parts().normalize(*configuration[:2])
    configured.dynshared_size = configuration[3] if len(configuration) > 3 else 0
    return configured


def _resident_blocks(_overload: object, _block_dim: object) -> int:
    return current.settings.resident_blocks


def _call(kernel: Any, *args: object) -> object:  # noqa: ANN401
    """Call a device function in place; launch a kernel."""
    if current.lend is not None:
        current.lend(kernel.fn)
        return kernel.fn(*args)
    if kernel._device:
        return kernel.simt_stock_call(*args)
    _launch(kernel, args)
    return None


def _launch(kernel: Any, args: tuple[object, ...]) -> None:  # noqa: ANN401
    parts = numba_parts()
    grid_dim, block_dim = parts.normalize(kernel.grid_dim, kernel.block_dim)
    settings, observer = current.settings, current.observer
    launch = Launch(kernel.fn, Dim3(*grid_dim), Dim3(*block_dim), settings)
    make_array = partial(observer.array, launch=launch)
    cuda = KernelCuda(
        launch,
        stock=parts.cuda_class(grid_dim, block_dim, kernel.dynshared_size),
        make_array=make_array,
        as_dtype=_as_dtype,
        dynamic_bytes=kernel.dynshared_size,
    )
    write_back: list[Callable[[], object]] = []
    arguments = [_to_kernel(argument, make_array, observer, write_back) for argument in args]
    try:
        with parts.set_current_cuda(cuda), _lending(cuda, parts) as lend:
            lend(kernel.fn)
            launch.run(arguments)
    finally:
        observer.finished(launch)
    for copy_back in write_back:
        copy_back()


@contextmanager
def _lending(cuda: KernelCuda, parts: NumbaParts) -> Iterator[Callable[[Any], None]]:
    """
    Lend `cuda` to functions that are called in a launch, until its end, in place of `numba.cuda`.

    Not from call to call: the threads of a block are in the same function at the same time, and
    the first to leave it would take the others' away.
    """
    seen: set[int] = set()
    with ExitStack() as stack:

        def lend(fn: Any) -> None:  # noqa: ANN401 -- any function
            if id(fn.__globals__) not in seen:
                seen.add(id(fn.__globals__))
                stack.enter_context(parts.swap_globals(fn, cuda))

        before, current.lend = current.lend, lend
        try:
            yield lend
        finally:
            current.lend = before


def _to_kernel(
    argument: Any,  # noqa: ANN401
    make_array: Callable[[Array, Buffer], KernelArray],
    observer: Observer,
    write_back: list[Callable[[], object]],
) -> object:
    """What the kernel gets: arrays by reference, host arrays copied over and later back."""
    parts = numba_parts()
    if isinstance(argument, tuple):
        return tuple(_to_kernel(item, make_array, observer, write_back) for item in argument)
    if isinstance(argument, np.ndarray) and argument.ndim:
        argument = parts.by_reference(argument)
    if isinstance(argument, parts.hint_class):
        device = argument.to_device(write_back)
        observer.transferred(argument.value, device._ary)
        argument = device
    if isinstance(argument, parts.device_array_class):
        return make_array(argument._ary, Buffer(space="global", array=argument._ary))
    if hasattr(argument, "__array__") and not isinstance(argument, np.generic | np.ndarray):
        raise TypeError(
            f"kernel argument: expected a NumPy array, a device array or a number, found "
            f"{type(argument).__name__}"
        )
    return argument


def _as_dtype(given: Any) -> np.dtype[Any]:  # noqa: ANN401
    """The dtype of a Numba type, or of anything NumPy takes for one."""
    try:
        dtype: np.dtype[Any] = np.dtype(given)
    except TypeError:
        dtype = numba_parts().as_dtype(given)
    return dtype
