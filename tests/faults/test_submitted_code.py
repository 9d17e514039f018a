"""Whatever the code under test does, its run ends in words and the next one is judged right."""

import re

import pytest

from harness.base.processes import run_group
from harness.running.limits import Limits
from harness.running.runner import pytest_command, read_record, run_kata

RIGHT = "def counted(numbers):\n    return sum(n % 2 == 0 for n in numbers)\n"
FIRST, SECOND = "test_nothing_has_none", "test_even_ones_are_counted"

# name: source, status, what the reason says
FATAL = {
    "a loop in C that holds the interpreter": (
        "import re\ndef counted(numbers):\n    re.match('(a+)+$', 'a' * 60 + 'b')\n",
        "timed_out",
        f"stopped after N s in {FIRST}",
    ),
    "a segmentation fault": (
        "import ctypes\ndef counted(numbers):\n    ctypes.string_at(0)\n",
        "crashed",
        f"ended by signal 11 (SIGSEGV) in {FIRST}",
    ),
    "an exit at import": (
        "import os\nos._exit(0)\n",
        "crashed",
        f"ended with exit code 0 in the set-up of {FIRST}, before the tests had finished",
    ),
    "an exit in the second call": (
        "import os\ndef counted(numbers):\n    return os._exit(0) if numbers else 0\n",
        "crashed",
        f"ended with exit code 0 in {SECOND}, before the tests had finished",
    ),
    "an interrupt raised by the code itself": (
        "def counted(numbers):\n    raise KeyboardInterrupt\n",
        "crashed",
        f"ended with exit code 2 in {FIRST}, before the tests had finished",
    ),
    "a kill by the machine": (
        "import os\ndef counted(numbers):\n    os.kill(os.getpid(), 9)\n",
        "crashed",
        f"ended by signal 9 (SIGKILL) in {FIRST}, not sent by the judge: "
        "usually the machine is out of memory",
    ),
    "a kill of its whole group": (
        "import os\ndef counted(numbers):\n    os.killpg(0, 9)\n",
        "crashed",
        f"ended by signal 9 (SIGKILL) in {FIRST}, not sent by the judge: "
        "usually the machine is out of memory",
    ),
    "a line to the judge that is cut": (
        "import os\nfor number in range(3, 30):\n"
        "    if os.path.exists(f := f'/proc/self/fd/{number}') and 'socket' in os.readlink(f):\n"
        "        os.close(number)\n" + RIGHT,
        "error",
        f"the judge could not continue in the set-up of {FIRST}: OSError: [Errno 9] Bad file "
        "descriptor",
    ),
}

# one of each kind, since every run costs seconds; the others differ in nothing that is left behind
THEN_RIGHT = (
    "a loop in C that holds the interpreter",
    "a segmentation fault",
    "a kill of its whole group",
    "a line to the judge that is cut",
)


@pytest.mark.parametrize("name", FATAL)
def test_a_run_that_breaks_off_is_named_and_the_next_is_judged(bench, name):
    source, status, reason = FATAL[name]
    outcome = bench.judge(source)
    # the limit follows the machine
    said = re.sub(r"after [\d.]+ s ", "after N s ", outcome.reason)
    assert (outcome.status, said) == (status, reason), outcome.output
    kept = bench.progress.latest("counted")
    assert (kept.status, kept.reason) == (outcome.status, outcome.reason)
    if name in THEN_RIGHT:
        bench.assert_still_right()


# what would end the session early with all that was judged in order
FORGED = {
    "an end by pytest's own means": (
        "import pytest\ndef counted(numbers):\n    return pytest.exit('', 0) if numbers else 0\n"
    ),
    # with whatever this process was told by its environment, its command and the line itself
    "a record completed by hand": """
        import json, os, re, socket, sys
        from pathlib import Path
        from harness.base.processes import seal
        word = next(word for word in sys.argv if word.startswith("line:"))
        line = socket.socket(fileno=os.dup(int(word.removeprefix("line:"))))
        told = Path("/proc/self/environ").read_bytes() + Path("/proc/self/cmdline").read_bytes()
        check = {"event": "check", "name": "x", "outcome": "passed", "message": ""}
        end = {"event": "end", "exit": 0, "versions": {}}
        for nonce in {b"", line.recv(64), *re.findall(rb"[0-9a-f]{32}", told)}:
            for number, event in enumerate([{"event": "session", "tests": 1}, check, end]):
                text = json.dumps({"measurements": [], **event}).encode()
                line.sendall(text + b"\\n" + seal(nonce, number, text) + b" " + text + b"\\n")
        os._exit(0)
        """,
}


