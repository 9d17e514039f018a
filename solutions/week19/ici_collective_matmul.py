"""Kata week19/ici_collective_matmul: products on a mesh, whose operands travel block by block."""

import jax.numpy as jnp
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
    # check
    _check(a_shard, b_shard)
    # multiply while the next block travels
    me, n = lax.axis_index(axis), lax.psum(1, axis)
    held, out = a_shard, _result(a_shard, b_shard, n)
    for step in range(n):
        out = _placed(out, held @ b_shard, (me + step) % n)
        if step < n - 1:
            held = _shifted(held, axis, -1)
    return out


def gather_matmul_bidirectional(
    a_shard: Float[Array, "rows k"], b_shard: Float[Array, "k cols"], axis: str
) -> Float[Array, "all_rows cols"]:
    """
    As `gather_matmul`, with blocks that travel both ways round the ring, in half the hops.

    Raises:
        ValueError: `b_shard` does not have as many rows as `a_shard` has columns.
    """
    # check
    _check(a_shard, b_shard)
    # both ways
    me, n = lax.axis_index(axis), lax.psum(1, axis)
    above = below = a_shard
    out = _placed(_result(a_shard, b_shard, n), a_shard @ b_shard, me)
    for hop in range(1, n // 2 + 1):
        above = _shifted(above, axis, -1)
        out = _placed(out, above @ b_shard, (me + hop) % n)
        if 2 * hop < n:  # otherwise both ways lead to the same block
            below = _shifted(below, axis, 1)
            out = _placed(out, below @ b_shard, (me - hop) % n)
    return out


def matmul_scatter(
    a_shard: Float[Array, "all_rows k"], b_shard: Float[Array, "k cols"], axis: str
) -> Float[Array, "rows cols"]:
    """
    This device's rows of the sum, over all devices, of `a_shard @ b_shard`; sums travel the ring.

    Raises:
        ValueError: `b_shard` does not have as many rows as `a_shard` has columns, or the rows of
            `a_shard` cannot be divided among the devices.
    """
    # check
    _check(a_shard, b_shard)
    me, n = lax.axis_index(axis), lax.psum(1, axis)
    rows, left = divmod(a_shard.shape[0], n)
    if left:
        raise ValueError(f"a_shard: expected rows for {n} devices, found {a_shard.shape[0]}")
    # add to the sum that passes
    total = None
    for step in range(n):
        # a block's sum begins one device after its owner, and comes to it last
        block = (me - 1 - step) % n
        part = lax.dynamic_slice_in_dim(a_shard, block * rows, rows) @ b_shard
        total = part if total is None else _shifted(total, axis, 1) + part
    return total


def exposed_time(n: int, t_dot: float, t_hop: float, bidirectional: bool) -> float:
    """
    How long a device's matrix unit waits for blocks until its `n` products are done.

    Raises:
        ValueError: `n` is below 1.
    """
    # check
    if n < 1:
        raise ValueError(f"n: expected at least one device, found {n}")
    # follow the arrivals
    done = 0.0
    for block in range(n):
        hops = (block + 1) // 2 if bidirectional else block
        done = max(done, hops * t_hop) + t_dot
    return done - n * t_dot


def _check(a_shard: Array, b_shard: Array) -> None:
    if a_shard.shape[1] != b_shard.shape[0]:
        raise ValueError(f"b_shard: expected {a_shard.shape[1]} rows, found {b_shard.shape[0]}")


def _result(a_shard: Array, b_shard: Array, n: int) -> Array:
    dtype = jnp.result_type(a_shard, b_shard)
    return jnp.zeros((n * a_shard.shape[0], b_shard.shape[1]), dtype)


def _placed(out: Array, part: Array, block: Array) -> Array:
    return lax.dynamic_update_slice_in_dim(out, part, block * part.shape[0], axis=0)


def _shifted(x: Array, axis: str, by: int) -> Array:
    """What the neighbour `by` places before this device has."""
    n = lax.psum(1, axis)
    return lax.ppermute(x, axis, [(at, (at + by) % n) for at in range(n)])
