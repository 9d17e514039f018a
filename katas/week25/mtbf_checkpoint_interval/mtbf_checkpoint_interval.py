"""Kata week25/mtbf_checkpoint_interval: how often to save a run that fails, and what is left of it.

Times are in seconds. Failures are independent of each other and of what the job does, one in `M`
seconds on average: times between them are exponential.
"""

from collections.abc import Iterable
from dataclasses import dataclass


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
    raise NotImplementedError  # TODO(kata): add failure rates (about 6 lines)


def young(delta: float, M: float) -> float:
    """
    Return the work between checkpoints of `delta` seconds by Young's rule.

    Raises:
        ValueError: delta below 0, M not above 0.
    """
    raise NotImplementedError  # TODO(kata): check, interval (about 9 lines with helpers)


def daly(delta: float, M: float) -> float:
    """
    Return the work between checkpoints by Daly's rule of higher order.

    Raises:
        ValueError: delta below 0, M not above 0.
    """
    raise NotImplementedError  # TODO(kata): check, interval (about 5 lines)


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
    raise NotImplementedError  # TODO(kata): check, share that is kept (about 10 lines)


def best_interval(delta: float, M: float) -> float:
    """
    Return the tau at which `expected_efficiency` is largest, to rounding, for any R and persist.

    Raises:
        ValueError: delta below 0, M not above 0.
    """
    raise NotImplementedError  # TODO(kata): check, interval (about 9 lines)


def checkpoint_times(
    state_bytes: int, world: int, cluster: Cluster
) -> dict[str, tuple[float, float]]:
    """
    Return for each kind how long the job stands still, and how long until it is durable after that.

    Raises:
        ValueError: state_bytes or world below 1.
    """
    raise NotImplementedError  # TODO(kata): check, times of each kind (about 10 lines)


def choose_policy(state_bytes: int, world: int, cluster: Cluster, M: float, R: float) -> Policy:
    """
    Return the policy with the largest goodput; of equal ones "full", then "sharded".

    Raises:
        ValueError: state_bytes or world below 1; M not above 0; R below 0.
    """
    raise NotImplementedError  # TODO(kata): choose the best (about 6 lines)
