"""Kata week08/zero_memory: (2 + 2 + 12) bytes a parameter, each term divided by its stage."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of the model states on one rank."""

    params: int
    grads: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.params + self.grads + self.optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """
    A part of the model that runs as one, and that FSDP gathers as one.

    `params` parameters, `kept` elements that forward leaves for its backward pass, and `work`
    elements that its backward pass needs besides those, as long as it runs.
    """

    params: int
    kept: int
    work: int


PRECISIONS = ("fp32", "mixed-bf16", "mixed-bf16-fp32-grads")
MODES = ("ddp-fp32", "ddp-bf16", "fsdp-bf16")

# bytes a parameter: itself, its gradient, Adam's states (in mixed precision with an fp32 master)
_BYTES = {"fp32": (4, 4, 8), "mixed-bf16": (2, 2, 12), "mixed-bf16-fp32-grads": (2, 4, 12)}


def model_states(n_params: int, world: int, stage: int, precision: str = "mixed-bf16") -> Memory:
    """
    Bytes of parameters, gradients and optimizer states on the rank that has the most.

    Stage 0 shards nothing, stage 1 the optimizer states, stage 2 the gradients too, stage 3 the
    parameters too. A shard has n_params / world elements, rounded up.

    Raises:
        ValueError: `n_params` is negative, `world` below 1, `stage` not 0 to 3, `precision` not
            in `PRECISIONS`. The message begins with the argument's name.

    Source: Rajbhandari et al. 2019, sections 3.1 and 5.
    """
    # check
    _check(world, stage)
    if n_params < 0:
        raise ValueError(f"n_params: expected 0 or more, found {n_params}")
    # bytes per parameter
    params, grads, optimizer = _bytes_per_param(precision)
    # divide by stage
    shard = _shard(n_params, world)
    return Memory(
        params=params * (shard if stage >= 3 else n_params),
        grads=grads * (shard if stage >= 2 else n_params),
        optimizer=optimizer * (shard if stage >= 1 else n_params),
    )


def comm_bytes(n_params: int, world: int, stage: int, bytes_per_param: int = 2) -> int:
    """
    Bytes that one rank sends in a step, by ring collectives, for one forward and backward pass.

    Parameters and gradients travel in `bytes_per_param` bytes each, padded to a multiple of
    `world` elements.

    Raises:
        ValueError: `n_params` is negative, `world` below 1, `stage` not 0 to 3,
            `bytes_per_param` below 1. The message begins with the argument's name.

    Source: Rajbhandari et al. 2019, section 7.
    """
    # check
    _check(world, stage)
    if n_params < 0:
        raise ValueError(f"n_params: expected 0 or more, found {n_params}")
    if bytes_per_param < 1:
        raise ValueError(f"bytes_per_param: expected 1 or more, found {bytes_per_param}")
    # count the collectives
    # reduce-scatter and all-gather; stage 3 gathers for forward, and again for backward
    collectives = 3 if stage == 3 else 2
    return collectives * (world - 1) * _shard(n_params, world) * bytes_per_param


def peak_memory(units: Sequence[Unit], mode: str, world: int) -> int:
    """
    The most bytes alive at once on a rank in a training step with Adam.

    `units` in the order of the forward pass. DDP has everything on each rank. FSDP shards each
    unit by itself (stage 3), gathers its parameters for its forward and again for its backward
    pass, frees them right after, and reduce-scatters its gradient once it is whole. There are no
    gradients before the backward pass. Elements of activations have the size of a parameter.

    Raises:
        ValueError: `mode` is not in `MODES`, or `world` below 1. The message begins with the
            argument's name.
    """
    # check
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, found {mode!r}")
    _check_world(world)
    # bytes per parameter
    gathers = mode == "fsdp-bf16"
    ranks = world if gathers else 1
    size, grad_size, optimizer = _BYTES["fp32" if mode == "ddp-fp32" else "mixed-bf16"]
    resident = sum(_shard(unit.params, ranks) for unit in units) * (size + optimizer)
    # walk back through the units
    kept = sum(unit.kept for unit in units) * size
    grads = peak = 0  # of the units whose backward pass is over
    for unit in reversed(units):
        own = unit.params * (grad_size + (size if gathers else 0)) + unit.work * size
        peak = max(peak, resident + kept + grads + own)
        kept -= unit.kept * size
        grads += _shard(unit.params, ranks) * grad_size
    return peak


def max_params(world: int, stage: int, mem: int, precision: str = "mixed-bf16") -> int:
    """
    The largest model whose states fit into `mem` bytes per rank.

    Raises:
        ValueError: `mem` is negative, or an argument is refused by `model_states`. The message
            begins with the argument's name.
    """
    # check
    _check(world, stage)
    if mem < 0:
        raise ValueError(f"mem: expected 0 or more, found {mem}")
    # bytes per parameter
    sizes = _bytes_per_param(precision)
    # invert
    replicated, sharded = sum(sizes[: 3 - stage]), sum(sizes[3 - stage :])
    # `world` parameters add one element to each shard, and so does the first of them alone
    group = world * replicated + sharded
    groups, left = divmod(mem, group)
    more = (left - sharded) // replicated if left > sharded else 0
    return groups * world + more


def _bytes_per_param(precision: str) -> tuple[int, int, int]:
    if precision not in PRECISIONS:
        raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}, found {precision!r}")
    return _BYTES[precision]


def _shard(elements: int, ranks: int) -> int:
    return -(-elements // ranks)


def _check(world: int, stage: int) -> None:
    _check_world(world)
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage: expected 0, 1, 2 or 3, found {stage}")


def _check_world(world: int) -> None:
    if world < 1:
        raise ValueError(f"world: expected 1 or more, found {world}")
