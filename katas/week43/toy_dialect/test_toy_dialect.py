"""The dialect by its text, IR against the program it comes from, rewrites, and shapes."""

import numpy as np
import pytest
from xdsl.utils.exceptions import VerifyException

PROGRAMS = (
    *("tutorial", "nothing", "a number", "one element", "three axes", "precedence"),
    *("nested literal", "names of its own", "a variable named like a function"),
    "called before its definition",
    *("one function, two shapes", "a reshaped call", "prints twice", "unused"),
)


def generated(kata, oracle, text):
    """The module of a program, which verifies, reads back from its text, and prints the same."""
    program = kata.parsed(text)
    module = kata.mlir_gen(program)
    module.verify()
    read = oracle.read(str(module), kata.toy_dialect())
    read.verify()
    assert str(read) == str(module)
    prints_the_same(oracle, module, program, text)
    return module, program


def prints_the_same(oracle, module, program, text):
    found, want = oracle.run_ir(module), oracle.run_ast(program)
    same = len(found) == len(want) and all(map(np.array_equal, found, want))
    assert same, f"of {text}: expected {want}, found {found} from {module}"


def canonical(kata, oracle, lines):
    """`main` of these lines, canonical and still legal, and what its results are."""
    text = oracle.main_of(lines)
    module = oracle.read(text, kata.toy_dialect())
    module.verify()
    before = oracle.run_ir(module)
    kata.canonicalize(module)
    module.verify()
    after = oracle.run_ir(module)
    assert list(map(str, after)) == list(map(str, before)), f"of {text}: found {module}"
    return oracle.names(module)


# ---- the dialect ---------------------------------------------------------------------------

REFUSED = {
    "transpose keeps the shape": ("unary", "transpose", "%x", (2, 3), (2, 3)),
    "transpose of another rank": ("unary", "transpose", "%x", (2, 3), (3,)),
    "transpose swaps the last two axes": ("unary", "transpose", "%x", (2, 3, 4), (2, 4, 3)),
    "reshape of another size": ("unary", "reshape", "%x", (2, 3), (5,)),
    "reshape to nothing": ("unary", "reshape", "%x", (2, 3), (0, 6)),
    "reshape of one element to nothing": ("unary", "reshape", "%x", (1,), (0,)),
    "reshape to an unknown shape": ("unary", "reshape", "%x", (2, 3), None),
    "mul of two shapes": ("binary", "mul", "%x", "%y", (2, 3), (3, 2), None),
    "mul by a row": ("binary", "mul", "%x", "%y", (2, 3), (3,), None),
    "add to another shape": ("binary", "add", "%x", "%x", (2, 3), (2, 3), (6,)),
    "add of an unknown to another shape": ("binary", "add", "%x", "%y", (2, 3), None, (3, 2)),
    "add of a known to another shape": ("binary", "add", "%y", "%x", None, (2, 3), (3, 2)),
}
TAKEN = {
    "transpose of three axes": ("unary", "transpose", "%x", (2, 3, 4), (4, 3, 2)),
    "transpose of a number": ("unary", "transpose", "%x", (), ()),
    "transpose to an unknown shape": ("unary", "transpose", "%x", (2, 3), None),
    "transpose of an unknown shape": ("unary", "transpose", "%x", None, (2, 3)),
    "reshape of an unknown shape": ("unary", "reshape", "%x", None, (2, 3)),
    "reshape of one element": ("unary", "reshape", "%x", (1, 1), ()),
    "reshape of nothing": ("unary", "reshape", "%x", (0, 2), (3, 0)),
    "mul to an unknown shape": ("binary", "mul", "%x", "%x", (2, 3), (2, 3), None),
    "add of an unknown shape": ("binary", "add", "%x", "%y", None, (2, 3), (2, 3)),
}


