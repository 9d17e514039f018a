"""The kill matrix runs what can still add something, cheapest kills first."""

from collections import defaultdict

import pytest

from harness.authoring.matrix import cheapest_kills, remember, remembered_kills
from harness.base.errors import MetadataError
from harness.content.kata import load_kata
from harness.content.reached import beside, keep_reached, reached


@pytest.fixture
def kata(mini):
    return load_kata(mini / "katas/week01/doubled")


def ran(events):
    """Pairs of wrong solution and test that were judged, in order."""
    return [(e["impl"][6:], e["name"]) for e in events if e["impl"].startswith("wrong:")]


def test_every_wrong_solution_is_killed_cheaply_and_every_test_kills():
    failures = [
        ("a", "test_slow", 2.0),
        ("a", "test_edge[1]", 0.1),
        ("a", "test_edge[2]", 0.2),
        ("b", "test_edge[1]", 0.1),
        ("c", "test_cost[bytes]", 0.5),
        ("c", "test_matches_reference[7]", 0.4),
    ]
    # only `a` can prove test_slow, so test_edge is proven on `b`; `c` falls to a shared check
    assert cheapest_kills(failures) == {
        "a": ["test_slow"],
        "b": ["test_edge[1]"],
        "c": ["test_matches_reference[7]"],
    }


def test_kills_that_hold_stay_as_they_were():
    failures = [
        ("a", "test_slow", 2.0),
        ("a", "test_edge[1]", 0.1),
        ("b", "test_edge[1]", 0.1),
        ("b", "test_edge[2]", 0.2),
    ]
    known = {"a": ["test_slow", "test_gone"], "b": ["test_edge[2]"], "gone": ["test_slow"]}
    assert cheapest_kills(failures, known) == {"a": ["test_slow"], "b": ["test_edge[2]"]}
    assert cheapest_kills(failures, {"a": ["test_edge[1]"]}) == {
        "a": ["test_edge[1]", "test_slow"],
        "b": ["test_edge[1]"],
    }


def test_kills_are_read_as_they_were_written(kata):
    kills = {"any_rank": ['test_text["quoted"-\\]', "test_a[1]"], "copies": ["test_b"]}
    remember(kata, kills)
    assert remembered_kills(kata) == {**kills, "any_rank": sorted(kills["any_rank"])}


def test_a_memory_that_is_no_list_is_refused(kata):
    (kata.wrong / "kills.toml").write_text('copies = "test_b"\n')
    with pytest.raises(MetadataError, match=r"kills\.toml: copies: expected a list .*--remember"):
        remembered_kills(kata)


def measured(impl, name, value, relation="<=", meter="launches"):
    found = {"name": name, "meter": meter, "value": value, "relation": relation}
    return {"impl": impl, "measurements": [found]}


def test_what_was_counted_is_kept_the_worst_of_several_and_no_times(kata):
    keep_reached(
        kata,
        [
            measured("solution", "spills@sm_90", 2),
            measured("solution", "spills@sm_90", 3.5),
            measured("wrong:naive", "spills@sm_90", 9),
            measured("wrong:copies", "spills@sm_90", 99),
            measured("solution", "share", 0.9, ">="),
            measured("solution", "share", 0.8, ">="),
            measured("solution", "roofline", 0.8, ">=", "roofline"),
        ],
    )
    found = reached(kata)
    assert found == {"spills@sm_90": {"reference": 3.5, "naive": 9}, "share": {"reference": 0.8}}
    assert beside(found["spills@sm_90"]) == " · reference 3.5 · naive 9"
    assert beside({"reference": 0.8412}, timed=True) == " · reference 0.841"


def test_what_another_draw_changes_stays_as_it_was(kata):
    for value, kept in ((100, 100), (100.9, 100), (99.1, 100), (110, 110)):
        keep_reached(kata, [measured("solution", "bytes", value)])
        assert reached(kata)["bytes"] == {"reference": kept}


def test_nothing_counted_writes_nothing_and_what_is_no_number_is_refused(kata):
    keep_reached(kata, [{"impl": "solution", "measurements": []}])
    assert reached(kata) == {}
    (kata.wrong / "reached.toml").write_text('launches = { reference = "few" }\n')
    with pytest.raises(MetadataError, match=r"reached\.toml: launches: expected numbers"):
        reached(kata)


def test_a_dead_solution_meets_only_tests_that_have_not_killed(judged, kata):
    whole = judged("--impl=wrong", "--matrix=whole")
    lean = judged("--impl=wrong", "--matrix=lean")
    assert len(ran(lean)) < len(ran(whole))
    kills = [(event["impl"], event["name"]) for event in lean if event["outcome"] == "failed"]
    assert {impl for impl, _ in kills} == {event["impl"] for event in whole}


def test_remembered_kills_are_tried_first(judged, kata):
    whole = judged("--impl=wrong", "--matrix=whole")
    failures = [
        (e["impl"][6:], e["name"], e["duration_s"]) for e in whole if e["outcome"] == "failed"
    ]
    kills = cheapest_kills(failures)
    remember(kata, kills)
    tried = defaultdict(list)
    for name, test in ran(judged("--impl=wrong", "--matrix=lean")):
        tried[name].append(test)
    # one that remembers by address may live through it once, and then meets the others
    assert {name: tests[: len(kills[name])] for name, tests in tried.items()} == kills
    assert sum(map(len, tried.values())) < len(ran(whole)) / 2


def test_a_memory_that_is_wrong_costs_time_and_proves_nothing_less(judged, kata):
    remember(kata, {"copies": ["test_no_such_test"], "no_such_solution": ["test_empty"]})
    lean = judged("--impl=wrong", "--matrix=lean")
    assert {e["impl"] for e in lean if e["outcome"] == "failed"} == {e["impl"] for e in lean}
    assert len({e["impl"] for e in lean}) == 10


def test_the_command_remembers(kata_command, kata):
    finished = kata_command("check", "doubled", "--remember")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert len(remembered_kills(kata)) == 10
