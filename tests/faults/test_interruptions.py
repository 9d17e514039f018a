"""Ctrl-C, and a harness that is killed: what was begun is aborted and nothing runs on."""

import signal
import threading
import time
from pathlib import Path

import pytest

from harness.learner.progress import Progress
from harness.running import attempt

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").is_file(), reason="processes are found by /proc"
)
# a grandchild in a session of its own, then a loop in C that no signal handler can break
BUSY = """
import os, re, subprocess
from pathlib import Path
def counted(numbers):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(os.environ["KATA_HOME"], "busy").touch()
    re.match("(a+)+$", "a" * 60 + "b")
"""


def busy(bench):
    """`kata run`, inside a call that never returns."""
    bench.write(BUSY)
    toml = bench.kata().folder / "kata.toml"
    toml.write_text(toml.read_text().replace("timeout_s = 2", "timeout_s = 100"))
    running = bench.command("run", "counted")
    while not (bench.home / "busy").exists():
        assert running.poll() is None
        time.sleep(0.02)
    return running


@needs_proc
def test_ctrl_c_during_a_call_leaves_an_aborted_attempt_and_nothing_running(bench):
    running = busy(bench)
    while len(bench.alive()) < 4:  # harness, keeper, child, grandchild: its environment comes last
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    running.communicate()
    assert running.returncode == 130
    assert bench.alive() == []
    (kept,) = bench.progress.attempts()
    assert (kept.status, kept.reason) == ("aborted", "interrupted")
    bench.assert_still_right()


@needs_proc
def test_a_harness_killed_during_a_call_takes_everything_with_it(bench):
    running = busy(bench)
    running.kill()
    running.communicate()
    bench.assert_nothing_left()
    assert [one.status for one in bench.progress.attempts()] == ["running"]
    bench.assert_still_right()
    assert [one.status for one in bench.progress.attempts()] == ["aborted", "passed"]


@pytest.mark.parametrize("moment", ["start", "finish"])
def test_ctrl_c_while_a_record_is_written_waits_until_it_is(bench, monkeypatch, moment):
    write = getattr(Progress, moment)

    def interrupted(self, *arguments, **options):
        signal.raise_signal(signal.SIGINT)
        written = write(self, *arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return written

    bench.solve()
    with monkeypatch.context() as patched:
        patched.setattr(Progress, moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.judge()
    (kept,) = bench.progress.attempts()
    assert kept.status == {"start": "aborted", "finish": "passed"}[moment]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_in_another_thread_is_judged_as_well(bench):
    bench.solve()
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(bench.judge()))
    thread.start()
    thread.join()
    assert [outcome.status for outcome in outcomes] == ["passed"]


def test_what_breaks_off_a_run_is_the_reason_of_its_attempt(bench, monkeypatch):
    def fail(*_, **__):
        raise OSError("out of processes")

    bench.solve()
    monkeypatch.setattr(attempt, "run_kata", fail)
    with pytest.raises(OSError, match="out of processes"):
        bench.judge()
    (kept,) = bench.progress.attempts()
    assert (kept.status, kept.reason) == ("aborted", "out of processes")
