"""A teacher's course: what is worth what, what was shown, what other programs read of it."""

import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from harness.authoring.release import (
    UNANSWERED,
    UNOPENED,
    WORKFLOW,
    release,
    without_answer,
    without_hints,
)
from harness.base.errors import HarnessError, MetadataError, UsageProblem
from harness.content.catalog import load_curriculum
from harness.content.course import PLACED
from harness.content.submission import reference_of
from harness.content.syllabus import Assignment, Points, load_syllabus
from harness.learner.progress import Check, Measurement
from harness.reports.grading import (
    Shown,
    as_gradescope,
    as_table,
    find_file,
    marks_of,
    nothing,
    shown_by,
    total,
)
from harness.running.runner import Outcome

COURSE = """
title = "Doubling, 2027"
late  = 0.5
hints = 1

[points]
counted = 3

[[assignments]]
name  = "One"
due   = 2027-02-14
katas = ["doubled"]

[[assignments]]
name   = "All of week 1"
week   = 1
points = { correct = 2, timed = 1 }
"""
NOW = datetime(2027, 2, 14, 18, tzinfo=UTC)


@pytest.fixture
def curriculum(mini):
    return load_curriculum(mini)


@pytest.fixture
def course(tmp_path):
    file = tmp_path / "course.toml"
    file.write_text(COURSE)
    return file


@pytest.fixture
def kata(curriculum):
    return curriculum.kata("doubled")


# ---- course.toml ---------------------------------------------------------------------------


def test_a_course_is_read_with_its_defaults(course, curriculum):
    found = load_syllabus(course, curriculum)
    one, week = found.assignments
    assert (found.title, found.late, found.hints) == ("Doubling, 2027", 0.5, 1)
    assert one.due == datetime(2027, 2, 14, 23, 59, 59, 999999, tzinfo=UTC)
    assert one.points == Points(correct=6, counted=3, timed=0)
    assert week == Assignment(
        name="All of week 1", due=None, katas=("doubled",),
        points=Points(correct=2, counted=3, timed=1),
    )  # fmt: skip
    assert found.katas == ("doubled",)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('["doubled"]', '["doubbled"]', "found 'doubbled' Did you mean doubled"),
        ("week   = 1", "week   = 2", "expected a week with katas, found 2"),
        ("week   = 1", 'week = 1\nkatas = ["doubled"]', "either names or a `week`, found both"),
        ("2027-02-14", "2027-02-14T18:00:00", "a time with its zone"),
        ("late  = 0.5", "late  = 2", "a share from 0 to 1, found 2"),
        ("hints = 1", "hints = 4", "0 to 3, found 4"),
        ("counted = 3", "counted = -3", "no points below 0"),
        ("counted = 3", "countd = 3", "an unknown key"),
        ('"All of week 1"', '"One"', "'One' twice"),
    ],
)
def test_what_is_wrong_with_a_course_is_told(course, curriculum, before, after, told):
    course.write_text(COURSE.replace(before, after))
    with pytest.raises(MetadataError) as caught:
        load_syllabus(course, curriculum)
    assert told in caught.value.message


def test_an_assignment_is_late_after_its_day(course, curriculum):
    one, week = load_syllabus(course, curriculum).assignments
    assert not one.is_late(NOW)
    assert one.is_late(NOW + timedelta(hours=6))
    assert not week.is_late(NOW + timedelta(days=999))


# ---- what was shown ------------------------------------------------------------------------


def outcome(kata, *, wrong=False, cost="passed", speed=None, status=None, device="cpu"):
    """A run of `kata` that measured each of its thresholds, with these verdicts."""
    found = [("cost", one.name, cost) for one in kata.cost]
    found += [("speed", one.name, speed) for one in kata.speed if speed]
    checks = [Check(name="test_answer", outcome="failed" if wrong else "passed", message="no")]
    checks += [
        Check(name=f"test_{kind}[{name}]", outcome=verdict, message=f"{name}: limit")
        for kind, name, verdict in found
        if verdict in ("passed", "failed")
    ]
    measured = [
        Measurement(name=name, meter="evaluations", value=1.0, passed=verdict == "passed",
                    detail={"outcome": verdict, "message": f"{name}: limit"})
        for _, name, verdict in found
    ]  # fmt: skip
    red = any(check.outcome == "failed" for check in checks)
    return Outcome(
        status=status or ("failed" if red else "passed"), reason="why", device=device, profile="",
        seed=1, checks=tuple(checks), measurements=tuple(measured), versions={}, duration_s=1.0,
        output="",
    )  # fmt: skip


