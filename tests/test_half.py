"""Half a stub and the question after a pass, from outside, with a judge that answers at once."""

import json
import subprocess
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.learner.progress import Check, Progress
from harness.running.runner import Outcome

FILE = "katas/week01/doubled/doubled.py"
QUESTION = "Why is a sum as good as a product here, and why not in general?"
ANSWER = "Doubling moves every element once whichever unit computes it, and memory is what takes"
MINE = "\n# mine\n"


@pytest.fixture
def kata(mini, tmp_path, monkeypatch):
    """The command, under git; what it judges comes to `status`, and `solution` passes."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=mini, check=True)
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    solution = (mini / "solutions/week01/doubled.py").read_text() + MINE
    told = SimpleNamespace(
        status="passed", file=mini / FILE, progress=Progress(tmp_path / "home"), solution=solution
    )

    def run_kata(_submission, *, device, **_):
        return Outcome(
            status=told.status, reason="", device=device, profile="cpu", seed=1,
            checks=(Check(name="test_a", outcome=told.status, message=""),), measurements=(),
            versions={}, duration_s=1.0, output="",
        )  # fmt: skip

    def call(*arguments):
        done = CliRunner().invoke(main, ["--root", str(mini), *arguments])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        return done.output

    monkeypatch.setattr("harness.running.attempt.run_kata", run_kata)
    told.call = call
    told.notes = lambda kind: [one.detail for one in told.progress.notes() if one.kind == kind]
    return told


def test_the_first_time_half_of_the_stub_can_be_given(kata):
    said = kata.call("start", "doubled", "--level", "half")
    assert "is half a stub; the clock is running" in said
    assert "Given: check. Yours: allocate, double." in said
    text = kata.file.read_text()
    assert "is_floating_point" in text
    assert "empty_like" not in text
    assert kata.notes("started") == ["half"]


def test_half_a_stub_untouched_is_no_attempt(kata):
    kata.status = "failed"
    kata.call("start", "doubled", "--level", "half")
    kata.call("run", "doubled")
    assert kata.progress.outlines() == []
    kata.file.write_text(kata.file.read_text() + MINE)
    kata.call("run", "doubled")
    assert len(kata.progress.outlines()) == 1


def test_work_is_kept_where_half_a_stub_takes_its_place(kata):
    kata.file.write_text("# mine\n")
    said = kata.call("start", "doubled", "--level", "half")
    assert "What was there is kept" in said
    # from one stub to the other there is nothing to keep
    assert "is kept" not in kata.call("start", "doubled")
    assert "is kept" not in kata.call("start", "doubled", "--level", "half")


def test_from_the_second_round_on_the_stub_is_blank(kata):
    kata.call("start", "doubled", "--level", "half")
    kata.file.write_text(kata.solution)
    kata.call("run", "doubled")
    said = kata.call("start", "doubled", "--level", "half")
    assert "from the second on the stub is blank" in " ".join(said.split())
    assert "is the blank stub" in said
    assert "is_floating_point" not in kata.file.read_text()
    assert kata.notes("started") == ["half", ""]


def test_a_blank_stub_after_half_of_one_is_no_cold_day_and_says_so(kata):
    told = "Half of it was given in the last days"
    assert told not in kata.call("start", "doubled", "--level", "half")
    assert told in kata.call("start", "doubled")
    kata.file.write_text(kata.solution)
    assert "no cold day: half of the body was given" in kata.call("run", "doubled")
    assert told not in kata.call("start", "doubled")


def test_a_kata_without_steps_has_no_half(kata):
    metadata = kata.file.parent / "kata.toml"
    text = metadata.read_text().replace('subgoals = ["check", "allocate", "double"]', "")
    metadata.write_text(text)
    before = kata.file.read_text()
    said = kata.call("start", "doubled", "--level", "half")
    assert "expected a kata with named steps" in said
    assert kata.file.read_text() == before
    assert kata.notes("started") == []


def test_a_pass_without_help_leaves_a_question(kata):
    kata.call("start", "doubled")
    kata.file.write_text(kata.solution)
    assert QUESTION in " ".join(kata.call("run", "doubled").split())
    assert "why:" not in kata.call("run", "doubled")  # once a round


def test_a_pass_with_a_hint_leaves_none(kata):
    kata.call("start", "doubled")
    kata.call("hint", "doubled")
    kata.file.write_text(kata.solution)
    assert "why:" not in kata.call("run", "doubled")


def test_explain_keeps_what_is_answered_and_gives_its_own(kata):
    kata.call("start", "doubled")
    kata.file.write_text(kata.solution)
    kata.call("run", "doubled")
    found = json.loads(kata.call("explain", "doubled", "--json"))["why"]
    assert (found["question"], found["yours"]) == (QUESTION, None)
    assert found["answer"].startswith(ANSWER)
    said = kata.call("explain", "doubled", "--why", "one pass either way")
    assert "you: one pass either way" in said
    assert ANSWER in " ".join(said.split())
    assert kata.notes("why_answered") == ["one pass either way"]
    assert "you: one pass either way" in kata.call("explain", "doubled")
