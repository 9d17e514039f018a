"""What is drawn, against figures worked out by hand; `kata roofline` and `kata trace`."""

import json
import math
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")  # before anything imports numba

import numpy as np
import pytest
from numba import cuda, float32

from harness.base.errors import HarnessError, UsageProblem
from harness.content.kata import load_kata
from harness.hardware.profiles import Cost, find_profile
from harness.learner.progress import Best
from harness.reports.ladder import Rung
from harness.reports.pictures import canvas, roofline
from harness.reports.pictures.draw_roofline import draw_roofline
from harness.reports.pictures.ledger import MOST_ROWS, Ledger
from harness.reports.pictures.recording import Recording, Run

ROOT = Path(__file__).resolve().parents[1]
CHEATS = ROOT / "tests" / "cheats" / "fixtures"
PROFILES = ROOT / "hardware_profiles"
SPEED = """
[[speed]]
kind = "roofline"
fraction = 0.4
case = { n = 100, dtype = "float32" }

[[speed]]
kind = "baseline"
against = "library"
ratio = 2.0
case = { n = 100, dtype = "float32" }

[[speed]]
kind = "baseline"
against = "other"
ratio = 2.0
case = { n = 200, dtype = "float32" }
"""


@pytest.fixture
def scaled(mini):
    """The tiny curriculum with a Triton kata in it that is timed."""
    shutil.copytree(CHEATS, mini, dirs_exist_ok=True)
    path = mini / "katas" / "week01" / "scaled" / "kata.toml"
    path.write_text(path.read_text() + SPEED)
    return mini


@pytest.fixture
def kata(scaled):
    return load_kata(scaled / "katas" / "week01" / "scaled")


@pytest.fixture
def h200():
    return find_profile(PROFILES, "h200_sxm")  # 4.8 TB/s


def result(name, meter, value, median_s):
    detail = {"median": median_s, "outcome": "passed"}
    return {"name": name, "meter": meter, "value": value, "limit": 0.4, "detail": detail}


def results(**more):
    """One file of results: half of the speed of light, thrice a baseline of 2 ms."""
    found = [result("roofline", "roofline", 0.5, 2e-3), result("vs library", "baseline", 3, 2e-3)]
    judged = {"measurements": found, **more}
    return {
        "impl": "solution", "profile": "h200_sxm", "date": "2026-01-31T12:00:00+00:00",
        "katas": {"week01/scaled": judged},
    }  # fmt: skip


# ---- points on the roofline ----------------------------------------------------------------


def one_ms_of_memory(_kata, cases):
    return [Cost(flops=9.6e9, bytes=4.8e9) for _ in cases]


def test_a_share_of_the_speed_of_light_becomes_flops_per_second(kata, h200, monkeypatch):
    monkeypatch.setattr(roofline, "costs_of", one_ms_of_memory)
    timings = roofline.reference_timings([results()], kata, h200)
    found = {one.impl: one for one in roofline.timed_entries(kata, h200, timings)}
    assert found.keys() == {"reference", "library"}
    mine, library = found["reference"], found["library"]
    assert (mine.cost.intensity, mine.seconds, mine.share) == (2, 2e-3, 0.5)
    assert mine.flops_per_s == pytest.approx(4.8e12)
    assert mine.bytes_per_s == pytest.approx(2.4e12)
    assert library.seconds == pytest.approx(6e-3)
    assert library.share == pytest.approx(1 / 6)
    assert mine.source == "measured 2026-01-31"


def test_the_newest_results_count_and_other_devices_do_not(kata, h200, monkeypatch):
    monkeypatch.setattr(roofline, "costs_of", one_ms_of_memory)
    newer = {**results(measurements=[result("roofline", "roofline", 0.8, 1e-3)])}
    elsewhere = {**results(), "profile": "t4"}
    timings = roofline.reference_timings([results(), newer, elsewhere], kata, h200)
    assert timings["reference", "roofline"].value == 0.8
    assert roofline.reference_timings([elsewhere], kata, h200) == {}


def test_thresholds_that_are_gone_are_not_drawn(kata, h200, monkeypatch):
    monkeypatch.setattr(roofline, "costs_of", one_ms_of_memory)
    old = results(measurements=[result("roofline 512", "roofline", 0.8, 1e-3)])
    timings = roofline.reference_timings([old], kata, h200)
    assert roofline.timed_entries(kata, h200, timings) == []


