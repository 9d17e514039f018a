"""What comes from elsewhere, or goes there, is refused or shown in words: no tracebacks."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from harness.base.errors import HarnessError
from harness.cli import draw
from harness.content.catalog import load_curriculum
from harness.learner.levels import Level
from harness.learner.progress import Progress, migrations
from harness.reports.scorecard import read_scorecard
from harness.reports.scorecard.markdown import as_markdown


@pytest.fixture
def exported(bench):
    """Lines of an export with one attempt."""
    bench.judge("def counted(numbers):\n    return 0\n")
    code, output = bench.kata_command("export")
    assert code == 0, output
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def nested(depth):
    return "[" * depth + "]" * depth


# what is written into the attempt, and what is said of it
UNFIT = {
    "NUL": ({"reason": "a\0b"}, "line 2: .*attempt.reason: text with NUL"),
    "NaN": ({"duration_s": float("nan")}, "line 2: .*attempt.duration_s: nan, which is no number"),
    "infinity": ({"seed": float("inf")}, "line 2: .*attempt.seed: inf, which is no number"),
    "nested": ({"versions": json.loads(nested(50))}, "line 2: .*nested more than 20 deep"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_an_import_that_no_database_can_keep_is_refused(bench, exported, tmp_path, name):
    changes, words = UNFIT[name]
    header, line = exported
    file = tmp_path / "history.jsonl"
    file.write_text(f"{json.dumps(header)}\n{json.dumps({'attempt': line['attempt'] | changes})}\n")
    fresh = Progress(tmp_path / "fresh")
    with file.open() as stream, pytest.raises(HarnessError, match=words):
        fresh.import_(stream)
    assert fresh.attempts() == []


@pytest.mark.parametrize("at", [0, 1])
def test_an_import_nested_beyond_what_python_reads_is_refused(bench, exported, tmp_path, at):
    lines = [json.dumps(line) for line in exported]
    lines[at] = nested(100_000)
    file = tmp_path / "history.jsonl"
    file.write_text("\n".join(lines))
    code, output = bench.kata_command("import", str(file))
    assert code == 3
    assert "Traceback" not in output
    assert "Error: " in output


def test_a_measurement_that_is_no_number_is_imported(bench, exported, tmp_path):
    header, line = exported
    found = {"name": "m", "meter": "ratio", "value": float("nan"), "unit": "", "limit": None,
             "relation": "<=", "passed": False, "detail": {}}  # fmt: skip
    line["attempt"]["measurements"] = [found]
    file = tmp_path / "history.jsonl"
    file.write_text(f"{json.dumps(header)}\n{json.dumps(line)}\n")
    fresh = Progress(tmp_path / "fresh")
    with file.open() as stream:
        assert fresh.import_(stream).added == 1


@pytest.mark.parametrize("version", [0, 3])
def test_a_database_of_another_kind_is_left_as_it_is(bench, version):
    bench.home.mkdir(exist_ok=True)
    path = bench.home / "progress.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
        db.execute(f"PRAGMA user_version = {version}")
        db.commit()
    before = path.read_bytes()
    code, output = bench.kata_command("due")
    assert code == 3
    assert "found a database of another kind: one with the tables bookmarks" in output
    assert "Traceback" not in output
    assert path.read_bytes() == before


def test_a_history_that_another_process_makes_meanwhile_is_none_of_another_kind(
    tmp_path, monkeypatch
):
    read, asked = migrations.version_of, []

    def read_and_be_overtaken(db):
        found = read(db)
        if not asked:
            asked.append(found)
            Progress(tmp_path)
        return found

    monkeypatch.setattr(migrations, "version_of", read_and_be_overtaken)
    assert Progress(tmp_path).attempts() == []
    assert asked == [0]


@pytest.mark.parametrize("command", [["run", "counted", "--impl", "solution"], ["scorecard"]])
def test_output_that_cannot_be_encoded_is_written_as_an_escape(bench, monkeypatch, command):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code, output = bench.kata_command(*command)
    assert code == 0, output
    assert output.isascii()
    assert "\\u" in output


def test_text_from_a_history_commands_no_terminal(capsys):
    draw.console().print("a\x1b[2J\x1b]0;owned\x07b")
    assert capsys.readouterr().out == "a\\x1b[2J\\x1b]0;owned\\x07b\n"


def test_markdown_shows_text_as_it_is(bench):
    card = read_scorecard(load_curriculum(bench.root), bench.progress, bench.house.now())
    odd = "a|b *c* [d](e) <f> `g`\nh"
    text = as_markdown(
        replace(card, parts=(replace(card.parts[0], title=odd, katas={Level.SOLVED: 1}),))
    )
    (line,) = [line for line in text.splitlines() if "a\\|b" in line]
    assert r"a\|b \*c\* \[d\](e) \<f\> \`g\` h |" in line
