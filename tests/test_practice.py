"""Practice from outside: the command `kata` on the tiny curriculum, over several days."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from harness.base.errors import MetadataError
from harness.base.files import utc_text
from harness.base.pace import PacedLimit
from harness.base.processes import child_environment
from harness.cli import main
from harness.cli.house import House
from harness.cli.teach import answered
from harness.content.cases import varied_cases
from harness.content.catalog import load_curriculum
from harness.content.kata import load_kata
from harness.learner.mastery import standing
from harness.learner.progress import Check, Note, Outline, Progress
from harness.learner.workspace import Workspace
from harness.running.runner import Outcome

STUB = "katas/week01/doubled/doubled.py"
DOUBLING = '''"""Mine."""
import torch


def doubled(x):
    if not x.is_floating_point():
        raise ValueError("x: expected floating point")
    return torch.mul(x, 2)
'''
ROOFLINE = """
[[speed]]
kind = "roofline"
fraction = 0.8
case = { n = 1_000_000, dtype = "float32" }
"""
COST = """

def cost(*, x):
    from harness.hardware.profiles import Cost

    return Cost(flops=x.numel(), bytes=2 * x.nbytes)
"""


@pytest.fixture
def committed(mini):
    """The tiny curriculum under git, where `kata start` finds the blank stub."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=mini, check=True)
    return mini


def solve(mini, source=DOUBLING):
    (mini / STUB).write_text(source)


def lived(home, days_ago, code_hash="ab" * 32):
    """A history: solved from the blank stub, so many days ago."""
    at = datetime.now(UTC) - timedelta(days=days_ago)
    progress = Progress(home, clock=lambda: at)
    progress.note("started", "doubled")
    attempt = progress.start("doubled", "yours", code_hash, seed=1, device="cpu", profile="cpu")
    progress.finish(attempt, "passed", "", checks=(), measurements=(), versions={}, duration_s=1.0)


def notes_of(home, kind):
    return [note.detail for note in Progress(home).notes() if note.kind == kind]


def in_days(days):
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


# ---- what to take up -----------------------------------------------------------------------


def test_from_next_over_start_to_the_way_on(kata_command, committed):
    solve(committed, "# half an idea\n")
    first = kata_command("next").stdout
    assert "How little a kata needs." in first
    assert first.splitlines()[-1] == "next: kata start doubled"

    begun = kata_command("start", "doubled")
    assert begun.returncode == 0, begun.stderr
    assert "raise NotImplementedError" in (committed / STUB).read_text()
    (kept,) = [line.split()[-1] for line in begun.stdout.splitlines() if "stash apply" in line]
    assert kata_command("stash", "show", kept).stdout == "# half an idea\n"

    then = kata_command("next").stdout
    assert "in progress, not solved yet, no run yet" in then
    assert then.splitlines()[-1] == "next: make kata name=doubled"


def test_running_the_stub_is_no_attempt(committed, tmp_path, monkeypatch):
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    red = Outcome(status="failed", reason="not written yet", device="cpu", profile="cpu", seed=1,
                  checks=(), measurements=(), versions={}, duration_s=1.0, output="")  # fmt: skip
    monkeypatch.setattr("harness.running.attempt.run_kata", lambda *_, **__: red)

    def run():
        return CliRunner().invoke(main, ["--root", str(committed), "run", "doubled"])

    assert run().exit_code == 1
    assert Progress(tmp_path / "home").attempts() == []
    assert House(committed).advice()[0].begun is False
    solve(committed, "# half an idea\n")
    assert run().exit_code == 1
    assert len(Progress(tmp_path / "home").attempts()) == 1
    assert House(committed).advice()[0].begun is True


@pytest.mark.parametrize("count", ["0", "-1"])
def test_next_names_one_or_more(kata_command, count):
    done = kata_command("next", "-n", count)
    assert done.returncode == 2
    assert f"{count} is not in the range x>=1" in done.stderr