def test_the_naive_version_stands_beside_the_reference(kata, h200, monkeypatch):
    monkeypatch.setattr(roofline, "costs_of", one_ms_of_memory)
    slow = {"measurements": [result("roofline", "roofline", 0.1, 1e-2)]}
    timings = roofline.reference_timings([results(**{"wrong:naive": slow})], kata, h200)
    found = {one.impl: one.share for one in roofline.timed_entries(kata, h200, timings)}
    assert found == pytest.approx({"reference": 0.5, "naive": 0.1, "library": 1 / 6})


def test_the_learners_best_counts_on_its_own_profile(kata, h200, monkeypatch):
    monkeypatch.setattr(roofline, "costs_of", one_ms_of_memory)
    best = [
        Best("scaled", "h200_sxm", "roofline", "roofline", 0.25, 0.4),
        Best("scaled", "t4", "roofline", "roofline", 0.9, 0.4),
        Best("scaled", "h200_sxm", "vs library", "baseline", 1.5, 2.0),
        Best("other", "h200_sxm", "roofline", "roofline", 0.9, 0.4),
    ]
    (mine,) = roofline.timed_entries(kata, h200, roofline.own_timings(best, kata, h200))
    assert (mine.impl, mine.source) == ("yours", "your best")
    assert mine.seconds == pytest.approx(4e-3)


def test_what_has_no_time_has_its_counted_bytes_and_no_rate(kata, monkeypatch):
    monkeypatch.setattr(roofline, "costs_of", lambda *_: [Cost(flops=100, bytes=800)])
    rungs = [Rung(name="naive", values={"bytes_moved": 1600.0}),
             Rung(name="solution", values={"bytes_moved": 800.0})]  # fmt: skip
    timed = [SimpleNamespace(impl="reference")]
    (slow,) = roofline.counted_entries(kata, rungs, timed)
    assert (slow.impl, slow.cost.intensity, slow.least) == ("naive", 100 / 1600, 800)
    assert slow.seconds is slow.share is None
    assert math.isnan(slow.flops_per_s)
    assert math.isnan(slow.bytes_per_s)


def test_integers_stand_at_the_rate_that_a_threshold_names(kata, monkeypatch):
    monkeypatch.setattr(roofline, "costs_of", lambda *_: [Cost(flops=100, bytes=800)])
    words = [replace(one, case={**one.case, "dtype": "uint32"}) for one in kata.cost]
    rungs = [Rung(name="solution", values={"bytes_moved": 800.0})]
    for named, rate in ((None, "uint32"), ("float32", "float32")):
        speed = tuple(replace(one, dtype=named) for one in kata.speed)
        (one,) = roofline.counted_entries(
            replace(kata, cost=tuple(words), speed=speed), rungs, timed=[]
        )
        assert one.dtype == rate


def test_counting_is_for_versions_without_a_time(kata):
    assert roofline.wants_counting(kata, [])
    assert not roofline.wants_counting(kata, [SimpleNamespace(impl="reference")])
    kata.file.write_text(kata.solution.read_text())
    assert roofline.wants_counting(kata, [SimpleNamespace(impl="reference")])


def test_roofline_tells_in_words_what_was_counted(kata_command, scaled):
    done = kata_command("roofline", "scaled", "--profile", "h200_sxm")
    assert done.returncode == 0, done.stderr
    assert "NVIDIA H200 SXM 141GB: memory 4.8 TB/s, float32 67 TFLOP/s" in done.stdout
    # 100 products, 400 bytes in and 400 out; the stub has nothing to count
    (line,) = [line for line in done.stdout.splitlines() if "counted" in line]
    assert line.split() == ["reference", "0.125", "FLOP/byte", "1.00", "x", "the", "least",
                            "possible", "bytes", "counted,", "not", "timed"]  # fmt: skip
    done = kata_command("roofline", "scaled", "--profile", "h200_sxm", "--json")
    found = json.loads(done.stdout)
    (point,) = found["points"]
    assert (found["profile"], point["impl"], point["seconds"]) == ("h200_sxm", "reference", None)
    assert point["cost"]["bytes"] == point["least"] == 800


