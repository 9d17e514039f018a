"""What simulators of asynchronous code share: how hazards are told, clocks, mbarriers."""

import re
from pathlib import Path

import pytest

from harness.cli.results import PARTS
from harness.running.causes import in_one_line
from harness.simulators.hazards import FIXES, Clock, Hazard, Mbarrier, Place


@pytest.fixture
def kernel(tmp_path):
    """A file of three lines."""
    file = tmp_path / "gemm.py"
    file.write_text("def load():\n    copy(a)\n    use(a)\n", encoding="utf-8")
    return str(file)


def barrier(count):
    return Mbarrier(label="full[0]", count=count, start=Clock())


def test_a_hazard_tells_both_lines_and_a_way_out(kernel):
    now = Place(file=kernel, line=3)
    before = Place(file=kernel, line=2, function="load", called_at=9)
    hazard = Hazard("missing-wait", "a is read before the copy into it has landed", now, before)
    assert str(hazard).splitlines() == [
        "missing-wait: a is read before the copy into it has landed",
        "  now:    gemm.py:3  use(a)",
        "  before: gemm.py:2  copy(a)   [load, called at line 9]",
        f"  fix:    {FIXES['missing-wait']}",
    ]


def test_a_place_in_no_file_carries_its_own_line():
    place = Place(file="scaled.cu", line=4, source="  y[i] = x[i];")
    assert str(place) == "scaled.cu:4  y[i] = x[i];"


def test_a_hazard_is_kept_in_one_line_and_shown_in_its_own(kernel):
    told = Hazard(
        "deadlock",
        "nobody can go on\n    producer: waits for parity 1 of empty[0]\n        at gemm.py:3  a",
        Place(file=kernel, line=3),
    )
    kept = in_one_line(f"harness.simulators.hazards.Hazard: {told}")
    assert kept.startswith("deadlock: nobody can go on | producer: waits ")
    assert [part.split()[0] for part in PARTS.split(kept)] == [
        "deadlock:",
        "producer:",
        "at",
        "now:",
        "fix:",
    ]


def test_hazards_are_alike_when_their_name_and_lines_are(kernel):
    one, other = (Place(file=kernel, line=line) for line in (2, 3))
    assert Hazard("race", "x", one, other).key == Hazard("race", "y", one, other).key
    assert Hazard("race", "x", one, other).key != Hazard("race", "x", other, one).key


def test_a_name_without_a_way_out_is_no_hazard():
    with pytest.raises(KeyError):
        Hazard("bad-luck", "nobody knows why")


def test_a_clock_knows_what_it_has_joined_and_no_more():
    writer, reader = Clock(), Clock()
    first, second = writer.tick("writer"), writer.tick("writer")
    told = writer.copy()
    third = writer.tick("writer")
    reader.join(told)
    assert [reader.knows("writer", epoch) for epoch in (first, second, third)] == [1, 1, 0]


def test_a_write_is_seen_by_the_async_proxy_once_it_is_fenced():
    clock = Clock()
    before = clock.tick("p")
    assert not clock.sees_through_fence("p", before)
    clock.fence()
    after = clock.tick("p")
    assert clock.sees_through_fence("p", before)
    assert not clock.sees_through_fence("p", after)


def test_completed_operations_travel_with_a_clock():
    producer, consumer = Clock(), Clock()
    producer.complete(70)
    consumer.join(producer)
    assert consumer.knows_complete(70)
    assert not consumer.knows_complete(7)


def test_a_phase_completes_with_its_last_arrival_and_its_last_byte():
    full = barrier(count=2)
    full.expect(64)
    full.arrive(1, Clock())
    full.land(64, Clock())
    assert full.phase == 0
    full.arrive(1, Clock())
    assert (full.phase, full.pending, full.tx) == (1, 2, 0)


def test_bytes_may_land_before_they_are_announced():
    full = barrier(count=1)
    full.land(64, Clock())
    full.arrive(1, Clock())
    assert full.phase == 0
    full.expect(64)
    assert full.phase == 1


def test_a_parity_passes_for_the_phase_before_this_one():
    full = barrier(count=1)
    assert (full.passes(0), full.passes(1)) == (False, True)
    full.arrive(1, Clock())
    assert (full.passes(0), full.passes(1)) == (True, False)


def test_what_arrives_is_released_with_its_phase_and_not_before():
    full, clock = barrier(count=2), Clock()
    epoch = clock.tick("producer")
    full.arrive(1, clock)
    assert not full.released.knows("producer", epoch)
    full.arrive(1, Clock())
    assert full.released.knows("producer", epoch)


def test_arrivals_beyond_the_count_are_told():
    full = barrier(count=2)
    assert full.arrive(3, Clock()) == 1


def test_a_barrier_in_words_says_what_it_waits_for():
    full = barrier(count=3)
    full.expect(64)
    full.arrive(1, Clock())
    full.land(16, Clock())
    assert str(full) == (
        "full[0]: phase 0 is incomplete, 1 of 3 arrivals, 64 bytes expected, 16 landed"
    )


def test_the_glossary_tells_of_hazards_there_are():
    text = (Path(__file__).parents[1] / "docs" / "hazards.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    assert told <= FIXES.keys()
    assert {"missing-wait", "race", "deadlock", "endless"} <= told