def test_a_copy_from_before_the_round_is_the_solution_seen(kata_command, committed, tmp_path):
    lived(tmp_path / "home", 9)
    solve(committed)
    begun = kata_command("start", "doubled").stdout
    (kept,) = [line.split()[-1] for line in begun.splitlines() if "stash apply" in line]
    done = kata_command("stash", "apply", "doubled", kept)
    assert "it counts as having seen the solution" in done.stderr
    assert notes_of(tmp_path / "home", "solution_seen") == ["stash"]
    assert kata_command("run", "doubled").returncode == 0
    (kata,) = json.loads(kata_command("scorecard", "--format", "json").stdout)["katas"]
    assert (kata["rounds"], kata["clean_days"], kata["peeks"]) == (2, 0, 1)

    shown = kata_command("stash", "show", kept)  # the round is solved: study
    assert (shown.stdout, shown.stderr) == (DOUBLING, "")
    kata_command("start", "doubled")
    shown = kata_command("stash", "show", kept)
    assert shown.stdout == DOUBLING
    assert "it counts as having seen the solution" in shown.stderr
    assert len(notes_of(tmp_path / "home", "solution_seen")) == 2


def test_a_copy_of_this_round_or_of_the_stub_gives_nothing_away(kata_command, committed, tmp_path):
    stub = (committed / STUB).read_bytes()
    workspace = Workspace(tmp_path / "home")
    blank = workspace.keep("doubled", committed / STUB, "stub")
    kata_command("start", "doubled")
    solve(committed, "# of this round\n")
    mine = workspace.keep("doubled", committed / STUB, "before reset")
    assert kata_command("stash", "apply", "doubled", blank[:12]).stderr == ""
    assert (committed / STUB).read_bytes() == stub
    assert kata_command("stash", "show", mine[:12]).stdout == "# of this round\n"
    assert notes_of(tmp_path / "home", "solution_seen") == []


def test_starting_over_an_open_round_says_that_it_is_given_up(kata_command, committed, tmp_path):
    assert "given up" not in kata_command("start", "doubled").stdout
    assert "given up" not in kata_command("start", "doubled").stdout  # nothing was tried
    Progress(tmp_path / "home").note("solution_seen", "doubled", "diff")
    again = kata_command("start", "doubled").stdout
    assert again.startswith("The round begun ")
    assert " UTC is given up: no run yet, solution seen, not solved.\n" in again
    solve(committed, "# nothing\n")
    assert kata_command("run", "doubled").returncode == 1
    assert " is given up: 1 run, not solved.\n" in kata_command("start", "doubled").stdout
    (kata,) = json.loads(kata_command("scorecard", "--format", "json").stdout)["katas"]
    assert (kata["rounds"], kata["peeks"]) == (2, 1)


def test_start_without_git_says_the_way_out(kata_command):
    done = kata_command("start", "doubled")
    assert done.returncode == 3
    assert "expected the stub of doubled in git's HEAD" in done.stderr
    assert "kata stash list" in done.stderr


def test_what_was_solved_becomes_due(kata_command, tmp_path):
    lived(tmp_path / "home", 0)
    nothing, ahead = kata_command("due").stdout.splitlines()
    assert nothing == "Nothing is due today. `kata next` names something new."
    assert ahead.startswith("doubled  due ")
    assert ahead.endswith(" days)")
    assert "Nothing is in progress, due or new" in kata_command("next").stdout

    later = kata_command("due", KATA_NOW=in_days(30)).stdout.splitlines()
    assert later[0].startswith("doubled  recall")
    assert "days ago)" in later[0]
    assert "days ago)  five minutes" in later[0]
    assert later[-1] == "next: kata quiz doubled"
    (row,) = json.loads(kata_command("due", "--json", KATA_NOW=in_days(30)).stdout)
    assert (row["kata"], 0 < row["recall"] < 0.9) == ("doubled", True)
    assert (row["form"], row["is_due"]) == ("short", True)
    card = kata_command("scorecard", KATA_NOW=in_days(30)).stdout
    words = " ".join(card.split())
    assert "0 of 1 katas mastered, 1 more solved, 0 untried; 0 reviews in a row kept." in words
    assert "due: doubled\nnext: kata quiz doubled  (due " in card


