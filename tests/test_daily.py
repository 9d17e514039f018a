"""The daily loop from outside, with a judge that answers at once."""

import json
import shutil
import subprocess
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from harness.base.errors import UsageProblem
from harness.cli import draw, main, screen
from harness.cli.house import House
from harness.cli.learn import editor
from harness.learner.progress import Check, Measurement, Progress
from harness.running.runner import Outcome

STUB = "katas/week01/doubled/doubled.py"
MINE = "# mine\n"
REACHED = '"launches" = { reference = 1, naive = 7 }\n'


@pytest.fixture
def committed(mini, tmp_path, monkeypatch):
    """The tiny curriculum under git, and a learner at home in `tmp_path`."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=mini, check=True)
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COLUMNS", raising=False)
    return mini


@pytest.fixture
def kata(committed, monkeypatch):
    """The command; what it judges comes to `kata.status` and has one threshold."""
    told = SimpleNamespace(status="passed", judged=[])

    def run_kata(submission, *, device, **_):
        told.judged.append(submission.kata.name)
        good = told.status == "passed"
        found = Measurement(
            name="launches", meter="launches", value=1.0, limit=1.0, passed=good,
            detail={"outcome": told.status, "message": "launches: 1, limit <= 1"},
        )  # fmt: skip
        return Outcome(
            status=told.status, reason="why", device=device, profile="cpu", seed=1,
            checks=(Check(name="test_a", outcome=told.status, message="it is wrong"),),
            measurements=(found,), versions={}, duration_s=1.0, output="",
        )  # fmt: skip

    monkeypatch.setattr("harness.running.attempt.run_kata", run_kata)

    def call(*arguments):
        return CliRunner().invoke(main, ["--root", str(committed), *arguments])

    told.call = call
    return told


def write(root, text=MINE):
    (root / STUB).write_text(text)


def test_the_brief_is_shown_once_a_round_and_when_asked_for(kata, committed):
    heading = "difficulty 1/5"
    write(committed)
    shown = [heading in kata.call("run", "doubled", "--brief-once").output for _ in range(2)]
    assert shown == [True, False]
    assert heading in kata.call("run", "doubled", "--brief").output
    assert heading not in kata.call("run", "doubled").output
    kata.call("start", "doubled")
    write(committed)
    kata.call("show", "doubled")
    assert heading not in kata.call("run", "doubled", "--brief-once").output


def test_a_pass_says_what_it_earned_and_what_is_next(kata, committed):
    kata.call("start", "doubled")
    write(committed)
    *_, earned, why, _, then = kata.call("run", "doubled").output.splitlines()
    assert earned.startswith("earned: ● solved · cold day 1 of 3 · due again 20")
    assert why.startswith("why: Why is a sum as good as a product here")
    assert earned.endswith(" days")
    assert then == "next: kata explain doubled, then kata next"
    again = kata.call("run", "doubled").output
    assert "already solved in this round" in again


def test_a_pass_with_help_says_why_it_is_no_cold_day(kata, committed):
    kata.call("start", "doubled")
    kata.call("hint", "doubled")
    write(committed)
    assert "· no cold day: a hint was shown ·" in kata.call("run", "doubled").output


def test_a_red_run_earns_nothing_and_names_one_next_step(kata, committed):
    kata.status = "failed"
    write(committed)
    done = kata.call("run", "doubled")
    assert "earned" not in done.output
    assert done.output.count("next: ") == 1
    assert "next: fix the first ✗, then make kata name=doubled" in done.output


def test_of_several_katas_the_untouched_stubs_are_named_and_not_run(kata, committed):
    folder = committed / "katas/week01/other"
    shutil.copytree(committed / "katas/week01/doubled", folder)
    (folder / "doubled.py").rename(folder / "other.py")
    subprocess.run(["git", "add", "-A"], cwd=committed, check=True)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, "commit", "-qm", "another"], cwd=committed, check=True)
    write(committed)
    done = kata.call("run", "--week", "1")
    assert kata.judged == ["doubled"]
    assert done.output.endswith("· 1 not begun: other\n1 of 2 katas passed\n")
    assert done.exit_code == 1


def test_a_run_as_json_is_nothing_else(kata, committed):
    write(committed)
    done = kata.call("run", "doubled", "--json")
    (row,) = json.loads(done.output)
    assert (row["kata"], row["status"], row["device"]) == ("doubled", "passed", "cpu")
    assert row["checks"] == [{"name": "test_a", "outcome": "passed", "message": "it is wrong"}]
    assert row["measurements"][0]["value"] == 1.0
    kata.status = "failed"
    assert kata.call("run", "doubled", "--json").exit_code == 1


def test_what_is_kept_beside_the_wrong_solutions_stands_beside_the_limit(kata, committed):
    (committed / "tests/wrong/week01/doubled/reached.toml").write_text(REACHED)
    write(committed)
    assert "limit <= 1 · reference 1 · naive 7" in kata.call("run", "doubled").output


@pytest.mark.parametrize(
    "command",
    ["next", "due", "list", "coverage", "profile list", "profile show h100_sxm", "stash list",
     "placement --week 1", "doctor", "scorecard", "measured"],
)  # fmt: skip
def test_what_lists_or_judges_speaks_json(kata, command):
    assert json.loads(kata.call(*command.split(), "--json").output) is not None


def test_ctrl_c_ends_with_130_and_a_word_of_its_own(kata, committed, monkeypatch):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    write(committed)
    monkeypatch.setattr("harness.running.attempt.run_kata", pressed)
    done = kata.call("run", "doubled")
    assert (done.exit_code, done.output) == (130, "stopped\n")
    (kept,) = Progress(House(committed).home).attempts()
    assert kept.status == "aborted"
    assert House(committed).advice()[0].begun is False, "who was stopped has begun nothing"
    monkeypatch.setattr("click.termui.visible_prompt_func", pressed)
    monkeypatch.setattr("harness.cli.house.House.prediction_profile", pressed)
    assert kata.call("predict", "doubled").exit_code == 130


def test_the_stub_opens_in_the_editor_of_the_terminal(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert editor({"VISUAL": "", "EDITOR": "code --wait"}) == ["code", "--wait"]
    assert editor({"EDITOR": "vi", "TERM_PROGRAM": "vscode"}) == ["vi"]
    assert editor({"TERM_PROGRAM": "vscode"}) == ["code"]
    with pytest.raises(UsageProblem, match="expected an editor in .VISUAL or .EDITOR"):
        editor({"TERM_PROGRAM": "elsewhere"})
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UsageProblem):
        editor({"EDITOR": "nowhere"})


def test_start_edit_opens_the_blank_stub(kata, committed, monkeypatch):
    opened = []
    monkeypatch.setenv("VISUAL", "true --flag")
    real = subprocess.run

    def run(command, **how):
        return opened.append(command) if command[0] == "true" else real(command, **how)

    monkeypatch.setattr("subprocess.run", run)
    assert kata.call("start", "doubled", "--edit").exit_code == 0
    assert opened == [["true", "--flag", str(committed / STUB)]]


def test_what_will_be_due_is_named_with_its_date(kata, committed):
    kata.call("start", "doubled")
    write(committed)
    kata.call("run", "doubled")
    (row,) = json.loads(kata.call("due", "--json").output)
    assert row["is_due"] is False
    assert datetime.fromisoformat(row["due"]) > datetime.now(UTC)
    assert "Nothing is due today." in kata.call("due").output


@pytest.mark.parametrize(("columns", "room"), [("80", 80), ("10", 40), ("", None), ("wide", None)])
def test_the_screen_is_as_wide_as_columns_says(monkeypatch, columns, room):
    monkeypatch.setenv("COLUMNS", columns)
    assert screen.width() == room
    text = "word " * 40
    assert max(map(len, screen.folded(text).splitlines())) <= (room or len(text))
    assert len(screen.cut(text)) <= (room or len(text))


@pytest.mark.parametrize("command", ["list", "next", "coverage", "profile list", "due"])
def test_lists_keep_to_80_columns(kata, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    shown = kata.call(*command.split()).output
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


def test_what_takes_long_says_for_how_long_and_how_to_end_it():
    now = [0.0]
    words = draw._Waiting("doubled on cpu", lambda: now[0])
    told = {}
    for now[0] in (4.9, 7.2, 31.0):
        told[now[0]] = words.__rich__().plain
    assert told == {
        4.9: "doubled on cpu ...",
        7.2: "doubled on cpu ... 7 s",
        31.0: "doubled on cpu ... 31 s; Ctrl-C stops it",
    }


def test_a_figure_is_broken_between_its_columns():
    line = "tile 0  ####  ####     the first program has the first tile"
    assert list(screen.broken(line, 80)) == [line]
    assert list(screen.broken(line, 48)) == [
        "tile 0  ####  ####",
        "      ↳ the first program has the first tile",
    ]
    for room in (40, 48, 55):
        for one in (line, "#" * 90, " " * 60 + "x", f"{line}   {line}"):
            parts = list(screen.broken(one, room))
            assert max(map(len, parts)) <= room, parts
            told = "".join(parts).replace("↳", "").replace(" ", "")
            assert told == one.replace(" ", "")


def test_source_stands_behind_what_is_told_or_below_it(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    told, source = "  a.py:17  load  2 requests, 64.5 sectors each", "x = tl.load(x_ptr + offs)"
    assert list(screen.beside(told, source)) == [f"{told}    {source}"]
    monkeypatch.setenv("COLUMNS", "60")
    assert list(screen.beside(told, source)) == [told, f"      {source}"]
