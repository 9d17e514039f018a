"""Kata week19/ici_collective_matmul: products on a mesh, whose operands travel block by block."""

from jax import Array, lax
from jaxtyping import Float


def naive_gather_matmul(
    a_shard: Float[Array, "rows k"], b_shard: Float[Array, "k cols"], axis: str
) -> Float[Array, "all_rows cols"]:
    """What `gather_matmul` computes: all of `a` is gathered, then multiplied."""
    return lax.all_gather(a_shard, axis, tiled=True) @ b_shard


def naive_matmul_scatter(
    a_shard: Float[Array, "all_rows k"], b_shard: Float[Array, "k cols"], axis: str
) -> Float[Array, "rows cols"]:
    """What `matmul_scatter` computes: a whole partial product, then summed over the devices."""
    return lax.psum_scatter(a_shard @ b_shard, axis, tiled=True)


def gather_matmul(
    a_shard: Float[Array, "rows k"], b_shard: Float[Array, "k cols"], axis: str
) -> Float[Array, "all_rows cols"]:
    """
    The rows of all devices' `a_shard` times this device's columns; blocks travel round the ring.

    Raises:
        ValueError: `b_shard` does not have as many rows as `a_shard` has columns.
    """
    # TODO(kata): check, multiply while the next block travels (about 20 lines with helpers)
    raise NotImplementedError


def gather_matmul_bidirectional(
    a_shard: Float[Array, "rows k"], b_shard: Float[Array, "k cols"], axis: str
) -> Float[Array, "all_rows cols"]:
    """
    As `gather_matmul`, with blocks that travel both ways round the ring, in half the hops.

    Raises:
        ValueError: `b_shard` does not have as many rows as `a_shard` has columns.
    """
    raise NotImplementedError  # TODO(kata): check, both ways (about 10 lines)


def matmul_scatter(
    a_shard: Float[Array, "all_rows k"], b_shard: Float[Array, "k cols"], axis: str
) -> Float[Array, "rows cols"]:
    """
    This device's rows of the sum, over all devices, of `a_shard @ b_shard`; sums travel the ring.

    Raises:
        ValueError: `b_shard` does not have as many rows as `a_shard` has columns, or the rows of
            `a_shard` cannot be divided among the devices.
    """
    raise NotImplementedError  # TODO(kata): check, add to the sum that passes (about 10 lines)


def exposed_time(n: int, t_dot: float, t_hop: float, bidirectional: bool) -> float:
    """
    How long a device's matrix unit waits for blocks until its `n` products are done.

    Raises:
        ValueError: `n` is below 1.
    """
    raise NotImplementedError  # TODO(kata): check, follow the arrivals (about 7 lines)
