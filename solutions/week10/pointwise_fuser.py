"""Kata week10/pointwise_fuser: which nodes of an aten graph share a kernel."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import prod

import torch
from torch import fx

aten = torch.ops.aten
EXTERN = {aten.mm.default, aten.addmm.default, aten.bmm.default}
EXTERN |= {aten.scaled_dot_product_attention.default}
POINTWISE = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor}
POINTWISE |= {aten.add.Scalar, aten.mul.Scalar, aten.exp.default, aten.gelu.default}
POINTWISE |= {aten.relu.default, aten.rsqrt.default, aten.sigmoid.default, aten.tanh.default}
REDUCTION = {aten.sum.dim_IntList, aten.mean.dim, aten.amax.default}
RESHAPE = {aten.view.default, aten.unsqueeze.default}
STRIDED = {aten.permute.default, aten.t.default, aten.slice.Tensor, aten.expand.default}
KINDS = {  # of Inductor's kernels in Triton
    "triton_poi_": "pointwise",
    "triton_per_": "persistent_reduction",
    "triton_red_": "reduction",
}


@dataclass(frozen=True)
class Group:
    """Nodes that run as one kernel, in the order of the graph."""

    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel that Inductor's code launches, and the aten operators it stands for."""

    name: str
    kind: str  # pointwise, persistent_reduction, reduction or extern
    aten_ops: tuple[str, ...]


def kind(node: fx.Node) -> str:
    """
    One of input, output, view, pointwise, reduction, extern; views run no kernel.

    Raises:
        ValueError: none of these; the message begins with the node's name.
    """
    if node.op in ("placeholder", "output"):
        return "input" if node.op == "placeholder" else "output"
    if node.target in REDUCTION and tuple(node.args[1:]) == ([-1], True):
        return "reduction"
    for name, targets in (
        ("pointwise", POINTWISE),
        ("extern", EXTERN),
        ("view", RESHAPE | STRIDED),
    ):
        if node.target in targets:
            return name
    raise ValueError(f"{node.name}: expected an operator of a known class, found {node.target}")


def shape(node: fx.Node) -> tuple[int, ...]:
    """Of the node's result."""
    return tuple(node.meta["tensor_meta"].shape)


def size(node: fx.Node) -> int:
    """Bytes of the node's result."""
    return prod(shape(node)) * node.meta["tensor_meta"].dtype.itemsize


def space(node: fx.Node) -> tuple[int, int]:
    """Rows and columns of the loops: of the result, of a reduction those of its argument."""
    return _table(node.args[0] if kind(node) == "reduction" else node)


def source(operand: fx.Node) -> tuple[fx.Node, bool]:
    """What made an operand, behind all views; and whether row and column are still the same."""
    made, in_order = operand, True
    while kind(made) == "view":
        in_order = in_order and made.target in RESHAPE
        made = made.args[0]
    return made, in_order and _table(made) == _table(operand)


def _table(node: fx.Node) -> tuple[int, int]:
    of = shape(node)
    return prod(of[:-1]), of[-1] if of else 1


def fuse(gm: fx.GraphModule) -> list[Group]:
    """
    Groups with few bytes moved between them, in an order in which they can run.

    Raises:
        ValueError: a node of no known class; the message begins with its name.
    """
    # join the best pair
    nodes = [node for node in gm.graph.nodes if kind(node) in ("pointwise", "reduction", "extern")]
    # joins two groups at a time, those that save the most bytes
    groups = [Group((node,)) for node in nodes]
    while True:
        best, saved = None, 0
        for a, b in combinations(groups, 2):
            together = Group(tuple(node for node in nodes if node in a.nodes + b.nodes))
            less = _bytes(a) + _bytes(b) - _bytes(together)
            if less > saved and _one_loop(together):
                joined = [together if group is a else group for group in groups if group is not b]
                if not _returns(together, joined):
                    best, saved = joined, less
        if best is None:
            return _in_order(groups)
        groups = best


def plan_cost(gm: fx.GraphModule, groups: list[Group]) -> tuple[int, int]:
    """
    Kernels launched, and bytes they read and write.

    A group reads each tensor that it does not make once and whole, and writes what it makes and
    others need.
    """
    # bytes at the borders
    del gm  # the nodes know
    return len(groups), sum(map(_bytes, groups))


def read_inductor(code: str) -> list[Kernel]:
    """
    The kernels that the `call` of Inductor's code launches, in order.

    Raises:
        ValueError: there is no `call`; the message begins with "code".
    """
    _, found, body = code.rpartition("    def call(self, args):\n")
    if not found:
        raise ValueError("code: expected Inductor's, with a `call`, found none")
    kernels, ops = [], ()
    for line in body.splitlines():
        if re.match(r"\S", line):  # behind the class
            break
        if told := re.match(r"\s*# .*Original ATen: \[(.*)\]", line):
            ops = tuple(re.findall(r"[\w.]+", told[1]))
        elif ran := re.match(r"\s*(\w+)\.run\(", line):
            kernels.append(Kernel(ran[1], KINDS.get(ran[1][:11], "extern"), ops))
        elif ran := re.match(r"\s*(?:\w+ = )?(extern_kernels\.\w+|torch\.ops\.[\w.]+)\(", line):
            kernels.append(Kernel(ran[1], "extern", ops))
    return kernels


def _read(node: fx.Node) -> Iterator[tuple[fx.Node, bool]]:
    return map(source, node.all_input_nodes)


def _users(node: fx.Node) -> Iterator[fx.Node]:
    """Who reads a node, behind all views."""
    for user in node.users:
        if kind(user) == "view":
            yield from _users(user)
        else:
            yield user


def _leaving(group: Group) -> set[fx.Node]:
    """Who outside reads what the group makes."""
    return {user for node in group.nodes for user in _users(node)} - set(group.nodes)


def _bytes(group: Group) -> int:
    # bytes at the borders
    reads = {made for node in group.nodes for made, _ in _read(node)} - set(group.nodes)
    writes = [node for node in group.nodes if not set(_users(node)) <= set(group.nodes)]
    return sum(map(size, [*reads, *writes]))


def _one_loop(group: Group) -> bool:
    """Whether one pass over rows and columns computes them all."""
    # fits one loop
    if any(kind(node) == "extern" for node in group.nodes):
        return False
    if not all(
        aligned for node in group.nodes for made, aligned in _read(node) if made in group.nodes
    ):
        return False
    reduced = {space(node) for node in group.nodes if kind(node) == "reduction"}
    one_a_row = {(rows, 1) for rows, _ in reduced}
    return len(reduced | ({space(node) for node in group.nodes} - one_a_row)) == 1


def _returns(group: Group, groups: list[Group]) -> bool:
    """Whether a path leaves the group and comes back, by way of whole groups."""
    # no path comes back
    whose = {node: one for one in groups for node in one.nodes}
    reached = {group}
    while reached:
        users = {user for one in reached for user in _leaving(one)}
        reached = {whose[user] for user in users if user in whose}
        if group in reached:
            return True
    return False


def _in_order(groups: list[Group]) -> list[Group]:
    # order the groups
    order, ready, left = [], set(), list(groups)
    while left:
        group = next(group for group in left if _needs(group) <= ready)
        left.remove(group)
        order.append(group)
        ready |= set(group.nodes)
    return order


def _needs(group: Group) -> set[fx.Node]:
    made = {made for node in group.nodes for made, _ in _read(node)} - set(group.nodes)
    return {node for node in made if kind(node) != "input"}
