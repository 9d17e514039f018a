"""Kata week08/zero_memory: bytes of a training step on one rank, and bytes on the wire.

Model states are parameters, gradients and what Adam keeps; the rest are activations.
"""

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
    # TODO(kata): check, bytes per parameter, divide by stage (about 25 lines with helpers)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): check, count the collectives (about 7 lines)


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
    # TODO(kata): check, bytes per parameter, walk back through the units (about 15 lines)
    raise NotImplementedError


def max_params(world: int, stage: int, mem: int, precision: str = "mixed-bf16") -> int:
    """
    The largest model whose states fit into `mem` bytes per rank.

    Raises:
        ValueError: `mem` is negative, or an argument is refused by `model_states`. The message
            begins with the argument's name.
    """
    raise NotImplementedError  # TODO(kata): check, bytes per parameter, invert (about 9 lines)
