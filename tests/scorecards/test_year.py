"""
A year of practice, from records to every format of the scorecard.

The expected files lie in `year/`; after a change that is meant, make them anew and read the diff:

    python -m tests.scorecards.test_year
"""

import io
import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from harness.learner.mastery import Level
from harness.learner.progress import Progress
from harness.learner.progress.exchange import write_history
from harness.reports.scorecard import read_scorecard
from harness.reports.scorecard.draw import drawn
from tests.scorecards.learner import START, curriculum, text, year

YEAR = Path(__file__).parent / "year"
END = START + timedelta(days=365)
FORMATS = ("json", "md", "svg", "html")


def history(home, *parts):
    """A history that these parts were merged into, one after another."""
    progress = Progress(home)
    for part in parts:
        stream = io.StringIO()
        write_history(stream, part, schema=progress.schema)
        stream.seek(0)
        progress.import_(stream)
    return progress


@pytest.fixture(scope="module")
def lived():
    return year()


@pytest.fixture(scope="module")
def card(lived, tmp_path_factory):
    known, records = lived
    return read_scorecard(known, history(tmp_path_factory.mktemp("year"), records), END)


@pytest.mark.parametrize("form", FORMATS)
def test_the_year_is_drawn_as_it_was(card, form):
    expected = (YEAR / f"scorecard.{form}").read_text(encoding="utf-8")
    assert drawn(card, form) == expected, "if meant: python -m tests.scorecards.test_year"


def test_the_json_keeps_to_its_schema(card):
    schema = json.loads((resources.files("harness.reports.scorecard") / "schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    found = json.loads(drawn(card, "json"))
    jsonschema.validate(found, schema)
    for broken in ({**found, "kept": -1}, {**found, "more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema)


def test_the_numbers_of_the_year_agree_with_each_other(card, lived):
    _, records = lived
    runs = [one for one in records if hasattr(one, "status")]
    assert sum(day.runs for day in card.days) == len(runs)
    assert sum(day.passed for day in card.days) == sum(one.status == "passed" for one in runs)
    assert card.whole.size == sum(week.size for week in card.weeks) == 52 * 8
    assert sum(card.whole.katas.values()) == len(card.katas) == 52 * 7
    mastered = [one for one in card.katas if one.level == Level.MASTERED]
    assert len(mastered) > 10
    assert all(one.clean_days >= 3 and one.stability_days >= 21 for one in mastered)
    assert all(one.evidence for one in card.katas if one.level.owned)
    assert {one.name for one in card.katas if one.due and one.due <= END} == set(card.due)


def test_a_later_look_at_the_same_history_finds_less(card, lived, tmp_path):
    known, records = lived
    later = read_scorecard(known, history(tmp_path, records), END + timedelta(days=600))
    assert len(later.due) > len(card.due)
    assert later.whole.items[Level.MASTERED] < card.whole.items[Level.MASTERED]
    assert later.kept == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 0, 1)])
def test_two_machines_merge_to_one_scorecard(card, lived, tmp_path, order):
    known, records = lived
    gpu_box = [one for one in records if getattr(one, "device", "cpu") == "cuda"]
    laptop = [one for one in records if one not in gpu_box]
    assert len(gpu_box) > 100
    parts = (laptop, gpu_box)
    merged = read_scorecard(known, history(tmp_path, *(parts[at] for at in order)), END)
    assert merged == card


# ---- a hundred thousand attempts -----------------------------------------------------------

RUNS = 100_000
A_ROUND = 10  # runs from blank to solved


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """A curriculum and a history of `RUNS` attempts, five minutes apart."""
    known, progress = curriculum(), Progress(tmp_path_factory.mktemp("crowded"))
    names = list(known.katas)
    with closing(sqlite3.connect(progress.path)) as db, db:
        # what they guard against is tested elsewhere, and asked for each of a million rows
        triggers = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            db.execute(f"DROP TRIGGER {name}")
        runs, starts = range(RUNS), range(0, RUNS, A_ROUND)
        insert(db, "attempts", 18, map(run_row, runs, names_at(names)))
        insert(db, "checks", 5, (row for n in runs for row in check_rows(n)))
        insert(db, "measurements", 10, map(measurement_row, runs))
        insert(db, "notes", 5, map(start_row, starts, names_at(names, A_ROUND)))
    return known, progress


def names_at(names, step=1):
    """The kata of each run: ten in a row at one, then the next."""
    return (names[n // A_ROUND % len(names)] for n in range(0, RUNS, step))


def insert(db, table, columns, rows):
    marks = ", ".join("?" * columns)
    db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608 -- names of ours


def run_row(n, kata):
    status = "passed" if n % A_ROUND == A_ROUND - 1 else "failed"
    device, profile = ("cuda", "h200_sxm") if n % 2 else ("cpu", "cpu")
    at = START + timedelta(minutes=5 * n)
    end = at + timedelta(seconds=4)
    return (key(n), kata, "yours", key(n) * 2, text(at), text(end), status, "", 7, device, profile,
            "{}", 4.0, 0, 0, "", 0, "")  # fmt: skip


def check_rows(n):
    last = "passed" if n % A_ROUND == A_ROUND - 1 else "failed"
    return [(key(n), at, f"test_{at}", "passed" if at < 3 else last, "") for at in range(4)]


def measurement_row(n):
    meter = "roofline" if n % 2 else "evaluations"
    return (key(n), 0, meter, meter, 0.8, "", 0.7, ">=", 1, "{}")


def start_row(n, kata):
    return (key(n), text(START + timedelta(minutes=5 * n, seconds=-9)), "started", kata, "")


def key(n):
    return f"{n:032x}"


@pytest.mark.parametrize("form", ["json", "html"])
def test_a_long_history_is_drawn_whole(crowded, form):
    known, progress = crowded
    card = read_scorecard(known, progress, START + timedelta(minutes=5 * RUNS))
    assert sum(day.runs for day in card.days) == RUNS
    assert len(drawn(card, form)) > 100_000


if __name__ == "__main__":
    import tempfile

    known, records = year()
    with tempfile.TemporaryDirectory() as home:
        made = read_scorecard(known, history(Path(home), records), END)
    for form in FORMATS:
        (YEAR / f"scorecard.{form}").write_text(drawn(made, form), encoding="utf-8")
