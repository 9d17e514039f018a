"""Named steps: where they begin, what the stub and half a stub say of them, what is refused."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.authoring.brief import brief_problems, brief_with_steps, steps_line
from harness.authoring.cuda_stub import stray_hashes
from harness.authoring.half import half_stub
from harness.authoring.steps import step_problems
from harness.authoring.stub import stub_of
from harness.base.schema import Problems
from harness.content.kata import StubMarks
from harness.content.subgoals import Why, check_words, without_marks
from harness.content.submission import edited_solutions

REFERENCE = '''"""Kata week01/asked: in a line."""

import math

import triton
from numba import cuda

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, int n) {
    // load
    const int at = blockIdx.x;
    float value = x[at];
    for (int k = 0; k < n; k++) {
        // fold
        value += k;
    }
    // store
    y[at] = value;
}
"""


@cuda.jit
def _kernel(x, y):
    # load
    at = cuda.grid(1)
    for k in range(4):
        # fold
        value = x[at] + k
        # store
        y[at] = value


def asked(x):
    """
    Twice.
    """
    # load
    _check(x)
    rows, cols = x.shape
    while rows:
        # fold
        total = _total(x, rows)
        kept = _spare(total)
        rows -= total
    # store
    return total, cols, kept


def whole(x):
    a = x
    b = a + 1
    c = b + 1
    d = c + 1
    return d


def _check(x):
    if math.isnan(x):
        raise ValueError("x")


def _total(x, rows):
    return x[rows]


def _spare(x):
    return x
