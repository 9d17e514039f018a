"""What single lines of a scorecard say, on histories small enough to work out by hand."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.content.catalog import Topic, load_curriculum
from harness.learner.progress import Check, Progress
from harness.reports.scorecard import read_scorecard
from harness.reports.scorecard.draw import drawn
from harness.reports.scorecard.terminal import print_scorecard
from tests.scorecards.learner import START, Learner, curriculum
from tests.scorecards.test_year import history

ROOT = Path(__file__).resolve().parents[2]
DAY = timedelta(days=1)
NAME = "kata_01_1"


@pytest.fixture
def desk(tmp_path):
    """A learner who does what a test says, and their scorecard at a moment."""
    known = curriculum()
    learner = Learner(known.katas, seed=1)

    def practise(*starts, status="passed", name=NAME):
        """A round of five minutes from each of these moments."""
        for start in starts:
            learner.note("started", name, start)
            learner.attempt(name, start + timedelta(minutes=5), status, 0, peeked=False)

    def card(now):
        return read_scorecard(known, history(tmp_path, learner.records), now)

    return SimpleNamespace(known=known, learner=learner, practise=practise, card=card)


# ---- reviews kept --------------------------------------------------------------------------

DUE = START + 28 * DAY  # of what was written with ease


def ten_rounds(start):
    return [start + timedelta(minutes=20 * at) for at in range(10)]


def test_ten_rounds_on_the_first_day_are_no_review(desk):
    desk.practise(*ten_rounds(START))
    assert desk.card(START + timedelta(hours=5)).kept == 0


def test_ten_rounds_on_the_day_it_is_due_are_one_review(desk):
    desk.practise(START)
    assert desk.card(DUE + timedelta(hours=1)).due == (NAME,)
    desk.practise(*ten_rounds(DUE + timedelta(hours=1)))
    assert desk.card(DUE + timedelta(hours=5)).kept == 1


def test_giving_up_is_not_keeping(desk):
    desk.practise(START)
    desk.practise(*(DUE + at * DAY for at in range(4)), status="failed")
    assert desk.card(DUE + 3 * DAY + timedelta(hours=1)).kept == 0


def test_a_late_review_ends_the_row(desk):
    desk.practise(START)
    desk.practise(START, name="kata_01_2")
    desk.practise(DUE + timedelta(hours=1))
    desk.practise(DUE + 3 * DAY, name="kata_01_2")
    assert desk.card(DUE + 3 * DAY + timedelta(hours=1)).kept == 0


def test_a_row_goes_on_after_a_review_that_was_given_up(desk):
    desk.practise(START)
    desk.practise(START + timedelta(hours=1), name="kata_01_2")
    desk.practise(DUE + timedelta(hours=2), name="kata_01_2")
    desk.practise(DUE + timedelta(hours=3), status="failed")
    assert desk.card(DUE + timedelta(hours=4)).kept == 1
    again = DUE + 5 * DAY  # due by then, and not for more than two days
    desk.practise(again)
    assert desk.card(again + timedelta(hours=1)).kept == 2


def test_the_recall_of_concepts_is_told_once_one_was_met(desk, capsys):
    print_scorecard(desk.card(START))
    assert "Concepts met" not in capsys.readouterr().out
    desk.practise(START)
    desk.practise(START, name="kata_01_2")
    print_scorecard(desk.card(DUE + 30 * DAY))
    words = " ".join(capsys.readouterr().out.split())
    assert "Concepts met: 2 of 312; their recall is 73% on average, and 80% or more for 0." in words


# ---- what is open --------------------------------------------------------------------------


def topic(key, *needs, weeks=()):
    return Topic(id=key, name=key, part=1, weeks=weeks, needs=needs)


def test_a_topic_without_katas_passes_on_what_is_locked_before_it(desk):
    desk.known.__dict__["topics"] = (
        topic("last", "empty"),
        topic("empty", "first"),
        topic("first", weeks=(1,)),
    )

    def opened(now):
        return [one.id for one in desk.card(now).topics if one.open]

    assert opened(START) == ["first"]
    for at in range(1, 5):  # four of seven
        desk.practise(START + at * timedelta(hours=1), name=f"kata_01_{at}")
    assert opened(START + DAY) == ["last", "empty", "first"]


def test_nothing_is_open_behind_something_locked(tmp_path):
    card = read_scorecard(load_curriculum(ROOT), Progress(tmp_path), START)
    by_id = {one.id: one for one in card.topics}
    opened = [one for one in card.topics if one.open]
    assert 0 < len(opened) < len(by_id)
    for one in opened:
        assert all(by_id[need].open and not by_id[need].katas for need in one.needs), one


# ---- evidence ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 2])
def test_evidence_tells_how_many_cases_were_drawn(judged, mini, tmp_path, count):
    path = mini / "katas/week01/doubled/kata.toml"
    path.write_text(path.read_text() + "\n[vary]\nn = [1, 5, 9, 1000]\n")
    events = judged("--impl=solution", f"--vary={count}")
    checks = [Check(name=event["name"], outcome=event["outcome"]) for event in events]
    progress = Progress(tmp_path / "history")
    attempt = progress.start("doubled", "yours", "ab" * 32, seed=1, device="cpu", profile="cpu")
    progress.finish(attempt, "passed", "", checks=checks, measurements=(), versions={},
                    duration_s=1.0)  # fmt: skip
    (line,) = read_scorecard(load_curriculum(mini), progress, START).katas
    assert line.evidence.drawn == count


# ---- help and katas in the terminal --------------------------------------------------------


def test_a_hint_without_a_run_is_in_the_table_and_in_the_total(desk):
    desk.practise(START)
    desk.learner.note("hint_shown", NAME, START + timedelta(minutes=1), "1")
    desk.learner.note("hint_shown", NAME, START + timedelta(minutes=2), "2")
    desk.learner.note("hint_shown", "kata_02_1", START, "1")
    card = desk.card(START + DAY)
    page, text = drawn(card, "html"), drawn(card, "md")
    assert "<b>3</b> hints read" in page
    assert page.count('<tr id="kata-') == 2
    table = [line.split(" | ") for line in text.splitlines() if line.startswith("| kata_")]
    assert sum(int(row[8]) for row in table) == 3


def test_the_terminal_shows_help_thresholds_and_dates(desk, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    desk.learner.note("hint_shown", NAME, START, "1")
    desk.learner.note("solution_seen", NAME, START, "swap")
    desk.practise(START)
    desk.learner.attempt(NAME, START + timedelta(minutes=9), "passed", 1, peeked=True, on_gpu=True)
    desk.learner.note("hint_shown", "kata_02_1", START, "1")
    card = desk.card(START + timedelta(hours=1))
    print_scorecard(card)
    lines = capsys.readouterr().out.splitlines()
    line = card.katas[0]
    rows = [found.split() for found in lines if found.startswith("kata_")]
    assert rows == [
        [NAME, "◆", "fast", f"{line.clean_days}/3", str(line.due.date()), "met", "h200_sxm",
         str(line.runs), "1", str(line.peeks)],
        ["kata_02_1", "·", "untried", "0/3", "0", "1", "0"],
    ]  # fmt: skip
    assert f"Hints shown: 2. Rounds with the solution seen: {line.peeks}." in lines


def test_a_terminal_of_80_columns_is_wide_enough(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    known = load_curriculum(ROOT)
    learner = Learner(known.katas, seed=1)
    learner.live(60)
    card = read_scorecard(known, history(tmp_path, learner.records), START + 60 * DAY)
    print_scorecard(card)
    shown = capsys.readouterr().out
    tables = [line for line in shown.splitlines() if not line.startswith("due:")]
    assert max(map(len, tables)) <= 80
    assert "…" not in shown
    assert all(str(kata.due.date()) in shown for kata in card.katas if kata.due)
    assert sum(kata.due is not None for kata in card.katas) > 10
