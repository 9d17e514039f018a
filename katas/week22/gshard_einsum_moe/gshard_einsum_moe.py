"""Kata week22/gshard_einsum_moe: an MoE layer as four einsums, placed by annotations."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import with_sharding_constraint
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Bool, Float


def moe_layer(
    x: Float[Array, "g s m"],
    dispatch: Bool[Array, "g s e c"],
    combine: Float[Array, "g s e c"],
    wi: Float[Array, "e m h"],
    wo: Float[Array, "e h m"],
    mesh: Mesh,
) -> Float[Array, "g s m"]:
    """
    The sum over a token's slots of its gate times the expert's FFN with ReLU.

    Arguments and result are divided along their first axis over the one axis of `mesh`; the
    experts' weights stay where they are, the tokens travel. To be called under `jax.jit`.

    Raises:
        ValueError: the devices do not divide the groups, or the experts.

    Source: Lepikhin et al. 2020, section 3.2.
    """
    # TODO(kata): check, dispatch to slots, expert FFN, place the outputs, combine (about 10 lines)
    raise NotImplementedError


def sent_bytes(
    groups: int, experts: int, capacity: int, m: int, h: int, devices: int, itemsize: int
) -> tuple[int, int]:
    """
    Bytes that one device sends to others in a forward pass: if tokens travel, if weights do.

    Tokens: two all-to-alls. Weights: an all-gather of `wi` and one of `wo`, round a ring.
    """
    raise NotImplementedError  # TODO(kata): bytes sent (about 5 lines)