'''
MARKS = StubMarks(todo={"SOURCE": "", "whole": "store"}, leave_out=("math",))
STEPS = ("load", "fold", "store")
HINTS = ("load: a", "b", "c")
LISTED = """## To write

| | |
|---|---|
| `asked(x)` | by `_kernel`, of a block |
| `whole(x)` | all |
| kernel `scale(x, y, n)` in `SOURCE` | x, scaled |
"""
BRIEF = f"""# A

Text.

{LISTED}
Steps: load · fold · store

It is given a number.

## How it is judged

By tests.
"""


@pytest.fixture
def kata(tmp_path):
    """Writes a reference and a brief; what the steps have to do with is in place."""
    folder = tmp_path / "katas" / "week01" / "asked"
    folder.mkdir(parents=True)
    solution = tmp_path / "asked.py"

    def made(reference=REFERENCE, *, marks=MARKS, steps=STEPS, brief=None, hints=HINTS):
        found = SimpleNamespace(
            root=tmp_path, name="asked", folder=folder, solution=solution, subgoals=steps,
            functions=("asked", "whole"), stub=marks, hints=hints,
        )  # fmt: skip
        solution.write_text(reference)
        (folder / "README.md").write_text(BRIEF if brief is None else brief)
        return found

    return made


def test_a_todo_names_the_steps_in_their_order():
    stub = stub_of(REFERENCE, ["asked", "whole"], MARKS, STEPS)
    assert stub.count("load, fold, store") == 3  # a function, a kernel in Python, one in CUDA C++
    assert "# TODO(kata): store (about 5 lines)" in stub
    assert "// load" not in stub
    assert "# fold" not in stub


def test_a_kata_whose_names_agree_has_no_problems(kata):
    assert list(step_problems(kata())) == []


def test_a_kata_names_its_steps(kata):
    (found,) = step_problems(kata(steps=()))
    assert found.startswith("subgoals: expected the names of 3 to 6 steps")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    # store\n    return", "    return", None),  # the others are enough
        ("# fold", "# folds", None),
        ("    # load\n    _check(x)", "        # load\n    _check(x)", "indented as it is"),
        ("SOURCE =", "# fold\nSOURCE =", "found it in what is given"),
        ("    while rows:", "    # fold\n    # load\n    while rows:", "in the same block"),
    ],
    ids=["one less", "in CUDA alone", "indentation", "in what is given", "two in a row"],
)
def test_a_comment_that_begins_nothing_is_named(kata, old, new, said):
    assert REFERENCE.count(old) >= 1
    found = list(step_problems(kata(REFERENCE.replace(old, new))))
    assert len(found) == (said is not None)
    assert all(said in one for one in found)


def test_a_step_that_no_comment_names_is_said_with_what_to_do(kata):
    (found,) = step_problems(kata(steps=(*STEPS, "check")))
    assert "'# check'" in found
    assert "[stub.todo]" in found


def test_a_long_function_needs_a_step_and_a_short_one_does_not(kata):
    marks = StubMarks(todo={"SOURCE": ""}, leave_out=("math",))
    assert list(step_problems(kata(marks=marks))) == []
    longer = REFERENCE.replace("    return d\n", "    e = d\n    return e\n")
    (found,) = step_problems(kata(longer, marks=marks))
    assert "expected whole, 6 lines to write, to have steps" in found


def test_words_beside_comments_are_refused(kata):
    marks = StubMarks(todo={"SOURCE": "", "whole": "store", "asked": "do it"}, leave_out=("math",))
    (found,) = step_problems(kata(marks=marks))
    assert "[stub.todo] asked: expected no words" in found


@pytest.mark.parametrize(
    ("hints", "said"),
    [(("a", "b: c", "d"), "begins with the step"), (("load: a", "Folds: c", "d"), "step, 'fold'")],
    ids=["none", "misspelt"],
)
def test_a_hint_begins_with_a_step(kata, hints, said):
    (found,) = step_problems(kata(hints=hints))
    assert said in found


def test_the_brief_names_the_steps_and_is_mended(kata):
    line = "Steps: load · fold · store\n\n"
    misnamed, without = BRIEF.replace("load · fold", "load ·\nfolds"), BRIEF.replace(line, "")
    for brief in (misnamed, without, without.replace("## How", f"{line}## How")):
        found = kata(brief=brief)
        (problem,) = brief_problems(found)
        assert "'Steps: load · fold · store' behind the table" in problem
        assert brief_with_steps(found, brief) == BRIEF
    assert list(brief_problems(kata())) == []
    assert brief_with_steps(found, "# A\n\nText.\n") == f"# A\n\nText.\n\n{line.strip()}\n"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("| `whole(x)` | all |\n", "", "expected 'whole', which the stub leaves blank"),
        ("by `_kernel`", "by a kernel", "expected '_kernel', which the stub leaves blank"),
        ("kernel `scale(x, y, n)` in ", "in ", "expected 'scale', which the stub leaves blank"),
        ("`whole(x)`", "`whole(x)`, `_total(x)`", "of the stub, found '_total'"),
        ("| `whole", "| `with Pool(x):` | no |\n| `whole", "of the stub, found 'Pool'"),
        ("| | |", "| name | |", "below it a table of what is to be written that begins ['| | |'"),
        ("## To write\n", "## To write\n\nThese:\n", "expected '## To write', and below it"),
        ("It is", "It is " + "long " * 25, "expected at most 120 characters, found 1"),
    ],
    ids=["function", "kernel", "in CUDA", "not in the stub", "class", "header", "words", "long"],
)
def test_the_brief_lists_what_the_stub_leaves_blank(kata, old, new, said):
    assert BRIEF.count(old) == 1
    problems = list(brief_problems(kata(brief=BRIEF.replace(old, new))))
    assert any(said in one for one in problems)


def test_a_class_stands_for_its_special_methods_in_the_brief(kata):
    pool = "\n\nclass Pool:\n    def __init__(self):\n        self.n = 1\n\n    def size(self):\n"
    reference = f"{REFERENCE}{pool}        return self.n\n"
    found = kata(
        reference, brief=BRIEF.replace("| `whole", "| `Pool()` | with `.size()` |\n| `whole")
    )
    found.functions += ("Pool",)
    assert list(brief_problems(found)) == []
    (found.folder / "README.md").write_text(BRIEF.replace("| `whole", "| `.size()` | |\n| `whole"))
    assert ["expected 'Pool'" in one for one in brief_problems(found)] == [True]


def test_a_comment_in_cuda_is_no_hash():
    assert stray_hashes(REFERENCE) == []
    directives = 'A = r"""\n#include <mma.h>\n  #  pragma unroll\n__device__ int f();\n"""\n'
    assert stray_hashes(directives) == []
    assert stray_hashes(f'{directives}# no\nB = f"""__global__\n    # load {{1}}\n"""\n') == []
    found = stray_hashes(f'{directives}# no\nB = f"""__global__ {{1}}\n    # load\n"""\n')
    assert found == [8]
    assert stray_hashes('"""\n# heading\n"""\n') == []


def test_no_name_is_broken_over_two_lines(kata):
    steps = ("a" * 33 + " b", "c" * 33 + " d", "e" * 33 + " f", "g" * 20 + " h")
    lines = steps_line(kata(steps=steps)).splitlines()
    assert [line.count("·") for line in lines] == [3, 0]


@pytest.fixture
def half(kata):
    """Half a stub of a reference, and its functions."""

    def made(**changes):
        found = half_stub(kata(**changes))
        parts = {
            getattr(node, "name", None) or "SOURCE": ast.unparse(node)
            for node in ast.parse(found.text).body
            if isinstance(node, ast.FunctionDef | ast.Assign)
        }
        return found, parts

    return made


def test_half_a_stub_gives_the_first_steps_and_leaves_the_last(half):
    found, parts = half()
    assert (found.given, found.left) == (("load",), ("fold", "store"))
    assert "_check(x)" in parts["asked"]
    assert "_total" not in parts["asked"]
    assert "cuda.grid(1)" in parts["_kernel"]
    assert "x[at]" not in parts["_kernel"]
    assert "float value" in parts["SOURCE"]
    assert "y[at]" not in parts["SOURCE"]
    assert "NotImplementedError" in parts["whole"]


def test_half_a_stub_has_the_helpers_and_imports_of_what_is_given_and_no_others(half):
    found, parts = half()
    assert "import math" in found.text
    assert {"_check", "_total", "_spare"} & parts.keys() == {"_check"}


def test_a_cut_is_valid_python_and_says_its_name_and_size(half):
    found, _ = half()
    said = "# TODO(kata): fold (3 lines); what follows uses rows\n"
    assert f"{said}        raise NotImplementedError" in found.text
    assert "# TODO(kata): store (1 line); it returns\n" in found.text
    assert "# TODO(kata): fold (1 line)\n        pass" in found.text
    assert "        // TODO(kata): fold (1 line)\n    }\n    // TODO(kata): store" in found.text


def test_a_cut_says_what_the_lines_after_it_use(half):
    reference = REFERENCE.replace("    # store\n    return", "    return")
    reference = reference.replace("    // store\n    y[at]", "    y[at]")
    reference = reference.replace("        // fold\n        value", "        value").replace(
        "    float value = x[at];", "    // fold\n    float value = x[at], other;"
    )
    reference = reference.replace("    for (int k", "    // load\n    for (int k")
    found, _ = half(reference=reference)
    assert "# TODO(kata): fold (3 lines); what follows uses total, kept, rows" in found.text
    assert "// TODO(kata): fold (1 line); what follows uses value" in found.text


LONGER = "    rows, cols = x.shape" + 8 * "\n    rows += 1"


def test_a_cut_with_steps_in_it_names_them(half):
    reference = REFERENCE.replace("    while rows:\n        # fold", "    # fold\n    while rows:")
    reference = reference.replace("        kept = _spare", "        # store\n        kept = _spare")
    found, _ = half(reference=reference.replace("    rows, cols = x.shape", LONGER))
    assert "    # TODO(kata): fold, store (4 lines)\n    raise" in found.text


def test_a_class_that_is_gone_is_there_where_given_lines_use_it(half):
    rest = """

class _Sum:
    @staticmethod
    def forward(x):
        # load
        y = x
        # fold
        y += 1
        return y

    def backward(x):
        return _spare(x)
"""
    marks = StubMarks(todo={"SOURCE": "", "whole": "store"}, leave_out=("math", "_Sum"))
    reference = REFERENCE.replace("    _check(x)\n", "    x = _Sum.apply(x)\n") + rest
    found, parts = half(reference=reference, marks=marks)
    assert "        y = x\n        # TODO(kata): fold (2 lines); it returns" in found.text
    assert "_spare" in parts
    assert "_check" not in parts
    without, _ = half(reference=REFERENCE + rest, marks=marks)
    assert "class _Sum" not in without.text


def test_an_edit_is_matched_as_if_no_comment_named_a_step(tmp_path):
    solution, edits = tmp_path / "asked.py", tmp_path / "edits.toml"
    solution.write_text(REFERENCE)
    edits.write_text(
        '[a]\nwhy = "b"\nfind = """\n        value = x[at] + k\n        y[at] = value"""\n'
        'replace = ""\n'
    )
    assert "y[at] = value\n" not in edited_solutions(edits, solution, STEPS)["a"].split("def")[1]
    assert "# load" not in without_marks(REFERENCE, STEPS)


ANSWER = "x" * 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, []),
        ({"subgoals": ("a", "b")}, ["subgoals: expected 3 to 6"]),
        ({"subgoals": ("load", "x" * 41, "b")}, ["names of 1 to 40 characters"]),
        ({"subgoals": ("load", "b, c", "d")}, ["without any of"]),
        ({"subgoals": ("load", "b", "b")}, ["'b' twice"]),
        ({"why": None}, ["a table [why]"]),
        ({"why": Why(question="Why.", answer=ANSWER)}, ["ending with '?'"]),
        ({"why": Why(question="Why?", answer="x" * 79)}, ["at least 80 characters"]),
        ({"hints": (f"load: {ANSWER}", "b", "c")}, ["that no hint says"]),
        ({"subgoals": (), "why": None, "hints": ("a", "b", "c")}, []),
    ],
    ids=["right", "few", "long", "comma", "twice", "no why",
         "no question", "short answer", "a hint's words", "not yet"],
)  # fmt: skip
def test_what_is_wrong_with_the_words_is_said(words, said):
    right = {"subgoals": STEPS, "why": Why(question="Why?", answer=ANSWER), "hints": HINTS}
    problems = Problems(Path("kata.toml"))
    check_words(**(right | words), problems=problems)
    assert len([line for line in problems.lines if "subgoals" not in line or said]) >= len(said)
    assert all(any(one in line for line in problems.lines) for one in said)
    assert bool(problems.lines) == bool(said)
