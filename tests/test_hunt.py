"""Hunts: a fault is handed out, found by the kata's own tests, said, and mended."""

import json
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from harness.base.errors import UsageProblem
from harness.cli import main
from harness.content.catalog import load_curriculum
from harness.content.kata import load_kata
from harness.learner.progress import Check, Progress
from harness.learner.workspace import Workspace
from harness.practice.bugs import Bug, bugs_of, drawn_bugs
from harness.practice.hunt import FREE_GUESSES, Hunt, Hunts
from harness.practice.judging import asked_case, case_words, first_failure, on_case

ROOT = Path(__file__).parents[1]
MINE = "# mine\n"
NOW = datetime(2027, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def house(mini, tmp_path, monkeypatch):
    """The tiny kata, solved a week ago; runs `kata` and returns its exit code and output."""
    home = tmp_path / "home"
    monkeypatch.setenv("KATA_HOME", str(home))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (mini / "katas/week01/doubled/doubled.py").write_text(MINE)
    progress = Progress(home, clock=lambda: datetime.now(UTC) - timedelta(days=7))
    progress.note("started", "doubled")
    attempt = progress.start("doubled", "yours", "ab" * 32, seed=1, device="cpu", profile="cpu")
    progress.finish(attempt, "passed", "", checks=(), measurements=(), versions={}, duration_s=1.0)

    def run(*arguments):
        done = CliRunner().invoke(main, ["--root", str(mini), "hunt", "doubled", *arguments])
        return done.exit_code, done.output

    run.root, run.home, run.kata = mini, home, load_kata(mini / "katas/week01/doubled")
    run.file = mini / "hunt" / "doubled.py"
    run.reviews = lambda: [
        json.loads(note.detail)
        for note in Progress(home).notes("doubled")
        if note.kind == "short_review"
    ]
    return run


@pytest.fixture
def unjudged(monkeypatch):
    """Hunts begin without a run: whatever is drawn is taken to die."""
    dead = Check(name="test_any", outcome="failed", message="expected 1, found 2")
    monkeypatch.setattr("harness.practice.hunt.dies_of", lambda *_: dead)
    monkeypatch.setattr("harness.practice.hunt.not_the_references", lambda *_: "")


def bug_of(reference, text):
    return Bug(key="edit:one", why="", text=text, reference=reference)


def hunt_of(text, lines):
    return Hunt(kata="doubled", bug="edit:one", why="", text=text, lines=lines, mend=(), seed=1,
                test="test_any", began_at=NOW.isoformat())  # fmt: skip


# ---- what can be hunted --------------------------------------------------------------------


def test_wrong_solutions_are_hunted_without_their_reason_in_the_file(house):
    bugs = {bug.key: bug for bug in bugs_of(house.kata)}
    bug = bugs["edit:last_element_unwritten"]
    assert bug.why == "stops one element early"
    assert bug.text.startswith('"""Kata week01/doubled: one read, one write."""')
    assert all("Wrong on purpose" not in one.text for one in bugs.values())
    (line,) = bug.lines
    assert bug.text.splitlines()[line - 1].strip() == "torch.mul(x[:-1], 2, out=y[:-1])"


def test_a_fault_that_rewrites_the_function_is_not_hunted(house):
    rewritten = "\n".join(f"    y = y + {at}" for at in range(7))
    with (house.kata.wrong / "edits.toml").open("a") as edits:
        edits.write(f"\n[rewrites]\nwhy = \"all else\"\nfind = \"    return y\"\nreplace = '''\n"
                    f"{rewritten}\n    return y'''\n")  # fmt: skip
    assert "edit:rewrites" not in {bug.key for bug in bugs_of(house.kata)}


@pytest.mark.parametrize(
    "line", ["if False:", "elif True:", "if (false) {", "y = x and 1", "pass", "while True:"]
)
def test_what_no_one_would_write_is_not_hunted(line):
    assert not bug_of("a = 1\nb = 2\n", f"a = 1\n    {line}\n").is_fair


@pytest.mark.parametrize("line", ["if True_ == 1:", "if 0 not in shape:", "y = x and 1 < z"])
def test_what_only_looks_like_it_is_hunted(line):
    assert bug_of("a = 1\nb = 2\n", f"a = 1\n    {line}\n").is_fair


def test_where_a_line_is_missing_its_neighbours_are_at_fault():
    assert bug_of("a = 1\nb = 2\n\nc = 3\n", "a = 1\n\nc = 3\n").lines == [1, 3]
    assert bug_of("a = 1\nb = 2\n", "a = 1\n").lines == [1]


def test_empty_lines_are_no_change():
    assert bug_of("a = 1\n\nb = 2\n", "a = 1\nb = 2\n").size == 0


def test_mutants_are_hunted_when_the_wrong_solutions_are_used_up(house):
    (house.kata.wrong / "edits.toml").write_text("")
    (house.kata.wrong / "kills.toml").unlink(missing_ok=True)
    found = list(drawn_bugs(house.kata, Random(1)))
    assert found
    assert {bug.key.partition(":")[0] for bug in found} == {"mutant"}
    whys = {bug.why for bug in found}
    assert "in doubled, `torch.mul(x, 2, out=y)` is missing" in whys
    assert any("`torch.mul(x, 3, out=y)` stands where `" in why for why in whys)
    for bug in found:
        assert "if True" not in bug.text
        assert "if False" not in bug.text


def test_the_fault_of_the_hunt_before_comes_last(house):
    for seed in range(5):
        keys = [bug.key for bug in drawn_bugs(house.kata, Random(seed), not_this="edit:copies")]
        assert keys[-1] == "edit:copies"
        assert len(keys) == len(set(keys))


def test_a_kata_of_each_backend_has_several_hunts():
    of_backend = {}
    for kata in load_curriculum(ROOT).katas.values():
        of_backend.setdefault(kata.backend, kata)
    for backend, kata in of_backend.items():
        first = list(islice(drawn_bugs(kata, Random(1)), 3))
        assert len({bug.key for bug in first}) == 3, backend
        for bug in first:
            compile(bug.text, kata.name, "exec")
            assert 1 <= bug.size <= 6, (backend, bug.key)


# ---- naming a line -------------------------------------------------------------------------


def test_a_line_is_found_again_after_lines_were_added_above_it():
    hunt = hunt_of("a\nb\nc\n", (3,))
    assert hunt.named(5, "new\na\nnew\nb\nc\n").located
    assert not hunt.named(3, "new\na\nnew\nb\nc\n").located


def test_a_line_that_was_edited_is_still_the_line_at_fault():
    assert hunt_of("a\nb\nc\n", (2,)).named(2, "a\nprint(b)\nc\n").located


def test_the_same_wrong_line_costs_once():
    hunt = hunt_of("a\nb\nc\n", (2,))
    for line in (1, 1, 3, 2):
        hunt = hunt.named(line, hunt.text)
    assert (hunt.misses, hunt.located) == (2, True)


# ---- from handing out to mending -----------------------------------------------------------


def test_a_hunt_is_for_katas_that_are_solved(house):
    Progress(house.home).note("started", "doubled")
    code, output = house()
    assert code == 2
    assert "Solve it first, or add --anyway" in output
    assert not house.file.exists()


def test_hunting_before_it_is_solved_counts_as_the_solution_seen(house, unjudged):
    Progress(house.home).note("started", "doubled")
    assert house("--anyway")[0] == 0
    assert Progress(house.home).solution_seen("doubled")


def test_from_handing_out_to_mending(house):
    code, output = house("--seed", "5")
    assert code == 0, output
    assert "4 explain" in output
    record = json.loads((house.home / "hunts/doubled.json").read_text())
    assert house.file.read_text() == record["text"]
    assert record["why"] not in output + house.file.read_text()

    code, output = house("--check")
    assert code == 1, output
    assert record["test"].partition("[")[0] in output

    assert house("--line", "1")[0] == 1
    assert house("--line", str(record["lines"][0]))[0] == 0
    house("--because", "it is  wrong")
    house.file.write_text((house.root / "solutions/week01/doubled.py").read_text())
    code, output = house("--check")
    assert code == 0, output
    assert record["why"] in output
    assert "you said:  it is wrong" in output
    assert "doubled: counts as a review; due again " in output
    (review,) = house.reviews()
    assert (review["form"], review["passed"], review["misses"]) == ("hunt", True, 1)
    assert review["bug"] == record["bug"]

    assert not house.file.parent.exists()
    assert (house.root / "katas/week01/doubled/doubled.py").read_text() == MINE
    assert [one.why for one in Workspace(house.home).versions("doubled")] == ["hunt"]
    assert Progress(house.home).attempts() == Progress(house.home).attempts(impl="yours")


def test_no_fault_is_handed_out_where_the_reference_fails_as_well(house):
    oracle = house.kata.folder / "oracle.py"
    needing = "    import no_such_package\n\n    return 2 * x.double()"
    oracle.write_text(oracle.read_text().replace("    return 2 * x.double()", needing))
    code, output = house("--seed", "5")
    words = " ".join(output.split())
    assert code == 3, output
    assert "hunt: expected the reference of doubled to pass test_" in words
    assert "No module named 'no_such_package'" in words
    assert "kata run doubled --impl solution --seed 5" in words
    assert not house.file.exists()
    assert not (house.home / "hunts").exists()


def test_giving_up_shows_the_fault_and_is_no_pass(house, unjudged):
    house()
    code, output = house("--give-up")
    record = json.loads((house.home / "hunts/doubled.json").read_text())
    assert code == 0
    assert record["why"] in output
    assert house.reviews()[0]["passed"] is False
    assert house("--check")[0] == 2  # nothing is under way


def test_guessing_all_lines_is_no_pass(house, unjudged):
    house()
    hunts = Hunts(house.root, house.home, Workspace(house.home))
    hunt = hunts.last(house.kata)
    right = [line for line in range(1, 12) if line not in hunt.lines]
    for line in right[: FREE_GUESSES + 1]:
        code, output = house("--line", str(line))
        assert code == 1
    assert "One too many" in output


def test_data_tell_nothing_of_an_open_hunt(house, unjudged):
    row = json.loads(house("--json")[1])
    assert (row["state"], row["guesses"]) == ("open", [])
    assert not {"why", "lines", "mend", "bug"} & row.keys()
    row = json.loads(house("--give-up", "--json")[1])
    assert row["state"] == "given up"
    assert {"why", "lines", "mend"} <= row.keys()


def test_a_seed_hands_out_the_same_hunt_again(house, unjudged):
    house("--seed", "7")
    first = house.file.read_text()
    house("--give-up")
    house("--seed", "7")
    assert house.file.read_text() == first


def test_a_hunted_file_that_is_gone_is_put_there_again(house, unjudged):
    house()
    text = house.file.read_text()
    house.file.unlink()
    assert house()[0] == 0
    assert house.file.read_text() == text


# ---- shrinking -----------------------------------------------------------------------------


def test_a_case_is_what_is_asked_for_and_the_rest_of_a_listed_one(house):
    case = asked_case(house.kata, "n=3")
    assert case == {"n": 3, "dtype": "float32"}
    assert case_words(case) == "n=3 dtype=float32"
    with pytest.raises(UsageProblem, match="expected words such as dtype=1, found 'm=3'"):
        asked_case(house.kata, "m=3")


def test_one_case_is_judged_alone(house, tmp_path):
    bug = next(bug for bug in bugs_of(house.kata) if bug.key == "edit:last_element_unwritten")
    file = tmp_path / "doubled.py"
    file.write_text(bug.text)
    outcome = on_case(house.kata, file, {"n": 1, "dtype": "float32"}, tmp_path, 1)
    assert [check.name for check in outcome.checks] == ["test_matches_reference[1-float32]"]
    assert first_failure(outcome)


def test_a_case_that_the_reference_refuses_as_well_is_no_smaller_one(house, unjudged):
    house()
    code, output = house("--case", "n=3 dtype=int64")
    assert code == 2, output
    assert "expected an input that the reference takes, found n=3 dtype=int64" in output
    assert "(line " not in output
    (record,) = (house.home / "hunts").glob("*.json")
    assert json.loads(record.read_text())["smallest"] == ""


def test_how_many_wrong_lines_are_left_is_told(house, unjudged):
    house()
    hunt = Hunts(house.root, house.home, Workspace(house.home)).last(house.kata)
    wrong = [at for at in range(1, len(hunt.text.splitlines()) + 1) if at not in hunt.lines]
    told = [house("--line", str(at))[1].strip() for at in wrong[: FREE_GUESSES + 1]]
    assert [one.partition(" is right as it is. ")[2].split(":")[0] for one in told] == [
        "2 wrong ones are free.",
        "1 wrong one is free.",
        "With the next wrong one the review has failed.",
        "One too many",
    ]
    assert " 4 wrong lines, judged 0 times" in house("--give-up")[1]


def test_a_round_under_way_is_named_as_such(house, unjudged):
    Progress(house.home).note("started", "doubled")
    code, output = house()
    assert code == 2
    assert "expected doubled to be solved, found a round of it under way" in " ".join(
        output.split()
    )
