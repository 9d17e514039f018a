"""Kata week25/mtbf_checkpoint_interval: how often to save a run that fails, and what is left of it.

Times are in seconds. Failures are independent of each other and of what the job does, one in `M`
seconds on average: times between them are exponential.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, expm1, inf, isinf, sqrt


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """
    Where checkpoints go.

    Attributes:
        gpus_per_node: GPUs of a node; the last node of a job may have fewer in use.
        pcie_bytes_per_s: From one GPU to the memory of its host.
        node_bytes_per_s: From one node to the storage.
        storage_bytes_per_s: What the storage takes from all nodes together.
    """

    gpus_per_node: int
    pcie_bytes_per_s: float
    node_bytes_per_s: float
    storage_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A way to save ("full", "sharded" or "async"), seconds of work between, share of time used."""

    kind: str
    tau: float
    goodput: float


def job_mtbf(parts: Iterable[tuple[int, float]]) -> float:
    """
    Return the mean time between failures of a job that fails with any of its parts.

    Args:
        parts: How many of a kind, and the mean time between failures of one. Read once.

    Raises:
        ValueError: a count is negative or a time not above 0; the message begins ``parts: ``.
    """
    # add failure rates
    rate = 0.0
    for count, mtbf in parts:
        if not count >= 0 or not mtbf > 0:
            raise ValueError(f"parts: expected counts from 0 on, times above 0: {count}, {mtbf}.")
        rate += count / mtbf
    return 1 / rate if rate else inf


def young(delta: float, M: float) -> float:
    """
    Return the work between checkpoints of `delta` seconds by Young's rule.

    Raises:
        ValueError: delta below 0, M not above 0.
    """
    # check
    _check(delta=delta, M=M)
    # interval
    return sqrt(2 * delta * M)


def daly(delta: float, M: float) -> float:
    """
    Return the work between checkpoints by Daly's rule of higher order.

    Raises:
        ValueError: delta below 0, M not above 0.
    """
    # check
    _check(delta=delta, M=M)
    # interval
    if delta >= 2 * M:
        return M
    half = delta / (2 * M)
    return sqrt(2 * delta * M) * (1 + sqrt(half) / 3 + half / 9) - delta


def expected_efficiency(
    tau: float, delta: float, M: float, R: float, persist: float = 0.0
) -> float:
    """
    Return the share of time spent on work that no failure undoes.

    Args:
        tau: Seconds of work between checkpoints.
        delta: Seconds that the job stands still for one.
        M: Mean time between failures; may be infinite.
        R: Seconds of a restart, in which failures happen too.
        persist: Seconds from then on until the checkpoint is durable, while the job works.

    Raises:
        ValueError: tau or M not above 0; delta or R below 0; persist not from 0 to tau.
    """
    # check
    if not tau > 0:
        raise ValueError(f"tau: expected more than 0, found {tau}.")
    _check(delta=delta, M=M, R=R)
    if not 0 <= persist <= tau:
        raise ValueError(f"persist: expected 0 to {tau}, tau, found {persist}.")
    # share that is kept
    cycle = tau + delta
    if isinf(M):
        return tau / cycle
    # exp(-(R + persist) / M) / (exp(cycle / M) - 1), where neither may overflow
    kept = exp(-(R + persist + cycle) / M)
    return tau / M * kept / -expm1(-cycle / M) if kept else 0.0


def best_interval(delta: float, M: float) -> float:
    """
    Return the tau at which `expected_efficiency` is largest, to rounding, for any R and persist.

    Raises:
        ValueError: delta below 0, M not above 0.
    """
    # check
    _check(delta=delta, M=M)
    # interval
    if delta == 0:
        return 0.0
    x, step = min(sqrt(2 * delta / M), 1.0), 1.0  # Newton's method from above, tau / M
    while step > 1e-9 * x:
        z = x + delta / M
        step = (x + expm1(-z)) / -expm1(-z)
        x -= step
    return x * M


def checkpoint_times(
    state_bytes: int, world: int, cluster: Cluster
) -> dict[str, tuple[float, float]]:
    """
    Return for each kind how long the job stands still, and how long until it is durable after that.

    Raises:
        ValueError: state_bytes or world below 1.
    """
    # check
    if state_bytes < 1:
        raise ValueError(f"state_bytes: expected at least 1, found {state_bytes}.")
    if world < 1:
        raise ValueError(f"world: expected at least 1, found {world}.")
    # times of each kind
    storage = state_bytes / cluster.storage_bytes_per_s
    of_a_node = state_bytes * min(world, cluster.gpus_per_node) / world
    sharded = max(of_a_node / cluster.node_bytes_per_s, storage)
    return {
        "full": (max(state_bytes / cluster.node_bytes_per_s, storage), 0.0),
        "sharded": (sharded, 0.0),
        "async": (state_bytes / world / cluster.pcie_bytes_per_s, sharded),
    }


def choose_policy(state_bytes: int, world: int, cluster: Cluster, M: float, R: float) -> Policy:
    """
    Return the policy with the largest goodput; of equal ones "full", then "sharded".

    Raises:
        ValueError: state_bytes or world below 1; M not above 0; R below 0.
    """
    # choose the best
    found = []
    for kind, (delta, persist) in checkpoint_times(state_bytes, world, cluster).items():
        tau = max(best_interval(delta, M), persist)
        goodput = expected_efficiency(tau, delta, M, R, persist)
        found.append(Policy(kind=kind, tau=tau, goodput=goodput))
    return max(found, key=lambda policy: policy.goodput)


def _check(*, M: float, delta: float = 0.0, R: float = 0.0) -> None:
    # check
    if not delta >= 0:
        raise ValueError(f"delta: expected at least 0, found {delta}.")
    if not M > 0:
        raise ValueError(f"M: expected more than 0, found {M}.")
    if not R >= 0:
        raise ValueError(f"R: expected at least 0, found {R}.")
