"""Clusters as a kernel sees them: their barrier."""

from harness.simulators.gluon.tensors import GL, Table, export, running
from harness.simulators.gluon.values import KernelValue, unwrap

CLUSTER: Table = {}


@export(CLUSTER)
def _arrive(relaxed: KernelValue = False) -> None:
    program = running()
    program.step()
    program.cluster.arrive(program.current, relaxed=bool(unwrap(relaxed)))


@export(CLUSTER)
def _wait() -> None:
    program = running()
    partition, cluster = program.current, program.cluster
    program.wait(
        lambda: cluster.passed(partition, program.partitions),
        "waits at the barrier of the cluster, where each warp of each CTA has to arrive",
    )
    cluster.wait(partition)
    program.afar.forget(program.everyone)


@export(GL, "barrier", "thread_barrier")
def _barrier(*, cluster: KernelValue = False) -> None:
    """Join the threads of a partition, one agent anyway; or the CTAs of a cluster."""
    if unwrap(cluster) and running().num_ctas > 1:
        _arrive()
        _wait()
    else:
        running().step()
