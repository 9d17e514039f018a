"""Kata week07/ddp_bucket_overlap: gradients averaged over the ranks while backward still runs.

Gradients come last layer first. Buckets of them are reduced as they fill up; only what the last
gradient completes has nothing left to hide behind.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from harness.meters.collectives import Collectives
from harness.meters.communication import Pending


@dataclass(slots=True)
class _Bucket:
    """Parameters whose gradients travel together."""

    parameters: list[nn.Parameter]
    arrived: int = 0
    flat: Tensor | None = None
    pending: Pending | None = None


class MiniDDP:
    """
    Averages the gradients of `module` over the ranks of `comm`, bucket by bucket.

    The module is called as before. After each backward pass, and before the gradients are used,
    every rank calls `finish`.
    """

    def __init__(self, module: nn.Module, bucket_bytes: int, comm: Collectives) -> None:
        """
        Copy the state of rank 0 to all ranks, fill the buckets, and listen for gradients.

        Raises:
            ValueError: `bucket_bytes` is less than 1, or no parameter of `module` needs a
                gradient. Nothing has been sent then.
        """
        # check
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes: expected at least 1, found {bucket_bytes}.")
        if not trainable:
            raise ValueError("module: expected a parameter that needs a gradient, found none.")
        # fill the buckets
        self._comm = comm
        self._listening = True
        self._buckets = _buckets(trainable, bucket_bytes)
        self._launched = 0
        # copy from rank 0
        _copy_from_root(module, comm)
        # launch in order
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._arrived, bucket))

    def finish(self) -> None:
        """Reduce what has not been reduced, wait for all of it, and leave averages in `.grad`."""
        # launch in order
        while self._launched < len(self._buckets):
            self._launch_next()
        # wait and unpack
        for bucket in self._buckets:
            _unpack(bucket)
        self._launched = 0

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let the backward passes inside add to `.grad`, and send nothing."""
        # pause
        before, self._listening = self._listening, False
        try:
            yield
        finally:
            self._listening = before

    def _arrived(self, bucket: _Bucket, _: Tensor) -> None:
        # launch in order
        if not self._listening:
            return
        bucket.arrived += 1
        # in one order on every rank: a full bucket waits for those before it
        while self._launched < len(self._buckets) and _is_full(self._buckets[self._launched]):
            self._launch_next()

    def _launch_next(self) -> None:
        bucket = self._buckets[self._launched]
        parts = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in bucket.parameters
        ]
        bucket.flat = torch.cat([part.flatten() for part in parts]).div_(self._comm.world)
        bucket.pending = self._comm.all_reduce(bucket.flat)
        self._launched += 1


def _buckets(parameters: list[nn.Parameter], bucket_bytes: int) -> list[_Bucket]:
    """Fill buckets from the last parameter to the first; a bucket that holds enough is closed."""
    buckets: list[_Bucket] = []
    held_bytes = bucket_bytes
    for parameter in reversed(parameters):
        if held_bytes >= bucket_bytes:
            buckets.append(_Bucket([]))
            held_bytes = 0
        buckets[-1].parameters.append(parameter)
        held_bytes += parameter.nbytes
    return buckets


def _copy_from_root(module: nn.Module, comm: Collectives) -> None:
    state = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
    travelling = [tensor.contiguous() for tensor in state]
    for pending in [comm.broadcast(tensor, src=0) for tensor in travelling]:
        pending.wait()
    for tensor, arrived in zip(state, travelling, strict=True):
        tensor.copy_(arrived)


def _is_full(bucket: _Bucket) -> bool:
    return bucket.arrived == len(bucket.parameters)


def _unpack(bucket: _Bucket) -> None:
    """Wait for a bucket and write its averages where the backward pass left the gradients."""
    bucket.pending.wait()
    averages = bucket.flat.split([parameter.numel() for parameter in bucket.parameters])
    for parameter, average in zip(bucket.parameters, averages, strict=True):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(average.view(parameter.shape))
    bucket.arrived, bucket.flat, bucket.pending = 0, None, None
