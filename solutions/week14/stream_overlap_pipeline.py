"""Kata week14/stream_overlap_pipeline: copies in, kernels and copies out at the same time.

Three streams, and a ring of device buffers that events hand from one stream to the next.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Stream(Protocol):
    """A queue of work on the device, done in order."""


class Event(Protocol):
    """A mark in a stream, once it has been recorded there."""


class Device(Protocol):
    """
    A GPU with one engine for copies in, one for kernels and one for copies out.

    All calls but `synchronize` return at once. Each engine does what it is given in the order of
    the calls: what waits for an event holds up what is behind it.
    """

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Memory of the device, 1-D, with anything in it."""

    def pinned(self, host: Tensor) -> bool:
        """Whether the pages of a tensor of the host stay where they are, as copies need it."""

    def stream(self) -> Stream:
        """A new stream, which waits for no other."""

    def event(self) -> Event:
        """A new event, not recorded yet."""

    def h2d(self, to: Tensor, source: Tensor, stream: Stream) -> None:
        """Copy from the host to the device."""

    def launch(self, kernel: Callable[[Tensor], None], x: Tensor, stream: Stream) -> None:
        """Run a kernel that changes `x` in place, each element by itself."""

    def d2h(self, to: Tensor, source: Tensor, stream: Stream) -> None:
        """Copy from the device to the host."""

    def record(self, event: Event, stream: Stream) -> None:
        """From now on the event stands for all that is in the stream by now."""

    def wait(self, event: Event, stream: Stream) -> None:
        """What is put into the stream from now on waits for the event as it was last recorded."""

    def synchronize(self, event: Event) -> None:
        """The host waits for the event as it was last recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """A device buffer, and the events after which the next stream may have it."""

    buffer: Tensor
    copied_in: Event
    computed: Event
    copied_out: Event


def stream_overlap_pipeline(
    dev: Device,
    src: Tensor,
    dst: Tensor,
    kernel: Callable[[Tensor], None],
    chunks: int,
    buffers: int = 3,
) -> Tensor:
    """
    Write `kernel` of `src` to `dst`, chunk by chunk through the device, and return `dst`.

    The host waits once, for the end; then all of `dst` is there.

    Args:
        dev: The device.
        src: 1-D, of the host, pinned.
        dst: The same shape and dtype, pinned; it may be `src`.
        kernel: Changes a tensor of the device in place, each element by itself.
        chunks: Pieces to cut into, but no more than there are elements; their lengths differ by
            one at most.
        buffers: The most chunks that are on the device at a time.

    Raises:
        ValueError: `chunks` is below 1, `buffers` below 2, `src` is not 1-D, `dst` has another
            shape or dtype, or one of them is not pinned.
    """
    # check
    if chunks < 1:
        raise ValueError(f"chunks: expected 1 or more, found {chunks}")
    if buffers < 2:
        raise ValueError(f"buffers: expected 2 or more, found {buffers}")
    if src.ndim != 1:
        raise ValueError(f"src: expected a 1-D tensor, found {src.ndim}-D")
    if (dst.shape, dst.dtype) != (src.shape, src.dtype):
        raise ValueError(
            f"dst: expected {src.dtype} of shape {[*src.shape]}, found {dst.dtype} of shape "
            f"{[*dst.shape]}"
        )
    for name, host in (("src", src), ("dst", dst)):
        if not dev.pinned(host):
            raise ValueError(f"{name}: expected pinned memory, found memory that is not")
    # chunks and ring
    n = len(src)
    chunks = min(chunks, n)
    if chunks == 0:
        return dst
    copy_in, compute, copy_out = dev.stream(), dev.stream(), dev.stream()
    ring = [
        _Slot(
            buffer=dev.empty(-(-n // chunks), src.dtype),
            copied_in=dev.event(),
            computed=dev.event(),
            copied_out=dev.event(),
        )
        for _ in range(min(buffers, chunks))
    ]
    # copy in
    for chunk in range(chunks):
        slot = ring[chunk % len(ring)]
        low, high = chunk * n // chunks, (chunk + 1) * n // chunks
        x = slot.buffer[: high - low]

        # the last one that had the buffer; in the first round nobody, and the wait is for nothing
        dev.wait(slot.copied_out, copy_in)
        dev.h2d(x, src[low:high], copy_in)
        dev.record(slot.copied_in, copy_in)

        # compute
        dev.wait(slot.copied_in, compute)
        dev.launch(kernel, x, compute)
        dev.record(slot.computed, compute)

        # copy out
        dev.wait(slot.computed, copy_out)
        dev.d2h(dst[low:high], x, copy_out)
        dev.record(slot.copied_out, copy_out)
    # wait for the end
    # the stream's last copy is behind all others
    dev.synchronize(slot.copied_out)
    return dst
