"""
A small job of many ranks: forked processes joined by one group, gone when the call returns.

    results = run_ranks(4, fn, x)    # fn(rank, world, x) on each rank; results in rank order
    results = run_ranks(4, fn, x, device="cuda")    # NCCL in place of gloo, one GPU a rank

Forking takes a tenth of a second where spawning would load PyTorch once per rank. The ranks
inherit everything the parent has, the state of its random generators included, so `fn` and its
arguments need not pickle; results must. They share no memory with the parent afterwards. A
process that has used CUDA can still fork ranks, but only for work on the CPU, and on a machine
with CUDA a parent that has run a backward pass leaves its ranks unable to run one: what
`no_training_here` is for.

Where there is no fork to rely on (macOS, whose own libraries may be used by no forked process),
ranks are spawned after all: `harness.simulators.spawned`. Only the CPU's are.

On GPUs, too, ranks are forked, because what a test hands them is a closure. So the parent must not
have used CUDA: it does not even count the GPUs itself. What ranks return comes back on the CPU.
"""

import faulthandler
import math
import os
import pickle
import selectors
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from itertools import takewhile
from pathlib import Path
from typing import IO, NamedTuple, NoReturn, TypeVar
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map_only

from harness.base.errors import DeviceError, UsageProblem
from harness.base.pace import PacedLimit
from harness.base.processes import FORKS
from harness.hardware.environment import gpu_count
from harness.simulators.spawned import pack, spawn

R = TypeVar("R")

# Who asks the driver whether there is a GPU leaves it unfit for every later fork: ask NVML.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

# A rank outlives a killed parent by no more than this.
ORPHAN_GRACE_S = 5.0
SLOWEST = 20.0  # times the pace of an idle machine: no rank ends itself before the parent would
# Time for a hung rank to write down where it is.
DUMP_WAIT_S = 0.3
# How long after a rank's RuntimeError the parent looks for another rank's death behind it.
DEATH_WAIT_S = 0.2
# Time for a CUDA context and NCCL's connections on each rank, on top of the limit of the work.
NCCL_START_S = 60.0
# Time for each rank to load PyTorch, where it is spawned.
SPAWN_START_S = 60.0
# How often a rank that may die looks whether the others have joined.
JOIN_TICK_S = 0.001
READY = b"!"  # what a rank sends once it has joined the group; a pickle begins otherwise


class RankFailed(AssertionError):
    """A rank died, hung, or raised something that cannot be raised again in the parent."""


class RanksHung(RankFailed):
    """The ranks were not done in time."""


class RanksUnavailable(DeviceError):
    """There is no GPU for each rank, or none that a rank could use."""


