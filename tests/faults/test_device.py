"""What goes wrong on a device ends one run; these need a GPU."""

import re
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from harness.base.processes import child_environment, run_group
from harness.hardware.environment import device_present
from harness.running import limits
from harness.running.runner import pytest_command, read_record

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

ASSERTS = """
import torch
def plus_one(x):
    return x[torch.full(x.shape, 1 << 40, device=x.device)] + 1
"""

# judged in one session, each beside the others: what its first failed check says
WRONG = {
    "hoards": (
        "import torch\n"
        "def plus_one(x):\n"
        "    return torch.zeros(1 << 50, device=x.device)[: x.numel()]\n",
        "device out of memory: ",
    ),
    "on_the_host": (
        "def plus_one(x):\n    return (x + 1).cpu()\n",
        "expected it on cuda:0, where the inputs are, found it on cpu",
    ),
    "without_memory": (
        "import torch\ndef plus_one(x):\n    return torch.empty_like(x, device='meta')\n",
        "expected it on cuda:0, where the inputs are, found it on meta",
    ),
    # the first launch succeeds; every later one asks for more threads than a block may have
    "fails_quietly": (
        """
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
""",
        "values off",
    ),
    "does_not_compile": (
        """
import torch, triton
import triton.language as tl

@triton.jit
def _kernel(x_ptr, y_ptr, n, block: tl.constexpr):
    cols = tl.arange(0, block)
    tl.store(y_ptr + cols, no_such_name(x_ptr + cols), mask=cols < n)

def plus_one(x):
    y = torch.empty_like(x)
    _kernel[(1,)](x, y, x.numel(), block=1024)
    return y
""",
        "compile error: ",
    ),
}

# on the machine's GPU, so that it is at work whenever somebody looks
NEIGHBOUR = """
import torch
print("at work", flush=True)
while True:
    torch.cuda._sleep(20_000_000)
    torch.cuda.synchronize()
"""
SPEED = """
[[speed]]
kind = "roofline"
fraction = 0.1
case = { n = 67_108_864, dtype = "float32" }
"""
COST = """

def cost(*, x):
    from harness.hardware.profiles import Cost

    return Cost(flops=x.numel(), bytes=2 * x.nbytes)
"""


def test_a_kernel_without_end_is_stopped_and_the_device_answers_again(bench, monkeypatch):
    toml = bench.kata("plus_one").folder / "kata.toml"
    toml.write_text(toml.read_text().replace("timeout_s = 20", "timeout_s = 6"))
    with monkeypatch.context() as at_once:
        at_once.setattr(limits, "COMPILE_S", 0.0)
        outcome = bench.judge(SPINS, "plus_one", "cuda")
    assert outcome.status == "timed_out"
    assert re.search(r"^stopped after \S+ s in test_", outcome.reason)
    assert outcome.device_problem == ""


def test_a_device_fault_is_named_and_the_next_kata_passes(bench):
    for source, words in (
        (STRAYS, "illegal memory access"),
        (ASSERTS, "device-side assert triggered"),
    ):
        outcome = bench.judge(source, "plus_one", "cuda")
        assert outcome.status == "crashed", outcome.reason
        assert words in outcome.reason
        assert outcome.device_problem == ""
    bench.assert_still_right("plus_one", "cuda")


def test_what_a_device_did_not_compute_is_no_answer(bench, tmp_path):
    files = {name: tmp_path / f"{name}.py" for name in WRONG}
    for name, (source, _) in WRONG.items():
        files[name].write_text(source)
    record = tmp_path / "record.jsonl"
    impls = [*map(str, files.values()), "solution"]
    command = pytest_command([bench.kata("plus_one")], impls=impls, device="cuda", record=record)
    _, output = run_group(command, 120, {"KATA_HOME": str(bench.home)}, cwd=bench.root)
    checks = [event for event in read_record(record) if event["event"] == "check"]
    told = {impl: [] for impl in impls}
    for check in checks:
        if check["outcome"] != "passed":
            told[check["impl"]].append(check["message"])
    assert told["solution"] == [], output
    for name, (_, words) in WRONG.items():
        assert any(words in line for line in told[str(files[name])]), (name, told[str(files[name])])


@contextmanager
def a_busy_device():
    """Another process keeps the GPU at work."""
    with subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR], stdout=subprocess.PIPE, env=child_environment({})
    ) as neighbour:
        try:
            assert neighbour.stdout.readline() == b"at work\n"
            yield
        finally:
            neighbour.kill()


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no tool says how busy a device is")
def test_a_device_at_work_for_somebody_else_is_not_graded_until_it_is_idle(bench):
    folder = bench.kata("plus_one").folder
    for name, more in (("kata.toml", SPEED), ("oracle.py", COST)):
        with (folder / name).open("a") as file:
            file.write(more)
    bench.solve("plus_one")
    with a_busy_device():
        outcome = bench.judge(name="plus_one", device="cuda")
    (speed,) = [check for check in outcome.checks if check.name.startswith("test_speed")]
    assert speed.outcome == "not_graded", speed.message
    assert "busy with other work before timing began" in speed.message
    assert outcome.status == "passed", outcome.reason
    idle = bench.judge(name="plus_one", device="cuda")
    (speed,) = [check for check in idle.checks if check.name.startswith("test_speed")]
    assert speed.outcome == "passed", speed.message
