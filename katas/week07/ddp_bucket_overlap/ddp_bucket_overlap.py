"""Kata week07/ddp_bucket_overlap: gradients averaged over the ranks while backward still runs.

Gradients come last layer first. Buckets of them are reduced as they fill up; only what the last
gradient completes has nothing left to hide behind.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from harness.meters.collectives import Collectives


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
        # TODO(kata): check, fill the buckets, copy from rank 0, launch in order (about 50 lines
        # with helpers)
        raise NotImplementedError

    def finish(self) -> None:
        """Reduce what has not been reduced, wait for all of it, and leave averages in `.grad`."""
        # TODO(kata): launch in order, wait and unpack (about 15 lines with helpers)
        raise NotImplementedError

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let the backward passes inside add to `.grad`, and send nothing."""
        raise NotImplementedError  # TODO(kata): pause (about 5 lines)
