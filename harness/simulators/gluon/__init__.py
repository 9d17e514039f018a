"""
Gluon kernels on the CPU, a tensor at a time, with their asynchrony and its hazards.

    install()                                   # then `kernel[grid](…)` as ever
    with simulating(seed=3, policy="late") as simulator:
        c = gemm(a, b)                          # a Hazard names what nothing orders
    simulator.tally.counts["TMA load"]          # bytes

A program is a set of partitions, one or, under `gl.warp_specialize`, several. Each runs its Python
code once for all its threads: Triton puts the barriers between those in by itself. Every
cp.async, TMA copy and wgmma is an agent of its own. It is issued, and reads and writes its bytes
some time later, as a rule as late as a wait allows; until then its destination holds NaN.

Hazards are found by happens-before. A partition's clock says how far it has followed every other
one, up to where their ordinary writes have gone through a proxy fence, and which asynchronous
operations it knows to be complete. Clocks travel with the phases of mbarriers and the barrier of a
cluster alone. Two accesses to the same bytes of shared memory, one of them a write, that the clocks
do not order, are a hazard in every schedule; so that one run shows it, with the lines of both.

A program with `num_ctas` is a cluster. Its tensors and its shared memory are spread over the CTAs
as their layouts say (`cga_layout`), each CTA has mbarriers of its own, and a partition has a clock
in each. As all CTAs run the same code on the same scalars, it is still run once. A multicast writes
the shared memory of several CTAs and signals the mbarrier of each: the CTA that issues it must know
that all of them have made theirs and are done with what was there. Triton 3.6 and 3.7 build no
other access to another CTA's shared memory for sm_90: conversions of layouts, reductions and loads
across CTAs are refused here, too. 3.6 has neither multicasts nor the barrier, and no clusters here.
What else CTAs tell each other goes through global memory.

What differs from a GPU: programs run one after another, so that those that wait for each other
never end ("endless"); of global memory the bounds are checked, and between the CTAs of a cluster
the order of loads, stores and atomics through pointers; sums are NumPy's, in float32. What the
compiler alone refuses (types of variables across a loop, registers, instruction shapes) is for the
compiler to say: see `harness.meters.compiled`.
"""

from harness.simulators.gluon.context import NotModelled
from harness.simulators.gluon.launch import Order, Settings, Simulator, install, simulating
from harness.simulators.gluon.layouts import LayoutError
from harness.simulators.gluon.machine import Policy

__all__ = [
    "LayoutError",
    "NotModelled",
    "Order",
    "Policy",
    "Settings",
    "Simulator",
    "install",
    "simulating",
]
