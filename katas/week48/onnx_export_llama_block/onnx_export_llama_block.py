"""Kata week48/onnx_export_llama_block: from a captured ATen graph to a model in ONNX."""

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.export import ExportedProgram

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
    # TODO(kata): refuse, inputs and weights, operators by table, sizes as tensors, promote the
    # dtypes, distinct outputs (about 50 lines with helpers)
    raise NotImplementedError
