"""What a run came to, in words: from records and error texts, without running anything."""

import socket
from dataclasses import replace
from itertools import count

import pytest

from harness.base import pace
from harness.base.errors import DeviceError
from harness.base.processes import seal
from harness.cli import results
from harness.content.kata import load_kata
from harness.running import attempt, runner
from harness.running.causes import cause_of, in_one_line
from harness.running.limits import Limits, limits_of
from harness.running.runner import Outcome, Watch, device_problem
from harness.running.unmeasured import excused
from harness.running.verdict import checks_of, verdict

TRITON_ERROR = """triton.compiler.errors.CompilationError: at 4:8:
def _k(x_ptr, n, B: tl.constexpr):
    o = tl.arange(0, B)
    x = tl.load(x_ptr + o, mask=o < n)
    y = undefined_name(x)
        ^
NameError('undefined_name is not defined')"""

BUILD_ERROR = """mine.py: expected f to build its kernels for sm_90, found ptxas. It was given n=8.
  File "mine.py", line 11, in f
    _k[(1,)](x)
ptxas kernel.ptx, line 7; error   : Unknown symbol 'foo'"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ValueError: x\n  at f", "ValueError: x"),
        ("", ""),
        (
            "AssertionError: result: 1 of 2 values off\nwhere it is wrong:\n    .#\n"
            "likely cause: all zeros\n1 of 2 values differ between two runs: a race",
            "AssertionError: result: 1 of 2 values off | likely cause: all zeros | "
            "1 of 2 values differ between two runs: a race",
        ),
        (
            TRITON_ERROR,
            "compile error: triton.compiler.errors.CompilationError: at 4:8: | "
            "y = undefined_name(x) | NameError('undefined_name is not defined')",
        ),
        (
            BUILD_ERROR,
            "compile error: mine.py: expected f to build its kernels for sm_90, found ptxas. "
            "It was given n=8. | ptxas kernel.ptx, line 7; error   : Unknown symbol 'foo'",
        ),
    ],
)
def test_an_error_becomes_one_line_that_says_the_cause(text, line):
    assert in_one_line(text) == line


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 PiB", "device out of"),
        ("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to", "device out of memory"),
        ("RuntimeError: Triton Error [CUDA]: out of memory", "device out of memory"),
        ("CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY", "device out"),
        (
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            "device fault",
        ),
        ("RuntimeError: CUDA error: device-side assert triggered", "device fault"),
        ("RuntimeError: Triton Error [CUDA]: misaligned address", "device fault"),
        ("MemoryError", "host out of memory"),
        ("mine.py does not import: MemoryError:  (line 3)", "host out of memory"),
        (
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 128. GiB",
            "host out of memory",
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't "
            "allocate memory: you tried to allocate 68719476736 bytes",
            "host out of memory",
        ),
        ("numba.core.errors.TypingError: Failed in cuda mode pipeline", "compile error"),
    ],
)
def test_the_causes_that_need_naming_are_told_apart(text, cause):
    assert (cause_of(text) or "").startswith(cause)


@pytest.mark.parametrize(
    "text",
    [
        "MemoryError: no block is free",  # a learner's allocator says why
        "Failed: DID NOT RAISE <class 'MemoryError'>",
        "AssertionError: out of memory was expected",
        "ValueError: pool: expected a free block, found none: out of memory",
    ],
)
def test_an_ordinary_failure_has_no_cause(text):
    assert cause_of(text) is None


# ---- verdicts ------------------------------------------------------------------------------


def session(tests):
    return {"event": "session", "profile": "cpu", "seed": 1, "tests": tests}


def starting(name, phase="call"):
    return {"event": "starting", "name": name, "phase": phase}


def check(name, outcome="passed", message=""):
    return {"event": "check", "name": name, "outcome": outcome, "message": message}


END = {"event": "end", "exit": 0}
NONCE = b"known to two"


def sealed(number, text):
    return b"%b %b\n" % (seal(NONCE, number, text), text)


@pytest.fixture
def line():
    """Both ends of the line on which a record is spoken."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def watch(line, monkeypatch):
    """One that has heard nothing yet, with limits of 3, 5 and 7 seconds, on an idle machine."""
    monkeypatch.setattr(pace, "measured_pace", lambda: 1.0)
    return Watch(line[0], NONCE, Limits(startup_s=3, run_s=5, exit_s=7))


