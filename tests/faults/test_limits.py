"""A test that hangs is ended by itself, named with its place, and the others are still judged."""

import re
import signal
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest

from harness.plugin import run_limit
from harness.plugin.run_limit import RunLimit, within_s
from harness.running.limits import Limits
from harness.running.runner import run_kata

NONE = "def counted(numbers):\n    if not numbers:\n        return 0\n"
WAITS = "in which nothing was computed: what it waits for does not come"
TWICE = """    import threading
    lock = threading.Lock()
    while lock.acquire():
        pass
"""
JOINS = """    import threading
    one = threading.Thread(target=threading.Event().wait, daemon=True)
    one.start()
    one.join()
"""
HANGS = {
    "a lock that is held": (TWICE, WAITS),
    "a queue that nobody fills": ("    import queue\n    queue.Queue().get()\n", WAITS),
    "a thread that never ends": (JOINS, WAITS),
    "a loop": ("    while True:\n        numbers = [*numbers]\n", "of CPU time"),
}


@pytest.mark.parametrize("name", HANGS)
def test_a_test_that_hangs_is_ended_and_named_with_its_line(bench, name):
    body, words = HANGS[name]
    bench.write(NONE + body)
    limits = Limits(run_s=60, test_s=2)
    outcome = run_kata(bench.house.submission(bench.kata(), "yours"), device="cpu", limits=limits)
    assert outcome.status == "failed", outcome.reason
    assert [check.outcome for check in outcome.checks] == ["passed", "failed", "failed"]
    for check in outcome.checks[1:]:
        assert re.match(f"stopped after \\S+ s {words}", check.message), check.message
        assert re.search(r"\(line \d+, in counted\)", check.message)


def an_item(named_s=None):
    marker = named_s and pytest.mark.within_s(named_s).mark
    return SimpleNamespace(
        nodeid="test_it[x]",
        get_closest_marker=lambda _: marker,
    )


def waiting(seconds, limit_s, wait=time.sleep, named_s=None):
    """Wait within a limit, and say how long that took."""
    item = an_item(named_s)
    start = time.monotonic()
    with RunLimit(limit_s)._limited(item):
        wait(seconds)
    return time.monotonic() - start


def test_who_waits_for_another_process_is_not_ended():
    assert waiting(2.5, 3, lambda s: subprocess.run(["sleep", str(s)], check=True)) >= 2.5


@pytest.mark.parametrize(("pause_s", "hangs"), [(0.005, True), (0.0, False)])
def test_a_thread_that_only_looks_again_and_again_is_no_computation(pause_s, hangs):
    over = threading.Event()

    def look():
        while not over.is_set():
            time.sleep(pause_s) if pause_s else sum(range(1000))

    looking = threading.Thread(target=look)
    looking.start()
    told = (
        "^stopped after 1 s in which nothing" if hangs else r"^stopped after \S+ s( of CPU time)?$"
    )
    try:
        with pytest.raises(pytest.fail.Exception, match=told):
            waiting(60, 3)
    finally:
        over.set()
        looking.join()


def test_who_waits_for_nobody_is_ended_and_leaves_no_alarm_behind():
    slept = []
    with pytest.raises(pytest.fail.Exception, match="^stopped after 1 s in which nothing was"):
        waiting(60, 3, lambda seconds: slept.append(time.sleep(seconds)))
    assert slept == []
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    time.sleep(1.5)  # an alarm that was left behind would end this test


def test_who_hardly_gets_a_processor_is_not_said_to_wait(monkeypatch):
    taken = iter(range(1000))
    monkeypatch.setattr(run_limit, "_switches", lambda: (0, next(taken)))
    assert waiting(2.5, 3) >= 2.5


def test_a_test_may_name_a_shorter_limit_and_no_longer_one():
    with pytest.raises(pytest.fail.Exception, match="^stopped after 1 s in which nothing was"):
        waiting(60, 30, named_s=3)
    assert [within_s(an_item(named), 30.0) for named in (None, 3, 60)] == [30.0, 3.0, 30.0]


def test_after_five_tests_that_hang_the_others_are_skipped(bench):
    kata = bench.kata()
    text = (kata.folder / "test_counted.py").read_text()
    more = "\n\ndef test_again_{0}(kata):\n    assert kata.counted([{0}, 2]) == 1\n"
    text += "".join(more.format(2 * at + 1) for at in range(5))
    (kata.folder / "test_counted.py").write_text(text)
    bench.write(NONE + TWICE)
    limits = Limits(run_s=60, test_s=2)
    outcome = run_kata(bench.house.submission(kata, "yours"), device="cpu", limits=limits)
    assert outcome.status == "failed", outcome.reason
    told = [check.outcome for check in outcome.checks]
    assert told == ["passed", *["failed"] * 5, *["skipped"] * 2]
    assert outcome.checks[-1].message == "not run, since 5 tests before it had to be stopped"
