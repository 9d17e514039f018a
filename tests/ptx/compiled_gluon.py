"""
The kernels of tests/gluon_cases.py once more: compiled for sm_90, their PTX executed.

    TRITON_INTERPRET=0 python -m tests.ptx.compiled_gluon          # all, a line each
    TRITON_INTERPRET=0 python -m tests.ptx.compiled_gluon ws fa3

Two simulators that have nothing in common but the names of hazards judge the same kernels.
"""

import sys

from harness.meters.triton_ptx import run_compiled
from tests import gluon_cases

EVERY = {**gluon_cases.CASES, **gluon_cases.CLUSTERS}


def main(names):
    launched = run_compiled("sm_90")
    for name in names or EVERY:
        first = len(launched)
        got, want, most = EVERY[name](gluon_cases.load(gluon_cases.FILES[name]))
        error = (got.double() - want.double()).abs().max().item()
        hazards = [str(hazard) for one in launched[first:] for hazard in one.hazards]
        steps = sum(one.run.counters["steps"] for one in launched[first:])
        verdict = "right" if error <= most and not hazards else "wrong"
        told = f"{name}: {verdict}, off by {error:.1e} of {most:.0e}, {steps} steps"
        sys.stdout.write(" ".join([told, *hazards]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
