"""Kata week43/toy_dialect: a dialect for Toy, IR from its AST, rewrites, and shapes."""

import re
from dataclasses import dataclass
from itertools import chain
from math import prod

from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    Float64Type,
    ModuleOp,
    SymbolRefAttr,
    TensorType,
    UnrankedTensorType,
    f64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Dialect, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator, Pure
from xdsl.transforms.dead_code_elimination import dce
from xdsl.utils.exceptions import VerifyException

# ---- the AST -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Literal:
    """Numbers, nested in the source as `shape` says; a number by itself has the shape ()."""

    shape: tuple[int, ...]
    values: tuple[float, ...]
    line: int


@dataclass(frozen=True)
class Variable:
    """A name, read."""

    name: str
    line: int


@dataclass(frozen=True)
class Transpose:
    """`transpose(value)`."""

    value: "Expression"
    line: int


@dataclass(frozen=True)
class Binary:
    """A sum or a product, of one shape."""

    operator: str  # + or *
    lhs: "Expression"
    rhs: "Expression"
    line: int


@dataclass(frozen=True)
class Call:
    """A call of a function of the program, as a value."""

    name: str
    arguments: tuple["Expression", ...]
    line: int


Expression = Literal | Variable | Transpose | Binary | Call


@dataclass(frozen=True)
class Declare:
    """`var name = value;`, or with a shape `var name<2, 3> = value;`."""

    name: str
    shape: tuple[int, ...] | None
    value: Expression
    line: int


@dataclass(frozen=True)
class Print:
    """`print(value);`."""

    value: Expression
    line: int


@dataclass(frozen=True)
class Function:
    """`def name(parameters) { body return result; }`."""

    name: str
    parameters: tuple[str, ...]
    body: tuple[Declare | Print, ...]
    result: Expression | None  # None of main, and of no other
    line: int


@dataclass(frozen=True)
class Program:
    """Functions in the order of the text; one is `main`."""

    functions: tuple[Function, ...]


class _Parser:
    """A program from text, by recursive descent."""

    def __init__(self, text: str) -> None:
        tokens = re.finditer(r"#.*|(?P<token>\d+(?:\.\d+)?|\w+|[^\s\w])", text)
        self.tokens = [
            (found["token"], text.count("\n", 0, found.start()) + 1)
            for found in tokens
            if found["token"]
        ]
        self.tokens.append(("the end", text.count("\n") + 1))
        self.at = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at][0]

    @property
    def line(self) -> int:
        return self.tokens[self.at][1]

    def take(self, expected: str = "") -> str:
        token = self.next
        if expected and token != expected:
            raise ValueError(f"line {self.line}: expected {expected}, found {token}")
        self.at += 1
        return token

    def name(self) -> str:
        if not re.match(r"[A-Za-z_]", self.next) or self.next in ("var", "def", "the end"):
            raise ValueError(f"line {self.line}: expected a name, found {self.next}")
        return self.take()

    def items(self, first: str, item, last: str) -> tuple:
        self.take(first)
        found = []
        while self.next != last:
            if found:
                self.take(",")
            found.append(item())
        self.take(last)
        return tuple(found)

    def program(self) -> Program:
        functions = []
        while self.next != "the end":
            functions.append(self.function())
        if not any(function.name == "main" for function in functions):
            raise ValueError(f"line {self.line}: expected a main, found none")
        return Program(tuple(functions))

    def function(self) -> Function:
        line = self.line
        self.take("def")
        name, parameters, body, result = self.name(), self.items("(", self.name, ")"), [], None
        self.take("{")
        while self.next not in ("}", "return"):
            body.append(self.statement())
        if name != "main":
            self.take("return")
            result = self.expression()
            self.take(";")
        self.take("}")
        return Function(name, parameters, tuple(body), result, line)

    def statement(self) -> Declare | Print:
        line = self.line
        if self.next == "print":
            self.take()
            self.take("(")
            value = self.expression()
            self.take(")")
            self.take(";")
            return Print(value, line)
        self.take("var")
        name, shape = self.name(), None
        if self.next == "<":
            shape = self.items("<", lambda: int(self.take()), ">")
        self.take("=")
        value = self.expression()
        self.take(";")
        return Declare(name, shape, value, line)

    def expression(self) -> Expression:
        value = self.product()
        while self.next == "+":
            line = self.line
            self.take()
            value = Binary("+", value, self.product(), line)
        return value

    def product(self) -> Expression:
        value = self.primary()
        while self.next == "*":
            line = self.line
            self.take()
            value = Binary("*", value, self.primary(), line)
        return value

    def primary(self) -> Expression:
        line = self.line
        if self.next == "(":
            self.take()
            value = self.expression()
            self.take(")")
            return value
        if self.next == "[":
            return self.literal()
        if self.next[0].isdigit():
            return Literal((), (float(self.take()),), line)
        name = self.name()
        if self.next != "(":
            return Variable(name, line)
        arguments = self.items("(", self.expression, ")")
        if name == "transpose" and len(arguments) == 1:
            return Transpose(arguments[0], line)
        if name in ("transpose", "print", "main"):
            raise ValueError(f"line {line}: expected another call, found {name}")
        return Call(name, arguments, line)

    def literal(self) -> Literal:
        line = self.line
        if self.next != "[":
            return Literal((), (float(self.take()),), line)
        rows = self.items("[", self.literal, "]")
        if len({row.shape for row in rows}) != 1:
            raise ValueError(f"line {line}: expected rows of one shape")
        values = tuple(chain.from_iterable(row.values for row in rows))
        return Literal((len(rows), *rows[0].shape), values, line)


