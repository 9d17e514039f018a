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
    # check
    for name, array in (("x", x), ("wi", wi)):
        if array.shape[0] % mesh.size:
            raise ValueError(
                f"{name}: expected a first axis for {mesh.size} devices, found {array.shape[0]}"
            )
    # dispatch to slots
    by_expert = NamedSharding(mesh, P(*mesh.axis_names))
    slots = jnp.einsum("gsec,gsm->egcm", dispatch, x)
    slots = with_sharding_constraint(slots, by_expert)
    # expert FFN
    hidden = jax.nn.relu(jnp.einsum("egcm,emh->egch", slots, wi))
    out = jnp.einsum("egch,ehm->egcm", hidden, wo)
    # place the outputs
    # where `out` is, its gradient will be: with the experts, whose weights need not travel
    out = with_sharding_constraint(out, by_expert)
    # combine
    return jnp.einsum("gsec,egcm->gsm", combine, out)


def sent_bytes(
    groups: int, experts: int, capacity: int, m: int, h: int, devices: int, itemsize: int
) -> tuple[int, int]:
    """
    Bytes that one device sends to others in a forward pass: if tokens travel, if weights do.

    Tokens: two all-to-alls. Weights: an all-gather of `wi` and one of `wo`, round a ring.
    """
    # bytes sent
    others = devices - 1
    slots = experts * capacity * groups // devices
    tokens = 2 * slots * m // devices * others
    weights = 2 * experts // devices * m * h * others
    return tokens * itemsize, weights * itemsize