def in_a_function(oracle, how, op, *rest):
    """The text of one op of arguments, %x and maybe %y, of the shapes it says."""
    many = {"unary": 1, "binary": 2}[how]
    of = dict(zip(rest[:many], map(oracle.tensor, rest[many:]), strict=False))
    line = getattr(oracle, how)("%r", op, *rest)
    inputs = ", ".join(f"{name}: {kind}" for name, kind in of.items())
    return f'func.func @main({inputs}) {{\n  {line}\n  "toy.return"() : () -> ()\n}}'


@pytest.mark.parametrize("example", REFUSED.values(), ids=REFUSED)
def test_verifier_refuses(kata, oracle, example):
    text = in_a_function(oracle, *example)
    module = oracle.read(text, kata.toy_dialect())
    try:
        module.verify()
    except VerifyException:
        return
    pytest.fail(f"{text}: expected a VerifyException, found none")


@pytest.mark.parametrize("example", TAKEN.values(), ids=TAKEN)
def test_verifier_takes(kata, oracle, example):
    oracle.read(in_a_function(oracle, *example), kata.toy_dialect()).verify()


@pytest.mark.parametrize("op", ["transpose", "print"])
def test_integers_are_refused(kata, oracle, op):
    end = "-> tensor<2xi64>" if op == "transpose" else "-> ()"
    line = f'"toy.{op}"(%x) : (tensor<2xi64>) {end}'
    text = f'func.func @f(%x: tensor<2xi64>) {{\n  {line}\n  "toy.return"() : () -> ()\n}}'
    module = oracle.read(text, kata.toy_dialect())
    with pytest.raises(VerifyException):
        module.verify()


# ---- from the AST --------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_module_is_the_program(kata, oracle, name):
    generated(kata, oracle, oracle.PROGRAMS[name])


def test_module_says_of_shapes_what_the_program_says(kata, oracle):
    module, _ = generated(kata, oracle, oracle.TUTORIAL)
    kinds = {op.sym_name.data: str(op.function_type) for op in module.body.block.ops}
    star = "tensor<*xf64>"
    assert kinds == {
        "multiply_transpose": f"({star}, {star}) -> {star}",
        "main": "() -> ()",
        "a_third": f"() -> {star}",
    }
    found = [
        (op.name, *(str(result.type) for result in op.results))
        for op in module.walk()
        if op.name.startswith("toy.")
    ]
    assert found == [
        ("toy.transpose", star),
        ("toy.transpose", star),
        ("toy.mul", star),
        ("toy.return",),
        ("toy.constant", "tensor<2x3xf64>"),
        ("toy.reshape", "tensor<2x3xf64>"),
        ("toy.constant", "tensor<6xf64>"),
        ("toy.reshape", "tensor<2x3xf64>"),
        ("toy.generic_call", star),
        ("toy.constant", "tensor<3x2xf64>"),
        ("toy.generic_call", star),
        ("toy.mul", star),
        ("toy.add", star),
        ("toy.print",),
        ("toy.return",),
        ("toy.constant", "tensor<3x2xf64>"),
        ("toy.return",),
    ]


def test_all_functions_but_main_are_private(kata, oracle):
    module, _ = generated(kata, oracle, oracle.TUTORIAL)
    found = [op.sym_visibility and op.sym_visibility.data for op in module.body.block.ops]
    assert found == ["private", None, "private"]


BAD = {
    "a variable": ("def main() {\n var a = 1;\n print(a + b);\n}", "b", 3),
    "a variable of another function": (
        "def f(a) {\n var b = a;\n return b;\n}\ndef main() {\n print(b);\n}",
        "b",
        6,
    ),
    "a variable before its definition": ("def main() {\n var a = a;\n}", "a", 2),
    "a function": ("def main() {\n print(\n f(1));\n}", "f", 3),
    "a function named like a variable": ("def main() {\n var f = 1;\n print(f(f));\n}", "f", 3),
    "too few arguments": ("def f(a, b) { return a; }\ndef main() { print(f(1)); }", "f", 2),
    "too many arguments": ("def f() { return 1; }\ndef main() {\n print(f(1)); }", "f", 3),
    "a variable twice": ("def main() {\n var a = 1;\n var a = 2;\n}", "a", 3),
    "a parameter and a variable": (
        "def f(a) {\n var a = 1;\n return a;\n}\ndef main() { }",
        "a",
        2,
    ),
    "a parameter twice": ("def main() { }\ndef f(a, a) {\n return a;\n}", "a", 2),
    "a function twice": ("def f() { return 1; }\ndef main() { }\n\ndef f() { return 2; }", "f", 4),
}