def parsed(text: str) -> Program:
    """
    The AST of a program.

    Raises:
        ValueError: a mistake of syntax, or no `main`; the message begins with the line.
    """
    return _Parser(text).program()


# ---- the dialect ---------------------------------------------------------------------------

UNKNOWN = UnrankedTensorType(f64)  # tensor<*xf64>
Known = TensorType[Float64Type]
TENSOR = base(Known) | base(UnrankedTensorType[Float64Type])


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """Numbers."""

    name = "toy.constant"
    value = prop_def(DenseIntOrFPElementsAttr)
    result = result_def(Known)
    traits = traits_def(Pure())

    def __init__(self, value: DenseIntOrFPElementsAttr) -> None:
        super().__init__(properties={"value": value}, result_types=[value.type])

    def verify_(self) -> None:
        """Called by `verify`, when operands, attributes and results are as declared."""
        if self.value.type != self.result.type:
            raise VerifyException(f"expected a result {self.value.type}, found {self.result.type}")


@irdl_op_definition
class GenericCallOp(IRDLOperation):
    """A call of the function named by `callee`, whatever the shapes."""

    name = "toy.generic_call"
    callee = prop_def(SymbolRefAttr)
    arguments = var_operand_def(TENSOR)
    result = result_def(TENSOR)

    def __init__(self, callee: str, arguments: list[SSAValue]) -> None:
        super().__init__(
            properties={"callee": SymbolRefAttr(callee)},
            operands=[arguments],
            result_types=[UNKNOWN],
        )


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """Ends a function, with its value unless it is main."""

    name = "toy.return"
    value = opt_operand_def(TENSOR)
    traits = traits_def(IsTerminator())

    def __init__(self, value: SSAValue | None = None) -> None:
        super().__init__(operands=[value])


@irdl_op_definition
class TransposeOp(IRDLOperation):
    """All axes in the other order."""

    name = "toy.transpose"
    operand = operand_def(TENSOR)
    result = result_def(TENSOR)
    traits = traits_def(Pure())

    def __init__(self, operand: SSAValue) -> None:
        super().__init__(operands=[operand], result_types=[UNKNOWN])

    def verify_(self) -> None:
        """As far as shapes are known, one is the other's reverse."""
        # verify the shapes
        if UNKNOWN in (self.operand.type, self.result.type):
            return
        if self.result.type != _transposed(self.operand.type):
            raise VerifyException(
                f"expected a result {_transposed(self.operand.type)}, found {self.result.type}"
            )