@pytest.mark.parametrize(
    ("events", "exit_code", "output", "status", "reason"),
    [
        ([], None, "", "timed_out", "start-up was stopped after 3 s, before any test was found"),
        (
            [session(2), starting("a", "setup")],
            None,
            "",
            "timed_out",
            "start-up was stopped after 3 s in the set-up of a, which includes importing the file",
        ),
        ([], -11, "", "crashed", "ended by signal 11 (SIGSEGV) during start-up"),
        (
            [session(2), starting("a"), check("a")],
            -6,
            "what():  std::bad_alloc",
            "crashed",
            "ended by signal 6 (SIGABRT) after a: host out of memory",
        ),
        (
            [],
            4,
            "Traceback:\nImportError: No module named 'harness'\n",
            "crashed",
            "ended with exit code 4 during start-up, before the tests had finished: "
            "ImportError: No module named 'harness'",
        ),
        (
            [],
            4,
            "",
            "crashed",
            "ended with exit code 4 during start-up, before the tests had finished",
        ),
        ([], -35, "", "crashed", "ended by signal 35 (real-time) during start-up"),
        ([session(0), END], 5, "no tests ran", "error", "no check ran: no tests ran"),
        ([session(3), END], 2, "1 error in 1 s\n", "error", "no check ran: 1 error in 1 s"),
        (
            [session(1), starting("a"), check("a"), END],
            -11,
            "",
            "passed",
            "1 check passed; it ended with signal 11 (SIGSEGV)",
        ),
        (
            [
                session(1),
                starting("a"),
                check("a", "failed", "not modelled: f: expected PTX that the simulator models, "),
                END,
            ],
            1,
            "",
            "error",
            "not modelled: f: expected PTX that the simulator models,  (in a)",
        ),
        (
            [session(2), starting("a"), check("a"), END],
            0,
            "",
            "crashed",
            "ended with exit code 0 after a, before the tests had finished",
        ),
        (
            [session(1), starting("a"), check("a", "skipped"), END],
            0,
            "",
            "error",
            "no check ran: no output",
        ),
        (
            [
                session(2),
                starting("a"),
                check("a", "failed", "device fault: CUDA error: misaligned address"),
                starting("b"),
                check("b", "failed", "device fault: CUDA error: misaligned address"),
                END,
            ],
            1,
            "",
            "crashed",
            "device fault: CUDA error: misaligned address (in a; the tests after it ran on a lost "
            "device)",
        ),
    ],
)
def test_a_verdict_says_what_happened_and_where(events, exit_code, output, status, reason):
    found = verdict(events, checks_of(events), exit_code, output, phase="startup", limit_s=3)
    assert found == (status, reason)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([session(2), starting("a")], "stopped after 5 s in a"),
        ([session(2), starting("a"), check("a")], "stopped after 5 s after a"),
    ],
)
def test_a_run_that_is_stopped_says_in_which_test(events, reason):
    assert verdict(events, checks_of(events), None, "", phase="run", limit_s=5) == (
        "timed_out",
        reason,
    )


@pytest.mark.parametrize(
    ("outcome", "message", "expected"),
    [
        ("skipped", "AMBIGUOUS: near", "ambiguous"),
        ("skipped", "NOT GRADED: busy", "not_graded"),
        ("skipped", "no GPU", "skipped"),
        ("failed", "NOT GRADED: says the code under test", "failed"),
    ],
)
def test_only_a_skip_can_come_to_no_verdict(outcome, message, expected):
    (found,) = checks_of([check("a", outcome, message)])
    assert (found.outcome, found.message) == (expected, message)


def test_a_pass_has_measured_every_cost():
    found = {"event": "check", "name": "a", "outcome": "passed", "message": ""}
    events = [session(1), starting("a"), found | {"measurements": [{"name": "launches"}]}, END]
    told = {"checks": checks_of(events), "phase": "exit", "limit_s": 7}
    told |= {"exit_code": 0, "output": ""}
    assert verdict(events, costs=["launches"], **told) == ("passed", "1 check passed")
    reason = "expected every [[cost]] to be measured, found no figure for bytes_moved"
    costs = ["launches", "bytes_moved"]
    assert verdict(events, costs=costs, **told) == ("failed", reason)


