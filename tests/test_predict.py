"""An estimate compared with the roofline, with hand-computed numbers."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import click
import pytest

from harness.base.errors import HarnessError, UsageProblem
from harness.cli.predict import INTENSITY, TIME
from harness.content.kata import load_kata
from harness.hardware.profiles import Cost, find_profile
from harness.learner.predict import Prediction, Sheet, score, track_record, worksheet
from harness.learner.progress import Note

PROFILES = Path(__file__).resolve().parents[1] / "hardware_profiles"

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
def h100():
    return find_profile(PROFILES, "h100_sxm")


def sheet_of(cost, profile):
    return Sheet(name="roofline", case={}, dtype="float32", cost=cost, profile=profile)


@pytest.fixture
def streaming(h100):
    """6.7 GB at 3.35 TB/s: 2 ms, with one FLOP for eight bytes."""
    return sheet_of(Cost(flops=837_500_000, bytes=6_700_000_000), h100)


def test_a_stream_is_bound_by_memory(streaming):
    assert streaming.intensity == 0.125
    assert streaming.bound == "memory"
    assert streaming.seconds == pytest.approx(2e-3)


def test_much_arithmetic_is_bound_by_compute(h100):
    assert sheet_of(Cost(flops=10**15, bytes=4), h100).bound == "compute"


@pytest.mark.parametrize(
    ("intensity", "bound", "seconds", "points"),
    [
        (0.125, "memory", 2e-3, 3),
        (0.155, "memory", 3.9e-3, 3),  # within 1.25 times, within twice
        (0.101, "memory", 1.01e-3, 3),
        (0.157, "memory", 2e-3, 2),  # past 1.25 times
        (0.125, "compute", 2e-3, 2),
        (0.125, "memory", 4.1e-3, 2),  # past twice
        (8.0, "compute", 2.0, 0),  # bytes per FLOP, milliseconds for seconds
        (0.0, "memory", 1e-9, 1),
    ],
)
def test_near_is_right(streaming, intensity, bound, seconds, points):
    guess = Prediction(intensity=intensity, bound=bound, seconds=seconds)
    assert score(guess, streaming).points == points


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (INTENSITY, "1 / 12", 1 / 12),
        (INTENSITY, "0", 0.0),
        (TIME, "0.48 ms", 480.0),
        (TIME, 5, 5.0),
    ],
)
def test_numbers_are_typed_as_in_a_quiz(kind, text, value):
    assert kind.convert(text, None, None) == pytest.approx(value)


@pytest.mark.parametrize("text", ["0", "-1", "much", "inf", "1 / 0"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(click.BadParameter, match="expected a finite number above 0, found"):
        TIME.convert(text, None, None)


def test_what_was_measured_stands_beside_it(streaming):
    guess = Prediction(intensity=1.0, bound="memory", seconds=1.0)
    assert score(guess, streaming).measured is None
    assert not score(guess, streaming).after
    assert score(guess, streaming, share=0.8).measured == pytest.approx(2.5e-3)
    assert score(guess, streaming, share=0.8).after


def predicted(found, **changes):
    detail = json.dumps({**asdict(found), **changes})
    return Note(id="", at="2026-01-01T00:00:00.000000+00:00", kind="predicted", kata="k",
                detail=detail)  # fmt: skip


def test_the_track_record_is_of_what_was_predicted_before_it_was_timed(streaming):
    right = Prediction(intensity=0.125, bound="memory", seconds=2e-3)
    slow = Prediction(intensity=8.0, bound="memory", seconds=6e-3)
    fast = Prediction(intensity=0.125, bound="compute", seconds=1e-3)
    notes = [predicted(score(one, streaming)) for one in (right, slow, fast)]
    notes.append(predicted(score(slow, streaming, share=0.8)))
    found = track_record(notes)
    assert (found.count, found.intensity_right, found.bound_right) == (3, 2, 2)
    assert found.time_factor == pytest.approx(2)  # of 1, 3 and 2
    assert track_record([predicted(score(slow, streaming))] * 9 + notes[:1]).count == 10
    assert track_record(notes[:1] + [predicted(score(slow, streaming))] * 10).intensity_right == 0


def test_notes_that_foretell_nothing_are_passed_over(streaming):
    found = score(Prediction(intensity=1.0, bound="memory", seconds=1.0), streaming)
    never = {"intensity": 1.0, "bound": "memory", "seconds": float("nan")}
    notes = [predicted(found, guess=never), predicted(found, more=1)]
    notes.append(replace(notes[0], kind="started", detail=""))
    assert track_record(notes) is None


def test_a_kata_without_a_roofline_is_refused(mini, h100):
    with pytest.raises(UsageProblem, match="compared with the roofline, found doubled"):
        worksheet(load_kata(mini / "katas/week01/doubled"), h100)


def test_the_oracle_says_what_the_work_is(mini, h100):
    folder = mini / "katas/week01/doubled"
    for name, more in (("kata.toml", ROOFLINE), ("oracle.py", COST)):
        (folder / name).write_text((folder / name).read_text() + more)
    kata = load_kata(folder)
    found = worksheet(kata, h100)
    assert found.cost == Cost(flops=1_000_000, bytes=8_000_000)
    assert (found.name, found.dtype, found.intensity) == ("roofline", "float32", 0.125)
    kata.oracle.write_text(kata.oracle.read_text().replace("def cost", "def price"))
    with pytest.raises(HarnessError, match="expected the cost of doubled, found"):
        worksheet(replace(kata), h100)
