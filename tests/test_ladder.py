"""The ladder: what stands on it besides the implementations."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.cli import teach
from harness.content.kata import SpeedThreshold, load_kata
from harness.reports.ladder import approaches_of, baselines, climb, naive_words, timed_elsewhere

CASE = {"n": 1000}


def limit(kind, name, least, against=None, case=CASE, on="cuda"):
    figure = {"fraction": least} if kind == "roofline" else {"ratio": least}
    return SpeedThreshold(
        **{"name": name, "kind": kind, "fraction": None, "ratio": None, "against": against,
           "dtype": None, "profiles": {}, "case": case, "on": on, **figure}
    )  # fmt: skip


LIGHT = limit("roofline", "roofline", 0.8)
OTHER_CASE = limit("roofline", "roofline small", 0.1, case={"n": 10})
LIBRARY = limit("baseline", "vs library", 0.9, "library")
NAIVE = limit("baseline", "vs naive", 2.0, "naive")


def measured(one, value, median_us):
    least = one.fraction or one.ratio
    return {"name": one.name, "meter": one.kind, "value": value, "limit": least,
            "outcome": "passed",
            "detail": {"median": median_us * 1e-6, "outcome": "passed"}}  # fmt: skip


# 0.9 of the light in 100 us: the ideal takes 90
FOUND = [
    measured(LIGHT, 0.9, 100),
    measured(OTHER_CASE, 0.2, 3),
    measured(LIBRARY, 1.2, 125),  # the library took 150
    measured(NAIVE, 3.0, 120),  # the naive version 360
]


@pytest.fixture
def kata(mini):
    speed = (LIGHT, OTHER_CASE, LIBRARY, NAIVE)
    return replace(load_kata(mini / "katas/week01/doubled"), speed=speed)


def test_what_is_compared_with_has_a_rung_at_1_and_a_share_of_the_light(kata):
    library, naive = baselines(kata, FOUND)
    assert (library.name, naive.name) == ("library", "naive")
    assert library.values == pytest.approx({"vs library": 1.0, "roofline": 0.6})
    assert library.passed == {"vs library": True, "roofline": False}
    assert naive.values == pytest.approx({"vs naive": 1.0, "roofline": 0.25})
    assert naive.passed == {"vs naive": False, "roofline": False}


def test_what_was_not_timed_has_no_rung(kata):
    assert baselines(kata, [{"name": "allocated_bytes", "value": 4000, "detail": {}}]) == []


@pytest.mark.parametrize(
    ("wrong", "names"),
    [(["wrong:naive"], ["naive", "solution", "library"]), ([], ["solution", "library", "naive"])],
)
def test_the_ladder_ends_with_the_library(kata, tmp_path, monkeypatch, wrong, names):
    """The kata's own naive version stands for the one that the threshold compares with."""
    judged = [(label, [measured(LIGHT, 0.25, 360)]) for label in wrong]
    judged += [("solution", FOUND[:2]), ("solution", FOUND[2:])]
    events = [{"event": "check", "impl": impl, "measurements": one} for impl, one in judged]
    events.append({"event": "end"})
    naive = [SimpleNamespace(label=label) for label in wrong]
    monkeypatch.setattr("harness.reports.ladder.wrong_solutions", lambda *_: naive)
    monkeypatch.setattr("harness.reports.ladder.run_group", lambda *_, **__: (0, ""))
    monkeypatch.setattr("harness.reports.ladder.read_record", lambda _: events)
    rungs = climb(kata, "cuda", tmp_path, yours=False)
    assert [rung.name for rung in rungs] == names
    assert rungs[-1].values["roofline"] < rungs[names.index("solution")].values["roofline"]


def on_a_device(profile, date, *found):
    judged = {"status": "passed", "measurements": list(found)}
    return {
        "date": date,
        "profile": profile,
        "impl": "solution",
        "katas": {"week01/doubled": judged},
    }


def test_without_a_gpu_the_newest_device_is_quoted(kata):
    results = [
        on_a_device("a100", "2026-01-01T00:00:00+00:00", measured(NAIVE, 9.0, 1)),
        on_a_device("h200", "2026-02-01T00:00:00+00:00", *FOUND),
        on_a_device("h200", "2026-03-01T00:00:00+00:00", measured(LIBRARY, 1.25, 120)),
    ]
    assert timed_elsewhere(kata, results) == (
        "timed on a GPU only; the reference on h200, times as fast: vs library 1.25, vs naive 3.00"
    )


def test_what_was_never_measured_is_only_named(kata):
    assert timed_elsewhere(kata, []) == "timed on a GPU only: vs library, vs naive"


def test_what_is_timed_here_needs_no_gpu(kata):
    here = limit("baseline", "vs library", 0.9, "library", on="any")
    assert timed_elsewhere(replace(kata, speed=(LIGHT, here)), []) == ""


def test_a_naive_version_that_nothing_measured_stays_and_says_why(mini, tmp_path, monkeypatch):
    kata = load_kata(mini / "katas/week01/doubled")
    (kata.wrong / "naive.py").write_text('"""Wrong on purpose: it copies\nfirst."""\n')
    found = {"wrong:naive": [], "solution": [measured(LIGHT, 0.9, 100)]}
    monkeypatch.setattr("harness.reports.ladder._measured", lambda *_: found)
    rungs = climb(kata, "cpu", tmp_path, yours=False)
    assert [(one.name, bool(one.values)) for one in rungs] == [("naive", False), ("solution", True)]
    assert naive_words(kata, tmp_path) == "it copies first."
    (kata.wrong / "naive.py").unlink()
    assert naive_words(kata, tmp_path) == ""


def test_an_approach_stands_beside_the_reference_and_says_what_it_is(
    kata, tmp_path, monkeypatch, capsys
):
    (kata.wrong / "approaches.toml").write_text(
        '[adds]\nwhy = "a sum\\nof two"\nfind = "torch.mul(x, 2, out=y)"\n'
        'replace = "torch.add(x, x, out=y)"\n'
    )
    monkeypatch.setattr(
        "harness.reports.ladder._measured", lambda _, impls, __: dict.fromkeys(impls, FOUND[:1])
    )
    names = [one.name for one in climb(kata, "cpu", tmp_path, yours=True)]
    assert names == ["yours", "solution", "adds"]
    (adds,) = approaches_of(kata, tmp_path, [])
    assert (adds.name, adds.why, adds.measured) == ("adds", "a sum of two.", {})
    teach.approach(adds)
    assert capsys.readouterr().out == "adds: a sum of two.\n    not measured\n"
    results = [
        on_a_device("h200", "2026-02-01T00:00:00+00:00", *FOUND),
        on_a_device("a100", "2026-01-01T00:00:00+00:00", measured(LIGHT, 0.3, 90))
        | {"impl": "approach:adds"},
        on_a_device(
            "h200", "2026-03-01T00:00:00+00:00", measured(LIGHT, 0.7, 90), measured(NAIVE, 2.0, 1)
        )
        | {"impl": "approach:adds"},
        on_a_device("h200", "2026-04-01T00:00:00+00:00", measured(LIGHT, 0.91, 90)),
    ]
    teach.approach(approaches_of(kata, tmp_path, results)[0])
    assert capsys.readouterr().out.splitlines()[1] == (
        "    measured on h200: roofline 0.7 (the reference 0.91), vs naive 2 (the reference 3)"
    )