def test_roofline_draws_what_was_measured(kata_command, scaled, tmp_path):
    pytest.importorskip("matplotlib")
    written = scaled / "hardware_profiles" / "measured" / "one.json"
    written.write_text(json.dumps(results()))
    done = kata_command(
        "roofline", "scaled", "--profile", "h200_sxm", "-o", str(tmp_path / "r.svg")
    )
    assert done.returncode == 0, done.stderr
    assert "50.0% of the speed of light  measured 2026-01-31" in done.stdout
    svg = (tmp_path / "r.svg").read_text()
    assert "<title>scaled on NVIDIA H200 SXM 141GB</title>" in svg
    for words in ("scaled reference 50%", "scaled library 0%", "memory 4.8 TB/s"):
        assert words in svg
    assert "not timed" not in svg


def test_what_has_no_time_stands_under_the_axis(tmp_path, h200):
    pytest.importorskip("matplotlib")
    work = Cost(flops=1e9, bytes=1e9)
    timed, counted = (
        roofline.Entry(kata="k", impl=impl, case="", dtype="float32", cost=work, least=1e9,
                       seconds=seconds, share=share, source="")
        for impl, seconds, share in (("reference", 1e-3, 0.5), ("naive", None, None))
    )  # fmt: skip
    draw_roofline([timed, counted], h200, "both", tmp_path / "r.svg")
    texts = re.findall(r' y="([\d.]+)"[^>]*>([^<]+)</text>', (tmp_path / "r.svg").read_text())
    down = {words: float(y) for y, words in texts}  # from the top of the page
    ticks = [float(y) for y, words in texts if words in ("0.1", "1", "10")]
    assert down["k reference 50%"] < down["counted, not timed:"]
    assert down["counted, not timed:"] < down["k naive"] < max(ticks)


def test_a_kata_without_a_place_on_the_roofline_is_named(kata_command):
    done = kata_command("roofline", "doubled")
    assert done.returncode == 2
    assert "found doubled, which is neither" in done.stderr


# ---- files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["picture", "picture.pdf", "missing/picture.svg"])
def test_a_file_that_cannot_be_drawn_is_refused_at_once(tmp_path, name):
    with pytest.raises(UsageProblem, match=r"-o .*: expected a"):
        canvas.check_file(tmp_path / name)


def test_without_matplotlib_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(canvas, "find_spec", lambda _: None)
    with pytest.raises(HarnessError, match="pip install matplotlib"):
        canvas.check_file(tmp_path / "picture.svg")


# ---- who touches what ----------------------------------------------------------------------


def test_programs_are_drawn_where_they_load_and_store(kata_command, scaled, tmp_path):
    out = tmp_path / "trace.svg"
    draws = ["-o", str(out)] if canvas.find_spec("matplotlib") else []
    done = kata_command("trace", "scaled", "--impl", "solution", *draws)
    assert done.returncode == 0, done.stderr
    assert "2 programs: _scaled_kernel from program 0" in done.stdout
    load, store = [line.split() for line in done.stdout.splitlines() if "requests" in line]
    # 64 and 36 elements of 4 bytes: 8 and 4.5 sectors
    assert load[:5] == ["scaled.py:14", "load", "2", "requests,", "6.5"]
    assert store[:5] == ["scaled.py:15", "store", "2", "requests,", "6.5"]
    if draws:
        svg = out.read_text()
        assert "<title>scaled (solution), case 1: n = 100, dtype = float32</title>" in svg
        for words in ("x_ptr: loads", "y_ptr: stores", "6.5 (2 stores)"):
            assert words in svg
    done = kata_command("trace", "scaled", "--impl", "solution", "--json")
    found = json.loads(done.stdout)
    assert (found["kata"], found["case"], found["units"]) == ("scaled", 1, 2)
    assert [line["kind"] for line in found["lines"]] == ["load", "store"]


