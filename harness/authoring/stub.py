"""
A first stub, cut out of a reference: signatures and docstrings stay, the answer goes.

What `functions` of kata.toml names is left to the learner, and so is the body of a kernel. Other
private functions go: how to divide the work is the learner's. The rest is given, word for word.
"""

import ast
from collections.abc import Iterable, Sequence

from harness.base.errors import UsageProblem
from harness.base.files import read_file
from harness.content.kata import Kata

Function = ast.FunctionDef


def cut_stub(kata: Kata) -> str:
    """The stub of the kata's reference; UsageProblem where that cannot be read as Python."""
    source = read_file(kata.solution).decode("utf-8", errors="replace")
    try:
        return stub_of(source, kata.functions)
    except SyntaxError as error:
        raise UsageProblem(
            f"{kata.solution}: expected the reference in Python, found {error}. Write it first."
        ) from None


def stub_of(source: str, functions: Iterable[str]) -> str:
    """The stub of the reference `source`, whose `functions` are the learner's to write."""
    lines, todo = source.splitlines(), set(functions)
    kept: list[str] = []
    end = 0
    for node in ast.parse(source).body:
        before, end = end, node.end_lineno or end
        if isinstance(node, ast.ClassDef) and node.name in todo:
            kept += _blank_class(lines, node, before)
        elif isinstance(node, Function) and node.name in todo:
            kept += _blank(lines, node, before)
        elif isinstance(node, Function) and _is_kernel(node):
            kept += _blank(lines, node, before, ("# TODO(kata): {size}", "pass"))
        elif not (isinstance(node, Function) and node.name.startswith("_")):
            kept += lines[before:end]
    return "\n".join(kept) + "\n"


def _blank_class(lines: list[str], node: ast.ClassDef, before: int) -> list[str]:
    """Its docstring and fields, and its public methods without their bodies."""
    kept = lines[before : node.lineno]
    before = node.lineno
    for item in node.body:
        end = item.end_lineno or before
        if not isinstance(item, Function):
            kept += lines[before:end]
        elif item.name == "__init__" or not item.name.startswith("_"):
            kept += _blank(lines, item, before)
        before = end
    return kept


def _blank(
    lines: Sequence[str],
    node: Function,
    before: int,
    blank: Sequence[str] = ("raise NotImplementedError  # TODO(kata): {size}",),
) -> list[str]:
    """The lines after `before` up to the function's own code, and `blank` in place of it."""
    code = node.body[ast.get_docstring(node, clean=False) is not None :]
    documented = len(code) < len(node.body)
    above = node.body[0].end_lineno or before if documented else _header(lines, node)
    indent = " " * (node.col_offset + 4)
    written = [line for line in lines[above : node.end_lineno] if _is_code(line)]
    size = _size(len(written))
    return [*lines[before:above], *(indent + line.format(size=size) for line in blank)]


def _header(lines: Sequence[str], node: Function) -> int:
    """The line on which the signature of a function without a docstring ends."""
    last = node.body[0].lineno - 1
    while not _is_code(lines[last - 1]):
        last -= 1
    return last


def _is_code(line: str) -> bool:
    return not line.lstrip().startswith("#") and bool(line.strip())


def _is_kernel(node: Function) -> bool:
    """Whether it is decorated with some `jit`, and not for use on the device alone."""
    decorators = map(ast.unparse, node.decorator_list)
    return any(".jit" in one and "device=True" not in one for one in decorators)


def _size(count: int) -> str:
    about = "about " if count > 3 else ""
    return f"({about}{count} line{'s' if count != 1 else ''})"
