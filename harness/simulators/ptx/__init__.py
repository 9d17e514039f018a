"""
Compiled kernels, as PTX, on the CPU: values, hazards, and what warps ask of memory.

    module = read_ptx(ptx)                              # of NVRTC, Triton, Gluon: no GPU, no driver
    run = run_arrays(module, "scaled", grid=4, block=128, arguments=[x, y, 2.0, n])
    run.found, run.counters["global_load_sectors"], run.lines[12]

A register is one array over all threads of a wave of blocks, a step one instruction for every
thread that stands at it. Shared memory remembers, for each piece, who last wrote and read it, with
vector clocks of warps: a missing barrier is named whatever the order was. What is asynchronous
lands at the last moment that the program allows, and is poison until then.

What it cannot tell: registers, spills and the merging of accesses are ptxas's; lines are those of
optimised code; inside one piece of dynamic shared memory there are no bounds; only the inputs that
are run are judged. Approximate functions are exact here, f32 fma goes through float64, and tensor
cores sum in float64 and round once.
"""

from harness.simulators.ptx.arguments import Arguments, Launch, Pointer, Region, TensorMap
from harness.simulators.ptx.machine import Run, read_ptx, run_arrays, run_kernel
from harness.simulators.ptx.program import Unsupported
from harness.simulators.ptx.state import Module

__all__ = [
    "Arguments",
    "Launch",
    "Module",
    "Pointer",
    "Region",
    "Run",
    "TensorMap",
    "Unsupported",
    "read_ptx",
    "run_arrays",
    "run_kernel",
]