def rank_device() -> torch.device:
    """Where the tensors of this rank belong: its own GPU under NCCL, else the CPU."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of `tensor`, with its strides, where this rank's tensors belong."""
    return tensor.to(rank_device(), copy=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What every rank is told."""

    world: int
    device: str
    fn: Callable[..., object]
    args: tuple[object, ...]
    folder: Path
    timeout_s: float
    joined: bool = True
    mortal: bool = False
    together: bool = False

    @property
    def start_s(self) -> float:
        """Time to join the group, where that takes more than a moment."""
        if self.device == "cuda":
            return NCCL_START_S
        return 0.0 if FORKS else SPAWN_START_S

    @property
    def end_s(self) -> float:
        """When a rank ends itself; the parent, who can say more about it, comes first."""
        return self.start_s + SLOWEST * self.timeout_s + ORPHAN_GRACE_S

    @property
    def packed(self) -> Path:
        """Where a spawned rank reads what it is told."""
        return self.folder / "job.pickle"

    def dump(self, rank: int) -> Path:
        """Name the file where a hung rank says where it is."""
        return self.folder / f"rank{rank}.txt"

    def joined_file(self, rank: int) -> Path:
        """Name the file that says that a rank has joined the group."""
        return self.folder / f"rank{rank}.joined"


class Reply(NamedTuple):
    """What a rank sends: a pickled result, or a pickled exception (if it pickles) and its text."""

    succeeded: bool
    pickled: bytes
    text: str = ""
    killed: bool = False

    def error(self, who: str) -> Exception:
        """Return what the rank raised, with its traceback in a note, or as a RankFailed."""
        note = f"raised on {who}:\n{self.text}"
        if not self.pickled:
            return RankFailed(note)
        error: Exception = pickle.loads(self.pickled)
        error.add_note(note)
        return error


class _Process:
    """The parent's end of one rank."""

    def __init__(self, rank: int, pid: int, pipe: int) -> None:
        self.rank = rank
        self.pid = pid
        self.pipe = pipe
        self.received = bytearray()
        self._status: int | None = None

    def end(self) -> int:
        """Kill the process unless it is dead; return its exit code, or minus its signal."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._status = os.waitpid(self.pid, 0)[1]
            os.close(self.pipe)
        return os.waitstatus_to_exitcode(self._status)


def run_ranks(
    world: int,
    fn: Callable[..., R],
    *args: object,
    timeout_s: float = 20.0,
    device: str = "cpu",
) -> list[R]:
    """
    Run `fn(rank, world, *args)` on `world` forked ranks and return their results in order.

    Each rank has one thread, no standard input, the environment variables of torchrun that say
    which it is (RANK, WORLD_SIZE, LOCAL_RANK), and a default group of all ranks: gloo for
    `device` "cpu"; NCCL for "cuda", where rank r has GPU r and `timeout_s` begins when all have
    joined. A machine that is slow just then gets more. The first exception of a rank ends the
    others and is raised here, with a note that names the rank and shows its traceback. RankFailed
    when a rank dies or the ranks are not done in `timeout_s`; RanksUnavailable when there are fewer
    GPUs than ranks, or this process has used CUDA.
    """
    __tracebackhide__ = True
    replies = replies_of(world, fn, args, timeout_s=timeout_s, device=device)
    return [pickle.loads(reply.pickled) for reply in replies]


def replies_of(
    world: int,
    fn: Callable[..., object],
    args: tuple[object, ...],
    *,
    timeout_s: float,
    device: str = "cpu",
    joined: bool = True,
    mortal: bool = False,
    together: bool = False,
) -> list[Reply]:
    """
    Run ranks as `run_ranks` does, and return what each sent, in order.

    Without `joined` there is no group. Where ranks are `mortal`, one that raises or is killed ends
    nobody, and its reply says so; with `together` the first that is killed takes all others along.
    """
    __tracebackhide__ = True
    if world < 1:
        raise UsageProblem(f"run_ranks: expected a world of at least 1, found {world}.")
    if device == "cuda":
        _assert_gpus(world)
    processes: list[_Process] = []
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        job = _Job(
            world=world,
            device=device,
            fn=fn,
            args=args,
            folder=Path(folder),
            timeout_s=timeout_s,
            joined=joined,
            mortal=mortal,
            together=together,
        )
        if not FORKS:
            pack(job, fn, job.packed)
        try:
            for rank in range(world):
                processes.append(_start(rank, job))  # noqa: PERF401 -- the finally reads it
            replies = _receive(processes, job)
        finally:
            for process in processes:
                process.end()
    return [replies[rank] for rank in range(world)]


@contextmanager
def no_training_here() -> Iterator[None]:
    """
    Refuse backward passes and optimizers in this process; ranks forked within are free.

    Autograd starts a thread for each GPU, and an optimizer asks the driver: no rank that is forked
    after them can use a GPU. UsageProblem, on machines without one as well.
    """
    forbidden_in = os.getpid()

    def refuse(name: str) -> None:
        if os.getpid() == forbidden_in:
            raise UsageProblem(
                f"{name}: expected it on a rank, found it in the process that forks the ranks, "
                "none of which could use a GPU after it. Call it within ranks.alone(fn)."
            )

    def guarded(original: Callable[..., R], name: str) -> Callable[..., R]:
        @wraps(original)
        def call(*args: object, **options: object) -> R:
            refuse(name)
            return original(*args, **options)

        return call

    hook = register_optimizer_step_pre_hook(
        lambda optimizer, *_: refuse(f"{type(optimizer).__name__}.step")
    )
    autograd = torch.autograd
    backward = guarded(autograd.backward, "torch.autograd.backward")
    grad = guarded(autograd.grad, "torch.autograd.grad")
    try:
        with patch.multiple(autograd, backward=backward, grad=grad):
            yield
    finally:
        hook.remove()


def _assert_gpus(world: int) -> None:
    if torch.cuda.is_initialized():
        raise RanksUnavailable(
            "ranks: expected a process that has not used CUDA, from which ranks can be forked, "
            "found that it has. Run the kata by itself: kata run NAME --device cuda."
        )
    if (found := gpu_count()) < world:
        raise RanksUnavailable(f"ranks: expected {world} GPUs, one for each rank, found {found}.")


def _start(rank: int, job: _Job) -> _Process:
    job.dump(rank).touch()
    receiving, sending = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = _fork(rank, job, sending) if FORKS else spawn(rank, job.packed, sending)
    os.close(sending)
    return _Process(rank, pid, receiving)


def _fork(rank: int, job: _Job, pipe: int) -> int:
    with warnings.catch_warnings():
        # the parent's threads do not exist in the child, which is told to use none
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        be_rank(rank, lambda: job, pipe)
    return pid


def _receive(processes: Sequence[_Process], job: _Job) -> dict[int, Reply]:
    """Drain the pipes until every rank has replied; raise when one fails or time is up."""
    __tracebackhide__ = True
    began, limit = time.monotonic(), PacedLimit(job.start_s + job.timeout_s)
    started = False
    replies: dict[int, Reply] = {}
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.pipe, selectors.EVENT_READ, process)
        while selector.get_map():
            ready = selector.select(max(0.0, began + limit.limit_s - time.monotonic()))
            if not ready:
                if limit.is_over(time.monotonic() - began):
                    raise _hung([key.data for key in selector.get_map().values()], job)
                continue
            closed = _drain(selector, ready)
            replies |= {process.rank: _reply(process, job) for process in closed}
            for process in closed:
                reply = replies[process.rank]
                if not (reply.succeeded or job.mortal):
                    raise _failure(process, reply, selector, job)
                if reply.killed and job.together:
                    for key in selector.get_map().values():
                        os.kill(key.data.pid, signal.SIGKILL)
            if not started and all(process.received for process in processes):
                started = True
                if job.start_s:
                    began, limit = time.monotonic(), PacedLimit(job.timeout_s)
    return replies


def _drain(
    selector: selectors.BaseSelector, ready: Sequence[tuple[selectors.SelectorKey, int]]
) -> list[_Process]:
    """Read from the pipes that are ready; return the ranks that have closed theirs."""
    closed = []
    for key, _ in ready:
        chunk = os.read(key.fd, 1 << 16)
        key.data.received += chunk
        if not chunk:
            selector.unregister(key.fd)
            closed.append(key.data)
    return closed


def _reply(process: _Process, job: _Job) -> Reply:
    """Read what a rank sent before it closed its pipe; RankFailed where it died, but may not."""
    __tracebackhide__ = True
    try:
        return Reply(*pickle.loads(process.received.removeprefix(READY)))
    except (EOFError, pickle.UnpicklingError):
        exit_code = process.end()
        if job.mortal and exit_code == -signal.SIGKILL:
            return Reply(succeeded=False, pickled=b"", killed=True)
        who = f"rank {process.rank} of {job.world}"
        raise RankFailed(f"{who} died: {_cause_of_death(exit_code)}.") from None


def _failure(
    process: _Process, reply: Reply, selector: selectors.BaseSelector, job: _Job
) -> Exception:
    """Return what a rank raised; RankFailed where it comes of another rank's death."""
    __tracebackhide__ = True
    error = reply.error(f"rank {process.rank} of {job.world}")
    # a rank's death reaches the others as a broken connection, and may be read after it
    if isinstance(error, RuntimeError):
        began, limit = time.monotonic(), PacedLimit(DEATH_WAIT_S)
        while selector.get_map() and not limit.is_over(time.monotonic() - began):
            ready = selector.select(max(0.0, began + limit.limit_s - time.monotonic()))
            for other in _drain(selector, ready):
                _reply(other, job)
    return error


def _cause_of_death(exit_code: int) -> str:
    if exit_code >= 0:
        return f"it left with exit code {exit_code}"
    return f"killed by {signal.Signals(-exit_code).name}"


def _hung(running: Sequence[_Process], job: _Job) -> RanksHung:
    """Say which ranks were still running, and where."""
    for process in running:
        os.kill(process.pid, signal.SIGUSR1)
    time.sleep(DUMP_WAIT_S)
    stacks = [_stack(process.rank, job) for process in running]
    ranks = ", ".join(str(process.rank) for process in running)
    return RanksHung(
        f"run_ranks: expected {job.world} ranks to finish in {job.timeout_s:g} s, "
        f"found ranks [{ranks}] still running. Look for a send, receive or collective that "
        "another rank does not match.\n" + "\n".join(stacks)
    )


def _stack(rank: int, job: _Job) -> str:
    """Return what faulthandler wrote about a rank, innermost frame first, down to `fn`."""
    lines = job.dump(rank).read_text(encoding="utf-8", errors="replace").splitlines()
    frames = [*takewhile(lambda line: __file__ not in line, lines)] or ["  (it did not say where)"]
    return "\n".join([f"rank {rank}:", *frames])


def be_rank(rank: int, job: Callable[[], _Job], pipe: int) -> NoReturn:
    """
    Live as one rank of what `job` returns: work, reply on `pipe`, wait for the end.

    Never returns into the parent's code.
    """
    try:
        with open(pipe, "wb") as reply:
            message = pickle.dumps(tuple(_work(rank, job, reply)))
            sys.stdout.flush()
            sys.stderr.flush()
            reply.write(message)
        # the others may still need this rank's sockets
        signal.pause()
    finally:
        os._exit(1)


def _work(rank: int, told: Callable[[], _Job], parent: IO[bytes]) -> Reply:
    try:
        job = told()
        _settle(rank, job)
        parent.write(READY)
        parent.flush()
        result = job.fn(rank, job.world, *job.args)
        # a tensor of a GPU would bring CUDA into the parent, and waits here for work under way
        result = tree_map_only(torch.Tensor, torch.Tensor.cpu, result)
        return Reply(succeeded=True, pickled=pickle.dumps(result))
    except BaseException as error:  # noqa: BLE001 -- the parent raises it
        return Reply(succeeded=False, pickled=_pickled(error), text=_traceback(error))


def _pickled(error: BaseException) -> bytes:
    """Pickle an exception that can be raised again elsewhere; nothing for any other."""
    if not isinstance(error, Exception):
        return b""
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001 -- an exception class can fail here in any way
        return b""
    return pickled


def _traceback(error: BaseException) -> str:
    """Format an exception without the frame of this module that called `fn`."""
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    return "".join(traceback.format_exception(type(error), error, inner)).rstrip()


def _settle(rank: int, job: _Job) -> None:
    """Turn a copy of the parent into a rank: threads, signals, standard streams, process group."""
    faulthandler.register(signal.SIGUSR1, file=job.dump(rank).open("w"), all_threads=True)
    # before any operator: the parent's OpenMP workers were not forked, waiting for them never ends
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(math.ceil(job.end_s))
    # as torchrun tells a rank who it is
    os.environ |= {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
    os.environ |= {name: str(job.world) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    _reopen_streams()
    if job.joined:
        _join_group(rank, job)
        if job.mortal:
            _await_all(rank, job)


def _reopen_streams() -> None:
    """Read nothing, and write to the process's own output whatever `sys.stdout` has become."""
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def _join_group(rank: int, job: _Job) -> None:
    # without it gloo looks up the host's name, which need not resolve
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    gpu = torch.device("cuda", rank) if job.device == "cuda" else None
    if gpu is not None:
        torch.cuda.set_device(gpu)
    dist.init_process_group(
        "gloo" if gpu is None else "nccl",
        init_method=(job.folder / "store").as_uri(),
        rank=rank,
        world_size=job.world,
        timeout=timedelta(seconds=job.end_s),
        device_id=gpu,
    )
    if gpu is not None:
        _connect(job.world, gpu)


def _await_all(rank: int, job: _Job) -> None:
    """Wait until every rank has joined: the death of one that has would keep others from it."""
    job.joined_file(rank).touch()
    while not all(job.joined_file(other).exists() for other in range(job.world)):
        time.sleep(JOIN_TICK_S)


def _connect(world: int, gpu: torch.device) -> None:
    """Have NCCL set up its connections between any two ranks, which takes seconds, now."""
    numbers = torch.zeros(world, device=gpu)
    dist.all_to_all_single(torch.empty_like(numbers), numbers)
    torch.cuda.synchronize()
