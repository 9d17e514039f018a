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
    raise NotImplementedError  # TODO(kata): check, place of a rank (about 8 lines with helpers)


def groups(tp: int, pp: int, dp: int) -> dict[str, list[list[int]]]:
    """
    Return all groups of each kind, "tp", "pp" and "dp", by their first rank; ranks ascend.

    Raises:
        ValueError: `tp`, `pp` or `dp` is below 1; the message names which.
    """
    raise NotImplementedError  # TODO(kata): check, groups (about 10 lines with helpers)


def comm_bytes(model: Model, tp: int, pp: int, dp: int, micro: int, m: int) -> dict[str, int]:
    """
    Return what a rank sends in a step, by "tp", "pp" and "dp": the rank that sends most of each.

    All-reduces are rings over chunks of ceil(n / ranks) elements. `micro` sequences make one of
    `m` micro-batches.

    Raises:
        ValueError: a number is below 1, `pp` does not divide the layers, or `tp` the heads; the
            message names which.
    """
    raise NotImplementedError  # TODO(kata): check, traffic (about 15 lines with helpers)


def step_time(model: Model, config: Config, global_batch: int, cluster: Cluster) -> float:
    """
    Return the seconds of a step with micro-batches of one sequence, nothing overlapped.

    `config` splits the model and the batch without a remainder.
    """
    raise NotImplementedError  # TODO(kata): time of a step (about 15 lines with helpers)


def best_config(model: Model, world: int, global_batch: int, cluster: Cluster) -> Config:
    """
    Return the fastest split over `world` GPUs that fits into their memory.

    Raises:
        ValueError: `global_batch` is below 1, or no split over `world` GPUs fits; the message
            names which.
    """
    raise NotImplementedError  # TODO(kata): check, search (about 15 lines with helpers)