@pytest.mark.parametrize("example", BAD.values(), ids=BAD)
def test_wrong_names_are_refused(kata, example):
    text, name, line = example
    program = kata.parsed(text)
    with pytest.raises(ValueError, match=rf"^{name}: .*line {line}\b"):
        kata.mlir_gen(program)


# ---- rewrites ------------------------------------------------------------------------------


@pytest.mark.parametrize(("many", "left"), [(2, 0), (3, 1), (6, 0), (7, 1)])
def test_pairs_of_transposes_go(kata, oracle, many, left):
    shapes = [(2, 3), (3, 2)] * 4
    turned = [
        oracle.unary(f"%{at + 1}", "transpose", f"%{at}", *shapes[at : at + 2])
        for at in range(many)
    ]
    lines = [oracle.constant("%0", (2, 3)), *turned, oracle.shown(f"%{many}", shapes[many])]
    found = canonical(kata, oracle, lines)
    assert found == ["constant", *["transpose"] * left, "print"]


def test_a_transpose_that_is_needed_elsewhere_stays(kata, oracle):
    found = canonical(
        kata,
        oracle,
        [
            oracle.constant("%x", (2, 3)),
            oracle.unary("%t", "transpose", "%x", (2, 3), (3, 2)),
            oracle.unary("%u", "transpose", "%t", (3, 2), (2, 3)),
            oracle.shown("%t", (3, 2)),
            oracle.shown("%u", (2, 3)),
        ],
    )
    assert found == ["constant", "transpose", "print", "print"]


def test_transposes_with_a_reshape_between_stay(kata, oracle):
    found = canonical(
        kata,
        oracle,
        [
            oracle.constant("%x", (2, 3)),
            oracle.unary("%t", "transpose", "%x", (2, 3), (3, 2)),
            oracle.unary("%r", "reshape", "%t", (3, 2), (2, 3)),
            oracle.unary("%u", "transpose", "%r", (2, 3), (3, 2)),
            oracle.shown("%u", (3, 2)),
        ],
    )
    assert found == ["constant", "transpose", "reshape", "transpose", "print"]


def test_a_chain_of_reshapes_is_one(kata, oracle):
    found = canonical(
        kata,
        oracle,
        [
            oracle.constant("%x", (2, 6)),
            oracle.unary("%t", "transpose", "%x", (2, 6), (6, 2)),
            oracle.unary("%a", "reshape", "%t", (6, 2), (12,)),
            oracle.unary("%b", "reshape", "%a", (12,), (3, 4)),
            oracle.unary("%c", "reshape", "%b", (3, 4), (2, 2, 3)),
            oracle.shown("%c", (2, 2, 3)),
            oracle.shown("%a", (12,)),
        ],
    )
    assert found == ["constant", "transpose", "reshape", "reshape", "print", "print"]


def test_a_chain_back_to_the_first_shape_goes(kata, oracle):
    found = canonical(
        kata,
        oracle,
        [
            oracle.constant("%x", (2, 6)),
            oracle.unary("%t", "transpose", "%x", (2, 6), (6, 2)),
            oracle.unary("%a", "reshape", "%t", (6, 2), (12,)),
            oracle.unary("%b", "reshape", "%a", (12,), (6, 2)),
            oracle.shown("%b", (6, 2)),
        ],
    )
    assert found == ["constant", "transpose", "print"]