@pytest.mark.parametrize("name", FORGED)
def test_a_verdict_is_made_by_the_judge_alone(bench, name):
    outcome = bench.judge(FORGED[name])
    assert outcome.status in ("crashed", "failed"), outcome.reason


# name: source, what its first failed check says
WRONG = {
    "a_syntax_error": ("def counted(numbers)\n    return 0\n", "SyntaxError: expected ':'"),
    "a_missing_function": ("def count(numbers):\n    return 0\n", "Did you mean count?"),
    "no_argument": ("def counted():\n    return 0\n", "takes 0 positional arguments but 1 was"),
    "none": ("def counted(numbers):\n    pass\n", "expected 0, found None"),
    "an_exit_that_can_be_caught": ("import sys\nsys.exit(0)\n", "SystemExit"),
    "an_error_in_a_helper": (
        "def _half(n):\n    return n // 0\n\n\ndef counted(numbers):\n    return _half(2)\n",
        "ZeroDivisionError: integer division or modulo by zero (line 2, in _half)",
    ),
    "an_error_with_a_cause": (
        "def counted(numbers):\n    try:\n        {}['a']\n    except KeyError as error:\n"
        "        raise ValueError('b') from error\n",
        "ValueError: b (line 3, in counted)",
    ),
    "an_array_that_differs": (
        "import numpy as np\n\n\ndef counted(numbers):\n"
        "    np.testing.assert_array_equal([1, 2], [1, 3], err_msg='why')\n",
        "AssertionError: Arrays are not equal | why | Mismatched elements: 1 / 2 (50%) | ",
    ),
    "no_function": ("counted = 3\n", "found 3."),
    "endless_recursion": (
        "def counted(numbers):\n    return counted(numbers)\n",
        "RecursionError: maximum recursion depth exceeded",
    ),
}


def test_wrong_code_fails_every_check_with_one_line_that_says_why(bench, tmp_path):
    files = {name: tmp_path / f"{name}.py" for name in WRONG}
    for name, (source, _) in WRONG.items():
        files[name].write_text(source)
    record = tmp_path / "record.jsonl"
    command = pytest_command(
        [bench.kata()], impls=map(str, files.values()), device="cpu", record=record
    )
    exit_code, output = run_group(command, 60, {}, cwd=bench.root)
    assert exit_code == 1, output
    checks = [event for event in read_record(record) if event["event"] == "check"]
    for name, (_, words) in WRONG.items():
        found = [check for check in checks if check["impl"] == str(files[name])]
        assert [check["outcome"] for check in found] == ["failed"] * 3, name
        assert words in found[0]["message"]
        assert "\n" not in found[0]["message"]


def test_an_unchanged_stub_is_an_attempt_that_failed(bench):
    outcome = bench.judge()
    assert (outcome.status, outcome.reason) == ("failed", "not written yet")
    line = "counted is still a stub: edit katas/week01/counted/counted.py"
    kept = bench.progress.latest("counted")
    assert [check.message for check in kept.checks] == [line] * 3


def test_control_codes_in_messages_reach_no_terminal(bench):
    bench.write(
        "def counted(numbers):\n    raise ValueError('\\x1b[2J\\x1b]0;owned\\x07 \\udcff\\u202e')\n"
    )
    code, output = bench.kata_command("run", "counted")
    assert code == 1
    assert output.count(r"ValueError: \x1b[2J\x1b]0;owned\x07 \udcff\u202e") == 1
    assert "and 2 more like it" in output
    assert "\x1b" not in output
    assert bench.progress.latest("counted").checks[0].message.startswith(r"ValueError: \x1b[2J")


