"""A LLaMA block and small modules, in ONNX Runtime against PyTorch; what the model stores."""

import copy

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

from harness.judge import assert_matches

SIZES = {  # batch, length, past
    "as captured": (2, 3, 5),
    "prefill": (2, 9, 0),
    "decode": (2, 1, 17),
    "one sequence": (1, 1, 0),
    "more sequences": (3, 4, 2),
}


def exported(kata, program, opset=18):
    """The model, which is legal."""
    model = kata.onnx_export_llama_block(program, opset)
    onnx.checker.check_model(model, full_check=True)
    return model


def matches_llama(kata, oracle, seed, size, opset):
    running = oracle.session(exported(kata, oracle.llama_program(), opset))
    args = oracle.inputs(*size, seed=seed)
    found, own = oracle.run(running, args.values()), oracle.llama()(**args)
    doubles = {name: arg.double() if arg.is_floating_point() else arg for name, arg in args.items()}
    want = copy.deepcopy(oracle.llama()).double()(**doubles)
    for name, one, truth, same in zip(("logits", "keys", "values"), found, want, own, strict=True):
        assert one.shape == truth.shape, f"{name} of {size}: expected {truth.shape}, {one.shape}"
        assert_matches(one, truth, same_precision=same)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_llama_at_any_size(kata, oracle, seed, size):
    matches_llama(kata, oracle, seed, size, 18)


@pytest.mark.parametrize("opset", range(17, 24))
def test_llama_in_any_opset(kata, oracle, seed, opset):
    matches_llama(kata, oracle, seed, (1, 2, 3), opset)
    (found,) = kata.onnx_export_llama_block(oracle.llama_program(), opset).opset_import
    assert (found.domain, found.version) == ("", opset)


@pytest.mark.parametrize("prompt", [[7, 3, 11, 29], [42]], ids=["four tokens", "one token"])
def test_sixteen_greedy_tokens_are_those_of_pytorch(kata, oracle, prompt):
    running = oracle.session(exported(kata, oracle.llama_program()))

    def decoded(step):
        ids, at = torch.tensor([prompt]), 0
        cache, tokens = [torch.zeros(1, oracle.KV_HEADS, 0, oracle.HEAD)] * 2, []
        while len(tokens) < 16:
            positions = torch.arange(at, at + ids.shape[1])[None]
            logits, *cache = step(ids, positions, *cache)
            at += ids.shape[1]
            ids = logits[:, -1:].argmax(-1)
            tokens.append(int(ids))
        return tokens

    assert decoded(lambda *args: oracle.run(running, args)) == decoded(oracle.llama())


# ---- what the model says and stores --------------------------------------------------------


def told(values):
    return [
        (
            value.name,
            value.type.tensor_type.elem_type,
            [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim],
        )
        for value in values
    ]


def test_inputs_and_outputs_are_told_with_symbols(kata, oracle):
    program = oracle.llama_program()
    inner = {
        node.name: node.meta["val"].shape
        for node in program.graph.nodes
        if "val" in node.meta and isinstance(node.meta["val"], torch.Tensor)
    }
    b, t, past = *map(str, inner["ids"]), str(inner["keys"][2])
    graph = exported(kata, program).graph
    kept = [b, oracle.KV_HEADS, past, oracle.HEAD]
    assert told(graph.input) == [
        ("ids", TensorProto.INT64, [b, t]),
        ("positions", TensorProto.INT64, [b, t]),
        ("keys", TensorProto.FLOAT, kept),
        ("values", TensorProto.FLOAT, kept),
    ]
    _, keys, _ = next(iter(reversed(program.graph.nodes))).args[0]
    kept = [b, oracle.KV_HEADS, str(keys.meta["val"].shape[2]), oracle.HEAD]
    assert [(dtype, shape) for _, dtype, shape in told(graph.output)] == [
        (TensorProto.FLOAT, [b, t, oracle.VOCAB]),
        (TensorProto.FLOAT, kept),
        (TensorProto.FLOAT, kept),
    ]


