"""Kata week25/async_checkpoint_commit: written behind the training, published whole or not at all.

Copy, go on; write, sync, agree, rename: a kill in between leaves what was there before.
"""

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
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
        # check
        if keep < 1:
            raise ValueError(f"keep: expected at least 1, found {keep}.")
        self._disk = disk
        self._group = group
        self._keep = keep
        self._leads = dist.get_rank(group) == 0
        self._file = f"rank{dist.get_rank(group)}.bin"
        self._staged: dict[str, Tensor] = {}
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._pending: Future | None = None
        # clear away
        if self._leads:
            disk.fsync("")  # a name that was taken away could come back without its files
            for name in disk.names():
                if step_of(name) is None:
                    disk.remove(name)
        all_well(group, True)

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
        # check
        self.wait()
        newest = max(self._steps(), default=-1)
        if step <= newest:
            raise ValueError(f"step: expected one after {newest}, found {step}.")
        # copy the state
        for key, tensor in state.items():
            if key not in self._staged:
                self._staged[key] = torch.empty(
                    tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda
                )
            self._staged[key].copy_(tensor.detach())
        # write and agree
        self._pending = Future()
        self._pending.set_running_or_notify_cancel()  # the other ranks count on it
        self._thread.submit(self._fulfil, self._pending, step)
        return self._pending

    def wait(self) -> None:
        """Return when no save is in flight, whatever came of it."""
        if self._pending is not None:
            wait_for([self._pending])

    def latest(self) -> int | None:
        """Return the newest step that is published, None if there is none."""
        return max(self._steps(), default=None)

    def load(self, state: Mapping[str, Tensor]) -> int | None:
        """
        Fill `state` in place from the newest checkpoint that is whole on all ranks.

        Newer ones, which are damaged, are removed.

        Returns:
            Its step, the same on all ranks; None, and nothing filled, if there is none.
        """
        # load what is whole
        self.wait()
        for step in reversed(self._steps()):
            raw = self._read(step)
            if all_well(self._group, raw is not None):
                for key, tensor in unpacked(raw).items():
                    state[key].detach().copy_(tensor)
                return step
            self._together(lambda step=step: self._discard(step))
        return None

    def _steps(self) -> list[int]:
        """List the steps that are published, in order."""
        steps = (step_of(name) for name in self._disk.names())
        return sorted(step for step in steps if step is not None)

    def _fulfil(self, future: Future, step: int) -> None:
        # write and agree
        try:
            self._save(step)
        except Exception as error:  # noqa: BLE001 -- the future has it
            future.set_exception(error)
        else:
            future.set_result(step)

    def _save(self, step: int) -> None:
        # write and agree
        folder = f"saving-{step}"
        try:
            self._together(lambda: self._leads and self._disk.make(folder))
            self._together(lambda: self._write(f"{folder}/{self._file}"))
            self._together(lambda: self._publish(folder, step))
        except Exception:
            if self._leads and folder in self._disk.names():
                self._disk.remove(folder)
            raise

    def _together(self, work: Callable[[], object]) -> None:
        """Do `work`, and raise on all ranks if it fails on one."""
        # write and agree
        error = None
        try:
            work()
        except Exception as raised:  # noqa: BLE001 -- it is raised when all know
            error = raised
        if not all_well(self._group, error is None):
            raise error or SaveFailed("another rank could not save.")

    def _write(self, path: str) -> None:
        raw = packed(self._staged)
        self._disk.write(path, [hashlib.sha256(raw).digest(), raw])
        self._disk.fsync(path)

    def _publish(self, folder: str, step: int) -> None:
        # publish
        if self._leads:
            self._disk.fsync(folder)
            self._disk.rename(folder, step_name(step))
            try:
                self._disk.fsync("")
            except Exception:
                self._discard(step)  # before the others learn of it, and save it again
                raise
            for old in self._steps()[: -self._keep]:
                self._discard(old)

    def _discard(self, step: int) -> None:
        """Take the name away before anything of what it names."""
        # clear away
        if self._leads:
            folder = f"removing-{step}"
            self._disk.rename(step_name(step), folder)
            self._disk.fsync("")
            self._disk.remove(folder)

    def _read(self, step: int) -> bytes | None:
        """Return what this rank has saved, None if it is not what it was."""
        # load what is whole
        try:
            raw = self._disk.read(f"{step_name(step)}/{self._file}")
        except OSError:
            return None
        return raw[32:] if hashlib.sha256(raw[32:]).digest() == raw[:32] else None
