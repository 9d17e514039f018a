"""Kata week10/pointwise_fuser: which nodes of an aten graph share a kernel."""

import re
from dataclasses import dataclass
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
    # TODO(kata): fits one loop, no path comes back, bytes at the borders, join the best pair, order
    # the groups (about 60 lines with helpers)
    raise NotImplementedError


def plan_cost(gm: fx.GraphModule, groups: list[Group]) -> tuple[int, int]:
    """
    Kernels launched, and bytes they read and write.

    A group reads each tensor that it does not make once and whole, and writes what it makes and
    others need.
    """
    raise NotImplementedError  # TODO(kata): bytes at the borders (2 lines)


def read_inductor(code: str) -> list[Kernel]:
    """
    The kernels that the `call` of Inductor's code launches, in order.

    Raises:
        ValueError: there is no `call`; the message begins with "code".
    """
    raise NotImplementedError  # TODO(kata): read the launches (about 15 lines)