def test_each_parameter_is_stored_once_as_it_is(kata, oracle):
    graph = exported(kata, oracle.llama_program()).graph
    found = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    want = oracle.llama().state_dict()
    tied = {"embedding.weight", "head.weight"}
    assert len(tied & set(found)) == 1
    assert set(found) | tied == set(want)
    for name, value in found.items():
        assert np.array_equal(value, want[name].numpy()), f"{name}: expected {want[name]}, {value}"


def test_nodes_are_few(kata, oracle, cost):
    cost.check("operations", oracle.work(exported(kata, oracle.llama_program())))


def test_the_program_stays_as_it_is_and_exports_the_same_again(kata, oracle):
    program = oracle.program(lambda m, x: x.view(x.shape[0] * 12).to(torch.int64), X)
    before = str(program)
    first, second = (
        exported(kata, program).SerializeToString(deterministic=True) for _ in range(2)
    )
    assert str(program) == before
    assert first == second, "expected the same model again, found another"


# ---- operators -----------------------------------------------------------------------------

X = torch.linspace(-2, 3, 36).view(3, 2, 6)
IDS = torch.arange(6).view(3, 2) - 2
MASK = torch.tensor([[True, False], [False, False], [True, True]])
GROUPS = {
    "sizes": {
        "rows in front again": lambda m, x, i, k: x.view(x.shape[0] * 12)[None].view(
            x.shape[0], 12
        ),
        "two axes as one": lambda m, x, i, k: x.view(x.shape[0] * 2, 6),
        "one number a row": lambda m, x, i, k: torch.arange(x.shape[0] + x.shape[0] * 2),
        "as many as rows": lambda m, x, i, k: x.view(x.shape[0] * 12)[: x.shape[0]],
        "numbers alone": lambda m, x, i, k: x * torch.arange(6),
        "no sizes": lambda m, x, i, k: m.bias[1:2].view(()),
        "expanded": lambda m, x, i, k: x[:, :1].expand(5, -1, 4, -1),
        "expanded to the rows": lambda m, x, i, k: m.bias.expand(x.shape[0], 5),
    },
    "axes": {
        "the last two transposed": lambda m, x, i, k: x.transpose(-1, -2),
        "the outer two transposed": lambda m, x, i, k: x.transpose(0, 2),
        "one behind and one in front": lambda m, x, i, k: x.unsqueeze(-1).unsqueeze(0),
        "all but the first and the last": lambda m, x, i, k: x[..., 1:-1],
        "the last three": lambda m, x, i, k: x[..., -3:],
        "from the start": lambda m, x, i, k: torch.ops.aten.slice.Tensor(x, 2, None, -2),
        "up to 0": lambda m, x, i, k: torch.ops.aten.slice.Tensor(x, 2, None, 0),
        "to the end": lambda m, x, i, k: torch.ops.aten.slice.Tensor(x, 2, 4),
        "every other": lambda m, x, i, k: x[:, :, 1::2],
        "joined": lambda m, x, i, k: torch.cat([x, x, x * 2], -2),
        "integers and floats joined": lambda m, x, i, k: torch.cat([i, i * 0.5]),
    },
    "arithmetic": {
        "three times the other": lambda m, x, i, k: torch.add(x, x * x, alpha=3),
        "integers and floats": lambda m, x, i, k: i.unsqueeze(-1) + x * i.unsqueeze(-1),
        "a half of integers": lambda m, x, i, k: i * 0.5 + 1,
        "integers stay integers": lambda m, x, i, k: i * 3 + i**2,
        "fourth powers of integers": lambda m, x, i, k: (i + 30_011) ** 4 + i**1 * i**0,
        "a mask counts": lambda m, x, i, k: k + 1,
        "a root of integers": lambda m, x, i, k: (i * i + 2) ** 0.5,
        "functions of integers": lambda m, x, i, k: i.cos() + i.sin() + (i * i + 1).rsqrt(),
        "large integers": lambda m, x, i, k: (i + (2**53 + 1)) * 3,
        "minus": lambda m, x, i, k: -i,
        "silu": lambda m, x, i, k: torch.nn.functional.silu(x),
    },
    "rows": {
        "two axes averaged": lambda m, x, i, k: x.mean([2, 1]),
        "one axis averaged": lambda m, x, i, k: x.mean([1], keepdim=True),
        "softmax of an inner axis": lambda m, x, i, k: x.softmax(1),
        "softmax of integers": lambda m, x, i, k: i.softmax(-1, dtype=torch.float32),
        "by part of another parameter": lambda m, x, i, k: k * m.first + m.bias[:2],
        "with a bias": lambda m, x, i, k: torch.nn.functional.linear(x, m.weight, m.bias),
        "a product": lambda m, x, i, k: x @ x.transpose(1, 2),
        "looked up": lambda m, x, i, k: torch.nn.functional.embedding(k.to(torch.int64), m.weight),
    },
    "choice": {
        "compared with integers": lambda m, x, i, k: x <= i.unsqueeze(-1),
        "compared": lambda m, x, i, k: i <= i.transpose(0, 1).transpose(0, 1) * i,
        "large integers": lambda m, x, i, k: i * i + (2**53 + 1) <= i + 2**53,
        "one or the other": lambda m, x, i, k: torch.where(k, i, i * 0.5),
        "one or a number": lambda m, x, i, k: torch.where(k, i, 7),
        "to integers": lambda m, x, i, k: x.to(torch.int64),
        "to a mask": lambda m, x, i, k: x.to(torch.bool),
        "to what it was": lambda m, x, i, k: x.to(torch.float32) * 1,
    },
}


