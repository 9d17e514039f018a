"""CUDA C++ of `kernels/`, built to PTX by NVRTC and run on the simulator."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from harness import cuda
from harness.authoring.scaffold import scaffold
from harness.content.kata import load_kata
from harness.content.submission import resolve
from harness.simulators.ptx import read_ptx, run_arrays

KERNELS = Path(__file__).parent / "kernels"
KERNEL = re.compile(r"__global__ void (?:__\w+\([^)]*\) )?(\w+)\(")
# what the macros in the kernels stand for where nothing is wrong
RIGHT = {
    "SYNC1": "__syncthreads();",
    "SYNC2": "__syncthreads();",
    "SYNC_END": "__syncthreads();",
    "WAIT": "__pipeline_wait_prior(1);",
    "BUMP": "atomicAdd(&h[x[i]], 1u);",
    "TRANS": '".trans"',
    "FRAG1": "1",
    "FRAG2": "2",
    "PAD": "1",
}


def text_of(file):
    return (KERNELS / f"{file}.cu").read_text()


def pytest_collection_modifyitems(items):
    if any(Path(__file__).parent in item.path.parents for item in items):
        try:
            cuda.build_ptx('extern "C" __global__ void none() {}', "none", arch="sm_80")
        except RuntimeError as missing:
            for item in items:
                if Path(__file__).parent in item.path.parents:
                    item.add_marker(pytest.mark.skip(reason=str(missing)))


@cache
def _module(file, arch, changes):
    """A file, built once for all of its kernels, and the first of them."""
    options = tuple(f"-D{macro}={text}" for macro, text in {**RIGHT, **dict(changes)}.items())
    first = KERNEL.search(text_of(file))[1]
    return read_ptx(cuda.build_ptx(text_of(file), first, arch=arch, options=options).ptx), first


@pytest.fixture(scope="session")
def run():
    """``run("scan", [x, y, n], grid=2, block=256, SYNC1="")``: a kernel of a file of that name."""

    def launch(file, arguments, *, name=None, arch="sm_80", grid=1, block=32, smem=0, **given):
        changes = tuple((macro, given.pop(macro)) for macro in list(given) if macro.isupper())
        module, first = _module(file, arch, changes)
        sizes = {"grid": grid, "block": block, "shared_bytes": smem}
        return run_arrays(module, name or first, arguments=arguments, **sizes, **given)

    return launch


@pytest.fixture(scope="session")
def line():
    """``line("scan", "s[t] += v")``: where a text stands in a kernel's file, counted from 1."""

    def find(file, text, nth=0):
        lines = text_of(file).splitlines()
        return [number for number, one in enumerate(lines, 1) if text in one][nth]

    return find


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def fresh(mini, tmp_path):
    """``fresh("triton")``: the reference of a new kata of that backend."""

    def make(backend):
        scaffold(mini, "week02/fresh", backend)
        return resolve(load_kata(mini / "katas/week02/fresh"), "solution", tmp_path)

    return make