def test_a_short_review_says_when_the_kata_comes_back(mini):
    kata = load_curriculum(mini).kata("doubled")
    at = [datetime(2026, 1, 5 + day, 9, tzinfo=UTC) for day in (0, 9)]
    text = [one.isoformat(timespec="microseconds") for one in at]
    runs = [Outline("id", "doubled", text[0], text[0], "passed", "cpu", 0, False, False)]

    def asked(day, passed=True):
        when, detail = utc_text(at[0] + timedelta(days=day)), json.dumps({"passed": passed})
        return Note(id=f"{day}", at=when, kind="short_review", kata="doubled", detail=detail)

    def words(attempts, *notes):
        """What is said of the last of `notes`."""
        found = [standing(kata, attempts, some, (), at[1]) for some in (notes[:-1], notes)]
        return answered(*found, at[1]).partition(" 202")[0]

    no = "doubled: does not count as a review, since"
    assert words(runs, asked(9)) == "doubled: counts as a review; due again"
    failed = words(runs, asked(9, passed=False))
    assert failed == "doubled: counts as a review that was not passed; due again"
    assert words(runs, asked(9), asked(9.1)) == f"{no} you practised it today; still due"
    whole = words(runs, asked(9), asked(40), asked(90))
    assert whole == f"{no} its reviews are from blank by now; still due"
    assert words([], asked(9)) == "doubled: comes back once it is solved"


def test_what_a_round_under_way_has_taken_is_planned_no_more(kata_command, mini, tmp_path):
    toml = mini / "katas/week01/doubled/kata.toml"
    toml.write_text(re.sub(r"(?m)^minutes *= *\d+", "minutes = 40", toml.read_text()))
    now = datetime.now(UTC)
    began, ran = (
        Progress(tmp_path / "home", clock=lambda ago=ago: now - timedelta(minutes=ago))
        for ago in (25, 10)
    )
    began.note("started", "doubled")
    attempt = ran.start("doubled", "yours", "ab" * 32, seed=1, device="cpu", profile="cpu")
    ran.finish(attempt, "failed", "", checks=(), measurements=(), versions={}, duration_s=1.0)
    (week,) = json.loads(kata_command("plan", "--weeks", "1", "--json").stdout)["weeks"]
    assert (week["hours_done"], week["new"][0]["minutes"]) == (0.25, 25.0)


def test_the_weeks_to_come_are_within_the_hours(kata_command, tmp_path):
    new = kata_command("plan").stdout
    assert new.startswith("10 hours a week: 60% for what is new, 40% for reviews")
    assert "kata plan --hours H" in new
    assert "  new           0.1 h  doubled\n" in new
    lived(tmp_path / "home", 0)
    said = json.loads(kata_command("plan", "--hours", "3", "--retention", "0.9", "--json").stdout)
    assert (said["hours"], said["retention"], len(said["weeks"])) == (3.0, 0.9, 8)
    asked = [one["form"] for week in said["weeks"] for one in week["back"]]
    assert asked[:2] == ["short", "short"]
    assert all(week["hours_new"] + week["hours_back"] <= 3 for week in said["weeks"])
    later = kata_command("plan", "--weeks", "5").stdout  # what was said is remembered
    assert later.startswith("3 hours a week")
    assert "five minutes" in later
    assert "--hours H" not in later
    assert kata_command("plan", "--hours", "0").returncode == 2


def test_the_plan_takes_off_what_was_done_in_the_last_seven_days(kata_command, tmp_path):
    lived(tmp_path / "home", 20)
    before = kata_command("plan").stdout
    Progress(tmp_path / "home").note("short_review", "doubled", '{"passed": true}')
    weeks = json.loads(kata_command("plan", "--json").stdout)["weeks"]
    assert [week["hours_done"] for week in weeks] == [0.08] + 7 * [0.0]
    after = kata_command("plan").stdout
    assert "in the last seven days" not in before
    assert after.count(" hours, after 0.1 in the last seven days\n") == 1


@pytest.mark.parametrize("moment", ["tomorrow", "2026-01-31T12:00"])
def test_a_moment_without_a_zone_is_refused(kata_command, moment):
    done = kata_command("due", KATA_NOW=moment)
    assert done.returncode == 2
    assert f"found '{moment}'. Unset it." in done.stderr


def test_a_review_in_time_is_kept_and_counts_as_another_day(kata_command, committed, tmp_path):
    lived(tmp_path / "home", 29)  # written with ease: due after four weeks
    assert "due for 1 day" in kata_command("next").stdout
    begun = kata_command("start", "doubled").stdout
    assert "You have solved it once." in begun
    assert "next: make kata name=doubled" in kata_command("next").stdout  # not: start it again

    solve(committed)
    assert kata_command("run", "doubled").returncode == 0
    card = json.loads(kata_command("scorecard", "--format", "json").stdout)
    (kata,) = card["katas"]
    assert (kata["rounds"], kata["clean_days"], kata["level"]) == (2, 2, "solved")
    assert (card["kept"], card["due"]) == (1, [])


