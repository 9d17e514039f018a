"""
What the code under test may not do to its judge.

* open an answer or a verdict: the solutions, the wrong solutions, the oracle, what is kept of
  attempts;
* write to what judges it, now or the next time: tests, thresholds, profiles, the harness;
* take anything away from the project;
* replace what verdicts rest on: clocks, comparisons, the harness's own functions;
* end a test by itself, by a skip or an exit;
* leave work behind on a thread or in a child process;
* ask the oracle for the answer.

Each is refused with a SubmissionError that names what was seen. What one process cannot see of
itself is listed in docs/honesty.md.
"""

import concurrent.futures.thread
import os
import re
import sys
import threading
import time
import unittest
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module

# bound here, where nothing has been replaced yet
from os import PathLike, fsdecode
from os.path import lexists, realpath
from pathlib import Path
from sys import _getframe as getframe
from threading import get_ident
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any, NoReturn
from unittest import mock

import pytest
from _pytest import outcomes

from harness.base.errors import SubmissionError
from harness.content.course import is_placed, shipped
from harness.content.kata import ON_THE_HOST, SIMULATED
from harness.content.submission import Submission
from harness.hardware.environment import cache_folder, home_folder
from harness.judge.honesty.tools import homeless_codes, toolbox

# ---- files that hold an answer -------------------------------------------------------------

