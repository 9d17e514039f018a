"""Each shared check catches what it is there for, on the tiny kata's wrong solutions."""

from collections import defaultdict


def test_each_shared_check_kills_its_own_wrong_solution(judged):
    failed = defaultdict(set)
    for event in judged("--impl=wrong", "--impl=solution"):
        if event["outcome"] == "failed":
            failed[event["impl"].removeprefix("wrong:")].add(event["name"].partition("[")[0])
    assert failed.pop("solution", set()) == set()
    assert failed["mutates_input"] == {"test_leaves_inputs_alone"}
    # and wherever the allocator hands out the same storage again
    assert "test_second_call_sees_new_values" in failed["remembers"]
    assert "test_writes_every_element" in failed["writes_past_the_end"]
    assert "test_matches_reference" not in failed["writes_past_the_end"]
    assert "test_writes_every_element" in failed["last_element_unwritten"]
    assert "test_matches_reference" in failed["low_precision"]
    assert "test_matches_reference" in failed["wrong_dtype"]
    assert "test_matches_reference" in failed["calls_what_is_forbidden"]
    assert failed["copies"] == {"test_allocates_the_result_only"}
    assert failed["checks_nothing"] == {"test_integers_are_refused"}


def test_a_stub_fails_every_test_with_one_clear_line(judged):
    events = judged()
    assert len(events) == 7
    for event in events:
        assert event["outcome"] == "failed"
        expected = "doubled is still a stub: edit katas/week01/doubled/doubled.py"
        assert event["message"] == expected


def test_the_learners_own_file_is_judged(judged, mini):
    solution = mini / "solutions" / "week01" / "doubled.py"
    (mini / "katas" / "week01" / "doubled" / "doubled.py").write_text(solution.read_text())
    assert {event["outcome"] for event in judged()} == {"passed"}


def test_a_missing_function_is_named_with_the_nearest(judged, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def double(x):\n    return x\n")
    (first, *_) = judged(f"--impl={file}")
    assert "expected a function `doubled`" in first["message"]
    assert "Did you mean double?" in first["message"]


def test_the_same_seed_gives_the_same_inputs(judged, tmp_path):
    file = tmp_path / "shows.py"
    file.write_text(
        "def doubled(x):\n    raise ValueError(f'saw x = {x.tolist()}')\n", encoding="utf-8"
    )
    name = "test_matches_reference[7-float32]"

    def seen(*options):
        events = judged(f"--impl={file}", *options)
        return next(event["message"] for event in events if event["name"] == name)

    assert seen("--seed=1") == seen("--seed=1")
    assert seen("--seed=1") != seen("--seed=2")


def test_what_pytorch_has_not_implemented_is_no_stub(judged, mini):
    stub = mini / "katas" / "week01" / "doubled" / "doubled.py"
    words = "\"geqrf_cpu\" not implemented for 'BFloat16'"
    stub.write_text(
        stub.read_text().replace(
            "raise NotImplementedError ", f"raise NotImplementedError({words!r}) "
        )
    )
    messages = {event["message"] for event in judged()}
    assert not any("still a stub" in message for message in messages)
    assert any(words in message for message in messages)
