"""What is right: failures drawn, checkpoints counted in expectation, 40 digits."""

from decimal import Decimal, localcontext

import numpy as np


def simulated(tau, delta, M, R, persist, *, seed, failures):
    """Share of time kept, and its standard error, between so many failures."""
    between = np.random.default_rng(seed).exponential(M, failures)
    durable = np.maximum(0, np.floor((between - R - persist) / (tau + delta)))
    kept = durable * tau
    share = kept.sum() / between.sum()
    error = np.sqrt(((kept - share * between) ** 2).sum()) / between.sum()
    return share, error


def efficiency(tau, delta, M, R=0.0, persist=0.0):
    """
    Add up, checkpoint by checkpoint, how likely each is to be durable before the next failure.

    Each keeps tau seconds of work, out of M on average between two failures.
    """
    cycle = tau + delta
    last = int(50 * M / cycle) + 2
    after = R + persist + cycle * np.arange(1, last)
    return tau / M * float(np.exp(-after / M).sum())


def best_interval(delta, M):
    """Bisection in 40 digits of what the derivative has for a factor."""
    with localcontext() as context:
        context.prec = 40
        d, low, high = Decimal(delta) / Decimal(M), Decimal(0), Decimal(1)
        for _ in range(100):
            x = (low + high) / 2
            if (1 - x) * (x + d).exp() > 1:
                low = x
            else:
                high = x
        return float(low * Decimal(M))


def times(state_bytes, world, cluster):
    """Every node's share written, GPU by GPU."""
    on = [0] * (world // cluster.gpus_per_node + 1)
    for rank in range(world):
        on[rank // cluster.gpus_per_node] += 1
    slowest = max(gpus / world * state_bytes / cluster.node_bytes_per_s for gpus in on)
    storage = state_bytes / cluster.storage_bytes_per_s
    return {
        "full": (max(state_bytes / cluster.node_bytes_per_s, storage), 0),
        "sharded": (max(slowest, storage), 0),
        "async": (state_bytes / cluster.pcie_bytes_per_s / world, max(slowest, storage)),
    }


def policies(state_bytes, world, cluster, M, R):
    """The best interval and goodput of each kind."""
    found = {}
    for kind, (delta, persist) in times(state_bytes, world, cluster).items():
        tau = max(best_interval(delta, M), persist)
        found[kind] = tau, efficiency(tau, delta, M, R, persist)
    return found


def best_on_a_grid(state_bytes, world, cluster, M, R):
    """The largest goodput at 200 intervals of each kind."""
    return max(
        efficiency(tau, delta, M, R, persist)
        for delta, persist in times(state_bytes, world, cluster).values()
        for tau in np.geomspace(M / 1000, 2 * M, 200)
        if tau >= persist
    )


# state in bytes, world, cluster (GPUs a node, bytes a second of PCIe, node, storage), M, R: large
# and small models, slow storage, a slow bus, one node, a last node that is partly used, restarts
# that take long, checkpoints that take longer than the job lives
CASES = [
    (6_480_000_000_000, 16_384, (8, 50e9, 20e9, 2e12), 11_135, 600),
    (6_480_000_000_000, 1024, (8, 50e9, 20e9, 2e11), 178_000, 600),
    (1_120_000_000_000, 512, (8, 50e9, 2e9, 5e10), 40_000, 300),
    (1_120_000_000_000, 512, (8, 50e9, 2e9, 1e9), 40_000, 300),
    (112_000_000_000, 64, (8, 50e9, 2e9, 1e8), 3_600, 120),
    (112_000_000_000, 64, (8, 2e8, 5e9, 1e11), 7_200, 60),
    (112_000_000_000, 64, (8, 1e8, 5e9, 1e11), 7_200, 0),
    (16_000_000_000, 8, (8, 1e8, 1e9, 1e10), 86_400, 30),
    (16_000_000_000, 8, (8, 20e9, 1e9, 1e10), 86_400, 30),
    (16_000_000_000, 3, (2, 20e9, 1e9, 1e9), 600, 900),
    (16_000_000_000, 3, (8, 2e9, 1e9, 1e11), 5_000, 9),
    (140_000_000_001, 20, (8, 1e9, 3e9, 1e12), 900, 3_000),
    (140_000_000_001, 12, (8, 1e10, 5e7, 1e12), 500, 10),
]
