"""
What the code under test may not do to its judge.

* open an answer: the solutions, the wrong solutions, the oracle, the record of its own verdict;
* replace what verdicts rest on: clocks, comparisons, the harness's own functions;
* end a test by itself, by a skip or an exit;
* leave work behind on a thread or in a child process;
* ask the oracle for the answer.

Each is refused with a SubmissionError that names what was seen. What one process cannot see of
itself is listed in docs/honesty.md.
"""

import concurrent.futures.thread
import os
import sys
import threading
import time
import unittest
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any
from unittest import mock

import pytest

from harness.environment import cache_folder, home_folder
from harness.errors import SubmissionError
from harness.judge.submission import Submission
from harness.judge.tools import toolbox

# ---- files that hold an answer -------------------------------------------------------------

# audit events that name files, and where in their arguments
FILE_EVENTS = {"open": (0,), "os.rename": (0, 1), "os.link": (0, 1), "os.symlink": (0, 1)}
_protected: set[str] = set()


def protect(path: Path) -> None:
    """Let no code under test open `path`, a file or a folder, from now on."""
    _protected.add(os.path.realpath(path))


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Refuses to open what may not be read, and remembers that it was tried."""

    own: str
    protected: tuple[str, ...]
    tried: list[str] = field(default_factory=list)

    def check(self, path: object) -> None:
        """Raise PermissionError when the code under test is about to open a protected file."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        real = os.path.realpath(os.fsdecode(path))
        inside = any(real == place or real.startswith(place + os.sep) for place in self.protected)
        if inside and real != self.own and _called_by(self.own):
            self.tried.append(real)
            raise PermissionError(f"{real}: the code under test may not open this")


_watch: _Watch | None = None
_hooked = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    watch = _watch
    if watch is None:
        return
    for at in FILE_EVENTS.get(event, ()):
        watch.check(args[at])
    if event == "subprocess.Popen":
        for argument in args[1] if isinstance(args[1], (list, tuple)) else str(args[1]).split():
            watch.check(argument)


def _called_by(file: str) -> bool:
    """Whether code of `file` is anywhere on this thread's stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if _is_in(frame.f_code, frame.f_globals, file):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _is_in(code: CodeType, names: dict[str, Any], file: str) -> bool:
    """Whether `code` stands in `file`, or is made from text by code that does."""
    places = (code.co_filename, str(names.get("__file__", "")))
    return any(os.path.realpath(place) == file for place in places)


# ---- while the code under test runs --------------------------------------------------------

METERS = {
    "gluon": "harness.meters.triton_traffic",
    "numba": "harness.meters.simt",
    "triton": "harness.meters.triton_traffic",
}
WAKING_S = 0.005
ENDINGS = (
    pytest.skip.Exception,
    pytest.xfail.Exception,
    pytest.exit.Exception,
    unittest.SkipTest,
    SystemExit,
)


@contextmanager
def watched(submission: Submission, *modules: ModuleType) -> Iterator[None]:
    """
    Watch over the import of a submission, or over one test of it.

    Args:
        submission: The code under test.
        modules: More modules whose functions it may not replace, such as the test's own.

    Raises:
        SubmissionError: it opened an answer, replaced a tool or ended the test by itself. What
            was replaced is put back.
    """
    global _watch
    _load_tools(submission.kata.backend)
    toolbox.take_in(*modules)
    outer, watch = _watch, _watch_for(submission)
    _watch = watch
    try:
        yield
    except ENDINGS as error:
        if _raised_in(error.__traceback__, watch.own):
            ending = f"{type(error).__name__}: {error}"
            raise SubmissionError(
                f"{submission.path.name}: expected an answer or an error, found that it ended the "
                f"test ({ending})."
            ) from None
        raise
    finally:
        same, _watch = _watch is watch, outer
        replaced = toolbox.put_back()
        if watch.tried:
            raise SubmissionError(
                f"{submission.path.name}: expected it to stand on its own, found that it opened "
                f"{watch.tried[0]}."
            )
        if replaced or not same:
            names = ", ".join(replaced) or "the judge's watch"
            raise SubmissionError(
                f"{submission.path.name}: expected the judge's tools as they were, found replaced: "
                f"{names}."
            )


def _load_tools(backend: str) -> None:
    """Load what will judge, so that it is remembered before the code under test runs."""
    if backend == "python":
        return  # judged without torch, unless its tests have loaded it
    import_module("harness.judge.shared_checks")
    if os.environ.get("KATA_DEVICE") == "cpu" and backend in METERS:
        import_module(METERS[backend])


def _watch_for(submission: Submission) -> _Watch:
    global _hooked
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    kata = submission.kata
    answers = (
        kata.root / "solutions",
        kata.root / "tests" / "wrong",
        kata.oracle,
        cache_folder() / "wrong",
        home_folder() / "progress.db",
    )
    return _Watch(
        own=os.path.realpath(submission.path),
        protected=(*map(os.path.realpath, answers), *_protected),
    )


def _raised_in(trace: TracebackType | None, file: str) -> bool:
    while trace is not None:
        if _is_in(trace.tb_frame.f_code, trace.tb_frame.f_globals, file):
            return True
        trace = trace.tb_next
    return False


# ---- around one call -----------------------------------------------------------------------


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """
    Refuse a block that leaves a thread at work or a child process running.

    An idle thread of a pool is no work, nor is a compiler's pool of processes.
    """
    before = _at_work()
    yield
    if any(map(_idle, threading.enumerate())):
        time.sleep(WAKING_S)  # a pool's thread may not have noticed its new work yet
    for one, words in _at_work().items():
        if one not in before:
            raise SubmissionError(
                f"expected all work to be done when the call returns, found {words}."
            )


def _at_work() -> dict[object, str]:
    """Threads and child processes that are busy, each in words."""
    found: dict[object, str] = {
        thread: f"the thread {thread.name!r} still at work"
        for thread in threading.enumerate()
        if not _idle(thread)
    }
    return found | {
        pid: f"the child process {pid} still running ({line})" for pid, line in _children().items()
    }


def _idle(thread: threading.Thread) -> bool:
    """Whether a thread has ended, or belongs to a pool and waits for work."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is None or frame.f_code is concurrent.futures.thread._worker.__code__


def _children() -> dict[int, str]:
    """Child processes that run, and their command lines; none where /proc does not tell."""
    found = {}
    for task in Path("/proc/self/task").glob("*/children"):
        for pid in _text(task).split():
            line = _text(Path("/proc", pid, "cmdline")).replace("\0", " ").strip()
            # the state stands behind the name in brackets; Z has ended, and nobody asked how
            state = _text(Path("/proc", pid, "stat")).rpartition(") ")[2][:1]
            if state not in ("", "Z") and "compile_worker" not in line:
                found[int(pid)] = line[:80]
    return found


def _text(path: Path) -> str:
    """What a file of /proc says; nothing once its process is gone."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@contextmanager
def sealed(oracle: ModuleType, answers: Collection[str]) -> Iterator[None]:
    """Refuse a block in which anyone asks `oracle` for one of its `answers`."""
    asked: list[str] = []

    def refuse(name: str) -> Callable[..., None]:
        def answer(*_: object, **__: object) -> None:
            asked.append(name)
            raise SubmissionError(f"oracle.{name}: the code under test may not call this.")

        return answer

    closed = {name: refuse(name) for name in answers if hasattr(oracle, name)}
    with mock.patch.dict(vars(oracle), closed):
        yield
    if asked:
        raise SubmissionError(
            f"expected the answer to be worked out, found that oracle.{asked[0]} was called for it."
        )