def test_right_but_too_dear_is_correct_and_not_yet_fast(kata_command, mini):
    solve(mini, DOUBLING.replace("torch.mul(x, 2)", "torch.mul(x, 2).clone()"))
    assert kata_command("run", "doubled").returncode == 1
    listed = kata_command("list", "--status", "correct").stdout
    assert listed.startswith("◐ week  1  doubled")


def test_a_fresh_start_begins_the_hints_anew(kata_command, committed):
    assert [kata_command("hint", "doubled").stdout[:6] for _ in range(2)] == ["Hint 1", "Hint 2"]
    kata_command("start", "doubled")
    assert kata_command("hint", "doubled").stdout.startswith("Hint 1 of 3")


def test_a_hint_seen_on_another_machine_counts_after_merging(mini, tmp_path):
    laptop, box = (Progress(tmp_path / name) for name in ("laptop", "box"))
    laptop.note("started", "doubled")
    laptop.note("hint_shown", "doubled", "1")
    attempt = box.start("doubled", "yours", "ab" * 32, seed=1, device="cpu", profile="cpu")
    box.finish(attempt, "passed", "", checks=(), measurements=(), versions={}, duration_s=1.0)
    notes, attempts = laptop.notes("doubled"), box.outlines("doubled")
    kata = load_curriculum(mini).kata("doubled")
    (alone,) = standing(kata, attempts, notes[:1], (), datetime.now(UTC)).rounds
    (merged,) = standing(kata, attempts, notes, (), datetime.now(UTC)).rounds
    assert (alone.hints, merged.hints, merged.clean) == (0, 1, False)


# ---- what came of it -----------------------------------------------------------------------


def test_explain_waits_for_the_solution(kata_command):
    done = kata_command("explain", "doubled")
    assert done.returncode == 2
    assert "Solve it first, or add --anyway" in done.stderr


def test_explain_shows_the_reference_and_the_ladder(kata_command, mini, tmp_path):
    lived(tmp_path / "home", 0)
    solve(mini)
    dear = DOUBLING.replace("torch.mul(x, 2)", "torch.mul(x, 2).clone()").replace(
        '"""Mine', '"""Wrong on purpose'
    )
    (mini / "tests/wrong/week01/doubled/naive.py").write_text(dear)
    (mini / "tests/wrong/week01/doubled/approaches.toml").write_text(
        '[adds]\nwhy = "a sum of two"\nfind = "torch.mul(x, 2, out=y)"\n'
        'replace = "torch.add(x, x, out=y)"\n'
    )
    done = kata_command("explain", "doubled")
    assert done.returncode == 0, done.stderr
    assert "torch.mul(x, 2, out=y)" in done.stdout
    shown, _, asked = done.stdout.partition("\nwhy: ")
    assert asked.startswith("Why is a sum as good")
    *table, naive, words, measured = shown.splitlines()
    heading, row = (line.split() for line in table[-2:])
    assert naive.startswith("naive:")
    assert (words, measured) == ("adds: a sum of two.", "    not measured")
    assert "The worksheet" not in done.stdout, "it is not compared with the roofline"
    assert heading == ["threshold", "naive", "yours", "reference", "adds"]
    assert row == ["allocated_bytes", "8,000", "4,000", "4,000", "4,000"]


def test_explaining_too_early_is_remembered(mini, tmp_path, monkeypatch):
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("harness.reports.ladder.climb", lambda *_, **__: [])
    done = CliRunner().invoke(main, ["--root", str(mini), "explain", "doubled", "--anyway"])
    assert done.exit_code == 0, done.output
    assert Progress(tmp_path / "home").solution_seen("doubled")


GUESS = ("--intensity", "0.125", "--bound", "memory", "--time", "2.4")


def with_roofline(mini):
    for name, more in (("kata.toml", ROOFLINE), ("oracle.py", COST)):
        path = mini / "katas/week01/doubled" / name
        path.write_text(path.read_text() + more)


def test_explain_fills_the_worksheet_in(mini, tmp_path, monkeypatch):
    with_roofline(mini)
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("harness.reports.ladder.climb", lambda *_, **__: [])
    done = CliRunner().invoke(main, ["--root", str(mini), "explain", "doubled", "--anyway"])
    assert done.exit_code == 0, done.output
    shown = [" ".join(line.split()) for line in done.output.splitlines()]
    assert "The worksheet, filled in:" in shown
    assert "work 1,000,000 FLOP, at least 8,000,000 bytes moved" in shown
    assert "intensity 0.125 FLOP per byte; ridge 20" in shown
    assert "bound by memory" in shown
    assert "at best 2.388 µs" in shown