def test_a_stub_says_so_in_one_line(kata_command, scaled):
    done = kata_command("trace", "scaled")
    assert done.returncode == 1
    assert done.stderr == ("Error: scaled is still a stub: edit katas/week01/scaled/scaled.py\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["doubled"], "found doubled, whose backend is torch"),
        (["scaled", "--case", "3"], "1: n = 100, dtype = float32; 2: n = 0, dtype = float32"),
    ],
)
def test_what_no_simulator_runs_is_a_usage_error(kata_command, scaled, arguments, said):
    done = kata_command("trace", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_case_without_a_launch_is_named(kata_command, scaled):
    done = kata_command("trace", "scaled", "--impl", "solution", "--case", "2")
    assert done.returncode == 1
    assert "expected scaled to launch a kernel on case 2, found none" in done.stderr


def test_an_error_of_the_learners_is_shown(kata_command, kata):
    kata.file.write_text("def scaled(x):\n    raise KeyError('my own mistake')\n")
    done = kata_command("trace", "scaled")
    assert done.returncode == 1
    assert "KeyError: 'my own mistake'" in done.stderr


def test_bins_begin_where_the_array_does():
    ledger = Ledger()
    ledger.region(0, "x", 40, 40 + 64)  # sectors 1 to 3, the first from its byte 8 on
    region = ledger.regions[0]
    region.touch(0, "load", np.array([1]))
    region.touch(1, "load", np.array([2, 3]))
    region.touch(1, "store", np.array([3]))
    (found,) = ledger.maps(range(2))
    assert found.loads == (Run(row=0, low=0, high=24), Run(row=1, low=24, high=64))
    assert found.stores == (Run(row=1, low=56, high=64),)


def test_many_programs_share_rows():
    ledger = Ledger()
    units = 3 * MOST_ROWS
    ledger.region(0, "x", 0, 32 * units)
    for unit in range(units):
        ledger.regions[0].touch(unit, "store", np.array([unit]))
    (found,) = ledger.maps(range(units))
    assert found.stores[:2] == (Run(row=0, low=0, high=96), Run(row=1, low=96, high=192))
    assert len(found.stores) == MOST_ROWS


@cuda.jit
def turned(x, out):
    tile = cuda.shared.array((32, 32), float32)
    lane = cuda.threadIdx.x
    for row in range(32):
        tile[row, lane] = x[row, lane]
    cuda.syncthreads()
    for row in range(32):
        out[row, lane] = tile[lane, row]


def record_turned(launches):
    from harness.reports.pictures.record_simt import record_simt

    x = np.ones((32, 32), np.float32)
    out = np.empty_like(x)

    def call():
        for _ in range(launches):
            turned[1, 32](x, out)

    return record_simt(call)


def test_a_column_of_a_square_tile_is_32_words_of_one_bank():
    store, load = sorted(record_turned(1).banks, key=lambda one: one.wavefronts)
    assert (store.kind, store.requests, store.wavefronts) == ("store", 32, 32)
    assert store.words == ((1,) * 32,)
    assert (load.kind, load.requests, load.wavefronts) == ("load", 32, 32 * 32)
    assert load.words == ((32,) * 32,)
    assert load.source == "out[row, lane] = tile[lane, row]"


def test_warps_of_two_launches_share_the_map_of_an_array():
    found = record_turned(2)
    assert [(one.kernel, one.first) for one in found.launches] == [("turned", 0), ("turned", 1)]
    x, out = found.maps
    rows = (Run(row=0, low=0, high=4096), Run(row=1, low=0, high=4096))
    assert (x.name, x.loads, x.stores) == ("x", rows, ())
    assert (out.name, out.loads, out.stores) == ("out", (), rows)
    load, store = found.lines
    assert (load.kind, load.requests, load.sectors, load.least) == ("load", 64, 256, 256)
    assert (store.kind, store.sectors_per_request) == ("store", 4)


def test_a_recording_survives_json():
    found = record_turned(1)
    assert Recording.from_json(found.as_json()) == found


def test_programs_are_told_by_their_own_index_in_either_order():
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels are interpreted in CPU sessions only")
    import torch

    from harness.judge.loading import load_module
    from harness.meters.triton_traffic import traffic_meter

    module = load_module(CHEATS / "solutions" / "week01" / "scaled.py")
    x = torch.ones(100)
    for order, first in (("forward", 0), ("reversed", 1)):
        heard = []
        listener = SimpleNamespace(
            launched=lambda kernel, arguments, heard=heard: heard.append((kernel, *arguments)[:3]),
            program=lambda index, heard=heard: heard.append(index),
            accessed=lambda kind, at, size, heard=heard: heard.append((kind, len(at), size)),
        )
        with traffic_meter(order=order, listener=listener):
            module.scaled(x)
        assert heard[0] == ("_scaled_kernel", "x_ptr", "y_ptr")
        assert heard[1] == (first, 0, 0)
        lanes = 64 if first == 0 else 36
        assert heard[2:4] == [("load", lanes, 4), ("store", lanes, 4)]
