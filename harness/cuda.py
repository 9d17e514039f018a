"""
CUDA C++ in a kata: a source in a string, built by NVRTC and launched like any other kernel.

    launch(SOURCE, "doubled", (x, y, x.numel()), grid=(64,), block=(256,))

NVRTC needs no driver and no GPU, so that what it builds can be looked at anywhere. Where there is
no GPU to run it, the judge sets `simulator`, which runs its PTX. Needs the extra `cuda`.
"""

import ctypes
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any, Protocol

from harness.cuda_host import (
    STAND_INS,
    USUAL,
    Gpu,
    aligned,
    cpp_type,
    gpu_of,
    refuse_unaligned,
)
from harness.nvrtc import BuildFailed, Kernel, asked, build, build_ptx
from harness.tensor_maps import TENSOR_MAP_BYTES, TensorMap

__all__ = [
    "TENSOR_MAP_BYTES",
    "BuildFailed",
    "Config",
    "Gpu",
    "Kernel",
    "TensorMap",
    "aligned",
    "build",
    "build_ptx",
    "cpp_type",
    "current_gpu",
    "gpu",
    "launch",
    "packed",
    "refuse_unaligned",
]

MOST_THREADS = 1024  # of a block
MOST_SHARED_BYTES = 48 * 1024  # of a block that asks for no more
MOST_PORTABLE_CLUSTER = 8  # blocks
FLOATS = {2: "e", 4: "f", 8: "d"}  # how `struct` calls them, by bytes
ENTRY = r"\.entry\s+{name}\s*\((.*?)\)"
PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z])(\d+)[^\[,]*(?:\[(\d+)\])?")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """
    How a kernel is launched.

    Attributes:
        grid: Blocks along x, y, z.
        block: Threads of a block along x, y, z.
        shared_bytes: Dynamic shared memory of a block.
        cluster: Blocks of a cluster along x, of which there are a whole number.
        cooperative: Whether all blocks have to be there at once, for a barrier over the grid.
    """

    grid: Shape
    block: Shape
    shared_bytes: int
    cluster: int
    cooperative: bool

    def refuse_impossible(self, name: str, shared_limit_bytes: int) -> None:
        """Raise a ValueError for what no GPU, or not this one, can launch."""
        threads = self.block[0] * self.block[1] * self.block[2]
        if min(self.grid) < 1:
            raise ValueError(f"{name}: expected a grid of 1 block or more, found {self.grid}")
        if min(self.block) < 1 or threads > MOST_THREADS:
            raise ValueError(f"{name}: expected 1 to {MOST_THREADS} threads, found {self.block}")
        if self.grid[0] % self.cluster:
            raise ValueError(
                f"{name}: expected whole clusters of {self.cluster}, found {self.grid[0]} blocks"
            )
        if not 0 <= self.shared_bytes <= shared_limit_bytes:
            raise ValueError(
                f"{name}: expected 0 to {shared_limit_bytes} bytes of dynamic shared memory, "
                f"found {self.shared_bytes}"
            )


class Simulator(Protocol):
    """What launches go to where there is no GPU."""

    def gpu(self) -> tuple[str, int]:
        """What to build for, and the shared memory that a block may have, in bytes."""

    def build(self, source: str, name: str, options: tuple[str, ...]) -> Kernel:
        """As `build`, for this GPU; the PTX is enough."""

    def start(self, kernel: Kernel, config: Config, arguments: Sequence[object]) -> None:
        """Run a kernel."""


simulator: Simulator | None = None


# ---- arguments -----------------------------------------------------------------------------


Address = Callable[[str, Any], int]
Encode = Callable[[TensorMap], bytes]


def packed(
    kernel: Kernel,
    arguments: Sequence[object],
    address: Address | None = None,
    encode: Encode = TensorMap.encoded,
) -> list[bytes]:
    """
    The bytes that a kernel is given for each argument, as its parameters in the PTX want them.

    A tensor is given as the address of its first element, a Python int or float in the width of
    the parameter. What C++ passes as a structure (a `__half`) is given as its bytes, or as a
    NumPy scalar of that size; a `TensorMap` by `encode`. `address` says where a tensor is for the
    kernel, given how to call it; without it that is where it is on the GPU.

    Raises:
        TypeError: another number of arguments, or one that does not fit its parameter.
    """
    entry = re.search(ENTRY.format(name=re.escape(kernel.symbol)), kernel.ptx, re.DOTALL)
    assert entry is not None, f"{kernel.symbol}: expected an entry of the PTX, found none"
    parameters = PARAMETER.findall(entry[1])
    if len(arguments) != len(parameters):
        raise TypeError(
            f"{kernel.name}: expected {len(parameters)} arguments, found {len(arguments)}"
        )
    given = [encode(one) if isinstance(one, TensorMap) else one for one in arguments]
    return [
        _pack(
            f"{kernel.name}: argument {at}",
            value,
            kind,
            int(bits) // 8,
            length,
            address or _address_on_gpu,
        )
        for at, (value, (kind, bits, length)) in enumerate(zip(given, parameters, strict=True))
    ]


def _address_on_gpu(where: str, tensor: Any) -> int:  # noqa: ANN401
    if not tensor.is_cuda:
        raise TypeError(f"{where}: expected a tensor on a GPU, found one on {tensor.device}")
    return int(tensor.data_ptr())


def _pack(
    where: str,
    value: Any,  # noqa: ANN401
    kind: str,
    size: int,
    length: str,
    address: Address,
) -> bytes:
    if length:  # a structure
        content = value.tobytes() if hasattr(value, "tobytes") else bytes(value)
        wanted = int(length) * size
        if len(content) != wanted:
            raise TypeError(f"{where}: expected {wanted} bytes, found {len(content)}")
        return content
    if hasattr(value, "data_ptr"):
        value = address(where, value)
    elif hasattr(value, "item"):  # NumPy's scalar
        value = value.item()
    try:
        if kind == "f":
            return struct.pack(f"<{FLOATS[size]}", value)
        return int.to_bytes(value, size, "little", signed=value < 0)
    except (TypeError, struct.error, OverflowError):
        wanted_kind = "a number" if kind == "f" else "an integer"
        found = f"expected {wanted_kind} of {size} bytes, found {value!r}"
        raise TypeError(f"{where}: {found}") from None


# ---- launching -----------------------------------------------------------------------------


def launch(
    source: str,
    name: str,
    arguments: Sequence[object],
    *,
    grid: Shape,
    block: Shape,
    shared_bytes: int = 0,
    cluster: int = 1,
    cooperative: bool = False,
    options: tuple[str, ...] = (),
) -> None:
    """
    Build a kernel of `source` for the current GPU, once, and put it into the current stream.

    Args:
        source: CUDA C++ (C++17).
        name: The kernel, as C++ calls it: ``doubled``, or ``doubled<float>`` for a template.
        arguments: What `packed` takes.
        grid: Blocks along x, or x and y, or all three.
        block: Threads of a block, the same way.
        shared_bytes: Dynamic shared memory of a block; more than 48 KiB is asked for.
        cluster: Blocks of a cluster, along x (sm_90 and later).
        cooperative: Whether all blocks have to be there at once.
        options: More options of NVRTC, as in ``("-DBLOCK=128", "-DELEMENT=__half")``. A macro may
            not be called T: NVRTC's own headers use that name.

    Raises:
        BuildFailed: with what NVRTC said of the source.
        TypeError: the arguments do not fit the kernel's parameters.
        ValueError: a grid, block, cluster or shared memory that cannot be.
        RuntimeError: there is no GPU and no simulator, or the driver refused.
    """
    if simulator is not None:
        _, shared_limit_bytes = simulator.gpu()
        kernel = simulator.build(source, name, options)
    else:
        arch, shared_limit_bytes = current_gpu(name)
        kernel = build(source, name, arch=arch, options=options)
    config = Config(
        grid=_three(grid),
        block=_three(block),
        shared_bytes=shared_bytes,
        cluster=cluster,
        cooperative=cooperative,
    )
    config.refuse_impossible(name, shared_limit_bytes)
    (start if simulator is None else simulator.start)(kernel, config, arguments)


def _three(sizes: Shape) -> Shape:
    return (*sizes, 1, 1)[:3]


def current_gpu(name: str) -> tuple[str, int]:
    """What to build `name` for, and the shared memory that a block may have, in bytes."""
    import torch

    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise RuntimeError(f"{name}: expected a GPU of NVIDIA's to launch it on, found none")
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    return f"sm_{device.major}{device.minor}", device.shared_memory_per_block_optin  # type: ignore[attr-defined]


def gpu() -> Gpu:
    """The GPU that a launch goes to; on a simulator, or without any, one like those it is for."""
    if simulator is not None:
        arch, shared_bytes = simulator.gpu()
        return replace(STAND_INS.get(arch, STAND_INS[USUAL]), smem_per_block_bytes=shared_bytes)
    try:
        arch, _ = current_gpu("gpu")
    except RuntimeError:
        return STAND_INS[USUAL]
    import torch

    return gpu_of(arch, torch.cuda.get_device_properties(torch.cuda.current_device()))


def start(kernel: Kernel, config: Config, arguments: Sequence[object]) -> None:
    """Hand a launch to the driver."""
    import torch
    from cuda.bindings import driver

    contents = [ctypes.create_string_buffer(one, len(one)) for one in packed(kernel, arguments)]
    addresses = (ctypes.c_void_p * len(contents))(*map(ctypes.addressof, contents))
    attributes = _attributes(driver, config)
    launch_config = driver.CUlaunchConfig()
    launch_config.gridDimX, launch_config.gridDimY, launch_config.gridDimZ = config.grid
    launch_config.blockDimX, launch_config.blockDimY, launch_config.blockDimZ = config.block
    launch_config.sharedMemBytes = config.shared_bytes
    launch_config.hStream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    launch_config.attrs, launch_config.numAttrs = attributes, len(attributes)
    loaded = _loaded(kernel, torch.cuda.current_device())
    if config.shared_bytes > MOST_SHARED_BYTES:
        _set(driver, loaded, "MAX_DYNAMIC_SHARED_SIZE_BYTES", config.shared_bytes)
    if config.cluster > MOST_PORTABLE_CLUSTER:
        _set(driver, loaded, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
    function = driver.CUfunction(int(loaded))
    asked(driver.cuLaunchKernelEx(launch_config, function, ctypes.addressof(addresses), 0))


@cache
def _loaded(kernel: Kernel, device: int) -> Any:  # noqa: ANN401 -- the driver's own
    """The kernel in the memory of the current GPU, which `device` is."""
    from cuda.bindings import driver

    library = asked(driver.cuLibraryLoadData(kernel.cubin, [], [], 0, [], [], 0))
    return asked(driver.cuLibraryGetKernel(library, kernel.symbol.encode()))


def _attributes(driver: ModuleType, config: Config) -> list[Any]:
    """What a launch asks for beside its sizes."""
    wanted: Mapping[str, bool] = {
        "CLUSTER_DIMENSION": config.cluster > 1,
        "COOPERATIVE": config.cooperative,
    }
    found = []
    for name in (name for name, is_wanted in wanted.items() if is_wanted):
        attribute = driver.CUlaunchAttribute()
        attribute.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
        if name == "COOPERATIVE":
            attribute.value.cooperative = 1
        else:
            attribute.value.clusterDim.x = config.cluster
            attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
        found.append(attribute)
    return found


def _set(driver: ModuleType, kernel: Any, name: str, value: int) -> None:  # noqa: ANN401
    import torch

    attribute = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
    device = asked(driver.cuDeviceGet(torch.cuda.current_device()))
    asked(driver.cuKernelSetAttribute(attribute, value, kernel, device))
