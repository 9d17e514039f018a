"""Graphs to fuse, an executor that counts, a judge of groups, and every partition tried."""

from math import prod
from pathlib import Path

import torch
from torch import fx
from torch.fx.passes.shape_prop import ShapeProp

aten = torch.ops.aten
VIEWS = ("view", "unsqueeze", "permute", "t", "slice", "expand")
IN_ORDER = ("view", "unsqueeze")
EXTERN = ("mm", "addmm", "bmm", "scaled_dot_product_attention")
REDUCTIONS = ("sum", "mean", "amax")
DATA = Path(__file__).parent / "data"


def inductor(name="transformer_block_h200"):
    return (DATA / f"{name}.py.txt").read_text()


# ---- graphs --------------------------------------------------------------------------------


def capture(fn, *args):
    """The aten graph of `fn`, with the shapes that these arguments give its nodes."""
    gm = fx.symbolic_trace(fn)
    ShapeProp(gm).propagate(*args)
    return gm


def layer_norm(x, weight, bias):
    centred = aten.sub.Tensor(x, aten.mean.dim(x, [-1], True))
    variance = aten.mean.dim(aten.mul.Tensor(centred, centred), [-1], True)
    scale = aten.rsqrt.default(aten.add.Scalar(variance, 1e-5))
    return aten.add.Tensor(aten.mul.Tensor(aten.mul.Tensor(centred, scale), weight), bias)


def linear(x, weight, bias, out):
    """`out` is the shape of the result; x has rows of any number of axes."""
    rows = aten.view.default(x, [-1, out[0]])
    return aten.view.default(aten.addmm.default(bias, rows, aten.t.default(weight)), out[1])


def block_of(b, s, d):
    """A transformer block (one head) of x and twelve parameters; the shapes of all thirteen."""

    def block(x, g1, b1, wqkv, bqkv, wo, bo, g2, b2, w1, c1, w2, c2):
        mixed = linear(layer_norm(x, g1, b1), wqkv, bqkv, (d, [b, s, 3, d]))
        mixed = aten.permute.default(mixed, [2, 0, 1, 3])
        q, k, v = (
            aten.view.default(aten.slice.Tensor(mixed, 0, at, at + 1), [b, s, d]) for at in range(3)
        )
        seen = aten.scaled_dot_product_attention.default(q, k, v)
        x = aten.add.Tensor(x, linear(seen, wo, bo, (d, [b, s, d])))
        inner = linear(layer_norm(x, g2, b2), w1, c1, (d, [b, s, 4 * d]))
        inner = aten.gelu.default(inner, approximate="tanh")
        return aten.add.Tensor(x, linear(inner, w2, c2, (4 * d, [b, s, d])))

    shapes = [(b, s, d), (d,), (d,), (3 * d, d), (3 * d,), (d, d), (d,), (d,), (d,)]
    return block, [*shapes, (4 * d, d), (4 * d,), (d, 4 * d), (d,)]


def inductor_bytes(b, s, d, itemsize):
    """
    What the captured file's nine kernels move.

    Its second LayerNorm does not write the sum that it reads two terms of, and the last kernel
    adds up three.
    """
    u = b * s * d
    weights = 2 * d + (3 * d * d + 3 * d) + (d * d + d) + 2 * d
    weights += (4 * d * d + 4 * d) + (4 * d * d + d)
    reads = [u, u, 3 * u, u, 2 * u, u, 4 * u, 4 * u, 3 * u]
    writes = [u, 3 * u, u, u, u, 4 * u, 4 * u, u, u]
    return (sum(reads) + sum(writes) + weights) * itemsize


# twenty graphs: seven nodes drawn from these seeds, of 4 x 6 and of 4 x 4 elements. In the first
# six it matters which pair is joined first
SEEDS = [53, 55, 56, 107, 131, 175, 2, 3, 5, 9]


