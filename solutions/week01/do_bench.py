"""Kata week01/do_bench: the time of a kernel on a device that returns before it is done.

Compile, warm up, empty the cache, mark the queue, wait once, take the median.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

LEAST = 5  # timed launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What `n` single launches took, in milliseconds."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    n: int


class Device(Protocol):
    """A device that works through a queue while the host goes on."""

    l2_bytes: int  # size of its last-level cache

    def event(self) -> Any:  # noqa: ANN401 -- each device's own
        """Return a mark that is not in the queue yet."""

    def record(self, event: Any) -> None:  # noqa: ANN401
        """Put the mark into the queue."""

    def elapsed_ms(self, start: Any, stop: Any) -> float:  # noqa: ANN401
        """Milliseconds of the device from mark to mark; RuntimeError unless it has passed both."""

    def sync(self) -> None:
        """Wait until the queue is empty."""

    def memset(self, nbytes: int) -> None:
        """Queue a write of `nbytes` bytes, which evicts others from the cache."""


class CudaDevice:
    """A GPU by way of PyTorch's current stream; `name` is PyTorch's, as "cuda" or "cuda:1"."""

    def __init__(self, name: str) -> None:
        import torch

        self._torch, self._name = torch, name
        self._scratch = torch.empty(0, dtype=torch.uint8, device=name)
        self.l2_bytes = torch.cuda.get_device_properties(name).L2_cache_size

    def event(self) -> Any:  # noqa: ANN401
        """A CUDA event."""
        return self._torch.cuda.Event(enable_timing=True)

    def record(self, event: Any) -> None:  # noqa: ANN401
        """On the current stream."""
        event.record()

    def elapsed_ms(self, start: Any, stop: Any) -> float:  # noqa: ANN401
        """By the GPU's clock."""
        return start.elapsed_time(stop)

    def sync(self) -> None:
        """Wait for all streams."""
        self._torch.cuda.synchronize(self._name)

    def memset(self, nbytes: int) -> None:
        """Write to a buffer that is kept, for allocating one would wait for the device."""
        if self._scratch.numel() < nbytes:
            self._scratch = self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._name)
        self._scratch[:nbytes].zero_()


def do_bench(
    launch: Callable[[], object],
    dev: Device,
    *,
    warmup_ms: float = 25,
    rep_ms: float = 100,
    flush_bytes: int | None = None,
) -> Timing:
    """
    Time single launches with a cold cache.

    Args:
        launch: Queues the kernel on `dev`; its first call may compile.
        dev: Where it runs.
        warmup_ms: Milliseconds of work on the device before it is timed.
        rep_ms: Milliseconds of timed launches and of what goes on between them.
        flush_bytes: Written before each launch; None: twice the cache, 0: nothing.

    Raises:
        ValueError: `launch` is not callable, `rep_ms` is not positive, `warmup_ms` or
            `flush_bytes` is negative.
    """
    # check
    _check(launch, warmup_ms, rep_ms, flush_bytes)
    # cold round
    flush = 2 * dev.l2_bytes if flush_bytes is None else flush_bytes

    def clear() -> None:
        if flush:
            dev.memset(flush)

    def round_ms(rounds: int) -> float:
        """Average milliseconds of a launch and what goes before it, over that many rounds."""
        start, stop = dev.event(), dev.event()
        dev.record(start)
        for _ in range(rounds):
            clear()
            launch()
        dev.record(stop)
        dev.sync()
        return dev.elapsed_ms(start, stop) / rounds

    # compile
    launch()  # compiles
    # estimate and warm up
    # one round, on a clock that is still low, says roughly how many make up the warm-up; those
    # then tell how long a round really takes
    warm = max(1, int(warmup_ms / round_ms(1)))
    count = max(LEAST, int(rep_ms / round_ms(warm)))

    # queue timed launches
    pairs = [(dev.event(), dev.event()) for _ in range(count)]
    for start, stop in pairs:
        clear()
        dev.record(start)
        launch()
        dev.record(stop)
    # wait and summarise
    dev.sync()
    times = sorted(dev.elapsed_ms(start, stop) for start, stop in pairs)
    return Timing(
        median_ms=statistics.median(times),
        p20_ms=times[round(0.2 * (count - 1))],
        p80_ms=times[round(0.8 * (count - 1))],
        n=count,
    )


def _check(
    launch: Callable[[], object], warmup_ms: float, rep_ms: float, flush_bytes: int | None
) -> None:
    # check
    if not callable(launch):
        raise ValueError(f"launch: expected a function without arguments, found {launch!r}")
    if rep_ms <= 0:
        raise ValueError(f"rep_ms: expected more than 0, found {rep_ms}")
    if warmup_ms < 0:
        raise ValueError(f"warmup_ms: expected 0 or more, found {warmup_ms}")
    if flush_bytes is not None and flush_bytes < 0:
        raise ValueError(f"flush_bytes: expected 0 or more, found {flush_bytes}")
