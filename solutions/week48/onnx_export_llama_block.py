"""Kata week48/onnx_export_llama_block: from a captured ATen graph to a model in ONNX."""

import operator
from collections.abc import Callable, Iterable

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import fx
from torch.export import ExportedProgram
from torch.utils._sympy.numbers import int_oo

aten = torch.ops.aten
OPSETS = range(17, 24)
ELEMENTS = {
    torch.float32: TensorProto.FLOAT,
    torch.int64: TensorProto.INT64,
    torch.bool: TensorProto.BOOL,
}
NUMPY = {torch.float32: np.float32, torch.int64: np.int64, torch.bool: np.bool_}


class Builder:
    """A graph in ONNX, node by node; values are known by their names."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.inputs, self.outputs, self.stored, self.nodes = [], [], [], []

    def info(self, name: str, value: torch.Tensor) -> onnx.ValueInfoProto:
        """What is known of a value; sizes that are no numbers by the symbols of the program."""
        shape = [size if isinstance(size, int) else str(size) for size in value.shape]
        return helper.make_tensor_value_info(name, ELEMENTS[value.dtype], shape)

    def input(self, name: str, value: torch.Tensor) -> str:
        """An input of the model."""
        self.inputs.append(self.info(name, value))
        return name

    def output(self, name: str, value: torch.Tensor) -> None:
        """The next output of the model: the value `name`, which no other output may have."""
        self.outputs.append(self.info(name, value))

    def initializer(self, name: str, value: torch.Tensor) -> str:
        """A parameter, stored with the model."""
        self.stored.append(numpy_helper.from_array(value.detach().cpu().numpy(), name))
        return name

    def constant(self, value: object, dtype: torch.dtype = torch.int64) -> str:
        """A number or a list of numbers, in a node of its own."""
        return self.node("Constant", value=numpy_helper.from_array(np.array(value, NUMPY[dtype])))

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        """A node of one output, which has a new name; no name of the program begins with %."""
        name = f"%{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def model(self) -> onnx.ModelProto:
        """All of it."""
        graph = helper.make_graph(self.nodes, "main", self.inputs, self.outputs, self.stored)
        opsets = [helper.make_opsetid("", self.opset)]
        version = helper.find_min_ir_version_for(opsets)
        return helper.make_model(graph, opset_imports=opsets, ir_version=version)


def onnx_export_llama_block(ep: ExportedProgram, opset: int) -> onnx.ModelProto:
    """
    The program as a model: inputs by their names, outputs in their order, sizes as symbols.

    Raises:
        ValueError: an opset outside 17 to 23, a symbol without an upper bound, an operator that
            is not in the table; the message begins with `opset`, the symbol or the operator.
    """
    # refuse
    if opset not in OPSETS:
        raise ValueError(f"opset: expected 17 to 23, found {opset}")
    for symbol, span in ep.range_constraints.items():
        if span.upper == int_oo:
            raise ValueError(f"{symbol}: expected an upper bound, found none")
    # inputs and weights
    export = _Export(opset)
    parameters = ep.graph_signature.inputs_to_parameters | ep.graph_signature.inputs_to_buffers
    stored = {}
    for node in ep.graph.nodes:
        if node.op == "placeholder" and node.name not in parameters:
            export.names[node] = export.to.input(node.name, node.meta["val"])
        elif node.op == "placeholder":
            name = parameters[node.name]
            value = ep.state_dict[name]
            # a tied weight is a placeholder for each of its names
            if id(value) not in stored:
                stored[id(value)] = export.to.initializer(name, value)
            export.names[node] = stored[id(value)]
        elif node.op == "call_function":
            # operators by table
            if node.target not in _HANDLERS:
                raise ValueError(f"{node.target}: expected an operator of the table")
            export.names[node] = _HANDLERS[node.target](export, node, *node.args)
        else:
            export.outputs(node.args[0])
    return export.to.model()


_HANDLERS: dict[object, Callable] = {}


def _handles(*targets: object) -> Callable:
    return lambda handler: _HANDLERS.update(dict.fromkeys(targets, handler))


class _Export:
    """
    What has been exported so far.

    A symbolic number is a tensor of one element here, so that shapes are put together by Concat.
    """

    def __init__(self, opset: int) -> None:
        self.to = Builder(opset)
        self.names = {}

    def outputs(self, nodes: Iterable[fx.Node]) -> None:
        # distinct outputs
        taken = {one.name for one in (*self.to.inputs, *self.to.stored)}
        for node in nodes:
            name = self.names[node]
            if name in taken:
                name = self.to.node("Identity", name)
            taken.add(name)
            self.to.output(name, node.meta["val"])

    def operand(self, value: object, dtype: torch.dtype) -> str:
        """A tensor or a number, in the dtype to compute in."""
        # promote the dtypes
        if not isinstance(value, fx.Node):
            return self.to.constant(value, dtype)
        if value.meta["val"].dtype == dtype:
            return self.names[value]
        return self.to.node("Cast", self.names[value], to=ELEMENTS[dtype])

    def size(self, size: object) -> str:
        """A number or a symbol, as a tensor of one element."""
        return self.names[size] if isinstance(size, fx.Node) else self.to.constant([size])

    def sizes(self, sizes: list) -> str:
        """Numbers and symbols as one tensor."""
        # sizes as tensors
        if any(isinstance(size, fx.Node) for size in sizes):
            return self.to.node("Concat", *map(self.size, sizes), axis=0)
        return self.to.constant(sizes)


def _dtype(node: fx.Node) -> torch.dtype:
    return node.meta["val"].dtype


# ---- sizes ---------------------------------------------------------------------------------


@_handles(aten.sym_size.int)
def _size(export: _Export, node: fx.Node, x: fx.Node, dim: int) -> str:
    return export.to.node("Shape", export.names[x], start=dim, end=dim + 1)


@_handles(aten._assert_tensor_metadata.default)
def _nothing(export: _Export, node: fx.Node, *args: object) -> None:
    return None


@_handles(operator.add, operator.mul)
def _of_sizes(export: _Export, node: fx.Node, a: object, b: object) -> str:
    op = "Add" if node.target is operator.add else "Mul"
    return export.to.node(op, export.size(a), export.size(b))


@_handles(aten.arange.default)
def _arange(export: _Export, node: fx.Node, end: object) -> str:
    scalar = export.to.node("Squeeze", export.size(end))
    return export.to.node("Range", export.to.constant(0), scalar, export.to.constant(1))


# ---- shapes --------------------------------------------------------------------------------


@_handles(aten.view.default, aten.reshape.default)
def _reshape(export: _Export, node: fx.Node, x: fx.Node, sizes: list) -> str:
    # by default a 0 would mean the size that the input has there
    return export.to.node("Reshape", export.names[x], export.sizes(sizes), allowzero=1)


@_handles(aten.expand.default)
def _expand(export: _Export, node: fx.Node, x: fx.Node, sizes: list) -> str:
    # -1 keeps a size, as 1 does here
    wanted = [size if isinstance(size, fx.Node) else abs(size) for size in sizes]
    return export.to.node("Expand", export.names[x], export.sizes(wanted))


@_handles(aten.transpose.int)
def _transpose(export: _Export, node: fx.Node, x: fx.Node, a: int, b: int) -> str:
    axes = list(range(x.meta["val"].dim()))
    axes[a], axes[b] = axes[b], axes[a]
    return export.to.node("Transpose", export.names[x], perm=axes)


@_handles(aten.unsqueeze.default)
def _unsqueeze(export: _Export, node: fx.Node, x: fx.Node, dim: int) -> str:
    return export.to.node("Unsqueeze", export.names[x], export.to.constant([dim]))


@_handles(aten.slice.Tensor)
def _slice(
    export: _Export,
    node: fx.Node,
    x: fx.Node,
    dim: int = 0,
    start: object = None,
    end: object = None,
    step: int = 1,
) -> str:
    # sizes as tensors
    first = export.size(0 if start is None else start)
    last = export.size(torch.iinfo(torch.int64).max if end is None else end)
    axis, by = export.to.constant([dim]), export.to.constant([step])
    return export.to.node("Slice", export.names[x], first, last, axis, by)


@_handles(aten.cat.default)
def _cat(export: _Export, node: fx.Node, tensors: list, dim: int = 0) -> str:
    parts = [export.operand(tensor, _dtype(node)) for tensor in tensors]
    return export.to.node("Concat", *parts, axis=dim)


# ---- arithmetic ----------------------------------------------------------------------------


@_handles(aten.add.Tensor)
def _add(export: _Export, node: fx.Node, a: object, b: object) -> str:
    b = export.operand(b, _dtype(node))
    if "alpha" in node.kwargs:
        b = export.to.node("Mul", b, export.to.constant(node.kwargs["alpha"], _dtype(node)))
    return export.to.node("Add", export.operand(a, _dtype(node)), b)


@_handles(aten.mul.Tensor)
def _mul(export: _Export, node: fx.Node, a: object, b: object) -> str:
    return export.to.node("Mul", *(export.operand(one, _dtype(node)) for one in (a, b)))


@_handles(aten.pow.Tensor_Scalar)
def _pow(export: _Export, node: fx.Node, x: fx.Node, exponent: float) -> str:
    # operators by table
    base = export.operand(x, _dtype(node))
    if _dtype(node) != torch.int64 or exponent < 2:
        return export.to.node("Pow", base, export.to.constant(exponent, _dtype(node)))
    # of integers ONNX Runtime's Pow goes by way of doubles, unless they are squared or cubed
    result = base
    for _ in range(exponent - 1):
        result = export.to.node("Mul", result, base)
    return result


@_handles(aten.neg.default, aten.cos.default, aten.sin.default)
def _unary(export: _Export, node: fx.Node, x: fx.Node) -> str:
    ops = {aten.neg.default: "Neg", aten.cos.default: "Cos", aten.sin.default: "Sin"}
    return export.to.node(ops[node.target], export.operand(x, _dtype(node)))


@_handles(aten.rsqrt.default)
def _rsqrt(export: _Export, node: fx.Node, x: fx.Node) -> str:
    root = export.to.node("Sqrt", export.operand(x, _dtype(node)))
    return export.to.node("Reciprocal", root)


@_handles(aten.silu.default)
def _silu(export: _Export, node: fx.Node, x: fx.Node) -> str:
    x = export.names[x]
    return export.to.node("Mul", x, export.to.node("Sigmoid", x))


@_handles(aten.mean.dim)
def _mean(export: _Export, node: fx.Node, x: fx.Node, dims: list, keepdim: bool = False) -> str:
    x = export.names[x]
    # from opset 18 on the axes are an input
    if export.to.opset < 18:
        return export.to.node("ReduceMean", x, axes=dims, keepdims=int(keepdim))
    return export.to.node("ReduceMean", x, export.to.constant(dims), keepdims=int(keepdim))


@_handles(aten.softmax.int)
def _softmax(export: _Export, node: fx.Node, x: fx.Node, dim: int, dtype: object = None) -> str:
    return export.to.node("Softmax", export.operand(x, _dtype(node)), axis=dim)


@_handles(aten.matmul.default)
def _matmul(export: _Export, node: fx.Node, a: fx.Node, b: fx.Node) -> str:
    return export.to.node("MatMul", export.names[a], export.names[b])


@_handles(aten.linear.default)
def _linear(
    export: _Export, node: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None = None
) -> str:
    turned = export.to.node("Transpose", export.names[weight], perm=[1, 0])
    product = export.to.node("MatMul", export.names[x], turned)
    return product if bias is None else export.to.node("Add", product, export.names[bias])


@_handles(aten.embedding.default)
def _embedding(export: _Export, node: fx.Node, weight: fx.Node, ids: fx.Node) -> str:
    return export.to.node("Gather", export.names[weight], export.names[ids])


# ---- comparison and choice -----------------------------------------------------------------


@_handles(aten.le.Tensor)
def _le(export: _Export, node: fx.Node, a: fx.Node, b: fx.Node) -> str:
    dtype = torch.promote_types(_dtype(a), _dtype(b))
    return export.to.node("LessOrEqual", export.operand(a, dtype), export.operand(b, dtype))


@_handles(aten.where.self, aten.where.ScalarOther)
def _where(export: _Export, node: fx.Node, mask: fx.Node, a: object, b: object) -> str:
    chosen = [export.operand(one, _dtype(node)) for one in (a, b)]
    return export.to.node("Where", export.names[mask], *chosen)


@_handles(aten.to.dtype)
def _to(export: _Export, node: fx.Node, x: fx.Node, dtype: torch.dtype) -> str:
    return export.operand(x, dtype)
