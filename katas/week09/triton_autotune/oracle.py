"""What the compiler made of the kernel, a GPU with a virtual clock, and pruning by brute force."""

import json
from pathlib import Path
from types import FunctionType

import torch
import triton
from triton.runtime.errors import OutOfResources

DATA = Path(__file__).parent / "data" / "builds.json"
MOST = 12

# BLOCK_M, BLOCK_N, BLOCK_K, stages, warps, bytes of an element: shared memory as compiled, on
# sm_80 and on sm_90 (float16; float32 as tf32)
COMPILED = {
    (64, 64, 64, 1, 4, 2): (16384, 16384),  # nothing is pipelined
    (64, 16, 64, 3, 4, 2): (20480, 30720),
    (16, 64, 64, 3, 4, 2): (20480, 20480),  # too few rows for wgmma
    (32, 64, 32, 4, 2, 2): (18432, 18432),
    (128, 64, 64, 3, 8, 2): (49152, 73728),
    (64, 32, 64, 4, 8, 2): (36864, 49152),
    (64, 64, 32, 2, 2, 2): (8192, 8192),  # half a warpgroup
    (128, 32, 32, 3, 2, 2): (20480, 20480),
    (64, 64, 32, 3, 1, 2): (16384, 16384),
    (64, 64, 32, 3, 16, 2): (16384, 24576),
    (16, 16, 16, 3, 4, 2): (2048, 2048),
    (128, 128, 32, 4, 8, 4): (98304, 131072),
    (64, 32, 32, 2, 4, 4): (12288, 24576),
    (32, 32, 32, 3, 4, 4): (16384, 16384),
    (128, 256, 64, 3, 8, 2): (98304, 147456),
    (256, 64, 128, 3, 4, 2): (163840, 245760),
    (64, 256, 64, 2, 4, 2): (40960, 81920),
}


def config(m, n, k, stages, warps):
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
    return triton.Config(blocks, num_stages=stages, num_warps=warps)


def tile_of(one):
    """The five numbers of a configuration."""
    blocks = (one.kwargs[f"BLOCK_{axis}"] for axis in "MNK")
    return (*blocks, one.num_stages, one.num_warps)


def builds(kata, arch):
    """(registers, spills, bytes of shared memory) of the 40 configurations, by their numbers."""
    table = json.loads(DATA.read_text(encoding="utf-8"))
    return {
        tuple(tile): kata.Build(registers=registers, spills=spills, shared_bytes=shared)
        for tile, (registers, spills, shared) in zip(table["tiles"], table[arch], strict=True)
    }


class Compiler:
    """`read`, which looks builds up; it notes who was asked for, and never forgets."""

    def __init__(self, found):
        self.found = found
        self.asked = []

    def __call__(self, one):
        self.asked.append(tile_of(one))
        return self.found[tile_of(one)]


def worth_timing(kata, configs, sizes, limits, found):
    """What `prune` keeps, as numbers: every one tried, by its rank."""
    launchable = [one for one in configs if found[tile_of(one)].shared_bytes <= limits.shared_bytes]
    times = [kata.predicted_us(one, *sizes, limits) for one in launchable]
    places = sorted(range(len(launchable)), key=lambda place: (times[place], place))
    ranked = [tile_of(launchable[place]) for place in places]
    return [tile for tile in ranked if not found[tile].spills][:MOST]


class VirtualKernel(triton.KernelInterface):
    """
    The kernel on a GPU that is not there.

    A launch adds up the tiles of its grid, if its configuration fits; `log` has the numbers of all
    that were launched, `grids` their programs, and `refused` those that did not fit. `given` is
    c, a and b of the last launch.
    """

    def __init__(self, like, found, limits):
        self.arg_names = like.arg_names
        self.fn = FunctionType((lambda: None).__code__, {}, "accumulate_kernel")
        self.found, self.limits = found, limits
        self.log, self.grids, self.refused, self.given = [], [], [], []

    def run(self, *args, grid, warmup=False, **options):
        given = {**dict(zip(self.arg_names, args, strict=False)), **options}
        tile = tuple(given[f"BLOCK_{axis}"] for axis in "MNK")
        tile += (given["num_stages"], given["num_warps"])
        need = self.found[tile].shared_bytes
        if need > self.limits.shared_bytes:
            self.refused.append(tile)
            raise OutOfResources(need, self.limits.shared_bytes, "shared memory")
        self.log.append(tile)
        programs = grid(given) if callable(grid) else grid
        self.grids.append(tuple(programs))
        rows, cols = programs[0] * tile[0], programs[1] * tile[1]
        self.given = c, a, b = [given[f"{name}_ptr"] for name in "cab"]
        c[:rows, :cols] += (a[:rows].double() @ b[:, :cols].double()).float()


class Bench:
    """
    A clock that knows what each configuration takes: `do_bench` of a virtual kernel.

    A call is launched three times, as it has to be where there is noise. `timed` has the numbers
    of what was timed.
    """

    def __init__(self, kernel, takes):
        self.kernel, self.takes = kernel, takes
        self.timed = []

    def __call__(self, call, quantiles=None):
        for _ in range(3):
            call()
        self.timed.append(self.kernel.log[-1])
        return [self.takes(self.kernel.log[-1])] * 3


def operands(m, n, k, *, device="cpu", dtype=torch.float16, seed=0):
    """c, a and b of small whole numbers, which add up without rounding."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((m, n), (m, k), (k, n))
    c, a, b = (torch.randint(-3, 4, shape, generator=generator) for shape in shapes)
    return c.float().to(device), a.to(dtype).to(device), b.to(dtype).to(device)
