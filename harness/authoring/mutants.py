"""
Mechanical mutants of a reference: one small change each, in what the learner is to write.

A comparison or an operator is another one, a constant or a bound is off by one, an argument, a
mask, a call, a branch or a store is gone, or two arguments have changed places. What the stub
gives away, signatures, annotations, docstrings, and the words of errors stay as they are, and so
do arguments that only a clock or a device would show.
"""

import ast
import copy
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from harness.authoring.cuda_mutants import edits_of

Change = tuple[ast.AST, ast.AST]  # what stands there, and what stands in its place
Key = tuple[str, str, str, int]
T = TypeVar("T")

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_PAIRS = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("amin", "amax"),
    ("fmin", "fmax"),
    ("argmin", "argmax"),
    ("any", "all"),
    ("floor", "ceil"),
)
NAMES = {
    **{one: other for pair in _PAIRS for one, other in (pair, pair[::-1])},
    "zeros": "empty",
    "zeros_like": "empty_like",
    "new_zeros": "new_empty",
}
# the same whichever argument comes first
COMMUTATIVE = frozenset({*NAMES, "gcd", "hypot", "lcm", "logaddexp", "swapaxes", "transpose"})
# what an argument is where it is not given: PyTorch's factories, a load of Triton as compiled
DEFAULTS = {
    ("empty", "dtype"): "torch.float32",
    ("ones", "dtype"): "torch.float32",
    ("zeros", "dtype"): "torch.float32",
    ("load", "other"): "0",
}
# methods that hand on what they are called on, in another form
FORMS = frozenset({"clone", "contiguous", "copy", "detach", "double", "float", "half", "to"})
ATOMS = (ast.Attribute, ast.Call, ast.Constant, ast.Name, ast.Subscript)
# of NumPy's, as kernels call them
NUMBER_TYPES = frozenset({"float32", "float64", "int32", "int64", "uint32", "uint64"})
# what only a clock shows, or a device; `strict` of a zip, an assertion of the reference's own
HINTS = frozenset(
    {
        "cache_modifier",
        "device",
        "eviction_policy",
        "maxnreg",
        "num_ctas",
        "num_stages",
        "num_warps",
        "strict",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """
    A reference with one change.

    Attributes:
        function: The function, method or value that was changed; "A.go" for a method.
        before: The line that was changed, or the lines, as one without indentation.
        after: What stands there now.
        nth: Which of those that are alike in all of the above, from 1.
        number: The line's number in the reference.
        source: The whole changed file.
    """

    function: str
    before: str
    after: str
    nth: int
    number: int
    source: str

    @property
    def key(self) -> Key:
        """What tells it from the others, wherever its line moves."""
        return self.function, self.before, self.after, self.nth


def mutants_of(reference: str, stub: str) -> list[Mutant]:
    """Every mutant of `reference` that differs from it and compiles, in the order of the lines."""
    text = _Text(reference)
    begun = _parts(stub)
    given = {name for name, part in begun.items() if not _is_todo(stub, part)}
    seen: Counter[tuple[str, str, str]] = Counter()
    sources = {reference}
    made = []
    for name, part in _parts(reference).items():
        if name in given:
            continue
        for old, new in _changes(
            _written_by_the_learner(part, begun.get(name)), in_kernel=_is_kernel(part)
        ):
            before, after, source = text.changed(old, new)
            if source in sources or not _compiles(source):
                continue
            sources.add(source)
            seen[name, before, after] += 1
            made.append(
                Mutant(
                    function=name,
                    before=before,
                    after=after,
                    nth=seen[name, before, after],
                    number=_at(old, "lineno"),
                    source=source,
                )
            )
    made += _of_kernels(reference, stub)
    return sorted(made, key=lambda one: one.number)


def _of_kernels(reference: str, stub: str) -> Iterator[Mutant]:
    """Mutants of kernels whose source is a text of the module."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for edit in edits_of(reference, stub):
        source = reference[: edit.start] + edit.text + reference[edit.end :]
        first = reference.rfind("\n", 0, edit.start) + 1
        before = reference[first:].partition("\n")[0].strip()
        after = source[first:].partition("\n")[0].strip()
        if source == reference or not _compiles(source):
            continue
        seen[edit.kernel, before, after] += 1
        yield Mutant(
            function=edit.kernel,
            before=before,
            after=after,
            nth=seen[edit.kernel, before, after],
            number=reference.count("\n", 0, edit.start) + 1,
            source=source,
        )


def _parts(source: str) -> dict[str, ast.stmt]:
    """Top-level functions, methods and named values of a module, by name."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(source).body:
        inside = (
            [(f"{node.name}.", item) for item in node.body]
            if isinstance(node, ast.ClassDef)
            else []
        )
        for prefix, item in inside or [("", node)]:
            if isinstance(item, ast.FunctionDef):
                found[prefix + item.name] = item
            elif isinstance(item, ast.Assign | ast.AnnAssign):
                target = item.targets[0] if isinstance(item, ast.Assign) else item.target
                found[prefix + ast.unparse(target)] = item
    return found


def _is_todo(stub: str, part: ast.stmt) -> bool:
    """Whether a part of a stub is left to the learner."""
    text = ast.get_source_segment(stub, part) or ""
    return "NotImplementedError" in text or "TODO(kata)" in text


class _Text:
    """A file whose pieces can be replaced; columns are counted in bytes, as `ast` does."""

    def __init__(self, source: str) -> None:
        self.raw = source.encode()
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def changed(self, old: ast.AST, new: ast.AST) -> tuple[str, str, str]:
        """The lines that hold `old`, those lines with `new` instead, and the whole file."""
        first, last = _at(old, "lineno") - 1, _at(old, "end_lineno")
        above, below = self.raw[: self.starts[first]], self.raw[self.starts[last] :]
        start = self.starts[first] + _at(old, "col_offset")
        end = self.starts[last - 1] + _at(old, "end_col_offset")
        # what an expression stands in may bind more tightly than what it is made of now
        put = ast.unparse(new)
        if isinstance(new, ast.expr) and not (isinstance(new, ATOMS) and put[0] != "-"):
            put = f"({put})"
        lines = self.raw[self.starts[first] : self.starts[last]]
        others = (
            self.raw[self.starts[first] : start]
            + put.encode()
            + self.raw[end : len(above) + len(lines)]
        )
        return _in_one_line(lines), _in_one_line(others), (above + others + below).decode()


def _in_one_line(lines: bytes) -> str:
    return " ".join(lines.decode().split())


def _at(node: ast.AST, name: str) -> int:
    return int(getattr(node, name))


def _compiles(source: str) -> bool:
    with warnings.catch_warnings(action="ignore"):  # of what cannot be right when it is run
        try:
            compile(source, "mutant", "exec")
        except SyntaxError:
            return False
    return True


def _written_by_the_learner(part: ast.stmt, stub: ast.stmt | None) -> list[ast.AST]:
    """The statements of a part that the stub lacks."""
    if not isinstance(part, ast.FunctionDef):
        return [part]
    body = part.body[1:] if ast.get_docstring(part) is not None else part.body
    there = {ast.dump(one) for one in stub.body} if isinstance(stub, ast.FunctionDef) else set()
    return [one for one in body if ast.dump(one) not in there]


def _changes(nodes: Iterable[ast.AST], *, in_kernel: bool = False) -> Iterator[Change]:
    """Every change in `nodes` and in what they contain."""
    for node in nodes:
        if isinstance(node, ast.stmt):
            yield from _of_statement(node)
        if isinstance(node, ast.expr):
            for new in _of_expression(node):
                if not (in_kernel and _same_number(node, new)):
                    yield node, new
        if isinstance(node, ast.Call | ast.Slice):
            yield from _of_bounds(node)
        yield from _changes(_inside(node), in_kernel=in_kernel)


def _inside(node: ast.AST) -> list[ast.AST]:
    """The children of a node that a learner decides on and a test can see."""
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return []
        case ast.FunctionDef():
            return list(node.body)
        case ast.Lambda():
            return [node.body]
        case ast.Assert():
            return [node.test]
        case ast.AnnAssign():
            return [node.value] if node.value is not None else []
        case ast.Call():
            words = [word for word in node.keywords if word.arg not in HINTS]
            return [node.func, *node.args, *words]
        case _:
            return list(ast.iter_child_nodes(node))


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    """A branch that is always or never taken; a statement that is gone."""
    match node:
        case ast.If(test=test, body=[first, *_]):
            yield test, ast.Constant(False)
            if not isinstance(first, ast.Raise):
                yield test, ast.Constant(True)
        case ast.While(test=test):
            yield test, ast.Constant(False)
        case ast.AugAssign():
            yield node, ast.Pass()
            if type(node.op) in OPERATORS:
                yield node, _with(node, op=OPERATORS[type(node.op)]())
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield node, ast.Pass()
        case ast.Expr(value=ast.Call()) | ast.Break() | ast.Continue():
            yield node, ast.Pass()


def _of_expression(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare():
            for at, op in enumerate(node.ops):
                for other in COMPARISONS[type(op)]:
                    yield _with(node, ops=_put(node.ops, at, other()))
        case ast.BinOp(left=left, op=op, right=right):
            if not (_is_text(left) or _is_text(right)) and type(op) in OPERATORS:
                yield _with(node, op=OPERATORS[type(op)]())
                if isinstance(op, ast.BitAnd):  # a mask of two
                    yield from (left, right)
        case ast.BoolOp(op=op, values=values):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for at in range(len(values)):
                rest = values[:at] + values[at + 1 :]
                yield rest[0] if len(rest) == 1 else _with(node, values=rest)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.IfExp():
            yield from (node.body, node.orelse)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Call():
            yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[ast.expr]:
    """Another function, an argument gone, two in each other's place, or no call at all."""
    func, args = node.func, node.args
    called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    if called in NAMES:
        name = "attr" if isinstance(func, ast.Attribute) else "id"
        yield _with(node, func=_with(func, **{name: NAMES[called]}))
    if isinstance(func, ast.Attribute) and called in FORMS:
        yield func.value
    for at, word in enumerate(node.keywords):
        if word.arg is not None and word.arg not in HINTS and not _is_default(called, word):
            yield _with(node, keywords=node.keywords[:at] + node.keywords[at + 1 :])
    # the least of two is the least of them in whatever order
    for at in range(len(args) - 1 if called not in COMMUTATIVE else 0):
        pair = args[at : at + 2]
        if not any(isinstance(one, ast.Starred) for one in pair):
            yield _with(node, args=_put(_put(args, at, pair[1]), at + 1, pair[0]))
    alone = len(args) == 1 and not node.keywords and called not in FORMS
    if alone and not (isinstance(args[0], ast.Starred) or _is_text(args[0])):
        yield args[0]


def _is_default(called: str, word: ast.keyword) -> bool:
    """Whether an argument is what the function takes without it."""
    known = DEFAULTS.get((called, word.arg or ""))
    given = ast.unparse(word.value)
    return known is not None and given in (known, f"{known}.0")


def _of_bounds(node: ast.Call | ast.Slice) -> Iterator[Change]:
    """The ends of a range and of a slice, one more and one less; constants change by themselves."""
    match node:
        case ast.Call(func=ast.Name(id="range")):
            bounds: list[ast.expr | None] = [*node.args[:2]]
        case ast.Slice():
            bounds = [node.lower, node.upper]
        case _:
            return
    for bound in bounds:
        if bound is not None and not isinstance(bound, ast.Constant | ast.Starred):
            for op in (ast.Add(), ast.Sub()):
                yield bound, ast.BinOp(bound, op, ast.Constant(1))


def _is_kernel(part: ast.stmt) -> bool:
    """Whether a function is compiled: some `jit` decorates it."""
    return isinstance(part, ast.FunctionDef) and any(
        ".jit" in ast.unparse(one) for one in part.decorator_list
    )


def _same_number(old: ast.expr, new: ast.expr) -> bool:
    """
    Whether a number is left without its type, as `0` for `np.float32(0)`.

    No test can tell in a kernel: the simulator computes the same, and types are the compiler's.
    """
    if not (isinstance(old, ast.Call) and isinstance(new, ast.Constant) and old.args == [new]):
        return False
    return ast.unparse(old.func).removeprefix("np.") in NUMBER_TYPES


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _put(values: list[T], at: int, value: T) -> list[T]:
    return values[:at] + [value] + values[at + 1 :]


def _with(node: T, **fields: object) -> T:
    """A copy of `node` with other fields; what it holds is shared."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other
