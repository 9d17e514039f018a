"""Interruptions: at every instruction once, of one file only, and the tracer of before again."""

import signal
import sys
from contextlib import contextmanager

import pytest

from harness.simulators.interruptions import interrupted


def tick(seen):
    seen.append("a")
    seen.append("b")


def places(act, interrupt, file=__file__, most=100):
    """What each place gives, up to the first that `act` does not come to."""
    found = []
    for at in range(1, most):
        seen = []
        came = interrupted(lambda seen=seen: act(seen), file, at, lambda seen=seen: interrupt(seen))
        found.append("".join(seen))
        if not came:
            return found
    raise AssertionError(f"expected fewer than {most} instructions")


def test_it_comes_at_every_place_in_turn_and_then_not():
    found = places(tick, lambda seen: seen.append("!"))
    assert found[-1] == "ab"
    assert found[:-1] == sorted(found[:-1], key=lambda one: one.index("!"))
    assert set(found) == {"!ab", "a!b", "ab!", "ab"}


def test_a_lost_update_is_found():
    def count(seen):
        seen[:] = [*seen, "x"]

    assert "x" in places(count, lambda seen: seen.append("!")), "an update that overwrites another"
    assert "x" not in places(lambda seen: seen.append("x"), lambda seen: seen.append("!"))[:-1]


def test_a_signal_and_an_exception_may_come():
    heard = []
    before = signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
    try:
        places(tick, lambda _: signal.raise_signal(signal.SIGUSR2))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert len(heard) == len(places(tick, lambda _: None)) - 1
    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: tick([]), __file__, 3, lambda: signal.default_int_handler(2, None))


def test_only_the_instructions_of_the_file_count():
    @contextmanager
    def block(seen):
        seen.append("a")
        yield
        seen.append("b")

    def act(seen):
        with block(seen):
            pass

    assert "a!b" in places(act, lambda seen: seen.append("!")), "a generator, resumed by contextlib"
    assert places(act, lambda seen: seen.append("!"), file="elsewhere.py") == ["ab"]


def test_the_tracer_of_before_is_there_again():
    def mine(*_):
        return None

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        interrupted(lambda: None, __file__, 1, lambda: None)
        found = sys.gettrace()
    finally:
        sys.settrace(before)
    assert found is mine