def test_predict_shows_guess_beside_truth(kata_command, mini):
    with_roofline(mini)
    # 8 MB at 3.35 TB/s
    done = kata_command(
        "predict", "doubled", "--intensity", "0.13", "--bound", "compute", "--time", "2.4"
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["✓", "FLOP", "per", "byte", "you", "0.13", "it", "is", "0.125"] in lines
    assert ["✗", "bound", "by", "you", "compute", "it", "is", "memory"] in lines
    assert "2 of 3, compared with the roofline\n" in done.stdout
    assert done.stdout.endswith(
        "your last prediction: time within a factor of 1 (median), intensity right in 1, "
        "bound in 0\n"
    )


def test_a_prediction_after_the_timing_is_kept_as_such(mini, tmp_path, monkeypatch):
    with_roofline(mini)
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("harness.cli.house.House.measured_share", lambda *_: 0.5)
    done = CliRunner().invoke(main, ["--root", str(mini), "predict", "doubled", *GUESS])
    assert done.exit_code == 0, done.output
    assert done.output.endswith(
        "3 of 3, compared with the roofline; it was timed before, so this is recorded as made "
        "afterwards\n"
    )
    (note,) = notes_of(tmp_path / "home", "predicted")
    assert json.loads(note)["measured"] == pytest.approx(2 * 8e6 / 3.35e12)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--intensity", "nan", "a finite number from 0 on, found 'nan'"),
        ("--intensity", "-1", "a finite number from 0 on, found '-1'"),
        ("--intensity", "inf", "a finite number from 0 on, found 'inf'"),
        ("--time", "0", "a finite number above 0, found '0'"),
        ("--time", "-5", "a finite number above 0, found '-5'"),
        ("--time", "soon", "a finite number above 0, found 'soon'"),
    ],
)
def test_what_cannot_be_a_prediction_is_refused(
    mini, tmp_path, monkeypatch, option, value, expected
):
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    done = CliRunner().invoke(main, ["--root", str(mini), "predict", "doubled", option, value])
    assert done.exit_code == 2
    assert expected in done.output


def test_a_copy_has_no_flop_and_may_be_predicted_so(mini, tmp_path, monkeypatch):
    with_roofline(mini)
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    asked = ["--root", str(mini), "predict", "doubled"]
    done = CliRunner().invoke(main, asked, input="0\nmemory\nnan\n2.4\n")
    assert done.exit_code == 0, done.output
    assert "Error: expected a finite number above 0, found 'nan'." in done.output  # and again
    assert "2 of 3" in done.output


def test_placement_is_earned(kata_command, tmp_path):
    before = kata_command("placement", "--week", "1")
    assert before.returncode == 1
    assert before.stdout.endswith("next: kata start doubled\n")
    lived(tmp_path / "home", 0)
    after = kata_command("placement", "--week", "1")
    assert after.returncode == 0
    assert after.stdout.endswith("You have tested out of week 1: there is nothing else in it.\n")
    assert "found '9'" in kata_command("placement", "--week", "9").stderr


# ---- proof ---------------------------------------------------------------------------------


def test_a_claim_holds_until_it_is_forged(kata_command, mini, tmp_path):
    solve(mini)
    kept = Workspace(tmp_path / "home").keep("doubled", mini / STUB, "passed")
    lived(tmp_path / "home", 1, code_hash=kept)
    card = tmp_path / "card.json"
    kata_command("scorecard", "--format", "json", "-o", str(card))
    held = kata_command("verify", str(card))
    assert held.returncode == 0, held.stdout
    assert held.stdout.startswith("✓ doubled: held: ")

    claims = json.loads(card.read_text())
    claims["katas"][0]["evidence"]["code_hash"] = "0" * 64
    card.write_text(json.dumps(claims))
    forged = kata_command("verify", str(card))
    assert forged.returncode == 1
    assert "? doubled: unknown: the code 000000000000 is not kept here" in forged.stdout
    assert forged.stdout.endswith("0 of 1 held, 1 claims in all.\n")


# ---- watching ------------------------------------------------------------------------------


