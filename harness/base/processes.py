"""Child processes that end when they should, and a Ctrl-C that waits while records are written."""

import hmac
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Self

from harness.base.pace import PacedLimit
from harness.base.words import readable

TAIL_BYTES = 32_768  # how much of a child's output is worth keeping
TICK_S = 0.05  # how often the time is looked at
KEEPER_S = 10.0  # for the keeper to clear up: what hangs in a driver may not die at all
LINE = "line:"  # in a command, names a socket that the process inherits, by its number
# variables that are for other runs of pytest and Python than the judge's
MEDDLING = re.compile("_?PYTEST_.*|PYTHON(OPTIMIZE|INSPECT|WARNINGS|DEVMODE|STARTUP|BREAKPOINT)")
# macOS has fork, and libraries of its own that no forked process may use
FORKS = hasattr(os, "fork") and sys.platform != "darwin"
KEEPER = Path(__file__).with_name("keeper.py")


def seal(secret: bytes, number: int, text: bytes) -> bytes:
    """What shows that `text` is line `number` of somebody who knows `secret`."""
    return hmac.digest(secret, b"%d:%b" % (number, text), "sha256").hex().encode()


def run_group(
    command: list[str], limit_s: float, environment: dict[str, str], *, cwd: Path
) -> tuple[int | None, str]:
    """
    Run `command` with a time limit that follows the machine, draining its output as it comes.

    Returns:
        The exit code (negative: the signal that ended it; None: it ran out of time) and the last
        part of what it printed, fit for a terminal. Nothing it started is left running, not even
        when this process itself is killed.
    """
    limit = PacedLimit(limit_s)
    with started(command, environment, cwd=cwd) as child:
        while child.is_running() and not limit.is_over(child.elapsed_s):
            pass
    return child.exit_code, child.output


class Child:
    """
    A command under way, and after the block of `started` what came of it.

    Attributes:
        exit_code: Negative: the signal that ended it; None: it was stopped.
        output: The last part of what it printed, fit for a terminal.
    """

    def __init__(self, line: socket.socket) -> None:
        self.exit_code: int | None = None
        self.output = ""
        self._line = line
        self._line.settimeout(TICK_S)
        self._start = time.monotonic()
        self._heard: str | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._start

    def is_running(self) -> bool:
        """Wait a moment for its end, and say whether there is reason to wait on."""
        if self._heard is None:
            with suppress(TimeoutError):
                self._heard = self._line.recv(64).decode()  # "" when the keeper is gone
        return self._heard is None

    def finish(self, keepers: int, output: str) -> None:
        """Take in what is known once the keeper, whose exit code is given, has ended."""
        self.output = output
        if self._heard is not None:
            # a keeper killed together with its command could say nothing, and ended the same way
            self.exit_code = int(self._heard) if self._heard else keepers


@contextmanager
def started(
    command: list[str],
    environment: dict[str, str],
    *,
    cwd: Path,
    memory_bytes: int = 0,
    inherited: Sequence[int] = (),
) -> Iterator[Child]:
    """
    Run `command` while the block waits for it, which ends what is still running then.

    `memory_bytes` is the most that each process may allocate on the host; 0 leaves it open.
    `inherited` are descriptors that the command gets under the same numbers.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            line = theirs.fileno()
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), str(line), str(memory_bytes), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(line, *inherited),
                env=child_environment(environment),
                cwd=cwd,
            )
        tail = bytearray()
        assert keeper.stdout is not None
        reader = threading.Thread(target=_drain, args=(keeper.stdout, tail), daemon=True)
        reader.start()
        child = Child(ours)
        try:
            yield child
        finally:
            _dismiss(ours, keeper)
    reader.join(timeout=5)
    child.finish(keeper.returncode, readable(tail.decode("utf-8", errors="replace")))


def cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux can say
        return os.cpu_count() or 1


def cpu_s() -> float:
    """CPU seconds of this process and of all that it has started and outlived."""
    return time.process_time() + cpu_of_children_s()


def cpu_of_children_s() -> float:
    """CPU seconds of all processes that this one, or one of them, has started and outlived."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def child_environment(more: dict[str, str]) -> dict[str, str]:
    """
    This process's environment and `more`, without what would change how a child judges.

    A child is no worker of ours under xdist, and no option meant for the learner's own pytest or
    Python has a say: one of them alone can switch every ``assert`` off.
    """
    kept = {name: value for name, value in os.environ.items() if not MEDDLING.fullmatch(name)}
    if "PYTHONPATH" in kept:  # it runs in another folder
        folders = kept["PYTHONPATH"].split(os.pathsep)
        kept["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, folders))
    return {**kept, **more}


def _drain(stream: IO[bytes], tail: bytearray) -> None:
    with stream:
        while chunk := os.read(stream.fileno(), 65_536):
            tail += chunk
            del tail[:-TAIL_BYTES]


def _dismiss(line: socket.socket, keeper: subprocess.Popen[bytes]) -> None:
    """Let go of the line, which makes the keeper clear up, and make sure that it did."""
    line.settimeout(KEEPER_S)
    with suppress(OSError):
        line.shutdown(socket.SHUT_WR)
        while line.recv(64):
            pass
    # not waited for yet, so that its id cannot be another group's
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(keeper.pid, signal.SIGKILL)
    keeper.wait()


class Interrupts:
    """
    Inside the block Ctrl-C is noted and raised at its end; inside `allowed` it is raised at once.

    In another thread than the main one, which Ctrl-C never reaches, this changes nothing.
    """

    def __init__(self) -> None:
        self.noted = False
        self.main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self.main:
            self.before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self.main:
            signal.signal(signal.SIGINT, self.before)
        if self.noted and error is None:
            raise KeyboardInterrupt

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let Ctrl-C through, the one that was noted first."""
        if self.noted:
            raise KeyboardInterrupt
        if self.main:
            signal.signal(signal.SIGINT, self.before)
        try:
            yield
        finally:
            if self.main:
                signal.signal(signal.SIGINT, self._note)

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.noted = True
