"""`kata check` finds what a kata fails to prove."""

import pytest

from harness.authoring.check import check_katas
from harness.authoring.contract import contract_problems
from harness.authoring.scaffold import TEMPLATES, scaffold
from harness.base.errors import UsageProblem
from harness.content.catalog import load_curriculum
from harness.content.kata import load_kata
from harness.hardware.packages import missing_extra

DOUBLED = "katas/week01/doubled"


@pytest.fixture
def check(mini, tmp_path, monkeypatch):
    """Problems of the tiny kata, as `kata check` lists them."""
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))

    def run(name="doubled", *, whole=False):
        kata = load_curriculum(mini).kata(name)
        cache = tmp_path / "home" / "cache"
        (report,) = check_katas([kata], cache, jobs=1, whole=whole)
        return report

    return run


def edit(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def test_a_sound_kata_has_no_problems(check):
    report = check()
    assert report.problems == []
    assert len(report.killed_by) == 10
    assert all(report.killed_by.values())


def test_what_the_matrix_fails_to_prove_is_told(check, mini):
    folder = mini / DOUBLED
    (folder / "test_doubled.py").write_text(
        "def test_asserts_nothing(kata):\n    pass\n\n\n"
        "def test_kills_nothing(kata):\n    import torch\n\n"
        "    assert kata.doubled(torch.ones(2)).shape == (2,)\n",
    )
    edits = mini / "tests/wrong/week01/doubled/edits.toml"
    first, _, rest = edits.read_text().partition("[writes_past_the_end]")
    edits.write_text(first + "[" + rest.partition("\n[")[2])
    (mini / "tests/wrong/week01/doubled/honest.py").write_text(
        '"""Wrong on purpose: not at all."""\n'
        + (mini / "solutions/week01/doubled.py").read_text().split('"""', 2)[2]
    )
    problems = check().problems
    assert "stub passes test_asserts_nothing: the test asserts nothing" in problems
    assert "wrong:honest lives: no test fails on it" in problems
    assert "wrong:copies lives: no test fails on it" in problems
    assert "test_kills_nothing kills no wrong solution" in problems
    assert "cost allocated_bytes: no test measures it" in problems


def test_a_failing_reference_is_told(check, mini):
    edit(
        mini / "solutions/week01/doubled.py",
        "y = torch.empty_like(x)",
        "y, x = torch.empty_like(x), 3 * x",
    )
    problems = check().problems
    assert any(line.startswith("solution fails test_matches_reference") for line in problems)


@pytest.mark.parametrize(
    ("file", "before", "after", "expected"),
    [
        (
            f"{DOUBLED}/doubled.py",
            "def doubled(x:",
            "def doubled(y:",
            'doubled.py:8: expected \'def doubled(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:\''
            ", as cut out of the reference, solutions/week01/doubled.py, found 'def doubled(y:",
        ),
        (
            f"{DOUBLED}/doubled.py",
            "lines)\n",
            "lines)\n\n\nLIMIT = 3\n",
            "doubled.py:11: expected the end, as cut out of the reference",
        ),
        (
            f"{DOUBLED}/kata.toml",
            '["doubled"]',
            '["doubled", "tripled"]',
            "functions: expected names that the reference, solutions/week01/doubled.py, defines, "
            "found 'tripled'",
        ),
        (
            f"{DOUBLED}/kata.toml",
            "[[cost]]",
            '[stub]\ngive = ["doubles"]\n\n[[cost]]',
            "expected names that the reference has, found 'doubles'. Did you mean doubled?",
        ),
        (
            f"{DOUBLED}/kata.toml",
            "functions",
            'extra = "plto"\nfunctions',
            "extra: expected one of dev, class, plot",
        ),
        (
            f"{DOUBLED}/kata.toml",
            "[[cost]]",
            '[[speed]]\nkind = "roofline"\nfraction = 0.5\ncase = { n = 9, dtype = "float32" }\n'
            "profiles = { amper = 0.4, hopper = 0.6, sm_80 = 0.3, t4 = 0.2 }\n\n[[cost]]",
            "speed.profiles: expected hardware profiles, architectures or generations, found "
            "'amper'. Did you mean ampere",
        ),
        (
            f"{DOUBLED}/README.md",
            "# Doubled",
            "# TODO(author)",
            f"{DOUBLED}/README.md:1: TODO(author) is left",
        ),
        (
            "tests/wrong/week01/doubled/edits.toml",
            "y.clone()",
            "y.clone()  # TODO(author)",
            "edits.toml:",
        ),
        ("tests/wrong/week01/doubled/edits.toml", "y.clone()", "y.clone(", "wrong:copies"),
        (
            "tests/wrong/week01/doubled/edits.toml",
            'find    = "if not x.is_floating_point():"',
            'find    = "no such line"',
            "found once in the reference, found 0",
        ),
    ],
)
def test_a_breach_of_the_contract_is_told(mini, tmp_path, file, before, after, expected):
    edit(mini / file, before, after)
    kata = load_kata(mini / DOUBLED)
    problems = contract_problems(kata, tmp_path / "cache")
    assert expected in "\n".join(problems)


def test_every_case_that_may_be_drawn_is_tried(check, mini):
    toml = mini / DOUBLED / "kata.toml"
    sizes = ", ".join(map(str, range(100, 140)))
    toml.write_text(f"{toml.read_text()}\n[vary]\nn = [{sizes}]\n")
    edit(mini / DOUBLED / "oracle.py", "2 * x.double()", "2 * x.double() + (x.numel() == 123)")
    (problem,) = [one for one in check(whole=True).problems if one.startswith("[vary]")]
    assert "found test_matches_reference[123-float32]: " in problem


def test_a_missing_file_is_told(mini, tmp_path):
    (mini / DOUBLED / "README.md").unlink()
    problems = contract_problems(load_kata(mini / DOUBLED), tmp_path)
    assert problems == [
        "katas/week01/doubled/README.md: expected a file with something in it, found none"
    ]


@pytest.mark.parametrize("backend", TEMPLATES)
def test_a_new_kata_lacks_only_what_is_the_authors(check, mini, backend):
    files = scaffold(mini, "week02/fresh", backend)
    if missing := missing_extra(load_kata(mini / "katas/week02/fresh")):
        pytest.skip(missing)
    problems = check("fresh").problems
    assert {line.split(":")[-1] for line in problems} == {" TODO(author) is left"}
    places = {line.split(":")[0] for line in problems}
    assert "katas/week02/fresh/fresh.py" in places
    assert "tests/wrong/week02/fresh/edits.toml" in places
    for path in files:
        path.write_text(path.read_text().replace("TODO(author)", "done"))
    report = check("fresh")
    assert report.problems == []
    assert len(report.killed_by) >= 3


@pytest.mark.parametrize(
    ("slug", "backend", "expected"),
    [
        ("week02/Fresh", "torch", "expected weekNN/snake_case_name, found 'week02/Fresh'"),
        ("week09/fresh", "torch", "expected a week of the curriculum, found week09"),
        ("week02/doubled", "torch", "expected a name that is free"),
        ("week02/import", "torch", "found 'import', a keyword"),
        ("week02/numpy", "torch", "found 'numpy', a module"),
        ("week02/fresh", "metal", "expected one of python, torch, triton, numba, distributed,"),
    ],
)
def test_what_cannot_be_scaffolded_is_told(mini, slug, backend, expected):
    with pytest.raises(UsageProblem, match=expected):
        scaffold(mini, slug, backend)
    assert not list((mini / "katas/week02").glob("*/kata.toml"))