def test_what_a_skipped_test_would_have_measured_is_unmeasured(tmp_path):
    tests = tmp_path / "test_bytes.py"
    tests.write_text(
        "def test_moves(cost):\n    cost.check('bytes_moved', 3)\n\n"
        "def test_other(cost):\n    cost.check('launches', 3)\n"
    )
    checks = checks_of([check("test_moves[7]", "skipped", "t4: too small"), check("a", "passed")])
    assert excused(tests, checks)["bytes_moved"] == "t4: too small"
    assert "launches" not in excused(tests, checks)
    events = [session(2), check("test_moves[7]", "skipped", "t4: too small"), check("a"), END]
    told = {"checks": checks, "phase": "exit", "limit_s": 7, "exit_code": 0, "output": ""}
    told["excused"] = excused(tests, checks)
    reason = "1 check passed, unmeasured: bytes_moved (t4: too small)"
    assert verdict(events, costs=["bytes_moved"], **told) == ("passed", reason)
    reason = "expected every [[cost]] to be measured, found no figure for launches"
    costs = ["bytes_moved", "launches"]
    assert verdict(events, costs=costs, **told) == ("failed", reason)


def test_each_phase_has_a_time_of_its_own_and_none_comes_back(watch, line):
    numbers = count()

    def write(text):
        line[1].sendall(sealed(next(numbers), text.encode()))

    assert not watch.overdue(3.0)
    assert watch.overdue(3.1)
    write('{"event": "starting", "phase": "setup"}')
    assert watch.overdue(3.1)
    write('{"event": "starting", "phase": "call"}')
    assert not watch.overdue(3.1)
    write('{"event": "starting", "phase": "call"}')
    assert not watch.overdue(8.1)
    assert watch.overdue(8.2)
    write('{"event": "end"}')
    assert not watch.overdue(8.2)
    assert not watch.overdue(15.2)
    assert watch.overdue(15.3)


def test_a_slow_machine_is_given_longer_in_each_phase(watch, line, monkeypatch):
    monkeypatch.setattr(pace, "measured_pace", lambda: 2.0)
    assert not watch.overdue(5.9)
    line[1].sendall(sealed(0, b'{"event": "starting", "phase": "call"}'))
    assert not watch.overdue(6.0)
    assert not watch.overdue(15.9)
    assert watch.overdue(16.1)
    assert watch.limit_s == 10.0


def test_the_nonce_waits_on_the_line_and_a_line_cut_short_is_no_event(line):
    watch = Watch(line[0], NONCE, Limits(run_s=5))
    with line[1].makefile("rb") as heard:
        assert heard.read() == NONCE
    whole = sealed(0, b'{"event": "end"}') + sealed(1, b'{"event": "check"}')
    line[1].sendall(whole[:-3])
    watch.listen()
    assert [event["event"] for event in watch.events] == ["end"]
    line[1].sendall(whole[-3:])
    watch.listen()
    assert [event["event"] for event in watch.events] == ["end", "check"]


def test_a_line_without_its_seal_or_out_of_its_place_is_no_event(line):
    watch = Watch(line[0], NONCE, Limits(run_s=5))
    passed, failed = b'{"event": "check", "outcome": "passed"}', b'{"event": "check"}'
    line[1].sendall(passed + b"\n")
    line[1].sendall(sealed(0, failed).replace(failed, passed))  # altered
    line[1].sendall(sealed(1, passed))  # the one before it is kept back
    watch.listen()
    assert watch.events == []
    line[1].sendall(sealed(0, failed) + sealed(0, failed))  # said twice
    watch.listen()
    assert watch.events == [{"event": "check"}]


def test_whoever_floods_the_line_is_heard_so_far_and_no_farther(watch, line, monkeypatch):
    monkeypatch.setattr(runner, "MOST_HEARD", 100)
    for _ in range(3):
        line[1].sendall(b"x" * 1000)
        watch.listen()
    assert len(watch._begun) == 100 + 1000
    line[1].sendall(b"\n" + sealed(0, b'{"event": "end"}'))
    watch.listen()
    watch.listen()
    assert watch.events == [{"event": "end"}]


