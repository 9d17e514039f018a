"""Ranks as a block of numbers, traffic counted message by message, and every split tried."""

import itertools
import random

import numpy as np

GPT3 = {"layers": 96, "d": 12288, "heads": 96, "seq": 2048}
A100S = {  # 80 GB, half of the peak reached, NVLink 3, and 200 Gb/s of InfiniBand a GPU
    "gpus_per_node": 8,
    "memory_bytes": 80e9,
    "flops_per_s": 156e12,
    "within_bytes_per_s": 300e9,
    "between_bytes_per_s": 25e9,
}


def mesh(tp, pp, dp):
    return np.arange(tp * pp * dp).reshape(pp, dp, tp)


def place(rank, tp, pp, dp):
    pp_i, dp_i, tp_i = (int(at[0]) for at in np.nonzero(mesh(tp, pp, dp) == rank))
    return tp_i, pp_i, dp_i


def groups(tp, pp, dp):
    axes = {"tp": 2, "dp": 1, "pp": 0}
    sizes = {"tp": tp, "dp": dp, "pp": pp}
    return {
        kind: sorted(np.moveaxis(mesh(tp, pp, dp), axis, -1).reshape(-1, sizes[kind]).tolist())
        for kind, axis in axes.items()
    }


def ring_messages(elements, ranks):
    """Yield the elements of each message that a rank sends in an all-reduce."""
    for _ in ("reduce-scatter", "all-gather"):
        for _ in range(ranks - 1):
            yield (elements + ranks - 1) // ranks


def comm_bytes(model, tp, pp, dp, micro, m):
    """Count what each stage sends, one message after the other; the most of any stage."""
    sent = {"tp": 0, "pp": 0, "dp": 0}
    hidden = micro * model.seq * model.d
    for stage in range(pp):
        own = range(model.layers * stage // pp, model.layers * (stage + 1) // pp)
        of_tp = of_pp = 0
        for _ in range(m):
            for _ in itertools.product(own, ("attention", "mlp"), ("forward", "backward")):
                of_tp += 2 * sum(ring_messages(hidden, tp))
            of_pp += 2 * hidden * ((stage < pp - 1) + (stage > 0))
        gradients = sum(4 * model.d**2 // tp + 8 * model.d**2 // tp for _ in own)
        of_dp = 2 * sum(ring_messages(gradients, dp))
        for kind, found in (("tp", of_tp), ("pp", of_pp), ("dp", of_dp)):
            sent[kind] = max(sent[kind], found)
    return sent


def step_time(model, tp, pp, dp, global_batch, cluster):
    """Walk through the passes of the slowest stage, one after the other."""
    m = global_batch // dp
    one = comm_bytes(model, tp, pp, dp, 1, 1)

    def seconds(kind):
        crosses = any(
            len({rank // cluster.gpus_per_node for rank in group}) > 1
            for group in groups(tp, pp, dp)[kind]
        )
        speed = cluster.between_bytes_per_s if crosses else cluster.within_bytes_per_s
        return one[kind] / speed

    weights = 12 * model.d**2 * model.layers / pp / tp
    scores = 2 * model.d * model.seq * model.layers / pp / tp
    compute = 6 * model.seq * (weights + scores) / cluster.flops_per_s
    a_pass = compute + seconds("tp") + seconds("pp")
    return sum(a_pass for _ in range(m + pp - 1)) + seconds("dp")


def splits(kata, model, world, global_batch, cluster):
    """Yield every split that divides, and fits."""
    sizes = [size for size in range(1, world + 1) if world % size == 0]
    for tp, pp in itertools.product(sizes, sizes):
        dp, rest = divmod(world, tp * pp)
        if rest or not dp or model.heads % tp or model.layers % pp or global_batch % dp:
            continue
        m = global_batch // dp
        if kata.memory_bytes(model, tp, pp, m) <= cluster.memory_bytes:
            yield tp, pp, dp


def small_cases(count):
    """Draw models and clusters on which each of the three ways is worth something."""
    rng = random.Random(7)
    for _ in range(count):
        heads = rng.choice([4, 8, 12, 16, 24])
        model = {
            "layers": rng.choice([4, 6, 12, 24]),
            "d": heads * rng.choice([64, 128]),
            "heads": heads,
            "seq": rng.choice([256, 1024]),
        }
        params = 12 * model["layers"] * model["d"] ** 2
        cluster = {
            "gpus_per_node": rng.choice([2, 4, 6, 8]),
            "memory_bytes": params * rng.choice([2.0, 6.0, 20.0, 200.0]),
            "flops_per_s": rng.choice([1e13, 1e14]),
            "within_bytes_per_s": 3e11,
            "between_bytes_per_s": rng.choice([3e9, 3e10, 3e11]),
        }
        yield model, cluster, rng.choice([8, 12, 24, 32]), rng.choice([16, 24, 48])
