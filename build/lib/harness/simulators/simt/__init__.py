"""
Numba's CUDA kernels on the CPU, thread by thread, in an order that can be chosen.

    install()                                        # then `kernel[grid, block](…)` as ever
    with launching(Settings(order="reversed", warp_size=64)):
        kernel[grid, block](x, out)

What holds here and on a GPU alike: threads that returned are not waited for at `syncthreads`; a
shuffle, vote or `syncwarp` waits for exactly the lanes its mask names; `this_grid().sync()` needs
every block alive. What a GPU leaves undefined or never finishes is a SimtError here: a mask with
an absent lane, threads that wait for each other. Uninitialised shared and local memory is poisoned
(NaN, all bits set), and so is what a shuffle brings from a lane outside its mask.

What differs: integers are Python's until an array cuts them to size; a thread that spins on memory
waits for ever, since threads take turns only where they wait; structured dtypes are refused.
"""

from harness.simulators.simt.host import install, launching
from harness.simulators.simt.machine import Settings, SimtError

__all__ = ["Settings", "SimtError", "install", "launching"]