def test_a_device_gets_time_to_compile_and_the_host_a_memory_limit(bench):
    kata = load_kata(bench.root / "katas" / "week01" / "counted")
    host, device = limits_of(kata, "cpu"), limits_of(kata, "cuda")
    assert (host.run_s, device.run_s) == (2, 62)
    assert host.memory_bytes > 0
    assert device.memory_bytes == 0


# ---- the device after a crash --------------------------------------------------------------


def test_without_a_device_its_health_is_not_asked_after(monkeypatch):
    monkeypatch.setattr(runner, "device_present", lambda: False)
    monkeypatch.setattr(runner, "run_group", None)
    assert device_problem() == ""


@pytest.mark.parametrize(
    ("launch", "limit_s", "problem"),
    [
        ("pass", 30, ""),
        ("raise SystemExit('RuntimeError: no device')", 30, "RuntimeError: no device"),
        ("while True: pass", 0.3, "no answer within 0.3 s"),
    ],
)
def test_a_tiny_launch_in_a_fresh_process_tells_a_devices_health(
    monkeypatch, launch, limit_s, problem
):
    monkeypatch.setattr(runner, "device_present", lambda: True)
    monkeypatch.setattr(runner, "TINY_LAUNCH", launch)
    monkeypatch.setattr(runner, "HEALTH_S", limit_s)
    assert device_problem() == problem


PASSED = Outcome(
    status="passed",
    reason="3 checks passed",
    device="cuda",
    profile="t4",
    seed=1,
    checks=(),
    measurements=(),
    versions={},
    duration_s=1.0,
    output="",
)


def test_a_device_that_does_not_answer_ends_the_session_after_the_attempt_is_kept(
    bench, monkeypatch
):
    lost = replace(PASSED, status="crashed", device_problem="no answer within 60 s")
    monkeypatch.setattr(attempt, "run_kata", lambda *_, **__: lost)
    monkeypatch.setattr(attempt, "device_present", lambda: True)
    bench.solve()
    with pytest.raises(DeviceError, match=r"found no answer within 60 s\. Reset it"):
        bench.judge(device="cuda")
    assert bench.progress.latest("counted").status == "crashed"


@pytest.mark.parametrize("change", ["delete", "swap"])
def test_no_verdict_is_about_a_file_that_is_gone_or_another_by_then(bench, monkeypatch, change):
    kata = bench.kata()

    def run_kata(*_, **__):
        if change == "swap":
            bench.house.workspace.swap("counted", kata.file, kata.solution)
        else:
            kata.file.unlink()
        return PASSED

    bench.solve()
    monkeypatch.setattr(attempt, "run_kata", run_kata)
    assert bench.judge().status == "error"
    latest = bench.progress.latest("counted")
    assert latest.reason.startswith("counted.py was changed while it was being judged")


def test_a_run_on_a_gpu_that_is_not_there_is_refused(bench, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, output = bench.kata_command("run", "counted", "--device", "cuda")
    assert code == 4
    assert "expected a GPU, found none" in output
    assert bench.progress.attempts() == []


def told(bench, capsys, **changes):
    """What is printed of a run."""
    kata = load_kata(bench.root / "katas" / "week01" / "counted")
    outcome = Outcome(
        status="crashed", reason="", device="cpu", profile="cpu", seed=1, checks=(),
        measurements=(), versions={}, duration_s=1.0, output="",
    )  # fmt: skip
    outcome = replace(outcome, **changes)
    results.outcome(kata, outcome, "yours")
    results.next_step(kata, outcome, "yours", "counted.py")
    return capsys.readouterr().out


def test_brackets_are_no_markup(bench, capsys):
    reason = "met [/red] [bold] in test_a"
    assert reason in told(bench, capsys, reason=reason)


def test_of_an_interpreter_that_died_the_innermost_frames_are_shown(bench, capsys):
    frames = "".join(f'  File "a.py", line {at} in f\n' for at in range(1000))
    shown = told(bench, capsys, output=f"before\nFatal Python error: Segmentation fault\n{frames}")
    assert "line 0 in f" in shown
    assert "line 999 in f" not in shown
    assert "before" not in shown


def test_without_a_red_check_none_is_to_be_mended(bench, capsys):
    assert "next: read the message above, then make kata" in told(bench, capsys)
    red = checks_of([check("a", "failed", "no")])
    assert "next: fix the first ✗, then make kata" in told(bench, capsys, checks=red)
