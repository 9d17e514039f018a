"""Kata week25/async_checkpoint_commit: written behind the training, published whole or not at all.

Copy, go on; write, sync, agree, rename: a kill in between leaves what was there before.
"""

import io
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class SaveFailed(Exception):
    """Another rank could not save, so none has."""


class Disk(Protocol):
    """
    A folder that all ranks see. Paths are relative to it: "a", "a/b"; "" is the folder itself.

    A process that is killed leaves what it has written. A machine that loses power loses more: the
    contents of each file since its last fsync, and the names in each folder since its last fsync.
    """

    def make(self, folder: str) -> None:
        """Make a folder, which must not exist."""

    def write(self, path: str, parts: Iterable[bytes]) -> None:
        """Write a file of these parts, piece by piece."""

    def fsync(self, path: str) -> None:
        """Make durable what a file contains, or the names in a folder (not what they contain)."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a folder, all at once; `new` must not exist."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder and one after the other the files in it."""

    def names(self) -> list[str]:
        """List the names in the folder, sorted."""

    def read(self, path: str) -> bytes:
        """Return what a file contains."""


def step_name(step: int) -> str:
    """Name the folder of a checkpoint that is published."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """Return the step that a name stands for, None if it is not a published name."""
    return int(name[5:]) if re.fullmatch(r"step-(\d{8}|[1-9]\d{8,})", name) else None


def packed(state: Mapping[str, Tensor]) -> bytes:
    """Return tensors as bytes, without anything that would show a change of them."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def unpacked(raw: bytes) -> dict[str, Tensor]:
    """Return what `packed` was given, on the CPU."""
    return torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)


def all_well(group: dist.ProcessGroup, well: bool) -> bool:
    """Say whether all ranks of `group` are well; RuntimeError where one has died."""
    flag = torch.tensor([int(well)])
    dist.all_reduce(flag, dist.ReduceOp.MIN, group=group)
    return bool(flag.item())


class CheckpointManager:
    """
    Saves what each rank has, in the background, and publishes it when all have saved.

    Every rank makes the same calls in the same order.

    Args:
        disk: Where checkpoints are. What is not published there is removed.
        group: All ranks, joined by gloo; nothing else uses it.
        keep: How many published checkpoints stay.

    Raises:
        ValueError: keep: below 1.
    """

    def __init__(self, disk: Disk, group: dist.ProcessGroup, keep: int = 2) -> None:
        raise NotImplementedError  # TODO(kata): check, clear away (about 15 lines)

    def save_async(self, state: Mapping[str, Tensor], step: int) -> Future:
        """
        Copy `state` and save it as `step` in the background, after any save in flight.

        Args:
            state: Of this rank. It may change as soon as this returns.
            step: At least 0, and larger than that of any published checkpoint.

        Returns:
            A future: `step`, once it is published and survives a loss of power; otherwise what
            this rank's disk raised, or SaveFailed.

        Raises:
            ValueError: step: below 0, or not larger than the newest one that is published.
        """
        # TODO(kata): check, clear away, copy the state, write and agree, publish (about 65 lines
        # with helpers)
        raise NotImplementedError

    def wait(self) -> None:
        """Return when no save is in flight, whatever came of it."""
        raise NotImplementedError  # TODO(kata): wait for the save in flight (2 lines)

    def latest(self) -> int | None:
        """Return the newest step that is published, None if there is none."""
        raise NotImplementedError  # TODO(kata): look at names (1 line)

    def load(self, state: Mapping[str, Tensor]) -> int | None:
        """
        Fill `state` in place from the newest checkpoint that is whole on all ranks.

        Newer ones, which are damaged, are removed.

        Returns:
            Its step, the same on all ranks; None, and nothing filled, if there is none.
        """
        raise NotImplementedError  # TODO(kata): load what is whole (about 15 lines with helpers)
