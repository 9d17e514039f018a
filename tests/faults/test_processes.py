"""A command kept in a group ends when it should, with everything it started."""

import os
import signal
import sys
import time

import pytest

from harness.base.pace import PacedLimit
from harness.base.processes import run_group, started
from harness.base.words import readable


@pytest.fixture
def python(tmp_path):
    """Run this source text in a group, by default for 30 s: its exit code and output."""

    def run(source, limit_s=30.0):
        return run_group([sys.executable, "-I", "-S", "-c", source], limit_s, {}, cwd=tmp_path)

    return run


def assert_gone(pid):
    start, limit = time.monotonic(), PacedLimit(5.0)
    while not limit.is_over(time.monotonic() - start):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} lives")


@pytest.mark.parametrize("code", [0, 1, 255])
def test_the_exit_code_comes_back(python, code):
    assert python(f"raise SystemExit({code})")[0] == code


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_signal_comes_back_as_a_negative_code(python, ending):
    assert python(f"import os; os.kill(os.getpid(), {ending.value})")[0] == -ending


def test_a_loop_in_c_is_stopped(python):
    code, _ = python("import re; re.match('(a+)+$', 'a' * 60 + 'b')", limit_s=0.5)
    assert code is None


@pytest.mark.parametrize("wait", ["", "time.sleep(60)"])
@pytest.mark.parametrize("session", [False, pytest.param(True, marks=pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux hands orphans over"))])  # fmt: skip
def test_no_grandchild_outlives_the_command(python, session, wait):
    code, output = python(
        "import subprocess, time\n"
        f"one = subprocess.Popen(['sleep', '600'], start_new_session={session})\n"
        f"print(one.pid, flush=True)\n{wait}",
        limit_s=1.0 if wait else 30.0,
    )
    assert code == (None if wait else 0)
    assert_gone(int(output))


def test_a_chain_of_orphans_is_ended_to_the_last(python):
    _, output = python(
        "import os, time\n"
        "for _ in range(4):\n"
        "    if os.fork():\n"
        "        break\n"
        "    os.setpgid(0, 0)\n"
        "    print(os.getpid(), flush=True)\n"
        "else:\n"
        "    time.sleep(600)\n"
        "time.sleep(0.3)\n"
    )
    pids = [int(line) for line in output.split()]
    assert len(pids) == 4
    for pid in pids:
        assert_gone(pid)


def test_a_command_that_kills_its_keeper_is_ended_as_well(python):
    code, output = python(
        "import os, time\n"
        "print(os.getpid(), flush=True)\n"
        "os.kill(os.getppid(), 9)\n"
        "time.sleep(600)\n"
    )
    assert code == -signal.SIGKILL
    assert_gone(int(output))


def test_a_keeper_that_is_stopped_is_ended_when_its_time_is_over(python, monkeypatch):
    monkeypatch.setattr("harness.base.processes.KEEPER_S", 0.2)
    code, output = python(
        "import os, signal, time\n"
        "print(os.getpid(), flush=True)\n"
        "os.kill(os.getppid(), signal.SIGSTOP)\n"
        "time.sleep(600)\n",
        limit_s=0.5,
    )
    assert code is None
    assert_gone(int(output))


def test_much_output_neither_blocks_nor_fills_memory(python):
    code, output = python(
        "import sys\nfor _ in range(300):\n    sys.stdout.write('x' * 10_000)\nprint('end')"
    )
    assert code == 0
    assert output.endswith("end\n")
    assert len(output) <= 32_768


def test_invalid_utf8_and_control_codes_in_output_are_survived(python):
    code, output = python(r"import os; os.write(1, b'\xff \x1b[2J\r\x00 ok\n')")
    assert (code, output) == (0, "\ufffd \\x1b[2J\\r\\x00 ok\n")


def test_text_made_readable_keeps_words_and_lines():
    assert readable("naïve 中\t✓\nx") == "naïve 中\t✓\nx"
    assert readable("\x07 \u202e \ud800") == r"\x07 \u202e \ud800"


def test_a_limit_on_memory_holds_for_every_process(tmp_path):
    # one after the other: what a process leaves behind is stopped before it can say anything
    source = "import os\nif os.fork():\n    os.wait()\nheld = bytearray(1 << 30)"
    command = [sys.executable, "-I", "-S", "-c", source]
    with started(command, {}, cwd=tmp_path, memory_bytes=1 << 29) as child:
        while child.is_running() and child.elapsed_s < 30:
            pass
    assert child.exit_code == 1
    assert child.output.count("MemoryError") == 2


def test_no_core_is_dumped(python):
    code, output = python("import resource; print(resource.getrlimit(resource.RLIMIT_CORE))")
    assert (code, output) == (0, "(0, 0)\n")


def test_descriptors_of_the_keeper_are_not_the_commands(python):
    code, output = python("import os; print(*os.listdir('/dev/fd'))")
    assert code == 0
    assert len(output.split()) == 4  # standard streams, and the folder that is listed