@irdl_op_definition
class ReshapeOp(IRDLOperation):
    """The same numbers in the same order, in another shape."""

    name = "toy.reshape"
    operand = operand_def(TENSOR)
    result = result_def(Known)
    traits = traits_def(Pure())

    def __init__(self, operand: SSAValue, to: Known) -> None:
        super().__init__(operands=[operand], result_types=[to])

    def verify_(self) -> None:
        """As many elements as before, if that is known."""
        # verify the shapes
        if self.operand.type == UNKNOWN:
            return
        found, wanted = prod(self.operand.type.get_shape()), prod(self.result.type.get_shape())
        if found != wanted:
            raise VerifyException(f"expected {wanted} elements, found {found}")


class _Elementwise(IRDLOperation):
    lhs = operand_def(TENSOR)
    rhs = operand_def(TENSOR)
    result = result_def(TENSOR)
    traits = traits_def(Pure())

    def __init__(self, lhs: SSAValue, rhs: SSAValue) -> None:
        super().__init__(operands=[lhs, rhs], result_types=[UNKNOWN])

    def verify_(self) -> None:
        # verify the shapes
        known = {self.lhs.type, self.rhs.type, self.result.type} - {UNKNOWN}
        if len(known) > 1:
            raise VerifyException(f"expected one shape, found {', '.join(map(str, known))}")


@irdl_op_definition
class AddOp(_Elementwise):
    """Elementwise, of one shape."""

    name = "toy.add"


@irdl_op_definition
class MulOp(_Elementwise):
    """Elementwise, of one shape."""

    name = "toy.mul"


@irdl_op_definition
class PrintOp(IRDLOperation):
    """Has an effect that is none of its results."""

    name = "toy.print"
    operand = operand_def(TENSOR)

    def __init__(self, operand: SSAValue) -> None:
        super().__init__(operands=[operand])


def toy_dialect() -> Dialect:
    """The dialect `toy`, with all its ops."""
    # declare the ops
    arithmetic = [ConstantOp, TransposeOp, ReshapeOp, AddOp, MulOp]
    return Dialect("toy", [*arithmetic, PrintOp, GenericCallOp, ReturnOp])


def inline(module: ModuleOp) -> None:
    """
    Put the bodies of functions where they are called, and leave `main` alone in the module.

    Raises:
        ValueError: a function calls itself, be it by way of others.
    """
    functions = {function.sym_name.data: function for function in module.body.block.ops}
    _expand(functions["main"], functions, ())
    for name, function in functions.items():
        if name != "main":
            Rewriter.erase_op(function)


def _expand(function: FuncOp, functions: dict[str, FuncOp], within: tuple[str, ...]) -> None:
    for call in [op for op in function.body.block.ops if isinstance(op, GenericCallOp)]:
        name = call.callee.root_reference.data
        if name in within:
            raise ValueError(f"{name}: expected no function that calls itself")
        body = functions[name].clone()
        _expand(body, functions, (*within, name))
        returned = body.body.block.last_op
        Rewriter.inline_block(body.body.block, InsertPoint.before(call), call.arguments)
        call.result.replace_all_uses_with(returned.value)
        Rewriter.erase_op(call)
        Rewriter.erase_op(returned)


# ---- from the AST --------------------------------------------------------------------------


def mlir_gen(ast: Program) -> ModuleOp:
    """
    A module with a function for each of the program's, in their order, that is not verified.

    Raises:
        ValueError: a name that is undefined or defined twice, or a call with another number of
            arguments than the function has parameters; with the name and the line.
    """
    # names and scopes
    arity = {}
    for function in ast.functions:
        if function.name in arity:
            raise ValueError(f"{function.name}: defined twice, on line {function.line}")
        arity[function.name] = len(function.parameters)
    # translate
    return ModuleOp([_function(function, arity) for function in ast.functions])


