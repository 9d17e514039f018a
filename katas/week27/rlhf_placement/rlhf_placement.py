"""Kata week27/rlhf_placement: four models and a generator on one cluster, their bytes and time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

STATE_BYTES = 16  # a trained parameter: 2 and 2 of weight and gradient, 12 of Adam's states
SCORERS = ("reward", "reference", "critic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A transformer with grouped keys and values, 2 bytes a number."""

    params: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int

    @property
    def kv_bytes(self) -> int:
        """Of the cache, for each token."""
        return 2 * 2 * self.layers * self.hidden // self.heads * self.kv_heads


MISTRAL_7B = Model(params=7_241_732_096, layers=32, hidden=4096, heads=32, kv_heads=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class RlhfCfg:
    """
    Who takes part in an iteration, and what is written in it.

    Critic and reward may be missing. `shared_reference`: the reference is the actor without its
    adapters, and `reference` is None. `lengths` are the tokens of each response, `prompt` those
    before it; `micro_tokens` go through a GPU's training pass at a time.
    """

    actor: Model
    critic: Model | None
    reward: Model | None
    reference: Model | None
    lengths: tuple[int, ...]
    prompt: int = 256
    micro_tokens: int = 8192
    shared_reference: bool = False
    zero: int = 3

    def model(self, role: str) -> Model | None:
        """Find the model that a role runs, None for a role that is missing."""
        if role == "generator" or (role == "reference" and self.shared_reference):
            return self.actor
        return getattr(self, role)

    @property
    def roles(self) -> tuple[str, ...]:
        """Who has to be placed."""
        every = ("generator", "actor", "critic", "reward", "reference")
        return tuple(role for role in every if self.model(role) is not None)

    @property
    def tokens(self) -> int:
        """Of all prompts and responses."""
        return sum(self.lengths) + self.prompt * len(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What each GPU has; `decode_floor_s` is what an engine needs for a step, however small."""

    hbm_bytes: float
    bandwidth: float
    flops: float
    mfu: float
    pcie_bytes_per_s: float
    within_bytes_per_s: float
    between_bytes_per_s: float
    decode_floor_s: float = 0.0


H100 = Machine(
    hbm_bytes=80e9, bandwidth=3.35e12, flops=989e12, mfu=0.4, pcie_bytes_per_s=50e9,
    within_bytes_per_s=400e9, between_bytes_per_s=50e9,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs that some roles share, one of them at a time."""

    gpus: int
    roles: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """
    Disjoint groups of GPUs.

    A replica of the generator is `tp` GPUs of its group. The weights of the roles in `offload`
    are in the host's memory until they are needed.
    """

    groups: tuple[Group, ...]
    tp: int = 1
    offload: frozenset[str] = frozenset()


def decode_step_s(model: Model, machine: Machine, tp: int, running: float, tokens: float) -> float:
    """
    Seconds for the next token of `running` responses with `tokens` in their caches, on tp GPUs.

    Of numbers, or elementwise of arrays.
    """
    read_s = (2 * model.params + model.kv_bytes * tokens) / tp / machine.bandwidth
    multiply_s = 2 * model.params * running / tp / machine.flops
    return np.maximum(np.maximum(read_s, multiply_s), machine.decode_floor_s)


def forward_s(model: Model, machine: Machine, tokens: int, gpus: int) -> float:
    """Seconds to put tokens through a model."""
    return 2 * model.params * tokens / (gpus * machine.flops * machine.mfu)


def train_s(model: Model, machine: Machine, tokens: int, gpus: int) -> float:
    """Seconds of forward, backward, and forward again for what was not kept."""
    return 4 * forward_s(model, machine, tokens, gpus)


def placements(cfg: RlhfCfg, n_gpus: int) -> Iterator[Placement]:
    """Go through the candidates: up to three groups whose sizes are powers of two."""
    halves, quarters = (n_gpus // 2,) * 2, (n_gpus // 2, n_gpus // 4, n_gpus // 4)
    sizes = {(n_gpus,), halves, *permutations(quarters)}
    lent = [role for role in ("reward", "reference") if getattr(cfg, role) is not None]
    offloads = [frozenset(some) for n in range(len(lent) + 1) for some in combinations(lent, n)]
    for parts in _partitions(cfg.roles):
        for gpus in sorted(size for size in sizes if len(size) == len(parts) and min(size) > 0):
            groups = tuple(Group(*pair) for pair in zip(gpus, parts, strict=True))
            for tp in (1, 2, 4, 8):
                for offload in offloads:
                    placement = Placement(groups=groups, tp=tp, offload=offload)
                    if problem(cfg, placement) is None:
                        yield placement


def _partitions(roles: tuple[str, ...]) -> Iterator[list[frozenset[str]]]:
    if not roles:
        yield []
        return
    first, *rest = roles
    for parts in _partitions(tuple(rest)):
        yield [frozenset([first]), *parts]
        for at, part in enumerate(parts):
            yield [part | {first}, *parts[:at], *parts[at + 1 :]]


def problem(cfg: RlhfCfg, placement: Placement) -> str | None:
    """Say what is wrong with a placement, None if nothing is."""
    placed = sorted(role for group in placement.groups for role in group.roles)
    if placed != sorted(cfg.roles):
        return f"groups: expected each of {', '.join(cfg.roles)} once, found {', '.join(placed)}"
    if any(group.gpus < 1 or not group.roles for group in placement.groups):
        return "groups: expected GPUs and roles in each, found a group without"
    if cfg.shared_reference and "reference" not in home(placement, "actor").roles:
        return "groups: expected the shared reference beside the actor, found it elsewhere"
    gpus, heads = home(placement, "generator").gpus, cfg.actor.heads
    if gpus % placement.tp or heads % placement.tp:
        return f"tp: expected a divisor of {gpus} GPUs and {heads} heads, found {placement.tp}"
    lent = {role for role in ("reward", "reference") if getattr(cfg, role) is not None}
    if not placement.offload <= lent:
        return f"offload: expected some of {sorted(lent)}, found {sorted(placement.offload)}"
    return None


def home(placement: Placement, role: str) -> Group:
    """Find the group of a role."""
    return next(group for group in placement.groups if role in group.roles)


def rlhf_memory(cfg: RlhfCfg, placement: Placement) -> list[float]:
    """
    Bytes that a GPU of each group needs at its fullest moment.

    Raises:
        ValueError: What `problem` says.
    """
    # TODO(kata): states that stay, weights and cache of the generator, largest of what takes turns
    # (about 35 lines with helpers)
    raise NotImplementedError


def sync_bytes(cfg: RlhfCfg, placement: Placement) -> int:
    """
    Bytes of the actor's weights that the replicas of the generator receive, all together.

    Raises:
        ValueError: What `problem` says.
    """
    raise NotImplementedError  # TODO(kata): weights times replicas (2 lines)


def ppo_iteration_time(cfg: RlhfCfg, placement: Placement, machine: Machine) -> dict[str, float]:
    """
    Seconds of an iteration: "generate", "score", "train", "sync", and "total", its critical path.

    Raises:
        ValueError: What `problem` says.
    """
    # TODO(kata): time of each phase, critical path (about 35 lines with helpers)
    raise NotImplementedError


def best_placement(
    cfg: RlhfCfg, n_gpus: int, machine: Machine, evaluate: Callable[[Placement], float]
) -> Placement | None:
    """
    Of the `placements` that leave a tenth of the memory free, one that is measured among the best.

    `evaluate` measures an iteration; it is within 5 % of `ppo_iteration_time`, and expensive. None
    where nothing fits.
    """
    raise NotImplementedError  # TODO(kata): search in order of prediction (about 15 lines)
