"""The command `kata` from outside, on the tiny curriculum."""

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import KNOWN, SECTIONS, main
from harness.hardware import packages

ROOT = Path(__file__).resolve().parents[1]


def solve(mini):
    solution = mini / "solutions" / "week01" / "doubled.py"
    file = mini / "katas" / "week01" / "doubled" / "doubled.py"
    file.write_text("# mine\n" + solution.read_text())
    return file


def test_a_stub_exits_1_and_names_the_next_step(kata_command):
    done = kata_command("run", "doubled")
    assert done.returncode == 1
    assert done.stdout.count("doubled is still a stub: edit katas/week01/doubled") == 1
    assert done.stdout.splitlines()[0].startswith("✗ 8 checks wait for your code: doubled is still")
    assert len(done.stdout.splitlines()) == 3
    assert "next: edit katas/week01/doubled/doubled.py" in done.stdout


def test_solving_a_kata_is_remembered(kata_command, mini):
    solve(mini)
    done = kata_command("run", "doubled", "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "threshold allocated_bytes: 4,000, limit <= 4,000" in done.stdout
    (row,) = json.loads(kata_command("list", "--json").stdout)
    assert row["status"] == "solved"
    assert "● week  1  doubled" in kata_command("list").stdout
    card = json.loads(kata_command("scorecard", "--json").stdout)
    assert card["weeks"][0]["items"] == {
        "untried": 1, "attempted": 0, "correct": 0, "solved": 2, "fast": 0,
        "mastered": 0,
    }  # fmt: skip
    exported = kata_command("export").stdout.splitlines()
    attempts = [json.loads(line) for line in exported if '"doubled"' in line]
    assert attempts[0]["attempt"]["seed"] == 7


def test_export_and_import_merge_once(kata_command, tmp_path):
    kata_command("run", "doubled")
    kata_command("export", "-o", str(tmp_path / "mine.jsonl"))
    elsewhere = {"KATA_HOME": str(tmp_path / "elsewhere")}
    first = kata_command("import", str(tmp_path / "mine.jsonl"), **elsewhere)
    again = kata_command("import", str(tmp_path / "mine.jsonl"), **elsewhere)
    assert first.stdout.startswith("1 "), first.stderr
    assert again.stdout.startswith("0 ")


def test_swap_and_restore_bring_the_learners_file_back(kata_command, mini):
    file = solve(mini)
    mine = file.read_text()
    assert kata_command("swap", "doubled").returncode == 0
    assert file.read_text() == (mini / "solutions" / "week01" / "doubled.py").read_text()
    assert kata_command("restore", "doubled").returncode == 0
    assert file.read_text() == mine
    kept = kata_command("stash", "list", "doubled").stdout.split()[0]
    assert kata_command("stash", "show", kept).stdout == mine


def test_the_reference_in_place_is_nobodys_own(kata_command, mini):
    file = solve(mini)
    kata_command("swap", "doubled")
    file.write_text(file.read_text() + "# tweaked\n")
    done = kata_command("run", "doubled")
    assert "passed: doubled (solution, cpu)" in done.stdout
    assert "To get it back: kata restore doubled" in done.stdout
    assert json.loads(kata_command("list", "--json").stdout)[0]["status"] == "untried"
    assert "passed" not in kata_command("stash", "list", "doubled").stdout


def test_a_reference_swapped_in_twice_is_not_kept(kata_command, mini):
    solve(mini)
    kata_command("swap", "doubled")
    before = kata_command("stash", "list", "doubled").stdout
    again = kata_command("swap", "doubled").stdout
    assert "is kept as" not in again
    assert "holds the reference solution already: nothing was changed." in again
    assert "kata restore doubled brings your file back." in again
    assert kata_command("stash", "list", "doubled").stdout == before


@pytest.mark.parametrize("content", [None, b"\xff\xfe = 1\n"])
def test_diff_of_a_file_that_is_gone_or_no_text(kata_command, mini, content):
    file = solve(mini)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    done = kata_command("diff", "doubled")
    assert "Traceback" not in done.stderr
    assert (done.returncode == 0) == (content is not None)
    seen = "solution_seen" in kata_command("export").stdout
    assert seen == (content is not None)


def test_one_missing_extra_does_not_stop_the_others(kata_command, mini):
    path = mini / "katas/week01/doubled/kata.toml"
    other = path.parent.parent / "first"
    shutil.copytree(path.parent, other)
    (other / "kata.toml").write_text('extra = "nowhere"\n' + path.read_text())
    done = kata_command("run", "first", "doubled", "--impl", "solution")
    assert "- first: skipped: extra: expected one of " in done.stdout
    assert "passed: doubled" in done.stdout


def test_check_without_a_name_proves_every_kata(kata_command):
    assert "1 of 1 katas proven" in kata_command("check").stdout


def test_the_doctor_names_what_is_in_the_way_and_goes_on(kata_command, tmp_path):
    (tmp_path / "file").touch()
    done = kata_command("doctor", KATA_HOME=str(tmp_path / "file" / "home"))
    assert done.returncode == 3
    assert "!!  history" in done.stdout
    assert re.search(r"^ok  katas +1$", done.stdout, re.MULTILINE)
    assert "To install" not in done.stderr
    assert kata_command("doctor").returncode == 0


def test_the_doctor_holds_what_is_installed_against_what_is_needed(monkeypatch):
    needs = ["numpy<1", "click>=8", "nowhere>=1", 'other>=2; extra == "dev"']
    monkeypatch.setattr(packages, "requires", lambda _: needs)
    found = version("numpy")
    assert packages.unmet_requirements() == {
        "numpy": f"expected <1, found {found}",
        "nowhere": "expected >=1, found none",
    }
    done = CliRunner().invoke(main, ["--root", str(ROOT), "doctor"])
    assert done.exit_code == 3
    assert re.search(rf"^!!  numpy +expected <1, found {found}$", done.stdout, re.MULTILINE)
    assert "pip install -c constraints.txt" in done.stderr


def test_a_week_shows_its_plan(kata_command):
    shown = kata_command("show", "week01").stdout
    assert "week 1: " in shown
    assert "01.1" in shown


def test_a_stub_is_cut_out_of_the_reference_and_what_stood_there_is_kept(kata_command, mini):
    file = mini / "katas" / "week01" / "doubled" / "doubled.py"
    mine = solve(mini).read_text()
    shown = kata_command("stub", "doubled").stdout
    assert "raise NotImplementedError" in shown
    assert file.read_text() == mine
    done = kata_command("stub", "doubled", "--write")
    assert "doubled.py: cut out of solutions/week01/doubled.py" in done.stdout, done.stderr
    assert file.read_text() == shown
    kept = kata_command("stash", "list", "doubled").stdout.split()[0]
    assert kata_command("stash", "show", kept).stdout == mine
    file.unlink()
    assert kata_command("stub", "doubled", "--write").returncode == 0
    assert file.exists()


def test_diff_shows_mine_against_the_reference(kata_command, mini):
    solve(mini)
    assert "-# mine" in kata_command("diff", "doubled").stdout


def test_source_keeps_its_long_lines_on_a_narrow_screen(kata_command, mini):
    solution = mini / "solutions/week01/doubled.py"
    long = "# " + "long " * 40 + "end"
    solution.write_text(f"{solution.read_text()}\n{long}\n")
    lines = kata_command("explain", "doubled", "--anyway", COLUMNS="60").stdout.splitlines()
    assert long in lines
    assert f"+{long}" in kata_command("diff", "doubled", COLUMNS="60").stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["run", "doubed"], 2, "Did you mean doubled?"),
        (["lst"], 2, "No such command 'lst'. Did you mean list"),
        (["run", "week01"], 2, "to judge it: kata run --week 1"),
        (["run", "--week", "7"], 2, "expected 1 to 2, or several as in 1..4, found '7'"),
        (["run", "doubled", "--profile", "h20"], 2, "Did you mean h200_sxm?"),
        (["run", "doubled", "--seed", "99999999999999"], 2, "2147483647"),
        (["check", "doubled", "--all"], 2, "expected names, --week N or --all"),
        (["list", "--week", "2..1"], 2, "found '2..1'"),
        (["list", "--week", "1..3"], 2, "found '1..3'"),
        (["coverage", "--week", "one"], 2, "found 'one'"),
        (["show", "week60"], 2, "expected week01 to week02, found week60"),
        (["list", "--concept", "01.7"], 2, "expected an id such as 09.4, found '01.7'"),
        (["run", "--week", "2"], 2, "found none yet in 2. See `kata coverage`"),
        (["run"], 2, "expected names, --week N or --all"),
        (["run", "doubled", "--impl", "nowhere.py"], 2, "expected yours, solution or the path"),
        (["check", "doubled", "--all"], 2, "found none or more than one"),
        (["check", "doubled", "--seeds", "2", "--wrong", "copies"], 2, "with --seeds"),
        (["profile", "show", "h300"], 2, "Did you mean"),
        (["new", "week1/Bad"], 2, "expected weekNN/snake_case_name"),
        (["new", "week01/doubled"], 2, "expected a name that is free"),
        (["new", "week01/x", "--backend", "cobol"], 2, "expected one of python"),
    ],
)
def test_wrong_usage_says_the_way_out(kata_command, arguments, code, expected):
    done = kata_command(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert expected in done.stderr


def test_a_broken_kata_toml_is_named(kata_command, mini):
    path = mini / "katas" / "week01" / "doubled" / "kata.toml"
    path.write_text(path.read_text() + "\nsurprise = 1\n")
    done = kata_command("run", "doubled")
    assert done.returncode == 3
    assert "surprise" in done.stderr
    assert "kata.toml" in done.stderr


def test_an_unwritable_home_is_named(kata_command, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = kata_command("run", "doubled", KATA_HOME=str(tmp_path / "file" / "home"))
    assert done.returncode == 3
    assert "Error" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_easy_katas_of_a_week_are_listed_first(kata_command, mini):
    doubled = mini / "katas/week01/doubled"
    hard = doubled.with_name("added")
    shutil.copytree(doubled, hard)
    (hard / "doubled.py").rename(hard / "added.py")
    text = (hard / "kata.toml").read_text()
    level = re.search(r"^difficulty += (\d)$", text, re.MULTILINE)
    (hard / "kata.toml").write_text(text.replace(level[0], "difficulty = 5"))
    names = [line.split()[3] for line in kata_command("list").stdout.splitlines()[:2]]
    assert (level[1] < "5", names) == (True, ["doubled", "added"])


def test_hints_come_one_at_a_time(kata_command):
    shown = [kata_command("hint", "doubled").stdout for _ in range(4)]
    assert ["That was the last one." in one for one in shown] == [False, False, False, True]
    assert [line.split(":")[0] for line in shown] == [
        "Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3", "Hint 3 of 3",
    ]  # fmt: skip


def test_what_is_shown_is_data_for_another_program(kata_command, mini):
    hint = json.loads(kata_command("hint", "doubled", "--json").stdout)
    assert hint == {"kata": "doubled", "number": 1, "of": 3, "hint": "Add it to itself."}
    found = json.loads(kata_command("explain", "doubled", "--anyway", "--json").stdout)
    assert found["reference"] == (mini / "solutions/week01/doubled.py").read_text()
    assert found["hints"] == ["Add it to itself.", "Or multiply.", "double: 2 * x"]
    assert (found["device"], found["worksheet"]) == ("cpu", None)
    assert "solution" in [rung["name"] for rung in found["ladder"]]


def test_coverage_names_what_is_not_covered_yet(kata_command):
    found = json.loads(kata_command("coverage", "--json").stdout)
    assert found["totals"]["concepts"] == {"covered": 1, "all": 3}
    assert found["totals"]["milestone"] == {"covered": 1, "all": 1}


@pytest.mark.parametrize("part", ["1", "I", "i"])
def test_a_part_is_told_by_its_number(kata_command, part):
    of_part = json.loads(kata_command("coverage", "--part", part, "--json").stdout)
    assert of_part == json.loads(kata_command("coverage", "--week", "1..2", "--json").stdout)
    assert kata_command("list", "--part", part).stdout == kata_command("list").stdout
    refused = kata_command("coverage", "--part", "VII")
    assert "--part: expected 1 to 1, or as in II, found VII." in refused.stderr
    assert refused.returncode == 2


def test_make_targets_are_one_line_over_the_command():
    plain = ["test", "bench", "check", "fix", "scorecard", "setup", "clean", "help"]
    for target in ("kata name=x", *plain):
        done = subprocess.run(
            ["make", "-n", *target.split()], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_a_missing_extra_is_told_with_its_install_line(kata_command, mini, monkeypatch):
    path = mini / "katas" / "week01" / "doubled" / "kata.toml"
    path.write_text('extra = "plot"\n' + path.read_text())
    # matplotlib, which the extra `plot` brings, is hidden by a metadata-less stand-in
    (mini / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "known = m.version\n"
        "def version(name):\n"
        "    if name == 'matplotlib':\n"
        "        raise m.PackageNotFoundError(name)\n"
        "    return known(name)\n"
        "m.version = version\n"
    )
    done = kata_command("run", "doubled", PYTHONPATH=str(mini))
    assert done.returncode == 3
    assert "doubled needs matplotlib: pip install -e '.[plot]'" in done.stderr


def test_help_shows_every_command_in_a_section_and_whole_sentences():
    names = [name for section in SECTIONS.values() for name in section]
    assert names == main.list_commands(None)
    shown = CliRunner().invoke(main, ["--help"]).output
    assert "Practise:\n  next       What to practise next, and why.\n" in shown
    for name in SECTIONS["Practise"]:
        assert re.search(rf"^  {name} .*\.$", shown, re.MULTILINE), name
    assert "..." not in shown.partition("Practise:")[2]


@pytest.mark.parametrize("name", KNOWN)
def test_help_shows_what_a_command_says_of_itself(name):
    command = main.get_command(None, name)
    _, sentence = KNOWN[name]
    assert (command.name, command.get_short_help_str(200)) == (name, sentence)


def test_help_imports_no_command():
    code = (
        "import sys\nfrom harness.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print(*(name for name in sys.modules if name.startswith('harness')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["harness", "harness.cli"]


def test_a_brief_loses_no_words_at_the_edge(kata_command, mini):
    long = " ".join(f"word{at}" for at in range(60))
    path = mini / "katas/week01/doubled/README.md"
    path.write_text(f"# Doubled\n\n* {long}\n\n| a | b |\n|---|---|\n| x | {long} |\n")
    shown = kata_command("show", "doubled").stdout
    assert [shown.count(f"word{at} ") for at in (0, 30, 58)] == [2, 2, 2]


def test_windows_is_told_where_katas_are_judged():
    asked = "import sys; sys.platform = 'win32'; from harness.cli import main; main(['list'])"
    code = f"import click; import json; {asked}"  # click looks at the platform when it is loaded
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("Error: kata: expected Linux or macOS, found Windows. Run it in")
