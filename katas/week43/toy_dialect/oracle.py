"""Programs in Toy, drawn and by hand; what they print, by their AST and by their IR, in NumPy."""

import random

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.dialects.func import Func
from xdsl.parser import Parser

TUTORIAL = """\
def multiply_transpose(a, b) {
  return transpose(a) * transpose(b);
}
def main() {
  var a<2, 3> = [[1, 2, 3], [4, 5, 6]];
  var b<2, 3> = [1, 2, 3, 4, 5, 6];
  print(multiply_transpose(a, b) + [[1, 2], [0, 1], [3, 4]] * a_third());
}
def a_third() {
  return [[1.5, 0], [0.25, 2], [3, 1]];
}
"""
PROGRAMS = {
    "tutorial": TUTORIAL,
    "nothing": "def main() { }",
    "a number": "def main() { var x = 5; print(transpose(x * x) + 2.5); }",
    "one element": "def main() { var x<1, 1, 1> = 3; print(transpose(x)); }",
    "three axes": "def main() { var x<2, 1, 3> = [1, 2, 3, 4, 5, 6]; print(transpose(x)); }",
    "precedence": "def main() { var a = [1, 2]; print(a + a * (a + a) * a + a); }",
    "nested literal": "def main() { print([[[1, 2]], [[3, 4]]]); }",
    "names of its own": """
        def f(a) { var b = a + a; return b * a; }
        def main() { var b = [1, 2]; var a = f(b); print(a); print(b); }""",
    "a variable named like a function": """
        def f(a) { return a + a; }
        def main() { var f = f([1, 2]); print(f(f)); }""",
    "called before its definition": """
        def main() { print(outer([[1, 2], [3, 4]])); }
        def outer(x) { return inner(transpose(x), x); }
        def inner(x, y) { return x * x + y; }""",
    "one function, two shapes": """
        def f(a) { return transpose(a); }
        def main() { print(f([[1, 2, 3]])); print(f([1, 2])); }""",
    "a reshaped call": """
        def f(a) { var b<3, 2> = a; return b + b; }
        def main() { var c<6> = f([[1, 2, 3], [4, 5, 6]]); print(c); }""",
    "prints twice": "def main() { var x = [1, 2]; print(x); print(x); print(transpose(x)); }",
    "unused": "def f(a, b) { return a; } def main() { var x = [1, 2]; print(f(x, [[3]])); }",
}

SHAPES = ((12,), (3, 4), (2, 6), (2, 2, 3), (1, 12), (12, 1), (3, 1, 4))
LIBRARY = """
def pair(a, b) { return transpose(a) * transpose(b); }
def twice(a) { return a + a; }
def back(a) { return transpose(twice(transpose(a))); }
def flat(a) { var b<12> = a; var c<4, 3> = b; var unused = c * c; return c; }
"""


def drawn(seed, statements=8):
    """A program of one function more than `LIBRARY` has, in which all shapes fit."""
    draw = random.Random(seed)
    lines, known = [], []

    def literal():
        shape = draw.choice(SHAPES)
        return np.array([draw.randrange(4) for _ in range(12)]).reshape(shape).tolist(), shape

    def value(depth):
        kind = draw.randrange(8) if depth and known else 7
        if kind == 7:
            return draw.choice(known) if known and draw.randrange(3) else literal()
        text, shape = value(depth - 1)
        other = draw.choice([name for name, of in known if of == shape] or [text])
        turned = shape[::-1]
        return [
            (f"transpose({text})", turned),
            (f"transpose(transpose({text}))", shape),
            (f"({text} + {other})", shape),
            (f"({other} * {text})", shape),
            (f"pair({text}, {other})", turned),
            (f"back(twice({text}))", shape),
            (f"flat({text})", (4, 3)),
        ][kind]

    for at in range(statements):
        text, shape = value(3)
        if draw.randrange(3) == 0:
            lines.append(f"print({text});")
            continue
        if draw.randrange(2):
            shape = draw.choice(SHAPES)
            lines.append(f"var v{at}<{', '.join(map(str, shape))}> = {text};")
        else:
            lines.append(f"var v{at} = {text};")
        known.append((f"v{at}", shape))
    lines.extend(f"print({name});" for name, _ in known[-2:])
    return LIBRARY + "def main() {\n" + "\n".join(lines) + "\n}\n"


# ---- what a program prints -----------------------------------------------------------------


