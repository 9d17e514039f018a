"""Where there is neither Triton nor fork, as on macOS, what needs neither is judged as ever."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.running.runner import child_environment

ROOT = Path(__file__).resolve().parents[1]

# run by each Python process before anything else
BARE = """
import os
import sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
del os.fork
"""


@pytest.fixture
def bare(tmp_path):
    """Run Python so; returns the finished process."""
    (tmp_path / "sitecustomize.py").write_text(BARE)
    environment = {"PYTHONPATH": str(tmp_path), "KATA_HOME": str(tmp_path / "home")}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=child_environment({**environment, "CUDA_VISIBLE_DEVICES": ""}),
            check=False,
        )

    return run


def test_there_is_neither(bare):
    assert bare("-c", "import os; print(hasattr(os, 'fork'))").stdout == "False\n"
    assert "No module named 'triton'" in bare("-c", "import triton.language").stderr


@pytest.mark.parametrize("kata", ["paged_kv_allocator", "gqa_attention", "cuda_vector_add"])
def test_a_kata_in_python_pytorch_or_numba_passes(bare, kata):
    done = bare("-m", "harness", "--root", str(ROOT), "run", kata, "--impl", "solution")
    assert f"passed: {kata}" in done.stdout, done.stdout + done.stderr
