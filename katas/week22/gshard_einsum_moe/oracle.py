"""What is right: a loop over the slots in float64; collectives, read from XLA's program."""

import re
from dataclasses import dataclass
from functools import partial

import numpy as np

ITEMSIZE = {"f32": 4, "bf16": 2, "pred": 1}
COLLECTIVE = re.compile(
    r" = (.*?) (all-to-all|all-gather|all-reduce|reduce-scatter|collective-permute)(?:-start)?\("
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """`g` groups of `s` tokens of `m` channels; `e` experts with `h` hidden ones, `c` slots."""

    devices: int
    g: int
    e: int
    s: int = 6
    c: int = 2
    m: int = 5
    h: int = 7


def draw(seed, size):
    """
    Tokens, masks and weights; every sum is exact in float32, and none that ReLU sees is zero.

    A token has two experts. Each takes the first `c` that come to it, in the order of tokens.
    Some gates are negative: what weighs before ReLU does not weigh the same behind it.
    """
    generator = np.random.default_rng(seed)

    def odd(*shape):
        return (2 * generator.integers(-2, 2, shape) + 1).astype(np.float32)

    combine = np.zeros((size.g, size.s, size.e, size.c), np.float32)
    for g in range(size.g):
        taken = [0] * size.e
        for s in range(size.s):
            for e in generator.permutation(size.e)[:2]:
                if taken[e] < size.c:
                    combine[g, s, e, taken[e]] = (
                        generator.choice((-1, 1)) * generator.integers(1, 8) / 8
                    )
                    taken[e] += 1
    return {
        "x": odd(size.g, size.s, size.m),
        "dispatch": combine != 0,
        "combine": combine,
        "wi": odd(size.e, size.m, size.h),
        "wo": odd(size.e, size.h, size.m),
    }


def by_slot(weight_of_y, *, x, dispatch, combine, wi, wo):
    """The result, and the gradients of x, wi and wo of `(result * weight_of_y).sum()`."""
    x, wi, wo = (one.astype(np.float64) for one in (x, wi, wo))
    y, dx, dwi, dwo = (np.zeros_like(one) for one in (x, x, wi, wo))
    for g, s, e, c in np.argwhere(dispatch):
        before = x[g, s] @ wi[e]
        hidden = np.maximum(before, 0)
        y[g, s] += combine[g, s, e, c] * (hidden @ wo[e])
        dout = combine[g, s, e, c] * weight_of_y[g, s]
        dhidden = (wo[e] @ dout) * (before > 0)
        dwo[e] += np.outer(hidden, dout)
        dwi[e] += np.outer(x[g, s], dhidden)
        dx[g, s] += wi[e] @ dhidden
    return y, dx, dwi, dwo


def jitted(fn, size, *, gradients=False, axis="experts", placed=True):
    """`fn` over `size.devices` devices, or with its gradients as `by_slot` has them."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()[: size.devices]), (axis,))
    where = {"in_shardings": NamedSharding(mesh, P(axis))} if placed else {}

    def forward(x, dispatch, combine, wi, wo):
        return fn(x, dispatch, combine, wi, wo, mesh)

    def both(weight_of_y, x, dispatch, combine, wi, wo):
        call = partial(_by_weights, forward, dispatch, combine)
        y, pullback = jax.vjp(call, x, wi, wo)
        return y, *pullback(weight_of_y)

    return jax.jit(both if gradients else forward, **where)


def _by_weights(forward, dispatch, combine, x, wi, wo):
    return forward(x, dispatch, combine, wi, wo)


def unannotated(x, dispatch, combine, wi, wo, mesh):
    """The same layer, with nothing said of where things are."""
    import jax
    import jax.numpy as jnp

    out = jnp.einsum("gsec,gsm,emh->egch", dispatch, x, wi)
    return jnp.einsum("gsec,egch,ehm->gsm", combine, jax.nn.relu(out), wo)


def collectives(program, devices):
    """Each collective of a compiled program, with the bytes that a device sends to others."""
    found = []
    for made, opcode in COLLECTIVE.findall(program.as_text()):
        arrays = re.findall(r"(\w+)\[([\d,]*)\]", made)
        size = sum(
            ITEMSIZE[dtype] * int(np.prod([int(one) for one in sizes.split(",") if one]))
            for dtype, sizes in arrays
        )
        found.append((opcode, size * (devices - 1) // devices))
    return sorted(found)