def test_output_of_any_kind_and_size_is_survived(bench):
    outcome = bench.judge(
        """
        import sys
        def counted(numbers):
            sys.stdout.buffer.write(b"\\xff\\xfe \\x1b[2J loud" + b"x" * 400_000 + b"\\n")
            raise ValueError("loud")
        """
    )
    assert outcome.status == "failed"
    assert [check.message for check in outcome.checks] == [
        "ValueError: loud (line 5, in counted)"
    ] * 3
    assert len(outcome.output) > 30_000
    assert "\x1b" not in outcome.output


def test_running_out_of_host_memory_is_named(bench):
    bench.write("def counted(numbers):\n    return bytearray(3 << 30)\n")
    limits = Limits(run_s=20, memory_bytes=2 << 30)
    outcome = run_kata(bench.house.submission(bench.kata(), "yours"), device="cpu", limits=limits)
    assert outcome.status == "failed"
    assert outcome.reason == "3 of 3 checks failed: host out of memory"
    assert outcome.checks[0].message == "host out of memory: MemoryError (line 2, in counted)"


def test_a_start_that_hangs_has_a_limit_of_its_own(bench):
    bench.write("while True:\n    pass\n")
    limits = Limits(startup_s=1, run_s=60)
    outcome = run_kata(bench.house.submission(bench.kata(), "yours"), device="cpu", limits=limits)
    assert outcome.status == "timed_out"
    assert outcome.reason.startswith("start-up was stopped after ")


def test_a_slow_import_is_not_charged_to_the_tests(bench):
    bench.write("import time\ntime.sleep(1.5)\n" + RIGHT)
    outcome = run_kata(
        bench.house.submission(bench.kata(), "yours"), device="cpu", limits=Limits(run_s=1)
    )
    assert outcome.status == "passed", outcome.reason


def test_a_process_that_does_not_end_keeps_its_verdict_and_is_stopped(bench):
    bench.write(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n" + RIGHT
    )
    limits = Limits(run_s=60, exit_s=0.5)
    outcome = run_kata(bench.house.submission(bench.kata(), "yours"), device="cpu", limits=limits)
    assert outcome.status in ("passed", "failed")
    assert outcome.reason.endswith("; a thread or process that it left running was stopped")
    assert len(outcome.checks) == 3


def test_a_forked_copy_of_the_judge_records_nothing(bench):
    outcome = bench.judge(
        "import os\ndef counted(numbers):\n    os.fork()\n"
        "    return sum(n % 2 == 0 for n in numbers)\n"
    )
    assert outcome.status in ("passed", "failed")
    assert len(outcome.checks) == 3
    bench.assert_nothing_left()


def test_what_is_said_into_the_record_changes_nothing(bench):
    outcome = bench.judge(
        """
        import os, sys
        word = next(word for word in sys.argv if word.startswith("line:"))
        line = int(word.removeprefix("line:"))
        os.write(line, b'\\xff no JSON\\n[1]\\n{"event": "check"}\\n')
        os.write(line, b"[" * 100_000 + b"\\n")
        def counted(numbers):
            return sum(n % 2 == 0 for n in numbers)
        """
    )
    assert outcome.status == "passed", outcome.reason
    assert len(outcome.checks) == 3


def test_a_disk_that_is_full_keeps_no_one_from_a_verdict(bench):
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    assert bench.judge(full + RIGHT).status == "passed"


def test_a_file_edited_while_it_is_judged_is_no_verdict(bench):
    outcome = bench.judge(
        """
        from pathlib import Path
        with Path(__file__).open("a") as mine:
            mine.write("# and on\\n")
        def counted(numbers):
            return sum(n % 2 == 0 for n in numbers)
        """
    )
    assert outcome.status == "error"
    assert outcome.reason.startswith("counted.py was changed while it was being judged")
    assert bench.progress.latest("counted").status == "error"


def test_a_copy_of_the_reference_is_remembered_as_such(bench):
    assert bench.judge(bench.kata().solution.read_text()).status == "passed"
    assert bench.progress.latest("counted").impl == "solution"
    assert bench.progress.latest("counted", impl="yours") is None
