"""
`harness.cuda.launch` without a GPU: NVRTC's PTX runs on the tensors' own memory.

    install()
    with launching(Settings(schedule=1)):
        kata.scaled(x)                     # raises a Hazard where a kernel has one

A tensor is the memory between its first and its last element: whatever else its storage holds is
out of bounds. Its address is that of a fresh allocation, plus its offset in its storage.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib import metadata
from typing import Any, Protocol

from harness import cuda
from harness.base.errors import HarnessError, SubmissionError, UsageProblem
from harness.base.files import write_atomically
from harness.hardware.environment import cache_folder
from harness.simulators.hazards import Hazard
from harness.simulators.ptx.arguments import Arguments, Launch
from harness.simulators.ptx.machine import Run, read_ptx, run_kernel
from harness.simulators.ptx.pointers import Memory
from harness.simulators.ptx.program import Unsupported
from harness.simulators.ptx.sources import Source, hazards_of, parameter_names, source_of
from harness.simulators.ptx.state import Module

MOST_STEPS = 100_000  # of a wave of blocks: a few seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    How launches are run.

    Attributes:
        schedule: None for all threads in lockstep, or the seed of a random order of warps.
        raising: Whether a launch with hazards raises them.
        arch: The GPU that is built for.
        shared_bytes: The shared memory that a block may have.
        most_steps: Instructions of a wave of blocks until it is said never to end.
    """

    schedule: int | None = None
    raising: bool = True
    arch: str = "sm_90"
    shared_bytes: int = 232_448
    most_steps: int = MOST_STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A launch that has ended: the kernel, its sizes, what it did, and where its source stands."""

    kernel: str
    config: cuda.Config
    run: Run
    hazards: tuple[Hazard, ...]
    source: Source


class Observer(Protocol):
    """Who is told of launches."""

    def finished(self, launched: Launched) -> None:
        """Note the end of a launch."""


@dataclass(slots=True)
class Simulator:
    """What `harness.cuda.simulator` is set to."""

    settings: Settings = field(default_factory=Settings)
    observer: Observer | None = None

    def gpu(self) -> tuple[str, int]:
        """What to build for, and the shared memory that a block may have, in bytes."""
        return self.settings.arch, self.settings.shared_bytes

    def build(self, source: str, name: str, options: tuple[str, ...]) -> cuda.Kernel:
        """The PTX of a kernel, from the cache where it has been built before."""
        kernel = _built(source, name, self.settings.arch, options)
        _texts[kernel.ptx] = source
        return kernel

    def start(self, kernel: cuda.Kernel, config: cuda.Config, arguments: Sequence[object]) -> None:
        """Run a kernel."""
        _launch(kernel, config, arguments)


_simulator = Simulator()
_texts: dict[str, str] = {}  # CUDA C++ by the PTX that it became


def install(settings: Settings | None = None) -> None:
    """Let every launch of `harness.cuda` in this process come here; again is no harm."""
    cuda.simulator = _simulator
    _simulator.settings = settings or _simulator.settings


@contextmanager
def launching(observer: Observer | None = None, **changes: Any) -> Iterator[None]:  # noqa: ANN401
    """
    Run the launches of the `with` block with these settings changed, watched by `observer`.

    Raises:
        UsageProblem: Somebody watches already.
        SubmissionError: The code under test has set another simulator.
    """
    if observer is not None and _simulator.observer is not None:
        raise UsageProblem("ptx: expected one meter at a time, found one inside another's block.")
    before = _simulator.settings, _simulator.observer
    install(replace(_simulator.settings, **changes))
    _simulator.observer = observer or _simulator.observer
    try:
        yield
        if cuda.simulator is not _simulator:
            raise SubmissionError(
                "harness.cuda.simulator: expected the judge's, found it replaced."
            )
    finally:
        cuda.simulator = _simulator
        _simulator.settings, _simulator.observer = before


# ---- building ------------------------------------------------------------------------------


@cache
def _built(source: str, name: str, arch: str, options: tuple[str, ...]) -> cuda.Kernel:
    said = json.dumps([source, name, arch, options, _compiler()])
    path = cache_folder() / "ptx" / f"{sha256(said.encode()).hexdigest()}.json"
    try:
        symbol, ptx = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kernel = cuda.build_ptx(source, name, arch=arch, options=options)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps([kernel.symbol, kernel.ptx]).encode())
        return kernel
    return cuda.Kernel(name=name, symbol=symbol, arch=arch, ptx=ptx, cubin=b"")


@cache
def _compiler() -> list[str]:
    """What else decides over the PTX: the versions of NVRTC and of the headers."""
    return [metadata.version(name) for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-cccl")]


@cache
def _parsed(ptx: str) -> Module:
    return read_ptx(ptx)


# ---- launching -----------------------------------------------------------------------------


def _launch(kernel: cuda.Kernel, config: cuda.Config, arguments: Sequence[object]) -> None:
    """
    Run a kernel and tell whoever watches.

    Raises:
        Hazard: The first one of several, where settings ask for it.
        HarnessError: It executed an instruction that the simulator does not model.
    """
    settings = _simulator.settings
    memory = Memory()
    text = _texts.get(kernel.ptx, "")
    names = parameter_names(text, kernel.name, len(arguments))
    given = zip(names, arguments, strict=True)
    memory.add({name: one for name, one in given if hasattr(one, "data_ptr")})
    values = memory.resolved(cuda.packed(kernel, arguments, memory.address, memory.encode))
    launch = Launch(
        grid=_three(config.grid),
        block=_three(config.block),
        shared_bytes=config.shared_bytes,
        cluster=config.cluster if config.cluster > 1 else 0,
        cooperative=config.cooperative,
        schedule=settings.schedule,
        most_steps=settings.most_steps,
    )
    try:
        run = run_kernel(
            _parsed(kernel.ptx), kernel.symbol, launch, Arguments(values, memory.regions)
        )
    except Unsupported as error:
        raise HarnessError(
            f"{kernel.name}: expected PTX that the simulator models, found {error}. "
            "On a GPU it may run."
        ) from None
    for words in run.printed:
        sys.stdout.write(words)
    source = source_of(text, kernel.name)
    hazards = hazards_of(run.found, source)
    if _simulator.observer is not None:
        _simulator.observer.finished(
            Launched(kernel=kernel.name, config=config, run=run, hazards=hazards, source=source)
        )
    if hazards and settings.raising:
        raise hazards[0]


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = sizes
    return x, y, z