@pytest.fixture
def timed(kata):
    """The kata with a threshold on a GPU's clock."""
    from harness.content.kata import SpeedThreshold

    speed = SpeedThreshold(name="roofline", kind="roofline", fraction=0.5, ratio=None, against=None,
                           dtype=None, on="cuda", case={}, profiles={})  # fmt: skip
    return replace(kata, speed=(speed,))


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([{}], (True, True, None)),
        ([{"cost": "failed"}], (True, False, None)),
        ([{"wrong": True}], (False, False, None)),
        ([{"status": "timed_out"}], (False, False, None)),
        ([{}, {"speed": "passed", "device": "cuda"}], (True, True, True)),
        ([{}, {"speed": "failed", "device": "cuda"}], (True, True, False)),
        ([{}, {"speed": "not_graded", "device": "cuda"}], (True, True, None)),
        ([{}, {"wrong": True, "device": "cuda"}], (False, False, False)),
    ],
)
def test_points_follow_what_was_shown(timed, runs, expected):
    shown = shown_by(timed, [outcome(timed, **run) for run in runs])
    assert tuple(shown.part(part) for part in ("correct", "counted", "timed")) == expected


def test_what_is_not_measured_is_not_met(kata):
    run = replace(outcome(kata), measurements=())
    assert shown_by(kata, [run]).counted is False


def test_what_has_no_clock_has_no_points_and_takes_none(timed):
    points = Points(correct=6, counted=4, timed=5)
    on_cpu = marks_of("k", shown_by(timed, [outcome(timed)]), points)
    assert total(on_cpu) == (10, 10)
    assert on_cpu[-1].words == "not judged on this machine"
    assert total(marks_of("k", nothing(timed, ["cpu", "cuda"]), points)) == (0, 15)
    assert total(marks_of("k", nothing(timed, ["cpu"]), points)) == (0, 10)


@pytest.mark.parametrize("told", [{"status": "error"}, {"message": "HarnessError: no numba"}])
def test_trouble_of_the_judge_is_told_as_that(kata, told):
    run = outcome(kata, wrong=True)
    message = told.get("message", "no")
    checks = [replace(check, message=message) for check in run.checks]
    shown = shown_by(
        kata, [replace(run, checks=tuple(checks), status=told.get("status", "failed"))]
    )
    assert not shown.judged
    (right, *_) = marks_of("k", shown, Points())
    assert (right.score, right.most) == (0, 6)
    assert right.words.startswith("the judge could not go on; tell your teacher: ")


def test_late_is_a_share_of_what_was_shown():
    shown = Shown(correct=True, counted=False, timed=None, words="bytes: too many")
    right, counted = marks_of("k", shown, Points(), share=0.5)
    assert (right.score, right.most, right.words) == (3, 6, "late: 50% of the points")
    assert (counted.score, counted.most, counted.words) == (0, 4, "bytes: too many")


# ---- one learner ---------------------------------------------------------------------------


