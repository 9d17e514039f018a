"""How one run looks: each thing is said once, and a red run fits on a screen."""

from pathlib import Path

import pytest

from harness.cli import results
from harness.content.kata import load_kata
from harness.learner.progress import Check, Measurement
from harness.running.runner import Outcome
from harness.running.verdict import waiting

KATA = Path(__file__).parent / "fixtures/mini/katas/week01/doubled"
STUB = "doubled is still a stub: edit katas/week01/doubled/doubled.py"


def failed(name, message):
    return Check(name=name, outcome="failed", message=message)


def passed(name):
    return Check(name=name, outcome="passed", message="")


def threshold(name, value, *, limit=10.0, relation="<=", good=True):
    outcome = "passed" if good else "failed"
    message = f"{name}: {value:g}, limit {relation} {limit:g}"
    return Measurement(
        name=name, meter="launches", value=value, limit=limit, relation=relation, passed=good,
        detail={"outcome": outcome, "message": message},
    )  # fmt: skip


@pytest.fixture
def told(capsys):
    """The lines that are printed of a run."""

    def run(checks, measurements=(), *, status="failed", verbose=False, reached=None):
        outcome = Outcome(
            status=status, reason="why", device="cpu", profile="cpu", seed=1, checks=tuple(checks),
            measurements=tuple(measurements), versions={}, duration_s=1.0, output="",
        )  # fmt: skip
        kata = load_kata(KATA)
        results.outcome(kata, outcome, "yours", verbose=verbose, reached=reached or {})
        results.next_step(kata, outcome, "yours", "doubled.py")
        return capsys.readouterr().out.splitlines()

    return run


def test_an_untouched_stub_is_one_line(told):
    lines = told([failed(f"test_{at}", STUB) for at in range(51)])
    assert lines[0] == f"✗ 51 checks wait for your code: {STUB}"
    assert [line[:5] for line in lines[1:]] == ["faile", "next:"]


def test_functions_that_are_not_written_are_counted_in_one_line():
    other = STUB.replace("doubled is", "doubled.halved is")
    assert waiting([STUB, other, STUB]) == (
        "3 checks wait for your code: doubled (2), doubled.halved (1) are still stubs: "
        "edit katas/week01/doubled/doubled.py"
    )
    assert waiting([STUB]) == f"1 check waits for your code: {STUB}"


def test_cases_that_differ_in_their_numbers_are_one_line(told):
    lines = told(
        [
            failed("test_a[7-float16]", "result: 3 of 7 values off | input: n = 7"),
            failed("test_b", "result: 3 of 7 values off"),
            failed("test_a[9-float32]", "result: 1 of 9 values off | input: n = 9"),
            passed("test_c"),
        ]
    )
    assert lines[:4] == [
        "✗ test_a[7-float16] and 1 more like it (9-float32): result: 3 of 7 values off",
        "    input: n = 7",
        "✗ test_b: result: 3 of 7 values off",
        "✓ 1 check passed",
    ]


def test_the_same_words_of_several_tests_are_one_line(told):
    lines = told([failed("test_a", "no such thing"), failed("test_b", "no such thing")])
    assert lines[0] == "✗ test_a and 1 more like it (test_b): no such thing"


def test_no_threshold_is_told_twice(told):
    bad, good = threshold("launches", 12.0, good=False), threshold("sectors", 4.0)
    lines = told(
        [
            failed("test_cost[launches]", str(bad.detail["message"])),
            passed("test_cost[sectors]"),
            failed("test_it_reads_once", "reads: 3, limit <= 2 | input: n = 5"),
        ],
        [bad, good, threshold("sectors", 9.0), threshold("reads", 3.0, limit=2.0, good=False)],
    )
    assert lines[:4] == [
        "✗ test_it_reads_once: reads: 3, limit <= 2",
        "    input: n = 5",
        "✓ 1 check passed",
        "✗ threshold launches: 12, limit <= 10",
    ]
    assert not any("sectors" in line for line in lines), "it was met: -v shows it"


def test_of_several_figures_of_a_threshold_the_one_nearest_its_limit_is_told(told):
    found = [threshold("sectors", 4.0), threshold("sectors", 9.0)]
    lines = told([passed("test_cost[sectors]")], found, status="passed")
    assert lines[0] == "✓ threshold sectors: 9, limit <= 10"
    assert sum("sectors" in line for line in lines) == 1


def test_what_breaks_at_one_line_is_one_failure_whichever_test_meets_it(told):
    words = "reads {} elements outside the tensors (line 20, in _kernel)"
    lines = told(
        [
            failed("test_a[x]", words.format(7)),
            failed("test_b[2]", words.format(9) + " | input: n = 2"),
            failed("test_c", words.format(9).replace("20", "22")),
        ]
    )
    assert lines[0].startswith("✗ test_a[x] and 1 more like it (test_b[2]): reads 7 elements")
    assert lines[1].startswith("✗ test_c: reads 9 elements")


def test_of_a_limit_from_below_the_lowest_is_told(told):
    good = [threshold("share", value, limit=0.5, relation=">=") for value in (0.9, 0.6, 0.7)]
    assert told([passed("test_a")], good, status="passed")[0].startswith("✓ threshold share: 0.6")


def test_a_screen_of_failures_unless_all_are_asked_for(told):
    kinds = "abcdefghijklmnop"
    checks = [failed(f"test_{kind}", f"expected {kind}") for kind in kinds]
    lines = told([*checks, passed("test_fine")])
    assert len(lines) == results.MOST_FAILURES + 4
    assert lines[results.MOST_FAILURES] == "✗ 11 more checks failed in other ways: add -v"
    every = told([*checks, passed("test_fine")], verbose=True)
    assert [line for line in every if line.startswith("✗")] == [
        f"✗ test_{kind}: expected {kind}" for kind in kinds
    ]
    assert "✓ test_fine" in every


def test_beside_a_limit_stands_what_the_reference_and_the_naive_version_reach(told):
    reached = {"launches": {"reference": 1, "naive": 1234}, "sectors": {}}
    found = [threshold("launches", 4.0), threshold("sectors", 4.0)]
    assert told([passed("test_a")], found, status="passed", reached=reached)[:2] == [
        "✓ threshold launches: 4, limit <= 10 · reference 1 · naive 1,234",
        "✓ threshold sectors: 4, limit <= 10",
    ]


def test_a_line_is_folded_at_the_width_of_the_screen(told, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    words = " ".join(["expected"] * 20)
    lines = told([failed("test_a[1-2]", words)])
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith("✗ test_a[1-2]: expected")
    assert lines[1].startswith("    expected")
