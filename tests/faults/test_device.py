"""What goes wrong on a device ends one run; these need a GPU."""

import pytest

from harness import runner
from harness.environment import device_present

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not device_present(), reason="needs a GPU"),
]

SPINS = """
import torch
def plus_one(x):
    torch.cuda._sleep(1 << 62)
    return x + 1
"""

STRAYS = """
import torch, triton
import triton.language as tl

@triton.jit
def _kernel(x_ptr, y_ptr):
    far = tl.program_id(0).to(tl.int64) + (1 << 44)
    tl.store(y_ptr + far, tl.load(x_ptr))

def plus_one(x):
    y = torch.empty_like(x)
    _kernel[(1,)](x, y)
    return y
"""

HOARDS = """
import torch
def plus_one(x):
    return torch.zeros(1 << 50, device=x.device)[: x.numel()]
"""

# the first launch succeeds; every later one asks for more threads than a block may have
FAILS_QUIETLY = """
import torch, triton
import triton.language as tl

@triton.jit
def _kernel(x_ptr, y_ptr, n, block: tl.constexpr):
    cols = tl.arange(0, block)
    x = tl.load(x_ptr + cols, mask=cols < n)
    tl.store(y_ptr + cols, x + 1, mask=cols < n)

KEPT = {}

def plus_one(x):
    n = x.numel()
    warps = 64 if n in KEPT else 4
    y = KEPT.setdefault(n, torch.empty_like(x))
    try:
        _kernel[(1,)](x, y, n, block=4096, num_warps=warps)
    except Exception:
        pass
    return y
"""

ON_THE_HOST = "def plus_one(x):\n    return (x + 1).cpu()\n"


def test_a_kernel_without_end_is_stopped_and_the_device_answers_again(bench, monkeypatch):
    monkeypatch.setattr(runner, "COMPILE_S", 0.0)
    outcome = bench.judge(SPINS, "plus_one", "cuda")
    assert outcome.status == "timed_out"
    assert "stopped after 20 s in test_" in outcome.reason
    assert outcome.device_problem == ""
    bench.assert_still_right("plus_one", "cuda")


def test_an_illegal_access_is_named_and_the_next_kata_passes(bench):
    outcome = bench.judge(STRAYS, "plus_one", "cuda")
    assert outcome.status == "crashed"
    assert "illegal memory access" in outcome.reason
    assert outcome.device_problem == ""
    bench.assert_still_right("plus_one", "cuda")


def test_running_out_of_device_memory_is_named(bench):
    outcome = bench.judge(HOARDS, "plus_one", "cuda")
    assert outcome.status == "failed"
    assert outcome.reason.endswith(": device out of memory")
    bench.assert_still_right("plus_one", "cuda")


@pytest.mark.parametrize("source", [FAILS_QUIETLY, ON_THE_HOST])
def test_what_a_device_did_not_compute_is_no_answer(bench, source):
    assert bench.judge(source, "plus_one", "cuda").status == "failed"
    bench.assert_still_right("plus_one", "cuda")
