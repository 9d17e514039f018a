"""New katas out of catalogue entries, and in the likeness of others."""

import tomllib

import pytest

from harness.authoring.contract import contract_problems
from harness.authoring.entry import read_entry
from harness.authoring.scaffold import scaffold
from harness.base.errors import UsageProblem
from harness.content.kata import load_kata

CATALOGUE = """# Week 2

Bullets: 02.1 what there is

### week02/tripled — Three times, and why
- covers: 02.1, 02.M (the milestone), other things
- backend: torch (eager) · difficulty 4 · minutes 75 · requires: doubled, halved (week03) · more
- teaches: a sum of three reads one tensor.
- signature: `tripled(x[n], out=None) -> [n]`; `total(x) -> float`; `class Meter(size)`:
  `observe(x)`, `rate() -> float`.
- given: `doubled`.
- oracle: 3x in float64.
- tests (CPU): n = 0, 1; strided (and `a; b`); a "quoted" word (**trap**: reads (twice) too often);
  half stays half. **Traps:** adds twice; sums in half.
- speed: cost · one pass.
- hints: (1) add; (2) add again; (3) x + x + x.
- bad input: n < 0 → ValueError.
- sources: Arithmetic; a paper.
coverage week02: 02.1→tripled; 02.M→tripled.

### week02/none
- backend: python

## Coverage
02.1 → tripled
"""


@pytest.fixture
def catalogue(tmp_path):
    path = tmp_path / "week02.md"
    path.write_text(CATALOGUE, encoding="utf-8")
    return path


def test_an_entry_is_read(catalogue):
    entry = read_entry(catalogue, "week02/tripled")
    assert entry.title == "Three times, and why"
    assert entry.covers == ("02.1", "02.M")
    assert (entry.backend, entry.difficulty, entry.minutes) == ("torch", 4, 75)
    assert entry.requires == ("doubled", "halved")
    assert entry.functions == ("tripled", "total", "Meter")
    assert entry.tests == (
        "n = 0, 1", "strided (and `a; b`)", 'a "quoted" word', "half stays half",
    )  # fmt: skip
    assert entry.traps == ("reads (twice) too often", "adds twice", "sums in half")
    assert entry.hints == ("add", "add again", "x + x + x.")
    assert entry.sources == ("Arithmetic", "a paper")
    assert entry.bad_input == "n < 0 → ValueError."


@pytest.mark.parametrize(
    ("text", "hints"),
    [
        ("(1) a; b (2) c (3) d", ("a; b", "c", "d")),
        ('"a, b." / "c" / "d"', ("a, b.", "c", "d")),
        ("a · b; c · d", ("a", "b; c", "d")),
        ("a; b; c; d", ("a", "b", "c; d")),
        ("a. b. c", ("a", "b", "c")),
        ("a", ("a",)),
        ("", ()),
    ],
)
def test_hints_are_told_apart_however_they_are_written(catalogue, text, hints):
    catalogue.write_text(CATALOGUE.replace("(1) add; (2) add again; (3) x + x + x.", text))
    assert read_entry(catalogue, "week02/tripled").hints == hints


def test_what_an_entry_does_not_say_has_a_default(catalogue):
    entry = read_entry(catalogue, "week02/none")
    assert entry.title == "None"
    assert entry.functions == ("none",)
    assert entry.tests == entry.traps == entry.requires == entry.hints == ()


def test_an_entry_that_is_not_there_is_told(catalogue, tmp_path):
    with pytest.raises(UsageProblem, match="'### week02/triple', found none. Did you mean week02/"):
        read_entry(catalogue, "week02/triple")
    with pytest.raises(UsageProblem, match="expected a catalogue in Markdown, found .*no_such"):
        read_entry(tmp_path / "no_such.md", "week02/triple")
    catalogue.write_text(CATALOGUE.replace("- backend: python", ""))
    with pytest.raises(UsageProblem, match="week02/none: expected a line '- backend: "):
        read_entry(catalogue, "week02/none")