def test_a_file_is_found_at_its_place_or_anywhere(kata, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    assert find_file(folder, kata) is None
    for place in ("tests/doubled.py", ".git/doubled.py", "work/doubled.py"):
        (folder / place).parent.mkdir()
        (folder / place).write_text("")
    assert find_file(folder, kata) == folder / "work/doubled.py"
    (folder / "doubled.py").write_text("")
    with pytest.raises(UsageProblem, match=r"found doubled\.py, work/doubled\.py\. Hand in one"):
        find_file(folder, kata)
    own = folder / "katas/week01/doubled/doubled.py"
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert find_file(folder, kata) == own


def marks():
    one = Assignment(name="One", due=None, katas=("k",), points=Points(timed=2))
    shown = Shown(correct=True, counted=False, timed=None, words="bytes: <3> | too many")
    return [(one, mark) for mark in marks_of("k", shown, one.points)]


def test_gradescope_reads_each_part_as_a_test():
    results = json.loads(as_gradescope(marks(), spent_s=2.4))
    assert results["execution_time"] == 2
    told = [(one["number"], one["name"], one["score"], one["max_score"], one.get("status"))
            for one in results["tests"]]  # fmt: skip
    assert told == [
        ("1.1", "k: correct", 6, 6, "passed"),
        ("1.2", "k: counted", 0, 4, "failed"),
        ("1.3", "k: timed", 0, 0, None),
    ]
    assert "score" not in results  # Gradescope adds up


def test_a_summary_is_a_table_without_markup():
    text = as_table(marks())
    assert "| One | k | counted | 0 of 4 | bytes: &lt;3> \\| too many |" in text
    assert text.endswith("| **total** | | | **6 of 10** | |\n")


def test_a_submission_is_graded_by_the_command(kata_command, mini, course, tmp_path):
    folder, results = tmp_path / "in", tmp_path / "results.json"
    folder.mkdir()
    shutil.copy(mini / "solutions/week01/doubled.py", folder)
    done = kata_command("class", "autograde", str(folder), "--course", str(course), "-o",
                        str(results), "--assignment", "One", "--at", "2027-02-15T00:00:01+00:00",
                        "--summary", str(tmp_path / "summary.md"))  # fmt: skip
    assert done.returncode == 1, done.stderr  # late: not all of the points
    assert done.stdout.splitlines()[-1] == "4.5 of 9 points"
    tests = json.loads(results.read_text())["tests"]
    assert [(one["score"], one["max_score"]) for one in tests] == [(3, 6), (1.5, 3)]
    assert "**4.5 of 9**" in (tmp_path / "summary.md").read_text()
    refused = kata_command("class", "autograde", str(folder), "--course", str(course), "--at", "1")
    assert refused.returncode == 2
    assert "expected a time as in" in refused.stderr


# ---- the course as released ----------------------------------------------------------------


def test_hints_that_are_not_opened_are_gone_and_the_rest_stays():
    text = 'title = "x"\nhints = ["use x[0]", "a \\"]\\" b", "c"]  # three\nsources = ["[1]"]\n'
    one = without_hints(text, 1)
    assert one.count(UNOPENED) == 2
    assert '"use x[0]"' in one
    assert "# three\nsources" in one
    assert 'a \\"]\\" b' in without_hints(text, 2)
    assert without_hints(text, 3) == text
    assert "use x" not in without_hints(text, 0)


@pytest.fixture
def clone(mini):
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        named = [
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.org",
            "-c",
            "commit.gpgsign=false",
        ]
        subprocess.run(["git", *named, *command], cwd=mini, check=True)
    return mini


def test_a_release_gives_nothing_away(clone, course, tmp_path):
    known = load_curriculum(clone)
    (clone / "katas/week01/doubled/doubled.py").write_text("# the teacher's own try\n")
    folder = tmp_path / "out"
    for _ in range(2):  # the second in place of the first
        release(clone, folder, course, load_syllabus(course, known))
    names = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    assert not any(name.startswith(("solutions", "tests")) for name in names)
    assert {"course.toml", WORKFLOW.as_posix(), "katas/week01/doubled/kata.toml"} <= names
    assert "NotImplementedError" in (folder / "katas/week01/doubled/doubled.py").read_text()
    first, *others = known.kata("doubled").hints
    assert load_curriculum(folder).kata("doubled").hints == (first, UNOPENED, UNOPENED)
    assert not set(others) & {first, UNOPENED}
    why = load_curriculum(folder).kata("doubled").why
    assert (why.question, why.answer) == (known.kata("doubled").why.question, UNANSWERED)
    with pytest.raises(UsageProblem, match="A course released by a teacher has no solutions"):
        reference_of(load_curriculum(folder).kata("doubled"))


def test_a_release_judges_as_the_course_does(clone, kata_command, course, tmp_path):
    folder = tmp_path / "out"
    release(clone, folder, course, load_syllabus(course, load_curriculum(clone)))
    mine = folder / "katas/week01/doubled/doubled.py"
    shutil.copy(clone / "solutions/week01/doubled.py", mine)
    done = kata_command("--root", str(folder), "run", "doubled")
    assert done.returncode == 0, done.stdout + done.stderr
    told = kata_command("--root", str(folder), "diff", "doubled")
    assert (told.returncode, "has no solutions" in told.stderr) == (2, True)


def test_what_is_no_release_is_left_alone(clone, course, tmp_path):
    syllabus = load_syllabus(course, load_curriculum(clone))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    with pytest.raises(UsageProblem, match="expected an empty folder or an earlier release"):
        release(clone, tmp_path / "mine", course, syllabus)
    (tmp_path / "bare").mkdir()
    with pytest.raises(HarnessError, match="release: expected a clone"):
        release(tmp_path / "bare", tmp_path / "out", course, syllabus)
    (clone / PLACED).write_text("{}")
    with pytest.raises(HarnessError, match="made by `kata init`, which holds your own answers"):
        release(clone, tmp_path / "out", course, syllabus)


def test_the_workflow_calls_commands_that_are_there(clone, course, kata_command, tmp_path):
    yaml = pytest.importorskip("yaml")
    folder = tmp_path / "out"
    release(clone, folder, course, load_syllabus(course, load_curriculum(clone)))
    steps = yaml.safe_load((folder / WORKFLOW).read_text())["jobs"]["grade"]["steps"]
    (line,) = [step["run"] for step in steps if step.get("name") == "Grade"]
    options = set(re.findall(r"--?[a-z]+", line.partition("autograde")[2])) & {
        "--course", "--at", "-o", "--summary",
    }  # fmt: skip
    told = kata_command("class", "autograde", "--help").stdout
    assert len(options) == 4
    assert all(option in told for option in options)


@pytest.mark.parametrize("answer", ['"a = 1 # b"', '"""\na\n[b]\nanswer = "c"\n"""', "'''a\n'''"])
def test_an_answer_is_taken_out_whatever_it_says(answer):
    before, after = '[why]\nquestion = "b?"\n', "\n[stub]\ngive = []\n"
    found = tomllib.loads(without_answer(f"{before}answer = {answer}\n{after}"))
    assert found == {"why": {"question": "b?", "answer": UNANSWERED}, "stub": {"give": []}}
    assert without_answer(after) == after