def test_one_look_ends_with_1_unless_all_is_green(mini, tmp_path, monkeypatch):
    done, asked = red_look(mini, tmp_path, monkeypatch)
    assert done.exit_code == 1
    assert "✗ edges: test_edge: expected 1, found 2" in done.output
    assert asked == [("doubled", ["--staged", "-x"])]
    assert Progress(tmp_path / "home").attempts() == []  # a look is not an attempt


def red_look(mini, tmp_path, monkeypatch):
    """One look that finds an edge red; what it asked the judge."""
    asked = []

    def red(submission, **options):
        asked.append((submission.kata.name, options["extra"]))
        return SimpleNamespace(
            status="failed",
            checks=(Check(name="test_edge", outcome="failed", message="expected 1, found 2"),),
        )

    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("harness.cli.watching.run_kata", red)
    return CliRunner().invoke(main, ["--root", str(mini), "watch", "doubled", "--once"]), asked


def test_a_look_is_data_for_another_program(mini, tmp_path, monkeypatch):
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    command = ["--root", str(mini), "watch", "doubled", "--json"]
    assert "expected --once as well" in CliRunner().invoke(main, command).output
    done = CliRunner().invoke(main, [*command, "--once"])
    row = json.loads(done.stdout)
    assert (done.exit_code, row["status"]) == (1, "failed")
    assert row["stages"][0] == "✓ import"
    assert row["stages"][-1].startswith("✗ tiny case: ")
    assert len(row["checks"]) == 1  # up to the first that is red
    solve(mini)
    done = CliRunner().invoke(main, [*command, "--once"])
    row = json.loads(done.stdout)
    assert (done.exit_code, row["status"], row["kata"]) == (0, "passed", "doubled")
    assert len(Progress(tmp_path / "home").attempts("doubled")) == 1
    (mini / STUB).unlink()
    done = CliRunner().invoke(main, [*command, "--once"])
    assert json.loads(done.stdout)["status"] == "missing"


SLOW = """

def test_that_takes_a_while(kata):
    import time
    print("slow")
    time.sleep(600)
"""


def test_keys_are_answered_while_a_run_goes_on(mini, tmp_path):
    solve(mini)
    tests = mini / "katas/week01/doubled/test_doubled.py"
    tests.write_text(tests.read_text() + SLOW)
    terminal = Terminal(
        [sys.executable, "-m", "harness", "--root", str(mini), "watch", "doubled"],
        cwd=mini, env=child_environment({"KATA_HOME": str(tmp_path / "home")}),
    )  # fmt: skip
    try:
        terminal.wait_for("doubled on cpu ...")
        terminal.type("h")
        terminal.wait_for("Hint 1 of 3: Add it to itself.")
        terminal.type("l")
        terminal.wait_for("any other key: stay here")
        terminal.type("x")
        terminal.wait_for("doubled on cpu ...")  # the look that was stopped
        terminal.type("q")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.line)


def test_a_red_look_is_noted_once_for_each_text(committed, tmp_path, monkeypatch):
    def looks():
        red_look(committed, tmp_path, monkeypatch)
        return len(notes_of(tmp_path / "home", "looked"))

    assert looks() == 0  # the blank stub is nobody's work
    solve(committed, "# half an idea\n")
    assert [looks(), looks()] == [1, 1]
    solve(committed, "# another\n")
    assert looks() == 2


def test_a_file_that_is_gone_is_named(mini, tmp_path, monkeypatch):
    (mini / STUB).unlink()
    done, asked = red_look(mini, tmp_path, monkeypatch)
    assert done.exit_code == 1
    assert f"✗ {STUB}: expected your file, found none. `kata reset doubled` puts" in done.output
    assert asked == []


# ---- pictures that give the answer away ----------------------------------------------------


@pytest.mark.parametrize(
    ("impl", "noted"),
    [("yours", []), ("solution", ["trace"]), ("wrong:copies", ["trace"])],
)
def test_tracing_the_reference_shows_its_lines(mini, tmp_path, monkeypatch, impl, noted):
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("harness.reports.pictures.trace.check_case", lambda *_: None)
    monkeypatch.setattr("harness.reports.pictures.trace.recorded", lambda *_: None)
    monkeypatch.setattr("harness.cli.pictures._trace_words", lambda *_: [])
    done = CliRunner().invoke(main, ["--root", str(mini), "trace", "doubled", "--impl", impl])
    assert done.exit_code == 0, done.output
    assert notes_of(tmp_path / "home", "solution_seen") == noted


