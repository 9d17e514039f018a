"""Kata week07/parallel_mesh_3d: where TP, PP and DP lie on a cluster, and how much of each.

Ranks count through TP first, then DP, then PP, as in Megatron.
"""

from dataclasses import dataclass

BYTES = 2  # of a weight, a gradient and an activation: 16 bits
STATE_BYTES = 16  # a weight with its gradient, and in 32 bits itself and two moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A transformer of `layers` alike, trained on sequences of `seq` tokens; tables left out."""

    layers: int
    d: int
    heads: int
    seq: int

    @property
    def layer_params(self) -> int:
        """Weights of a layer: attention 4 d², an MLP of 4 d channels 8 d²."""
        return 12 * self.d**2

    @property
    def layer_flops(self) -> int:
        """FLOPs of a layer on one sequence, forward and backward, attention not masked."""
        return self.seq * (6 * self.layer_params + 12 * self.seq * self.d)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes of `gpus_per_node` GPUs; a GPU sends faster within its node than between nodes."""

    gpus_per_node: int
    memory_bytes: float
    flops_per_s: float
    within_bytes_per_s: float
    between_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How many ways tensors, the pipeline and the batch are split."""

    tp: int
    pp: int
    dp: int


def memory_bytes(model: Model, tp: int, pp: int, m: int) -> float:
    """
    Return what the fullest GPU holds: weights, optimizer, and activations under 1F1B.

    Activations of a layer take 10 + 24 / tp bytes per channel and token, without those of
    attention, which are recomputed. Source: Korthikanti et al. (arXiv 2205.05198), table 2.
    """
    layers = model.layers // pp
    state = STATE_BYTES * layers * model.layer_params / tp
    activations = min(m, pp) * layers * model.seq * model.d * (10 + 24 / tp)
    return state + activations


def coords(rank: int, tp: int, pp: int, dp: int) -> tuple[int, int, int]:
    """
    Return (tp_i, pp_i, dp_i): the place of `rank` in its TP, PP and DP group.

    Raises:
        ValueError: `tp`, `pp` or `dp` is below 1, or there is no such `rank`; the message names
            which.
    """
    # check
    _check_sizes(tp=tp, pp=pp, dp=dp)
    if not 0 <= rank < tp * pp * dp:
        raise ValueError(f"rank: expected 0 to {tp * pp * dp - 1}, found {rank}.")
    # place of a rank
    return rank % tp, rank // (tp * dp), rank // tp % dp


def groups(tp: int, pp: int, dp: int) -> dict[str, list[list[int]]]:
    """
    Return all groups of each kind, "tp", "pp" and "dp", by their first rank; ranks ascend.

    Raises:
        ValueError: `tp`, `pp` or `dp` is below 1; the message names which.
    """
    # check
    _check_sizes(tp=tp, pp=pp, dp=dp)
    # groups
    world = tp * pp * dp
    return {
        "tp": _strided(world, size=tp, stride=1),
        "pp": _strided(world, size=pp, stride=tp * dp),
        "dp": _strided(world, size=dp, stride=tp),
    }


def comm_bytes(model: Model, tp: int, pp: int, dp: int, micro: int, m: int) -> dict[str, int]:
    """
    Return what a rank sends in a step, by "tp", "pp" and "dp": the rank that sends most of each.

    All-reduces are rings over chunks of ceil(n / ranks) elements. `micro` sequences make one of
    `m` micro-batches.

    Raises:
        ValueError: a number is below 1, `pp` does not divide the layers, or `tp` the heads; the
            message names which.
    """
    # check
    _check_sizes(tp=tp, pp=pp, dp=dp, micro=micro, m=m)
    if model.layers % pp != 0:
        raise ValueError(f"pp: expected a divisor of {model.layers} layers, found {pp}.")
    if model.heads % tp != 0:
        raise ValueError(f"tp: expected a divisor of {model.heads} heads, found {tp}.")
    # traffic
    layers = model.layers // pp
    activations = micro * model.seq * model.d
    gradients = layers * model.layer_params // tp
    return {
        # after attention and after the MLP, forward and backward
        "tp": m * layers * 4 * _ring_bytes(activations, tp),
        # a stage in the middle sends to both sides
        "pp": m * min(2, pp - 1) * activations * BYTES,
        "dp": _ring_bytes(gradients, dp),
    }


def step_time(model: Model, config: Config, global_batch: int, cluster: Cluster) -> float:
    """
    Return the seconds of a step with micro-batches of one sequence, nothing overlapped.

    `config` splits the model and the batch without a remainder.
    """
    # time of a step
    tp, pp, dp = config.tp, config.pp, config.dp
    m = global_batch // dp
    sent = comm_bytes(model, tp, pp, dp, micro=1, m=m)
    speeds = _speeds(tp, pp, dp, cluster)
    compute_s = model.layers // pp * model.layer_flops / (tp * cluster.flops_per_s)
    pass_s = compute_s + sum(sent[kind] / m / speeds[kind] for kind in ("tp", "pp"))
    return (m + pp - 1) * pass_s + sent["dp"] / speeds["dp"]


def best_config(model: Model, world: int, global_batch: int, cluster: Cluster) -> Config:
    """
    Return the fastest split over `world` GPUs that fits into their memory.

    Raises:
        ValueError: `global_batch` is below 1, or no split over `world` GPUs fits; the message
            names which.
    """
    # check
    _check_sizes(global_batch=global_batch)
    # search
    fitting = []
    for tp in _divisors(world):
        for pp in _divisors(world // tp):
            dp = world // (tp * pp)
            if model.heads % tp != 0 or model.layers % pp != 0 or global_batch % dp != 0:
                continue
            if memory_bytes(model, tp, pp, global_batch // dp) <= cluster.memory_bytes:
                fitting.append(Config(tp=tp, pp=pp, dp=dp))
    if not fitting:
        raise ValueError(
            f"world: expected GPUs that a split fits on, found {world} that none does."
        )
    return min(fitting, key=lambda config: step_time(model, config, global_batch, cluster))


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: expected 1 or more, found {size}.")


def _strided(world: int, size: int, stride: int) -> list[list[int]]:
    firsts = (rank for rank in range(world) if rank // stride % size == 0)
    return [[*range(first, first + size * stride, stride)] for first in firsts]


def _ring_bytes(elements: int, ranks: int) -> int:
    """Bytes that each rank sends in an all-reduce."""
    return 2 * (ranks - 1) * -(-elements // ranks) * BYTES


def _speeds(tp: int, pp: int, dp: int, cluster: Cluster) -> dict[str, float]:
    """Bytes per second of each kind of group: the slower ones as soon as one leaves its node."""
    node = cluster.gpus_per_node
    crossing = {
        kind: any(group[0] // node != group[-1] // node for group in all_groups)
        for kind, all_groups in groups(tp, pp, dp).items()
    }
    return {
        kind: cluster.between_bytes_per_s if crosses else cluster.within_bytes_per_s
        for kind, crosses in crossing.items()
    }


def _divisors(n: int) -> list[int]:
    return [size for size in range(1, n + 1) if n % size == 0]
