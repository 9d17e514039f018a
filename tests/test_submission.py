"""Whose file is under test, and what is known of it before anything is loaded."""

import hashlib

import pytest
from click.testing import CliRunner

from harness.base.errors import UsageProblem
from harness.cli.house import House
from harness.content.catalog import load_curriculum
from harness.content.submission import resolve, resolve_all
from harness.judge.loading import Loadable
from harness.learner.progress import Progress


@pytest.fixture
def kata(mini):
    return load_curriculum(mini).kata("doubled")


@pytest.fixture
def resolved(kata, tmp_path):
    return lambda impl: resolve(kata, str(impl), tmp_path / "cache")


def test_each_name_is_somebodys_file(kata, resolved):
    found = {name: resolved(name) for name in ("yours", "stub", "solution", "wrong:copies")}
    assert {name: one.kind for name, one in found.items()} == {
        "yours": "yours",
        "stub": "stub",
        "solution": "solution",
        "wrong:copies": "wrong",
    }
    assert found["yours"].path == found["stub"].path == kata.file  # nothing was written yet
    solution = hashlib.sha256(kata.solution.read_bytes()).hexdigest()
    assert found["solution"].code_hash == solution
    assert found["wrong:copies"].path.read_text().startswith('"""Wrong on purpose:')


def test_a_copy_of_the_reference_is_the_reference(kata, resolved, tmp_path):
    copy = tmp_path / "mine.py"
    copy.write_bytes(kata.solution.read_bytes())
    kata.file.write_bytes(kata.solution.read_bytes())
    for impl in ("yours", copy):
        assert (resolved(impl).kind, resolved(impl).owner) == ("solution", "solution")
    copy.write_text("# mine\n" + kata.solution.read_text())
    assert (resolved(copy).kind, resolved(copy).owner) == ("other", str(copy))


def test_what_stands_in_for_the_learners_file_is_the_references_edited_or_not(kata, mini, tmp_path):
    house = House(mini)
    house.home = tmp_path / "home"
    assert house.submission(kata, "yours").owner == "yours"
    house.workspace.swap(kata.name, kata.file, kata.solution)
    kata.file.write_text("# seen\n" + kata.file.read_text())
    assert house.submission(kata, "yours").owner == "solution"
    house.workspace.restore(kata.name, kata.file)
    assert house.submission(kata, "yours").owner == "yours"


def test_a_file_is_held_to_what_it_was(kata, resolved):
    asked = resolved("yours")
    assert asked.is_unchanged()
    kata.file.write_text("# another\n")
    assert not asked.is_unchanged()
    kata.file.unlink()
    assert not asked.is_unchanged()
    gone = resolved("yours")
    assert gone.code_hash == ""


def test_all_wrong_solutions_have_one_name_and_one_implementation_has_not(kata, resolved, tmp_path):
    found = resolve_all(kata, ["solution", "wrong"], tmp_path / "cache")
    assert found[0].label == "solution"
    assert [one.kind for one in found[1:]] == ["wrong"] * len(found[1:])
    assert len(found) > 2
    with pytest.raises(UsageProblem, match=r"expected yours, solution or the path .* 'wrong'"):
        resolved("wrong")
    with pytest.raises(UsageProblem, match="Did you mean wrong:copies"):
        resolved("wrong:copy")


def test_a_file_is_imported_once_and_when_it_is_asked_for(kata, resolved):
    kata.file.write_text("raise KeyError('import')\n")
    submission = Loadable.of(resolved("yours"))
    with pytest.raises(KeyError, match="import"):
        _ = submission.module
    kata.file.write_text("def doubled(x):\n    return 2 * x\n")
    assert submission.entry(4) == 8
    assert submission.module is submission.module


def test_a_path_means_the_same_file_wherever_the_command_is_typed(mini, tmp_path, monkeypatch):
    from harness.cli import main

    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    mine = tmp_path / "mine.py"
    mine.write_text("# mine\n" + (mini / "solutions" / "week01" / "doubled.py").read_text())
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["--root", str(mini), "run", "doubled", "--impl", "mine.py"])
    assert done.exit_code == 0, done.output
    (kept,) = Progress(tmp_path / "home").attempts()
    assert (kept.impl, kept.status) == (str(mine), "passed")
