"""
Keeps one command and answers for everything it starts.

A program of its own, run by path with nothing but the standard library, so that it starts at once
and outlives whoever called it:

    python keeper.py LINE MEMORY_BYTES COMMAND...

LINE is one end of a socket. When the command ends, its exit code is written there as text, a signal
as a negative one. When the other end closes, because the time is over or because the caller was
killed, the command is stopped. Either way nothing that it started lives on: not what hangs in C,
not a grandchild, and on Linux not even one in a session of its own.
"""

import ctypes
import os
import resource
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")


def main(line: int, memory_bytes: int, command: list[str]) -> None:
    """Run `command` until it ends or the caller lets go of `line`, then clear up."""
    os.set_inheritable(line, False)
    _adopt_orphans()
    _limit(resource.RLIMIT_CORE, 0)
    if memory_bytes:
        _limit(resource.RLIMIT_DATA, memory_bytes)
    bell = _bell_on_child_exit()
    child = os.posix_spawn(
        command[0], command, os.environ, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
    )
    _offer_to_oom_killer(child)
    status = None
    while status is None and line not in select.select([line, bell], [], [])[0]:
        os.read(bell, 4096)
        status = _reap(child)
    if status is not None:
        with suppress(BrokenPipeError):
            os.write(line, str(os.waitstatus_to_exitcode(status)).encode())
    _kill_descendants()
    os.killpg(0, signal.SIGKILL)  # this process leads the group: where there is no /proc, the rest


def _adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def _bell_on_child_exit() -> int:
    """A descriptor that can be read once a child has ended."""
    bell, clapper = os.pipe()
    os.set_blocking(clapper, False)
    signal.set_wakeup_fd(clapper, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return bell


def _offer_to_oom_killer(child: int) -> None:
    """When the machine runs out of memory, let it take the command and not a neighbour."""
    with suppress(OSError):
        (PROC / str(child) / "oom_score_adj").write_text("1000")


def _reap(child: int) -> int | None:
    """Wait for every child that has ended; the status of `child` if it was among them."""
    found = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return found
            found = status if pid == child else found
    return found


def _kill_descendants() -> None:
    """Kill children until there are none: those of a killed child become ours."""
    while children := _children():
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _children() -> list[int]:
    """The ids of this process's children; none where there is no /proc to ask."""
    me, found = str(os.getpid()), []
    for stat in PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            # after the name in brackets, which may hold anything: state, parent, …
            _, parent, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
            if parent == me:
                found.append(int(stat.parent.name))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