def in_both(kata, oracle, function):
    """What it returns in ONNX Runtime and in PyTorch, for a few numbers of rows."""
    weight, bias = torch.linspace(-1, 1, 30).view(5, 6), torch.arange(5.0)
    parameters = {"weight": weight, "bias": bias, "first": bias[:2]}
    program = oracle.program(function, X, IDS, MASK, **parameters)
    graph = (model := exported(kata, program)).graph
    names = [one.name for one in (*graph.input, *graph.initializer, *graph.output)]
    assert sorted(names) == sorted(set(names)), (
        f"outputs: expected names of their own, found {names}"
    )
    running = oracle.session(model)
    for rows in (3, 1, 0):
        args = [whole[:rows] for whole in (X, IDS, MASK)]
        yield rows, oracle.run(running, args), program.module()(*args)


@pytest.mark.parametrize("group", GROUPS)
def test_operators(kata, oracle, group):
    def all_of_them(*args):
        return tuple(one(*args) for one in GROUPS[group].values())

    for rows, found, want in in_both(kata, oracle, all_of_them):
        for name, one, truth in zip(GROUPS[group], found, want, strict=True):
            assert one.dtype == truth.dtype, f"{name}: expected {truth.dtype}, found {one.dtype}"
            assert one.shape == truth.shape, f"{name}: expected {truth.shape}, found {one.shape}"
            floats = truth.is_floating_point()
            near = torch.allclose(one, truth, rtol=1e-5, atol=1e-6) if floats else one.equal(truth)
            assert near, f"{name}, {rows} rows: expected {truth}, found {one}"


def test_outputs_are_what_the_program_returns(kata, oracle):
    def returned(module, x, ids, mask):
        doubled = x * 2
        return x, doubled, ids, doubled, x, module.bias

    for rows, found, want in in_both(kata, oracle, returned):
        assert len(found) == len(want)
        for at, (one, truth) in enumerate(zip(found, want, strict=True)):
            same = torch.equal(one, truth)
            assert same, f"output {at} of {rows} rows: expected {truth}, found {one}"


# ---- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize("opset", [16, 24, 0])
def test_other_opsets_are_refused(kata, oracle, opset):
    with pytest.raises(ValueError, match="^opset: "):
        kata.onnx_export_llama_block(oracle.llama_program(), opset)


def test_a_size_without_bound_is_refused(kata, oracle):
    program = oracle.program(lambda m, x: torch.erf(x), X, most=None)
    (symbol,) = program.range_constraints
    with pytest.raises(ValueError, match=f"^{symbol}: "):
        kata.onnx_export_llama_block(program, 18)
    with pytest.raises(ValueError, match="^opset: "):
        kata.onnx_export_llama_block(program, 16)


def test_an_unknown_operator_is_refused(kata, oracle):
    program = oracle.program(lambda m, x: torch.erf(x).floor(), X)
    with pytest.raises(ValueError, match="^aten.erf.default: "):
        kata.onnx_export_llama_block(program, 18)
