"""Right kernels have no hazard in any order; without one of their waits or barriers they fail."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness import cuda
from harness.running.runner import child_environment
from harness.simulators.ptx import read_ptx, run_arrays
from tests.ptx.conftest import KERNEL, RIGHT, text_of

ROOT = Path(__file__).resolve().parents[2]
# statements that make threads wait, or say that others need not
SYNCHRONISING = re.compile(
    r"^\s*(?:@\S+\s+)?(?:bar|barrier|cp\.async\.wait|cp\.async\.commit|mbarrier\.try_wait)[^;]*;",
    re.M,
)


def _inputs(name, rng):
    floats = rng.standard_normal((2, 32, 32), dtype=np.float32)
    cases = {
        "matmul": ([*floats, np.zeros((32, 32), np.float32), 32, 32, 32],
                   {"grid": (2, 2), "block": (16, 16)}),
        "transpose": ([floats[0], np.zeros((32, 32), np.float32), 32], {"block": (32, 8)}),
        "reduce": ([floats.ravel(), np.zeros(1, np.float32), 2048], {"grid": 2, "block": 128}),
        "scan": ([np.arange(128, dtype=np.int32), np.zeros(128, np.int32), 128],
                 {"block": 128, "shared_bytes": 512}),
        "hist": ([(7 * np.arange(999)).astype(np.uint8), np.zeros(256, np.uint32), 999],
                 {"block": 128}),
        "layernorm": ([np.full((5, 256), 0x3F80, np.uint16), *np.full((2, 256), 0x3F80, np.uint16),
                       np.zeros((5, 256), np.uint16), 5, 256, 1e-5],
                      {"grid": 2, "block": 128, "shared_bytes": 1024}),
    }  # fmt: skip
    return cases[name]


NAMES = ("matmul", "transpose", "reduce", "scan", "hist", "layernorm")


@pytest.fixture(scope="module")
def ptx():
    """The PTX of a kernel's file, built once."""
    known = {}

    def build(name):
        if name not in known:
            options = tuple(f"-D{macro}={text}" for macro, text in RIGHT.items())
            first = KERNEL.search(text_of(name))[1]
            known[name] = cuda.build_ptx(text_of(name), first, arch="sm_80", options=options).ptx
        return known[name]

    return build


def outcome(text, name, schedule=None):
    """Names of the hazards, and the last array, which holds the results."""
    arguments, sizes = _inputs(name, np.random.default_rng(3))
    run = run_arrays(
        read_ptx(text), arguments=arguments, schedule=schedule, most_steps=20_000, **sizes
    )
    arrays = [one for one in arguments if isinstance(one, np.ndarray)]
    return run.names, arrays[-1] if name != "reduce" else arrays[1]


@pytest.mark.parametrize("name", NAMES)
def test_no_order_of_warps_raises_a_false_alarm(ptx, name):
    _, want = outcome(ptx(name), name)
    for seed in range(3):
        hazards, got = outcome(ptx(name), name, schedule=seed)
        assert not hazards, f"seed {seed}"
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_no_barrier_or_wait_can_be_left_out(ptx, name):
    text = ptx(name)
    places = [found.span() for found in SYNCHRONISING.finditer(text)]
    assert places
    silent = []
    for start, end in places:
        hazards, _ = outcome(text[:start] + text[end:], name)
        if not hazards:
            silent.append(text[start:end].strip())
    assert silent == []


def test_the_gluon_simulator_is_agreed_with(tmp_path):
    pytest.importorskip("triton")
    from tests.gluon_cases import CLUSTERS

    names = ("ws", "fa3", *(name for name in ("multicast", "shared") if name in CLUSTERS))
    done = subprocess.run(
        [sys.executable, "-m", "tests.ptx.compiled_gluon", *names],
        env=child_environment({"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    told = done.stdout.splitlines()
    assert [line.partition(",")[0] for line in told] == [f"{name}: right" for name in names], (
        done.stdout + done.stderr[-2000:]
    )
