"""Tests that take a stub's NotImplementedError for the error that they ask for."""

import ast
from collections.abc import Iterator
from pathlib import Path

# what a NotImplementedError is, besides itself
BROAD = ("NotImplementedError", "RuntimeError", "Exception", "BaseException")


def broad_raises(tests: Path) -> dict[str, str]:
    """Of each function in a file of tests that asks for such an error in any words: what to do."""
    tree = ast.parse(tests.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {
        function.name: (
            f"pytest.raises({wanted}) in line {line} takes the stub's NotImplementedError for it. "
            "Ask for a narrower class, or for words: match="
        )
        for function in functions
        for line, wanted in reversed(list(_asked(function)))
    }


def _asked(function: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """Line and class of each ``pytest.raises`` that is content with a stub."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "pytest.raises":
            continue
        if not node.args or any(one.arg == "match" for one in node.keywords):
            continue
        classes = node.args[0].elts if isinstance(node.args[0], ast.Tuple) else node.args[:1]
        if any(ast.unparse(one) in BROAD for one in classes):
            yield node.lineno, ast.unparse(node.args[0])