# audit events that name files: where in their arguments, and where the folder that each name is
# relative to (a descriptor), if there is one
FILE_EVENTS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "open": ((0, None),),
    "os.link": ((0, 2), (1, 3)),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((0, None), (1, 2)),
    "os.truncate": ((0, None),),
    "shutil.rmtree": ((0, 1),),
}
# those of them after which the first name is gone
REMOVALS = ("os.remove", "os.rename", "os.rmdir", "shutil.rmtree")
# those of them that leave something else where the files were
CHANGE_EVENTS = FILE_EVENTS.keys() - {"open"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC  # flags of "open"
OF_NUMBA = re.compile(r"\.nb[ci]\b")  # what it keeps of compiled functions, beside the code
# audit events that start a program, and where in their arguments its command line is
PROGRAM_EVENTS = {"os.exec": 1, "os.posix_spawn": 1, "os.system": 0, "subprocess.Popen": 1}
# what stands between the paths of a command line, also in HEAD:path and --file=path
BETWEEN = re.compile(r"[\s:;,=|&<>()'\"`]+")
_protected: set[str] = set()


def protect(path: Path) -> None:
    """Let no code under test open `path`, a file or a folder, from now on."""
    _protected.add(realpath(path))


@dataclass(slots=True, kw_only=True)
class _Watch:
    """
    Refuses what the code under test may not open or start, and remembers that it was tried.

    Attributes:
        own: The file under test.
        codes: Code that it has made from text.
        root: Where the curriculum is.
        home: Where progress and caches are, as a rule inside the root.
        protected: Files and folders that hold an answer or a verdict.
        house: Files and folders that decide over verdicts, and may be read.
        thread: The judge's. Nothing on another one is the judge's.
        tried: What was refused, in words.
    """

    own: str
    codes: frozenset[CodeType]
    root: str
    home: str
    protected: tuple[str, ...]
    house: tuple[str, ...]
    thread: int = field(default_factory=get_ident)
    tried: list[str] = field(default_factory=list)

    def check(self, path: object, *, moved: bool = False) -> None:
        """Refuse a protected file, and a move of a folder around it."""
        if not isinstance(path, (str, bytes, PathLike)):
            return
        real = realpath(fsdecode(path))
        inside = any(real == place or real.startswith(place + os.sep) for place in self.protected)
        around = moved and any(place.startswith(real + os.sep) for place in self.protected)
        if (inside or around) and real != self.own and self.code_under_test_runs():
            self.refuse(f"{'moved' if moved else 'opened'} {real}")

    def check_change(self, path: object) -> None:
        """Refuse to change a file of the house, or to put compiled code beside it."""
        if not isinstance(path, (str, bytes, PathLike)):
            return
        real = realpath(fsdecode(path))
        inside = any(real == place or real.startswith(place + os.sep) for place in self.house)
        if not inside or real == self.own:
            return
        compiled = "__pycache__" in real and not OF_NUMBA.search(real)
        if (compiled or Path(real).is_file()) and self.code_under_test_runs():
            self.refuse(f"changed {real}")

    def check_removal(self, path: object) -> None:
        """Refuse to take away what belongs to the project, or a folder around it."""
        if not isinstance(path, (str, bytes, PathLike)):
            return
        real = realpath(fsdecode(path))
        inside = real.startswith(self.root + os.sep) and not real.startswith(self.home + os.sep)
        around = f"{self.root}{os.sep}".startswith(real + os.sep)
        own = real == self.own or OF_NUMBA.search(real)
        if (inside or around) and not own and lexists(real) and self.code_under_test_runs():
            self.refuse(f"removed {real}")

    def check_database(self, name: object) -> None:
        """Refuse any database: from one that is its own others can be attached."""
        if self.code_under_test_runs():
            self.refuse(f"opened the database {name!s}")

    def check_program(self, command: object, folder: object) -> None:
        """
        Refuse a program that is given a protected path, from here or from the root.

        What it does with a path is not known, so that it is given none of the house either.
        """
        if not self.code_under_test_runs():
            return
        here = fsdecode(folder) if isinstance(folder, (str, bytes, PathLike)) else os.curdir
        words = command if isinstance(command, (list, tuple)) else [command]
        texts = [fsdecode(word) for word in words if isinstance(word, (str, bytes, PathLike))]
        for part in (part for text in texts for part in BETWEEN.split(text) if part):
            for place in (Path(here, part), Path(self.root, part)):
                self.check(place)
                self.check_change(place)

    def code_under_test_runs(self) -> bool:
        """Whether the code under test is anywhere on this thread's stack, or the thread its own."""
        if get_ident() != self.thread:
            return True
        frame: FrameType | None = getframe(1)
        while frame is not None:
            if self.is_own(frame):
                return True
            frame = frame.f_back
        return False

    def is_own(self, frame: FrameType) -> bool:
        """Whether this code stands in the file under test, or was made from text there."""
        places = (frame.f_code.co_filename, str(frame.f_globals.get("__file__", "")))
        return frame.f_code in self.codes or self.own in map(realpath, places)

    def refuse(self, deed: str) -> NoReturn:
        """End what is being done, and keep it in mind where that is swallowed."""
        self.tried.append(deed)
        raise PermissionError(f"the code under test {deed}, which is not allowed")


_watch: _Watch | None = None
_hooked = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    watch = _watch
    if watch is None:
        return
    for number, (at, base) in enumerate(FILE_EVENTS.get(event, ())):
        path = _placed(args[at], args[base] if base is not None else None)
        watch.check(path, moved=event in REMOVALS)
        if event in CHANGE_EVENTS or args[2] & WRITING:
            watch.check_change(path)
        if event in REMOVALS and number == 0:
            watch.check_removal(path)
    if event == "sqlite3.connect":
        watch.check_database(args[0])
    if event in PROGRAM_EVENTS:
        folder = args[2] if event == "subprocess.Popen" else None
        watch.check_program(args[PROGRAM_EVENTS[event]], folder)


def _placed(path: object, base: object) -> object:
    """`path`, relative to the folder that the descriptor `base` stands for, if it is one."""
    if not isinstance(base, int) or base < 0 or not isinstance(path, (str, bytes, PathLike)):
        return path
    name = fsdecode(path)
    return name if name.startswith(os.sep) else f"/proc/self/fd/{base}/{name}"


# ---- while the code under test runs --------------------------------------------------------

# what judges a backend, or runs its programs, beside what judges them all
TOOLS = {
    "cuda": ("harness.cuda", "harness.meters.compiled", "harness.meters.ptx"),
    "cute": ("pycute",),
    "gluon": ("harness.meters.compiled", "harness.meters.gluon", "harness.gluon"),
    "jax": ("jax.numpy", "jax.nn", "harness.meters.hlo"),
    "numba": ("harness.meters.simt",),
    "onnx": ("onnx.checker", "onnx.reference", "onnxruntime"),
    "triton": ("harness.meters.compiled", "harness.meters.triton_traffic"),
    "xdsl": ("xdsl.interpreter", "xdsl.ir", "xdsl.parser"),
}
WAKING_S = 0.005
HELPERS = ("compile_worker", "multiprocessing.resource_tracker")  # they stay, and do nothing
HARNESS = realpath(Path(__file__).parents[2]) + os.sep
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
    # what it imports is compiled, and nothing is kept of that
    keeps_no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    except ENDINGS as error:
        if not _of_the_judge(error.__traceback__, watch, submission):
            ending = f"{type(error).__name__}: {error}"
            raise SubmissionError(
                f"{submission.path.name}: expected an answer or an error, found that it ended the "
                f"test ({ending})."
            ) from None
        raise
    finally:
        same, _watch = _watch is watch, outer
        sys.dont_write_bytecode = keeps_no_bytecode
        replaced = toolbox.put_back()
        replaced += [] if same else ["the judge's watch"]
        if watch.tried:
            raise SubmissionError(
                f"{submission.path.name}: expected it to stand on its own, found that it "
                f"{watch.tried[0]}."
            )
        _refuse_replaced(submission.path.name, replaced)


def assert_tools_kept() -> None:
    """Refuse what has been replaced in this process, for a fork that the judge never sees again."""
    _refuse_replaced("the code under test", toolbox.put_back())


def _refuse_replaced(whose: str, names: Sequence[str]) -> None:
    if names:
        raise SubmissionError(
            f"{whose}: expected the judge's tools untouched, found replaced: {', '.join(names)}."
        )


def _load_tools(backend: str) -> None:
    """Load what will judge, so that it is remembered before the code under test runs."""
    if "numpy" in sys.modules:
        import_module("numpy.testing")
    on_a_gpu = os.environ.get("KATA_DEVICE") != "cpu" and backend in SIMULATED
    tools = () if on_a_gpu else TOOLS.get(backend, ())
    if backend not in ON_THE_HOST:  # else judged without torch, unless its tests have loaded it
        tools = ("beartype", "harness.judge.shared_checks", "jaxtyping", *tools)
    for name in tools:
        import_module(name)


def _watch_for(submission: Submission) -> _Watch:
    global _hooked
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    kata = submission.kata
    # not loaded yet when its own import is watched
    functions = vars(vars(submission)["module"]) if "module" in vars(submission) else {}
    return _Watch(
        own=realpath(submission.path),
        codes=frozenset(homeless_codes(functions.get(name) for name in kata.functions)),
        root=realpath(kata.root),
        home=realpath(home_folder()),
        protected=(*_answers(kata.root, kata.oracle), *_protected),
        house=_house(kata.root),
    )


@cache
def _answers(root: Path, oracle: Path) -> tuple[str, ...]:
    """Files and folders that hold an answer, or the attempts."""
    progress = home_folder() / "progress.db"
    answers = (
        *(place / part for place in _places(root) for part in ("solutions", "tests/wrong")),
        root / ".git",
        oracle,
        cache_folder() / "wrong",
        *(Path(f"{progress}{more}") for more in ("", "-journal", "-shm", "-wal")),
    )
    return tuple(map(realpath, answers))


@cache
def _house(root: Path) -> tuple[str, ...]:
    """Files and folders that decide over verdicts, this one's or later ones."""
    parts = ("katas", "hardware_profiles", "pyproject.toml")
    inside = (realpath(place / part) for place in _places(root) for part in parts)
    return (HARNESS.removesuffix(os.sep), *inside)


def _places(root: Path) -> tuple[Path, ...]:
    """Where the parts of the course are: a folder that was placed shares them with the package."""
    return (root, shipped()) if is_placed(root) else (root,)


def _of_the_judge(trace: TracebackType | None, watch: _Watch, submission: Submission) -> bool:
    """Whether an ending arose in a test or in the harness, and not in the code under test."""
    raised_in = ""
    while trace is not None:
        if watch.is_own(trace.tb_frame):
            return False
        file = trace.tb_frame.f_code.co_filename
        raised_in = raised_in if file == outcomes.__file__ else realpath(file)
        trace = trace.tb_next
    return raised_in.startswith((realpath(submission.kata.folder) + os.sep, HARNESS))


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


def hooks() -> tuple[Any, ...]:
    """What the interpreter calls while other code runs on this thread: profiler, tracer, more."""
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    tools = map(monitoring.get_tool, range(6)) if monitoring else ()
    return sys.getprofile(), sys.gettrace(), *tools


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
            if state not in ("", "Z") and not any(helper in line for helper in HELPERS):
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
            f"expected the answer to be computed, found that oracle.{asked[0]} was called for it."
        )