def test_a_reshape_to_the_same_shape_goes_and_to_one_more_axis_stays(kata, oracle):
    found = canonical(
        kata,
        oracle,
        [
            oracle.constant("%x", (2, 3)),
            oracle.unary("%t", "transpose", "%x", (2, 3), (3, 2)),
            oracle.unary("%a", "reshape", "%t", (3, 2), (3, 2)),
            oracle.unary("%b", "reshape", "%t", (3, 2), (1, 3, 2)),
            oracle.shown("%a", (3, 2)),
            oracle.shown("%b", (1, 3, 2)),
        ],
    )
    assert found == ["constant", "transpose", "reshape", "print", "print"]


def test_a_reshape_of_an_unknown_shape_stays(kata, oracle):
    text = (
        "func.func private @f(%x: tensor<*xf64>) -> tensor<*xf64> {\n  "
        + oracle.unary("%r", "reshape", "%x", None, (2, 3))
        + '\n  "toy.return"(%r) : (tensor<2x3xf64>) -> ()\n}\n'
    )
    module = oracle.read(text, kata.toy_dialect())
    kata.canonicalize(module)
    assert oracle.names(module, "f") == ["reshape"]


@pytest.mark.parametrize("splat", [False, True], ids=["numbers", "one number"])
def test_a_reshaped_constant_is_a_constant_and_the_first_stays_as_it_is(kata, oracle, splat):
    found = canonical(
        kata,
        oracle,
        [
            oracle.constant("%x", (2, 3), "-1.5" if splat else "[[0.1, -0.0, 2.0], [1, 5, 4]]"),
            oracle.unary("%r", "reshape", "%x", (2, 3), (3, 2)),
            oracle.shown("%x", (2, 3)),
            oracle.shown("%r", (3, 2)),
        ],
    )
    assert found == ["constant", "constant", "print", "print"]


def test_what_nobody_needs_goes_and_prints_and_calls_stay(kata, oracle):
    text = "def f(a) { var b = a * a; var c = transpose(b); return a; }"
    text += "def main() { var a = [[1, 2]]; var b = transpose(a) + transpose(a); "
    text += "var c = f(a); print(a); }"
    module, program = generated(kata, oracle, text)
    kata.canonicalize(module)
    assert oracle.names(module) == ["constant", "generic_call", "print"]
    assert oracle.names(module, "f") == []
    prints_the_same(oracle, module, program, text)


def test_arithmetic_stays(kata, oracle):
    lines = [
        oracle.constant("%x", (2,)),
        oracle.unary("%t", "transpose", "%x", (2,), (2,)),
        oracle.binary("%a", "add", "%t", "%x", (2,), (2,), (2,)),
        oracle.binary("%m", "mul", "%a", "%a", (2,), (2,), (2,)),
        oracle.shown("%m", (2,)),
    ]
    found = canonical(kata, oracle, lines)
    assert found == ["constant", "transpose", "add", "mul", "print"]


def test_equal_ops_are_not_merged(kata, oracle):
    lines = [
        *(oracle.constant(name, (2, 3)) for name in ("%a", "%b")),
        *(oracle.unary(name, "transpose", "%a", (2, 3), (3, 2)) for name in ("%t", "%u")),
        *(oracle.shown(name, (2, 3)) for name in ("%a", "%b")),
        *(oracle.shown(name, (3, 2)) for name in ("%t", "%u")),
    ]
    found = canonical(kata, oracle, lines)
    assert found == ["constant"] * 2 + ["transpose"] * 2 + ["print"] * 4


def test_long_chains_end_as_a_constant_in_linear_time(kata, oracle, cost, lines):
    growth = []
    for chain in (oracle.long_chain, oracle.dead_chain):
        work = {}
        for many in (100, 400):
            module = oracle.read(chain(many), kata.toy_dialect())
            with lines(limit=4_000 * many) as counted:
                kata.canonicalize(module)
            work[many] = counted.lines
            assert oracle.names(module) == ["constant", "print"]
        growth.append(work[400] / work[100])
    cost.check("operations", len(oracle.names(module)))
    cost.check("growth", max(growth))