def run_ast(program):
    functions = {function.name: function for function in program.functions}

    def value(node, names):
        kind = type(node).__name__
        if kind == "Literal":
            return np.array(node.values).reshape(node.shape)
        if kind == "Variable":
            return names[node.name]
        if kind == "Transpose":
            return value(node.value, names).transpose()
        if kind == "Binary":
            lhs, rhs = value(node.lhs, names), value(node.rhs, names)
            return lhs + rhs if node.operator == "+" else lhs * rhs
        return run(node.name, [value(argument, names) for argument in node.arguments])

    def run(name, arguments):
        function = functions[name]
        names = dict(zip(function.parameters, arguments, strict=True))
        for statement in function.body:
            found = value(statement.value, names)
            if type(statement).__name__ == "Print":
                printed.append(found)
                continue
            names[statement.name] = found.reshape(
                found.shape if statement.shape is None else statement.shape
            )
        return None if function.result is None else value(function.result, names)

    printed = []
    run("main", [])
    return printed


def run_ir(module):
    """What is printed; each value has to have the shape that its type says, if it says one."""
    functions = {op.sym_name.data: op for op in module.body.block.ops}

    def made(op, values):
        if op.name == "toy.constant":
            numbers = op.properties["value"]
            return np.array(numbers.get_values()).reshape(numbers.get_shape())
        if op.name == "toy.transpose":
            return values[0].transpose()
        if op.name == "toy.reshape":
            return values[0].reshape(op.results[0].type.get_shape())
        if op.name == "toy.add":
            return values[0] + values[1]
        if op.name == "toy.mul":
            return values[0] * values[1]
        assert op.name == "toy.generic_call", f"expected an op of the dialect, found {op.name}"
        return run(op.properties["callee"].root_reference.data, values)

    def run(name, arguments):
        block = functions[name].body.block
        values = dict(zip(block.args, arguments, strict=True))
        for op in block.ops:
            operands = [values[operand] for operand in op.operands]
            if op.name == "toy.return":
                return operands[0] if operands else None
            if op.name == "toy.print":
                printed.append(operands[0])
                continue
            found = made(op, operands)
            if hasattr(op.results[0].type, "get_shape"):
                said = op.results[0].type.get_shape()
                assert found.shape == said, f"{op.name}: expected {found.shape}, found {said}"
            values[op.results[0]] = found
        raise AssertionError(f"{name}: expected a toy.return at its end, found none")

    printed = []
    run("main", [])
    return printed


# ---- text ----------------------------------------------------------------------------------


def read(text, dialect):
    context = Context()
    for known in (Builtin, Func, dialect):
        context.load_dialect(known)
    return Parser(context, text).parse_module()


def main_of(lines):
    """A module in text: `main` of these lines and a return, with each op's types left to us."""
    body = "\n".join(f"  {line}" for line in lines)
    return f'func.func @main() {{\n{body}\n  "toy.return"() : () -> ()\n}}\n'


def constant(name, shape, numbers=None):
    numbers = numbers or np.arange(np.prod(shape, dtype=int)).reshape(shape).tolist()
    kind = tensor(shape)
    return f'{name} = "toy.constant"() <{{value = dense<{numbers}> : {kind}}}> : () -> {kind}'


def tensor(shape):
    return "tensor<*xf64>" if shape is None else f"tensor<{''.join(f'{n}x' for n in shape)}f64>"


def unary(name, op, operand, before, after):
    return f'{name} = "toy.{op}"({operand}) : ({tensor(before)}) -> {tensor(after)}'


def binary(name, op, lhs, rhs, of_lhs, of_rhs, after):
    kinds = f"({tensor(of_lhs)}, {tensor(of_rhs)}) -> {tensor(after)}"
    return f'{name} = "toy.{op}"({lhs}, {rhs}) : {kinds}'


def shown(operand, shape):
    return f'"toy.print"({operand}) : ({tensor(shape)}) -> ()'


def long_chain(many):
    """`many` reshapes and transposes of a constant, in pairs, and a print."""
    lines = [constant("%0", (2, 3))]
    for at in range(0, many, 4):
        lines += [
            unary(f"%{at + 1}", "reshape", f"%{at}", (2, 3), (3, 2)),
            unary(f"%{at + 2}", "transpose", f"%{at + 1}", (3, 2), (2, 3)),
            unary(f"%{at + 3}", "transpose", f"%{at + 2}", (2, 3), (3, 2)),
            unary(f"%{at + 4}", "reshape", f"%{at + 3}", (3, 2), (2, 3)),
        ]
    return main_of([*lines, shown(f"%{many}", (2, 3))])


def dead_chain(many):
    """`many` sums of the one before with itself, which nobody reads in the end, and a print."""
    same = [(2, 3)] * 3
    sums = [binary(f"%{at + 1}", "add", f"%{at}", f"%{at}", *same) for at in range(many)]
    return main_of([constant("%0", (2, 3)), *sums, shown("%0", (2, 3))])


def names(module, function="main"):
    """The ops of a function, without `toy.` and the return."""
    (found,) = (op for op in module.body.block.ops if op.sym_name.data == function)
    return [op.name.removeprefix("toy.") for op in found.body.block.ops][:-1]
