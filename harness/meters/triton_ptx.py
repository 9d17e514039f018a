"""
Triton's and Gluon's own compiled code, executed: an instrument, for it changes with the compiler.

    launched = run_compiled("sm_90")       # in a process of its own: it stays so
    kata.fused_silu(x)                     # on CPU tensors
    launched[0].run.lines[17]              # by line of the kernel's file

What a launcher asks of the GPU is answered as for the target; tensors stay on the CPU, so that it
takes the sizes it takes there. Autotuning settles on the first configuration.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from harness import cuda
from harness.meters.compile_worker import GPUS, launch_grid, pretend
from harness.simulators.ptx import (
    Arguments,
    Launch,
    Module,
    Unsupported,
    read_ptx,
    run_kernel,
)
from harness.simulators.ptx.host import Launched
from harness.simulators.ptx.pointers import Memory, mapped
from harness.simulators.ptx.sources import Source, hazards_of

MOST_STEPS = 1_000_000
SWIZZLES = (0, 32, 64, 128)  # bytes, as a descriptor's metadata number them
CONSTANT = "constexpr"


def run_compiled(target: str) -> list[Launched]:
    """From now on compile every launch for `target` and run its PTX; return where it is noted."""
    pretend(GPUS[target])
    launched: list[Launched] = []
    original = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:  # noqa: ANN401
        kernel = original(self, *args, grid=grid, warmup=True, **kwargs)
        sizes = launch_grid(self, grid, args, kwargs)
        defaults = {one.name: one.default for one in self.params if one.has_default}
        given = {**defaults, **dict(zip(self.arg_names, args, strict=False)), **kwargs}
        x, y, z = (*sizes, 1, 1)[:3]
        launched.append(_run(kernel, (x, y, z), given, Path(self.fn.__code__.co_filename)))
        return kernel

    JITFunction.run = run
    Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]
    return launched


def _run(
    kernel: Any,  # noqa: ANN401 -- Triton's
    grid: tuple[int, int, int],
    given: Mapping[str, Any],
    file: Path,
) -> Launched:
    module, name = read_ptx(kernel.asm["ptx"]), kernel.metadata.name
    arguments = _arguments(kernel, given)
    block = (32 * kernel.metadata.num_warps, 1, 1)
    declared = module.functions[name].block
    if declared:  # more warps than the kernel asked for, where it is specialised
        x, y, z = (*declared, 1, 1)[:3]
        block = (x, y, z)
    cluster = _cluster(module, name)
    launch = Launch(
        grid=(grid[0] * cluster, grid[1], grid[2]),
        block=block,
        shared_bytes=kernel.metadata.shared,
        cluster=cluster if cluster > 1 else 0,
        most_steps=MOST_STEPS,
    )
    run = run_kernel(module, name, launch, arguments)
    lines = file.read_text(encoding="utf-8").splitlines()
    source = Source(name, tuple(lines), str(file))
    config = cuda.Config(
        grid=launch.grid,
        block=block,
        shared_bytes=launch.shared_bytes,
        cluster=cluster,
        cooperative=False,
    )
    hazards = hazards_of(run.found, source)
    return Launched(kernel=name, config=config, run=run, hazards=hazards, source=source)


def _cluster(module: Module, name: str) -> int:
    declared = module.functions[name].cluster or (1,)
    return int(declared[0])


def _arguments(kernel: Any, given: Mapping[str, Any]) -> Arguments:  # noqa: ANN401
    """What the PTX's parameters are, in order: constants are compiled in."""
    names = [name for name, kind in kernel.src.signature.items() if kind != CONSTANT]
    memory = Memory()
    memory.add({name: given[name] for name in names if isinstance(given[name], torch.Tensor)})
    metas = list(getattr(kernel.metadata, "tensordesc_meta", None) or [])
    values: list[object] = []
    for name in names:
        value = given[name]
        if isinstance(value, torch.Tensor):
            address = memory.address(name, value).to_bytes(8, "little")
            values += memory.resolved([address])
        elif hasattr(value, "block_shape"):
            values += _descriptor(name, value, metas.pop(0) if metas else None)
        elif isinstance(value, tuple):
            raise Unsupported(f"{name}, a tuple of arguments")
        else:
            values.append(value)
    return Arguments(values, memory.regions)


def _descriptor(name: str, value: Any, meta: Any) -> list[object]:  # noqa: ANN401
    """A tensor map with the sizes and strides that follow it."""
    base: torch.Tensor = value.base
    if meta is None:
        raise Unsupported(f"{name}, a descriptor that the compiler took apart")
    tensor_map = mapped(base, [int(one) for one in meta["block_size"]], SWIZZLES[meta["swizzle"]])
    return [tensor_map, *map(int, base.shape), *map(int, base.stride())]