def _function(function: Function, arity: dict[str, int]) -> FuncOp:
    # translate
    results = [] if function.result is None else [UNKNOWN]
    visibility = None if function.name == "main" else "private"
    op = FuncOp(
        function.name, ([UNKNOWN] * len(function.parameters), results), visibility=visibility
    )
    block, names = op.body.block, {}
    for name, value in zip(function.parameters, block.args, strict=True):
        _declare(names, name, value, function.line)
    for statement in function.body:
        value = _value(statement.value, block, names, arity)
        if isinstance(statement, Print):
            block.add_op(PrintOp(value))
            continue
        if statement.shape is not None:
            reshape = ReshapeOp(value, TensorType(f64, statement.shape))
            block.add_op(reshape)
            value = reshape.result
        _declare(names, statement.name, value, statement.line)
    if function.result is None:
        block.add_op(ReturnOp())
    else:
        block.add_op(ReturnOp(_value(function.result, block, names, arity)))
    return op


def _declare(names: dict[str, SSAValue], name: str, value: SSAValue, line: int) -> None:
    if name in names:
        raise ValueError(f"{name}: defined twice, on line {line}")
    names[name] = value


def _value(
    node: Expression, block: Block, names: dict[str, SSAValue], arity: dict[str, int]
) -> SSAValue:
    # translate
    match node:
        case Variable(name, line):
            if name not in names:
                raise ValueError(f"{name}: expected a variable, found none on line {line}")
            return names[name]
        case Literal(shape, values, _):
            numbers = DenseIntOrFPElementsAttr.from_list(TensorType(f64, shape), values)
            op = ConstantOp(numbers)
        case Transpose(value, _):
            op = TransposeOp(_value(value, block, names, arity))
        case Binary(operator, lhs, rhs, _):
            made = AddOp if operator == "+" else MulOp
            op = made(_value(lhs, block, names, arity), _value(rhs, block, names, arity))
        case Call(name, arguments, line):
            if arity.get(name) != len(arguments):
                raise ValueError(
                    f"{name}: expected a function of {len(arguments)} parameters, "
                    f"found {arity.get(name, 'none')} on line {line}"
                )
            values = [_value(argument, block, names, arity) for argument in arguments]
            op = GenericCallOp(name, values)
    block.add_op(op)
    return op.result


# ---- rewrites ------------------------------------------------------------------------------


def canonicalize(module: ModuleOp) -> None:
    """Fold pairs of transposes and chains of reshapes, and erase what nobody needs."""
    patterns = [_TransposeOfTranspose(), _SimplerReshape()]
    applied = GreedyRewritePatternApplier(patterns, dce_enabled=False)
    PatternRewriteWalker(applied).rewrite_module(module)
    dce(module)  # from the last op on: who reads a value is gone before the op that makes it


class _TransposeOfTranspose(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: TransposeOp, rewriter: PatternRewriter) -> None:
        inner = op.operand.owner
        if isinstance(inner, TransposeOp):
            # the inner one may have other users; without any it is dead, and goes by itself
            rewriter.replace(op, (), (inner.operand,))


class _SimplerReshape(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReshapeOp, rewriter: PatternRewriter) -> None:
        # rewrite and erase
        inner, to = op.operand.owner, op.result.type
        if op.operand.type == to:
            rewriter.replace(op, (), (op.operand,))
        elif isinstance(inner, ReshapeOp):
            rewriter.replace(op, ReshapeOp(inner.operand, to))
        elif isinstance(inner, ConstantOp):
            rewriter.replace(op, ConstantOp(DenseIntOrFPElementsAttr(to, inner.value.data)))


def infer_shapes(module: ModuleOp) -> None:
    """
    Give each result of the dialect's ops the shape that its operands imply.

    Raises:
        ValueError: a shape stays unknown, or shapes do not fit; the message begins with the
            name of the first op of which that is so.
    """
    for op in module.walk():
        if op.dialect_name() != "toy":
            continue
        if UNKNOWN in op.result_types:
            if isinstance(op, GenericCallOp) or UNKNOWN in op.operand_types:
                raise ValueError(f"{op.name}: expected operands of known shapes, found {op}")
            found = op.operands[0].type
            if isinstance(op, TransposeOp):
                found = _transposed(found)
            Rewriter.replace_value_with_new_type(op.result, found)
        try:
            op.verify()
        except VerifyException as error:
            raise ValueError(f"{op.name}: {error}") from None


def _transposed(shape: Known) -> Known:
    return TensorType(f64, shape.get_shape()[::-1])