# ---- shapes --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_shape_is_inferred(kata, oracle, name):
    module, program = generated(kata, oracle, oracle.PROGRAMS[name])
    kata.inline(module)
    kata.infer_shapes(module)
    module.verify()
    assert "*" not in str(module)
    prints_the_same(oracle, module, program, name)


def test_drawn_programs_stay_what_they_are(kata, oracle, seed):
    for at in range(4):
        text = oracle.drawn(seed + at)
        module, program = generated(kata, oracle, text)
        for step in (kata.canonicalize, kata.inline, kata.infer_shapes, kata.canonicalize):
            step(module)
            module.verify()
            prints_the_same(oracle, module, program, text)
        assert "*" not in str(module)
        once = str(module)
        kata.canonicalize(module)
        assert str(module) == once


UNKNOWN = {
    "a call that is still there": (
        "func.func @main() {\n"
        '  %c = "toy.generic_call"() <{callee = @main}> : () -> tensor<*xf64>\n'
        '  "toy.print"(%c) : (tensor<*xf64>) -> ()\n  "toy.return"() : () -> ()\n}',
        "toy.generic_call",
    ),
    "an argument": (
        "func.func @main(%x: tensor<*xf64>) {\n"
        '  %c = "toy.constant"() <{value = dense<1.0> : tensor<2xf64>}> : () -> tensor<2xf64>\n'
        '  %m = "toy.mul"(%c, %x) : (tensor<2xf64>, tensor<*xf64>) -> tensor<*xf64>\n'
        '  %t = "toy.transpose"(%x) : (tensor<*xf64>) -> tensor<*xf64>\n'
        '  "toy.return"() : () -> ()\n}',
        "toy.mul",
    ),
}


CALL = '%c = "toy.generic_call"() <{callee = @main}> : () -> '
WRONG = '%r = "toy.transpose"(%x) : (tensor<2x3xf64>) -> tensor<2x3xf64>'


def of_lines(kata, oracle, lines):
    return oracle.read(oracle.main_of([oracle.constant("%x", (2, 3)), *lines]), kata.toy_dialect())


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ([CALL + "tensor<*xf64>", WRONG], "generic_call"),
        ([WRONG, CALL + "tensor<*xf64>"], "transpose"),
    ],
    ids=["the call", "the transpose"],
)
def test_the_first_of_two_is_told(kata, oracle, lines, name):
    module = of_lines(kata, oracle, lines)
    with pytest.raises(ValueError, match=f"^toy.{name}: "):
        kata.infer_shapes(module)


def test_a_call_of_known_shape_may_be_left(kata, oracle):
    module = of_lines(kata, oracle, [CALL + "tensor<2x3xf64>", oracle.shown("%c", (2, 3))])
    kata.infer_shapes(module)
    assert oracle.names(module) == ["constant", "generic_call", "print"]


@pytest.mark.parametrize("example", UNKNOWN.values(), ids=UNKNOWN)
def test_a_shape_that_stays_unknown_is_refused(kata, oracle, example):
    text, name = example
    module = oracle.read(text, kata.toy_dialect())
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.infer_shapes(module)


CLASHES = {
    "add": ("def main() { var a = [1, 2]; print(transpose(a) + transpose([[1], [2]])); }", "add"),
    "mul in a function": (
        "def f(a, b) { return a * b; } def main() { print(f([1, 2], [1, 2, 3])); }",
        "mul",
    ),
    "reshape": ("def main() { var a<2, 3> = transpose([1, 2]); }", "reshape"),
}


@pytest.mark.parametrize("example", CLASHES.values(), ids=CLASHES)
def test_shapes_that_do_not_fit_are_refused(kata, example):
    text, name = example
    module = kata.mlir_gen(kata.parsed(text))
    kata.inline(module)
    with pytest.raises(ValueError, match=f"^toy.{name}: "):
        kata.infer_shapes(module)