def drawn(generator, many, square=False):
    """A random graph of so many nodes that compute, and views between them."""

    def pick(below):
        return int(torch.randint(below, (1,), generator=generator))

    rows, cols = (4, 4) if square else (4, 6)
    graph = fx.Graph()
    values = [(graph.placeholder(name), (rows, cols)) for name in "xy"]
    weight = graph.placeholder("w")
    column = graph.placeholder("column")
    values.append((column, (rows, 1)))
    fresh = []
    for _ in range(many):
        # mostly what came last, for long chains
        node, at = values[-1 - pick(min(3, len(values)))] if pick(3) else values[pick(len(values))]
        what = pick(10)
        if what < 3:
            op = (aten.tanh.default, aten.relu.default, aten.sigmoid.default)[what]
            made = graph.call_function(op, (node,)), at
        elif what < 6:
            other, beside = values[pick(len(values))]
            # no products: twelve squares in a row end in infinities, and those in NaN
            op = (aten.add.Tensor, aten.add.Tensor, aten.sub.Tensor)[what - 3]
            made = graph.call_function(op, (node, other)), (rows, max(at[1], beside[1]))
        elif what < 8:
            op = (aten.mean.dim, aten.amax.default)[what - 6]
            made = graph.call_function(op, (node, [-1], True)), (rows, 1)
        elif what == 8 and at == (rows, cols):
            made = graph.call_function(aten.mm.default, (node, weight)), at
        else:
            if square and at == (rows, cols) and pick(2):
                node = graph.call_function(aten.t.default, (node,))
            else:
                node = graph.call_function(aten.view.default, (node, [2, rows // 2, at[1]]))
                node = graph.call_function(aten.tanh.default, (node,))
                node = graph.call_function(aten.view.default, (node, list(at)))
                values.append((node, at))
                fresh.append(node)
                continue
            made = graph.call_function(aten.tanh.default, (node,)), at
        values.append(made)
        fresh.append(made[0])
    graph.output(tuple(node for node in fresh if not node.users or node is fresh[-1]))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    args = [torch.randn(4, cols, generator=generator) for _ in range(2)]
    args += [torch.randn(cols, cols, generator=generator) / 3]
    args += [torch.randn(rows, 1, generator=generator)]
    ShapeProp(gm).propagate(*args)
    return gm, args


# ---- a judge of groups ---------------------------------------------------------------------


def of(node):
    """Of which operator: its name without the overload."""
    return node.target.__name__.partition(".")[0] if node.op == "call_function" else node.op


def runs(gm):
    """The nodes that compute something."""
    idle = (*VIEWS, "placeholder", "output")
    return [node for node in gm.graph.nodes if of(node) not in idle]


def shape(node):
    return tuple(node.meta["tensor_meta"].shape)


def maker(node):
    while of(node) in VIEWS:
        node = node.args[0]
    return node


def table(node):
    *rows, cols = shape(node) or (1,)
    return prod(rows), cols


def loops(node):
    return table(node.args[0] if of(node) in REDUCTIONS else node)


def misfit(nodes):
    """Why these are no kernel; None if they are."""
    inside = set(nodes)
    if len(inside) == 1:
        return None
    reduced = {loops(node) for node in nodes if of(node) in REDUCTIONS}
    spaces = {loops(node) for node in nodes}
    if any(of(node) in EXTERN for node in nodes):
        return "an extern kernel fuses with nothing"
    if len(reduced) > 1 or (not reduced and len(spaces) > 1):
        return f"loops of different sizes: {sorted(spaces)}"
    if reduced:
        (rows, cols) = next(iter(reduced))
        if not spaces <= {(rows, cols), (rows, 1)}:
            return f"loops {sorted(spaces)} beside a reduction of {rows} x {cols}"
    for node in nodes:
        for operand in node.all_input_nodes:
            at = operand
            while of(at) in VIEWS:
                if of(at) not in IN_ORDER and maker(at) in inside:
                    return f"{node.name} reads {maker(at).name} through {of(at)}"
                at = at.args[0]
            if at in inside and table(at) != table(operand):
                return f"{node.name} reads {at.name} as {shape(operand)}"
    return None


def execute(gm, groups, *args):
    """What the groups compute, one after the other; kernels launched; bytes read and written."""
    known = dict(zip((n for n in gm.graph.nodes if n.op == "placeholder"), args, strict=True))
    group_of = {node: at for at, group in enumerate(groups) for node in group.nodes}
    assert sorted(n.name for n in runs(gm)) == sorted(n.name for g in groups for n in g.nodes), (
        f"expected each of {[n.name for n in runs(gm)]} in one group, "
        f"found {[[n.name for n in g.nodes] for g in groups]}"
    )
    moved = 0

    def value(node, own):
        if of(node) in VIEWS:
            return node.target(value(node.args[0], own), *node.args[1:], **node.kwargs)
        return own[node] if node in own else known[node]

    for at, group in enumerate(groups):
        names = [node.name for node in group.nodes]
        wrong = misfit(group.nodes)
        assert wrong is None, f"group {names} is no kernel: {wrong}"
        own, read = {}, set()
        for node in group.nodes:
            for operand in node.all_input_nodes:
                made = maker(operand)
                if group_of.get(made) == at:
                    assert made in own, f"group {names}: {node.name} is before {made.name}"
                else:
                    assert made in known, f"group {names} reads {made.name}, which is made later"
                    read.add(made)
            operands = fx.node.map_arg(node.args, lambda one, own=own: value(one, own))
            own[node] = node.target(*operands, **node.kwargs)
        outside = {node for node in own if any(group_of.get(u) != at for u in readers(node))}
        known |= {node: own[node] for node in outside}
        moved += sum(one.numel() * one.element_size() for one in map(known.get, read | outside))
    result = next(node for node in gm.graph.nodes if node.op == "output").args[0]
    return fx.node.map_arg(result, lambda one: value(one, {})), len(groups), moved


def readers(node):
    for user in node.users:
        yield from readers(user) if of(user) in VIEWS else [user]


def bytes_moved(gm, groups):
    """As `execute` counts, without running anything; groups are sets of nodes."""
    moved = 0
    for group in groups:
        read = {maker(one) for node in group for one in node.all_input_nodes} - set(group)
        written = [node for node in group if any(user not in group for user in readers(node))]
        for node in (*read, *written):
            moved += prod(shape(node)) * node.meta["tensor_meta"].dtype.itemsize
    return moved


def least_bytes(gm):
    """Of every partition into groups that are kernels and can run in some order."""
    nodes = runs(gm)
    best = [float("inf")]

    def ordered(groups):
        left, done = list(groups), set()
        while left:
            ready = [
                group
                for group in left
                if all(
                    maker(one) in done or maker(one) in group or maker(one).op == "placeholder"
                    for node in group
                    for one in node.all_input_nodes
                )
            ]
            if not ready:
                return False
            done.update(*ready)
            left = [group for group in left if group not in ready]
        return True

    def place(at, groups):
        if at == len(nodes):
            moved = bytes_moved(gm, groups)
            if moved < best[0] and all(misfit(g) is None for g in groups) and ordered(groups):
                best[0] = moved
            return
        for group in groups:
            group.append(nodes[at])
            place(at + 1, groups)
            group.pop()
        place(at + 1, [*groups, [nodes[at]]])

    place(0, [])
    return best[0]
