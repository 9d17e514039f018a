"""What is right: NumPy's product; what a program sends, read from its jaxpr; links simulated."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np

COLLECTIVES = ("all_gather", "all_to_all", "psum", "reduce_scatter", "psum_scatter", "pbroadcast")


def draw(seed, n, *, scatter, rows=3, inner=5, cols=2):
    """
    Operands for `n` devices; whole numbers, so that sums are exact in any order.

    They need more bits than bfloat16 has. `rows`, `inner` and `cols` are those of one block.
    """
    generator = np.random.default_rng(seed)
    k, n_cols = (inner * n, cols) if scatter else (inner, cols * n)
    shapes = (rows * n, k), (k, n_cols)
    return [generator.integers(-500, 501, shape).astype(np.float32) for shape in shapes]


def placed(fn, n, *, scatter, axis="ring", copies=1):
    """`fn` on a mesh of `copies` rings of `n` devices, as a jitted function of whole arrays."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()[: copies * n]).reshape(copies, n), ("copy", axis))
    by_rows, by_cols = P(axis, None), P(None, axis)
    into, out = ((by_cols, by_rows), by_rows) if scatter else ((by_rows, by_cols), by_cols)
    mapped = jax.shard_map(
        partial(_named, fn, axis), mesh=mesh, in_specs=into, out_specs=out, check_vma=False
    )
    return jax.jit(mapped, in_shardings=tuple(NamedSharding(mesh, spec) for spec in into))


def _named(fn, axis, a_shard, b_shard):
    return fn(a_shard, b_shard, axis)


def compiled(fn, n, a, b, **how):
    """The program that XLA makes of it."""
    return placed(fn, n, **how).lower(a, b).compile()


@dataclass
class Program:
    """
    What one device does, in the order in which it is written.

    permutes  (source and target pairs, bytes, permutes of the longest chain that ends with it)
    dots      (rows of the left operand, permutes of the longest chain that it waits for)
    others    other collectives
    """

    permutes: list = field(default_factory=list)
    dots: list = field(default_factory=list)
    others: list = field(default_factory=list)

    @property
    def bytes_sent(self):
        return sum(size for _, size, _ in self.permutes)

    @property
    def chain(self):
        return max((depth for *_, depth in self.permutes), default=0)


def program(fn, n, a, b, **how):
    """What `fn` asks for, before XLA sees it."""
    import jax

    found = Program()
    jaxpr = jax.make_jaxpr(placed(fn, n, **how))(a, b).jaxpr
    _walk(jaxpr, [0] * len(jaxpr.invars), found)
    return found


def _walk(jaxpr, depths, found):
    """Follow the longest chain of permutes to each value of a jaxpr."""
    known = dict(zip(jaxpr.invars, depths, strict=True))
    for equation in jaxpr.eqns:
        inputs = [_depth(one, known) for one in equation.invars]
        name, depth = equation.primitive.name, max(inputs, default=0)
        inner = [
            _open(value) for value in equation.params.values() if hasattr(_open(value), "eqns")
        ]
        outputs = [depth] * len(equation.outvars)
        if name == "ppermute":
            outputs = [depth + 1] * len(equation.outvars)
            size = sum(one.aval.size * one.aval.dtype.itemsize for one in equation.invars)
            found.permutes.append((equation.params["perm"], size, depth + 1))
        elif name == "dot_general":
            found.dots.append((equation.invars[0].aval.shape[0], depth))
        elif name in COLLECTIVES:
            found.others.append(name)
        elif name in ("scan", "while", "cond"):
            inside = Program()
            for one in inner:
                _walk(one, [0] * len(one.invars), inside)
            if inside.permutes or inside.dots:
                raise AssertionError(f"expected steps that are written out, found them in a {name}")
        elif inner and len(inner[0].invars) == len(inputs):
            outputs = _walk(inner[0], inputs, found)
        known |= zip(equation.outvars, outputs, strict=True)
    return [_depth(one, known) for one in jaxpr.outvars]


def _depth(value, known):
    return 0 if hasattr(value, "val") else known.get(value, 0)  # a literal has a value, no name


def _open(value):
    """The jaxpr in one that carries its constants."""
    return getattr(value, "jaxpr", value)


def waited(n, t_dot, t_hop, bidirectional):
    """
    Both links and the matrix unit, moment by moment, in whole ticks.

    A link carries one block at a time. What arrives goes on with the next tick, whatever the
    matrix unit does; of blocks that wait for it the oldest comes first.
    """
    way = [n // 2, (n - 1) // 2] if bidirectional else [n - 1, 0]
    waiting, done, busy, idle, now = 1, 0, 0, 0, 0  # blocks here, products, ticks left
    while True:
        for link in way:
            waiting += sum(now == hop * t_hop for hop in range(1, link + 1))
        while not busy and waiting:
            waiting, busy, done = waiting - 1, t_dot, done + 1
        if done == n and not busy:
            return idle
        idle, busy, now = idle + (not busy), max(0, busy - 1), now + 1