def test_a_kata_is_filled_in_from_its_entry(mini, catalogue):
    scaffold(mini, "week02/tripled", entry=read_entry(catalogue, "week02/tripled"))
    kata = load_kata(mini / "katas/week02/tripled")
    assert kata.title == "Three times, and why"
    assert kata.teaches == "A sum of three reads one tensor."
    assert (kata.backend, kata.difficulty, kata.requires) == ("torch", 4, ("doubled", "halved"))
    assert kata.hints == ("Add.", "Add again.", "hand back: x + x + x.")
    assert kata.subgoals == ("check", "compute", "hand back")
    tests = (kata.folder / "test_tripled.py").read_text()
    assert "def test_n_0_1(kata):\n    # TODO(author): n = 0, 1\n    raise Assert" in tests
    assert tests.count("\ndef test_half_stays_half(") == 1
    compile(tests, "tests", "exec")
    edits = tomllib.loads((kata.wrong / "edits.toml").read_text())
    assert edits["adds_twice"]["why"] == "adds twice"
    brief = (kata.folder / "README.md").read_text()
    assert "`tripled(x[n], out=None) -> [n]`" in brief
    assert "n < 0 → ValueError." in brief


def test_a_kata_is_made_like_another(mini, tmp_path):
    like = load_kata(mini / "katas/week01/doubled")
    tests = like.folder / "test_doubled.py"
    tests.write_text(tests.read_text().replace("import torch\n", "import torch\n\nSIZE = 3\n", 1))
    toml = like.folder / "kata.toml"
    # a setting among the keys that say what a kata is
    text = toml.read_text().replace("difficulty =", "timeout_s = 77\ndifficulty =", 1)
    toml.write_text(text)
    scaffold(mini, "week02/tripled", like=like)
    kata = load_kata(mini / "katas/week02/tripled")
    assert kata.timeout_s == 77
    assert (kata.functions, kata.cases, kata.backend) == (("tripled",), like.cases, like.backend)
    assert kata.forbidden == like.forbidden
    assert kata.subgoals == like.subgoals
    assert "Steps: check · allocate · double" in (kata.folder / "README.md").read_text()
    assert kata.solution.read_text().startswith('"""Kata week02/tripled: one read, one write."""')
    assert "def tripled(x: " in kata.file.read_text()
    assert "doubled" not in kata.solution.read_text().replace("made like doubled", "")
    tests = (kata.folder / "test_tripled.py").read_text()
    assert "SIZE = 3" in tests
    assert "def test_" not in tests
    problems = contract_problems(kata, tmp_path / "cache")
    assert problems
    assert all("TODO(author) is left" in problem for problem in problems)


@pytest.mark.parametrize(
    ("reference", "functions", "todo"),
    [
        ("def first(n):\n    return n\n", '["first"]', "first"),
        (
            "class Pool:\n    LIMIT = 3\n\n    def __init__(self, n):\n        self.n = n\n\n"
            "    def size(self):\n        return self.n\n",
            '["Pool"]',
            "Pool.__init__",
        ),
    ],
    ids=["another name", "a class"],
)
def test_a_kata_whose_functions_are_called_otherwise_serves(
    mini, tmp_path, reference, functions, todo
):
    like = load_kata(mini / "katas/week01/doubled")
    like.solution.write_text(f'"""Kata week01/doubled: one."""\n\n\n{reference}')
    toml = like.folder / "kata.toml"
    text = toml.read_text().replace('["doubled"]', functions)
    steps, why = 'subgoals = ["check", "allocate", "double"]\n', text[text.index("[why]") :]
    toml.write_text(text.replace(steps, "").replace(why, ""))
    scaffold(mini, "week02/tripled", like=load_kata(like.folder))
    kata = load_kata(mini / "katas/week02/tripled")
    assert list(kata.stub.todo) == [todo]
    assert "raise NotImplementedError  # TODO(kata): in a few words" in kata.file.read_text()


def test_a_likeness_serves_where_there_are_no_templates(mini, catalogue):
    entry = read_entry(catalogue, "week02/none")
    catalogue.write_text(CATALOGUE.replace("- backend: python", "- backend: basic"))
    other = read_entry(catalogue, "week02/none")
    with pytest.raises(UsageProblem, match="found 'basic'. .* name a kata that has it: --like"):
        scaffold(mini, "week02/nothing", entry=other)
    scaffold(mini, "week02/nothing", entry=other, like=load_kata(mini / "katas/week01/doubled"))
    assert load_kata(mini / "katas/week02/nothing").backend == "torch"
    assert entry.backend == "python"


def test_the_command_takes_an_entry_and_a_likeness(kata_command, catalogue, mini):
    done = kata_command("new", "week02/tripled", "--from", str(catalogue), "--like", "doubled")
    assert "katas/week02/tripled/kata.toml" in done.stdout, done.stderr
    assert (mini / "katas/week02/tripled/tripled.py").is_file()
