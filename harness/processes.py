"""Processes that end when they should: groups with a time limit, and records that Ctrl-C spares."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

TAIL_BYTES = 32_768  # how much of a child's output is worth keeping
TICK_S = 0.05  # how often the clock is looked at
KEEPER_S = 10.0  # for the keeper to clear up; a process stuck in a driver can take as long as it likes
KEEPER = Path(__file__).with_name("keeper.py")

Overdue = Callable[[float], bool]


def run_group(
    command: list[str], limit_s: float, environment: dict[str, str], *, cwd: Path
) -> tuple[int | None, str]:
    """
    Run `command` with a time limit, draining its output as it comes.

    Returns:
        The exit code (negative: the signal that ended it; None: it ran out of time) and the last
        part of what it printed, readable on a terminal. Nothing it started is left running, not
        even when this process itself is killed.
    """
    return run_watched(command, lambda elapsed_s: elapsed_s > limit_s, environment, cwd=cwd)


def run_watched(
    command: list[str],
    overdue: Overdue,
    environment: dict[str, str],
    *,
    cwd: Path,
    memory_bytes: int = 0,
) -> tuple[int | None, str]:
    """
    Like `run_group`, until `overdue` says so; it is asked often, with the seconds since the start.

    `memory_bytes` limits what each process may allocate; 0 does not.
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
                pass_fds=(line,),
                env=child_environment(environment),
                cwd=cwd,
            )
        tail = bytearray()
        assert keeper.stdout is not None
        reader = threading.Thread(target=_drain, args=(keeper.stdout, tail), daemon=True)
        reader.start()
        try:
            heard = _listen(ours, overdue)
        finally:
            ours.close()
            _dismiss(keeper)
    reader.join(timeout=5)
    # a keeper that was killed with its command could not say so, but ended the same way
    exit_code = keeper.returncode if heard == "" else heard and int(heard)
    return exit_code, readable(tail.decode("utf-8", errors="replace"))
