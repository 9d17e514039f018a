"""Packages that the project allows work beside each other on a GPU; told and tried without one."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from harness.base.processes import child_environment
from harness.cli import main
from harness.hardware import bridges

# a NumPy as 2.5 is: of that version, and without what it has removed
LATER_NUMPY = """
import warnings
import numpy as np
with warnings.catch_warnings(action="ignore"):
    np.__version__ = "2.5.2"
    vars(np).pop("row_stack", None)
    assert not hasattr(np, "row_stack")
"""
LOAD = "import numba.cuda.np.arrayobj\n"
BRIDGE = "from harness.hardware.bridges import bridge_numba_cuda\nbridge_numba_cuda()\n"
AFTERWARDS = """
import sys
assert "numba.cuda.np.arrayobj" in sys.modules
assert not hasattr(np, "row_stack")
"""


@pytest.fixture
def python():
    """Run this source with the real numba-cuda, as on a GPU; returns its last line of errors."""

    def run(source):
        done = subprocess.run(
            [sys.executable, "-c", source],
            env=child_environment({"NUMBA_ENABLE_CUDASIM": "0"}),
            capture_output=True,
            text=True,
            check=False,
        )
        return (done.stderr.splitlines() or [""])[-1]

    return run


def test_numba_cuda_loads_beside_a_numpy_without_row_stack_and_numpy_stays_as_it_was(python):
    assert python(LATER_NUMPY + BRIDGE + LOAD + AFTERWARDS) == ""


def test_the_bridge_is_still_needed(python):
    """When this fails, numba-cuda has closed the gap itself: take the bridge away."""
    gap = "AttributeError: module 'numpy' has no attribute 'row_stack'"
    assert python(LATER_NUMPY + LOAD) == gap


def test_where_numpy_has_it_nothing_is_loaded(python):
    loaded = "import sys\nassert 'numba' not in sys.modules\n"
    given = "import numpy as np\nnp.row_stack = np.vstack\n"
    assert python(given + BRIDGE + loaded) == ""


@pytest.mark.parametrize(
    ("numpy", "told"),
    [
        ("2.4.6", []),
        (
            "2.5.2",
            ["numpy 2.5.2 has no row_stack: provided to numba-cuda 0.30.4 while that loads"],
        ),
    ],
)
def test_what_is_bridged_is_told_without_importing_it(monkeypatch, numpy, told):
    monkeypatch.setattr(bridges, "version", {"numpy": numpy, "numba-cuda": "0.30.4"}.get)
    assert bridges.bridges() == told
    shown = CliRunner().invoke(main, ["doctor"]).stdout
    said = [line.split(maxsplit=2) for line in shown.splitlines() if "row_stack" in line]
    assert said == [["ok", "bridged", line] for line in told]
