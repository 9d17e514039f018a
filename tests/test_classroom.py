"""A class: exports in one table, submissions graded."""

import io
import json
from datetime import UTC, datetime

import pytest

from harness.base.errors import HarnessError, UsageProblem
from harness.content.catalog import load_curriculum
from harness.learner.progress import Progress
from harness.reports.classroom import grade, read_class, submissions_in

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def curriculum(mini):
    return load_curriculum(mini)


@pytest.fixture
def exports(tmp_path):
    """Ada passed after a hint, Bob did not, Cem only looked."""
    folder = tmp_path / "class"
    folder.mkdir()
    for name, statuses, notes in (
        ("ada", ["failed", "passed"], ["hint_shown"]),
        ("bob", ["failed"], ["solution_seen"]),
        ("cem", [], []),
    ):
        progress = Progress(tmp_path / name, clock=lambda: NOW)
        for kind in notes:
            progress.note(kind, "doubled", "1")
        for status in statuses:
            attempt = progress.start("doubled", "yours", "ab" * 32, seed=1, device="cpu",
                                     profile="cpu")  # fmt: skip
            progress.finish(attempt, status, "", checks=(), measurements=(), versions={},
                            duration_s=1.0)  # fmt: skip
        stream = io.StringIO()
        progress.export(stream)
        (folder / f"{name}.jsonl").write_text(stream.getvalue())
    return folder


def test_each_export_is_a_learner(exports, curriculum):
    rows = [
        (one.name, one.runs, one.solved, one.mastered, one.hints, one.last)
        for one in read_class(exports, curriculum, NOW)
    ]
    assert rows == [
        ("ada", 2, 1, 0, 1, "2026-03-01"),
        ("bob", 1, 0, 0, 0, "2026-03-01"),
        ("cem", 0, 0, 0, 0, ""),
    ]


def test_an_export_may_say_whose_it_is(kata_command, exports, curriculum, tmp_path):
    file = tmp_path / "a1b2.jsonl"
    done = kata_command("export", "--name", "Dora <b>", "-o", str(file))
    assert done.returncode == 0, done.stderr
    file.rename(exports / "a1b2.jsonl")
    assert [one.name for one in read_class(exports, curriculum, NOW)] == [
        "Dora <b>", "ada", "bob", "cem",
    ]  # fmt: skip
    merged = kata_command("import", str(exports / "a1b2.jsonl"))
    assert merged.returncode == 0, merged.stderr


COURSE = """
title = "Doubling"
[[assignments]]
name  = "In time"
due   = 2026-03-01
katas = ["doubled"]
[[assignments]]
name  = "Too late"
due   = 2026-02-28
katas = ["doubled"]
"""


def test_the_report_says_what_was_solved_in_time(kata_command, exports, tmp_path):
    course, page = tmp_path / "course.toml", tmp_path / "class.html"
    course.write_text(COURSE)
    done = kata_command(
        "class", "report", str(exports), "--course", str(course), "--html", str(page)
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[-4:-1]]
    assert rows == [
        ["ada", "1/1", "0/1,", "1", "late"], ["bob", "0/1", "0/1"], ["cem", "0/1", "0/1"],
    ]  # fmt: skip
    assert '<th scope="row">ada</th><td>1 of 1</td><td>0 + 1 of 1</td>' in page.read_text()


def test_a_folder_without_exports_says_how_to_make_one(tmp_path, curriculum):
    with pytest.raises(UsageProblem, match=r"kata export -o NAME\.jsonl"):
        read_class(tmp_path, curriculum, NOW)


def test_the_file_that_is_no_export_is_named(exports, curriculum):
    (exports / "eve.jsonl").write_text("dear teacher\n")
    with pytest.raises(HarnessError, match=r"eve\.jsonl: expected a first line"):
        read_class(exports, curriculum, NOW)


def test_the_report_is_a_table_and_a_page(kata_command, exports, tmp_path):
    page = tmp_path / "class.html"
    done = kata_command("class", "report", str(exports), "--html", str(page))
    assert done.returncode == 0, done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines()[1:4]] == [
        ["ada", "2", "1"], ["bob", "1", "0"], ["cem", "0", "0"],
    ]  # fmt: skip
    assert '<th scope="row">ada</th><td>2</td><td>1</td>' in page.read_text()


def test_a_folder_named_like_an_export_is_no_learner(exports, curriculum):
    (exports / "dan.jsonl").mkdir()
    assert [one.name for one in read_class(exports, curriculum, NOW)] == ["ada", "bob", "cem"]


def test_a_name_is_no_markup(kata_command, exports):
    (exports / "ada.jsonl").rename(exports / "[red]x.jsonl")
    done = kata_command("class", "report", str(exports))
    assert done.stdout.splitlines()[1].split()[:2] == ["[red]x", "2"]


# ---- grading -------------------------------------------------------------------------------


@pytest.fixture
def handed_in(mini, tmp_path):
    """Ada's is right, Bob's is the stub."""
    folder = tmp_path / "handed_in"
    sources = {
        "ada": mini / "solutions/week01/doubled.py",
        "bob": mini / "katas/week01/doubled/doubled.py",
    }
    for name, source in sources.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "doubled.py").write_text("# mine\n" + source.read_text())
    return folder


def test_submissions_are_found_by_learner_and_kata(handed_in, curriculum):
    found = [(learner, kata.name) for learner, kata, _ in submissions_in(handed_in, curriculum)]
    assert found == [("ada", "doubled"), ("bob", "doubled")]


def test_a_file_named_after_no_kata_is_named(handed_in, curriculum):
    (handed_in / "bob" / "notes.py").write_text("")
    with pytest.raises(UsageProblem, match=r"expected LEARNER/KATA.py, found bob/notes\.py"):
        submissions_in(handed_in, curriculum)
    with pytest.raises(UsageProblem, match="found nothing so named"):
        submissions_in(handed_in / "ada", curriculum)


def test_a_folder_named_like_a_submission_is_none(handed_in, curriculum):
    (handed_in / "bob" / "doubled.py").unlink()
    (handed_in / "bob" / "doubled.py").mkdir()
    assert [learner for learner, _, _ in submissions_in(handed_in, curriculum)] == ["ada"]


def test_without_ray_the_install_line_is_told(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(HarnessError, match=r"pip install 'gpu-katas\[class\]'"):
        list(grade([], devices=["cpu"], jobs=1))


def test_each_submission_is_graded(kata_command, handed_in, tmp_path):
    pytest.importorskip("ray")
    grades, course, sheet = tmp_path / "grades.jsonl", tmp_path / "c.toml", tmp_path / "p.csv"
    course.write_text(COURSE)
    done = kata_command("class", "grade", str(handed_in), "-j", "1", "-o", str(grades),
                        "--course", str(course), "--csv", str(sheet))  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    found = {row["learner"]: row for row in map(json.loads, grades.read_text().splitlines())}
    assert found["ada"]["status"] == "passed", found
    assert (found["ada"]["passed"], found["bob"]["passed"]) == (found["ada"]["checks"], 0)
    assert found["bob"]["status"] == "failed"
    assert f"✗ bob doubled: 0/{found['bob']['checks']}" in done.stdout
    assert found["ada"]["shown"]["counted"] is True
    assert sheet.read_text().splitlines() == [
        "learner,In time,Too late,total,of",
        "ada,10.0,10.0,20.0,20.0",
        "bob,0.0,0.0,0.0,20.0",
    ]
    assert done.stdout.splitlines()[-2:][0].split() == ["ada", "10/10", "10/10", "20/20"]
