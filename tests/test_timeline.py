"""What a program of a Gluon kernel did when, as it is recorded, told and drawn."""

import os

import pytest

if os.environ.get("KATA_DEVICE", "cpu") != "cpu":
    pytest.skip("kernels are simulated in CPU sessions only", allow_module_level=True)

from functools import partial
from itertools import pairwise

from harness.reports.pictures import canvas
from harness.reports.pictures.draw_timeline import describe, draw_timeline
from harness.reports.pictures.record_gluon import record_gluon
from harness.reports.pictures.timeline import RUNS, WAITS, Span, Timeline, lines_of, stacked
from tests.gluon_cases import CASES, FILES, load


@pytest.fixture(scope="module")
def recorded():
    """Record a kernel of fixtures/gluon."""
    return lambda name, **sizes: record_gluon(partial(CASES[name], load(FILES[name]), **sizes))


def test_partitions_come_first_then_what_is_in_flight(recorded):
    found = recorded("ws", m=64, n=64, k=256, programs=1)
    assert found.lanes == ("consumer", "producer", "TMA load", "wgmma", "TMA store")
    assert (found.kernel, found.index, found.programs) == ("ws_gemm_kernel", (0, 0, 0), 1)


def test_a_partition_runs_or_waits_at_every_step_of_its_life(recorded):
    found = recorded("ws", m=64, n=64, k=256, programs=1)
    for lane in ("consumer", "producer"):
        life = [one for one in found.spans if one.lane == lane and one.kind in (RUNS, WAITS)]
        spans = sorted((one for one in life if one.end > one.start), key=lambda one: one.start)
        for one, following in pairwise(spans):
            assert one.end == following.start, (one, following)


def test_a_copy_is_in_flight_until_somebody_waits_for_it(recorded):
    found = recorded("gemm", m=64, n=64, k=256, stages=3)
    loads = [one for one in found.spans if one.kind == "TMA load"]
    waits = [one for one in found.spans if one.kind == WAITS]
    assert len(loads) == 8
    assert {one.end for one in loads} <= {one.end for one in waits}


def test_lines_tell_how_long_what_they_issue_stays_in_flight(recorded):
    found = recorded("gemm", m=64, n=64, k=256, stages=3)
    counted = {(one.kind, one.count) for one in lines_of(found)}
    assert {("TMA load", 4), ("wgmma", 4), (WAITS, 4), ("TMA store", 1)} <= counted


def test_what_is_computed_under_a_product_is_told(recorded):
    found = recorded("fa3", length=512)
    assert found.overlaps["exp2 under wgmma"] == 7 / 8
    assert "88% of exp2 under wgmma" in describe(found)


def test_a_timeline_survives_the_way_from_another_process(recorded):
    found = recorded("relay")
    assert Timeline.from_json(found.as_json()) == found


def test_a_call_that_launches_nothing_has_none():
    assert record_gluon(lambda: None) is None


def test_spans_at_once_get_rows_of_their_own():
    spans = [
        Span(lane="wgmma", kind="wgmma", start=start, end=end)
        for start, end in ((0, 4), (1, 3), (3, 6), (4, 5))
    ]
    assert [(row, one.start) for row, one in stacked(spans)] == [(0, 0), (1, 1), (1, 3), (0, 4)]


@pytest.mark.skipif(canvas.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_picture_names_lanes_and_slots(recorded, tmp_path):
    out = tmp_path / "timeline.svg"
    draw_timeline(recorded("gemm", m=64, n=64, k=256, stages=3), "gemm", out)
    svg = out.read_text(encoding="utf-8")
    for words in ("TMA load", "a_bufs[0]", "wgmma", "program (0, 0, 0) of wgmma_gemm_kernel"):
        assert words in svg
