"""Files laid out in one way, in which no layout and no comment tells what was changed."""

import ast
from pathlib import Path

import pytest

from harness.content.catalog import load_curriculum
from harness.practice.plain import plain

ROOT = Path(__file__).parents[1]


def means(source):
    """What a file says: its tree, without a `pass` that stands beside other statements."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and len(body) > 1:
            node.body = [one for one in body if not isinstance(one, ast.Pass)]
    return ast.dump(tree)


def test_comments_go_and_what_is_said_stays():
    source = (
        'X = 0xFF  # a byte\n\n\ndef f(n):\n    """Doc."""\n    # why\n    y = n+1_000\n\n'
        "    return (y)  # [N] fp32\n"
    )
    assert plain(source) == (
        'X = 0xFF\n\n\ndef f(n):\n    """Doc."""\n    y = n + 1_000\n\n    return y\n'
    )


def test_a_statement_that_was_taken_out_leaves_no_pass_behind():
    assert "pass" not in plain("def f(x):\n    pass\n    return x\n")
    assert "pass" in plain("def f(x):\n    pass\n")


def test_a_long_line_is_broken_inside_its_brackets():
    names = ", ".join(f"argument_{at}" for at in range(12))
    source = f"def f():\n    return call({names})[0]\n"
    laid_out = plain(source)
    assert max(map(len, laid_out.splitlines())) <= 100
    assert means(laid_out) == means(source)


@pytest.mark.parametrize(
    "line",
    ["return '((((' + 'a, b' + '" + "x" * 90 + "'", "yield (" + "'" + "y" * 100 + "')"],
)
def test_what_has_no_bracket_to_break_stays_in_one_line(line):
    source = f"def f():\n    {line}\n"
    assert means(plain(source)) == means(source)


def test_of_device_code_the_comments_go_and_the_strings_stay():
    source = (
        'SOURCE = r"""\n// sums\n__global__ void f(float* x) {\n'
        '    asm volatile("// kept");  // why\n    /* and\n       more */\n    x[0] = 1;\n}\n"""\n'
    )
    assert plain(source) == (
        'SOURCE = r"""\n__global__ void f(float* x) {\n'
        '    asm volatile("// kept");\n    x[0] = 1;\n}\n"""\n'
    )


def test_references_mean_the_same_and_are_laid_out_once_for_all():
    of_backend = {}
    for kata in load_curriculum(ROOT).katas.values():
        of_backend.setdefault(kata.backend, kata.solution.read_text())
    assert len(of_backend) > 8
    for backend, source in of_backend.items():
        laid_out = plain(source)
        assert plain(laid_out) == laid_out, backend
        if "__global__" not in source:
            assert means(laid_out) == means(source), backend
