"""Backends whose kernels run on a GPU only: without one their compiled code is judged."""

import pytest

from harness.authoring.scaffold import scaffold
from harness.content.kata import COMPILED_ONLY, load_kata
from harness.hardware.packages import missing_extra


@pytest.fixture(params=COMPILED_ONLY)
def fresh(request, mini):
    """A new kata of such a backend, in the tiny curriculum."""
    scaffold(mini, "week02/fresh", request.param)
    kata = load_kata(mini / "katas/week02/fresh")
    if missing := missing_extra(kata):
        pytest.skip(missing)
    return kata


def test_what_runs_a_kernel_is_left_to_a_gpu(fresh, judged):
    events = [one for one in judged("--impl=solution", "-k", "fresh") if one["kata"] == fresh.id]
    outcomes = {event["name"]: event["outcome"] for event in events}
    assert {name for name, outcome in outcomes.items() if outcome == "passed"} == {
        "test_cost[spills@sm_90]",
        "test_matrix_is_refused",
        *(name for name in outcomes if name.startswith(("test_each_element", "test_four"))),
    }
    assert outcomes["test_matches_reference[1000-float32]"] == "skipped"
    assert outcomes["test_infinities_pass_through"] == "skipped"
    reasons = {event["message"] for event in events if event["outcome"] == "skipped"}
    assert any(f"{fresh.backend} kernels run on a GPU only" in reason for reason in reasons)


def test_a_static_threshold_is_measured_and_kept(fresh, judged):
    found = [
        measured
        for event in judged("--impl=solution", "-k", "test_cost")
        for measured in event["measurements"]
        if event["kata"] == fresh.id
    ]
    assert [(one["name"], one["outcome"], one["value"]) for one in found] == [
        ("spills@sm_90", "passed", 0.0)
    ]