class Terminal:
    """A command in a pseudo-terminal, and what it has shown so far."""

    def __init__(self, command, **how):
        master, slave = pty.openpty()
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, **how)
        os.close(slave)
        self.line, self.shown = master, ""

    def wait_for(self, words):
        start, limit = time.monotonic(), PacedLimit(60.0)
        while words not in self.shown and not limit.is_over(time.monotonic() - start):
            if select.select([self.line], [], [], 0.1)[0]:
                self.shown += os.read(self.line, 4096).decode(errors="replace")
        assert words in self.shown, self.shown
        self.shown = self.shown.partition(words)[2]

    def type(self, keys):
        os.write(self.line, keys.encode())


def test_watching_looks_again_at_every_save_and_answers_keys(mini, tmp_path):
    terminal = Terminal(
        [sys.executable, "-m", "harness", "--root", str(mini), "watch", "doubled"],
        cwd=mini, env=child_environment({"KATA_HOME": str(tmp_path / "home")}),
    )  # fmt: skip
    try:
        terminal.wait_for("✗ tiny case: test_matches_reference")
        terminal.wait_for("q quit")
        terminal.type("hl")  # two at once: neither is lost
        terminal.wait_for("Hint 1 of 3: Add it to itself.")
        terminal.wait_for("1  · week  1  doubled: Doubled")
        terminal.wait_for("any other key: stay here")
        terminal.type("xn")
        terminal.wait_for("There is no other kata to take up at the moment.")
        terminal.type("r")
        terminal.wait_for("✗ tiny case: test_matches_reference")
        terminal.type("sn")
        terminal.wait_for("It counts as having seen it: y or n")
        solve(mini)
        terminal.wait_for("✓ edges")
        terminal.wait_for(" checks passed")
        terminal.wait_for("q quit")
        terminal.type("q")
        assert terminal.process.wait() == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.line)
    (kept,) = Progress(tmp_path / "home").attempts("doubled")
    assert (kept.status, kept.hints_seen, kept.solution_seen) == ("passed", 1, False)


# ---- other cases on a repeat ---------------------------------------------------------------


def test_where_one_kata_stands_is_known_though_another_is_broken(mini, tmp_path, monkeypatch):
    monkeypatch.setenv("KATA_HOME", str(tmp_path / "home"))
    house = House(mini)
    kata = house.curriculum.kata("doubled")
    house.progress.note("started", "doubled")
    assert house.standing(kata) == house.standings()["doubled"]
    assert house.standing(kata).open.started
    (mini / "katas/week02/broken").mkdir()
    (mini / "katas/week02/broken/kata.toml").write_text("title = 3\n")
    with pytest.raises(MetadataError):
        House(mini).standings()
    assert House(mini).standing(kata) == house.standing(kata)


def vary(mini, lines):
    path = mini / "katas/week01/doubled/kata.toml"
    path.write_text(f"{path.read_text()}\n[vary]\n{lines}\n")
    return path.parent


def test_drawn_cases_are_new_different_and_repeatable(mini):
    kata = load_kata(vary(mini, "n = [0, 3, 5, 7]"))
    drawn = varied_cases(kata, "cpu", 3, seed=1)
    # of four sizes two are listed as cases already
    assert sorted(case["n"] for case in drawn) == [3, 5]
    assert all(case["dtype"] == "float32" for case in drawn)
    assert drawn == varied_cases(kata, "cpu", 3, seed=1)
    assert varied_cases(load_kata(mini / "katas/week01/doubled"), "cpu", 0, seed=1) == []


def test_who_solves_it_again_meets_other_cases(kata_command, mini, tmp_path):
    vary(mini, "n = [31, 33]")
    lived(tmp_path / "home", 1)
    solve(mini)
    again = kata_command("run", "doubled", "-v").stdout
    assert "✓ test_matches_reference[31-float32]" in again
    assert "✓ test_matches_reference[33-float32]" in again
    assert "You have solved this kata before, so extra cases were drawn." in again


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("n = 5", "vary.n: expected a list of two or more values, found 5"),
        ("n = [5]", "vary.n: expected a list of two or more values, found [5]"),
        ("m = [5, 6]", "vary.m: expected an argument of a case, found 'm'"),
        ("dtyp = [1, 2]", "Did you mean dtype?"),
    ],
)
def test_what_cannot_be_varied_is_refused(mini, lines, problem):
    with pytest.raises(MetadataError) as caught:
        load_kata(vary(mini, lines))
    assert problem in caught.value.message
