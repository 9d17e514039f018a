"""Kata week25/dcp_reshard: a checkpoint made of boxes, saved on N ranks and loaded on M.

Each rank writes what it has, and reads what it needs: no rank sees the whole state.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

METADATA = "metadata.json"


class Box(NamedTuple):
    """A part of a tensor: along each axis `sizes` elements from `offsets` on. A scalar has ()."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class Chunk(NamedTuple):
    """A saved box: its elements lie in `file` from byte `file_offset` on, row-major."""

    file: str
    file_offset: int
    box: Box


class Read(NamedTuple):
    """Bytes of a file, and where they belong in a row-major buffer of the box that is wanted."""

    file: str
    file_offset: int
    nbytes: int
    dst_offset: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What a checkpoint says about one tensor."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """What this rank has of a tensor of `shape`: the box of `tensor.shape` at `offsets`."""

    tensor: Tensor
    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def box(self) -> Box:
        """Where the piece lies in the whole tensor."""
        return Box(self.offsets, tuple(self.tensor.shape))

    @property
    def dtype(self) -> str:
        """The dtype as an entry names it, such as "bfloat16"."""
        return str(self.tensor.dtype).removeprefix("torch.")


class Store(Protocol):
    """The folder of a checkpoint, which all ranks see."""

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        """Write a file of these parts, one after the other; none makes an empty file."""

    def read(self, name: str, offset: int = 0, nbytes: int | None = None) -> bytes:
        """Return `nbytes` of a file from `offset` on, or all the rest."""


def shard_file(rank: int) -> str:
    """Name the file that a rank of the group writes."""
    return f"rank{rank}.bin"


def pack(entries: Mapping[str, Entry]) -> bytes:
    """Return the contents of METADATA."""
    return json.dumps({key: asdict(entry) for key, entry in entries.items()}).encode()


def unpack(raw: bytes) -> dict[str, Entry]:
    """Return what `pack` was given."""
    return {
        key: Entry(
            entry["dtype"],
            tuple(entry["shape"]),
            tuple(
                Chunk(file, at, Box(tuple(offsets), tuple(sizes)))
                for file, at, (offsets, sizes) in entry["chunks"]
            ),
        )
        for key, entry in json.loads(raw).items()
    }


def to_bytes(tensor: Tensor) -> bytes:
    """Return the elements of `tensor` in row-major order, whatever its strides and device."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def from_bytes(raw: bytearray, dtype: torch.dtype, sizes: Sequence[int]) -> Tensor:
    """Return `raw` as a tensor on the CPU, which shares its memory."""
    return (
        torch.frombuffer(raw, dtype=dtype).view(sizes) if raw else torch.empty(sizes, dtype=dtype)
    )


def plan_reads(chunks: Sequence[Chunk], want: Box, itemsize: int) -> list[Read]:
    """
    Plan which bytes of which files make up the box `want`, each byte once, by file and offset.

    A read is as long as it can be: it ends where chunk and buffer no longer run in parallel.

    Args:
        chunks: Boxes of the same tensor, of which no two overlap.
        want: May span any number of chunks.
        itemsize: Bytes of an element.

    Raises:
        ValueError: want: some of it is in no chunk.
    """
    # TODO(kata): intersect boxes, longest runs, plan and check (about 25 lines with helpers)
    raise NotImplementedError


def save_shards(
    store: Store, state: Mapping[str, Piece], group: dist.ProcessGroup | None = None
) -> None:
    """
    Save the pieces of all ranks of `group`, each box once, and return when all is written.

    Args:
        store: Gets one file for each rank that writes anything, and then METADATA.
        state: What this rank has; ranks may have different keys.
        group: Who saves; None is all ranks.

    Raises:
        ValueError: KEY: ranks disagree about its shape or dtype. On all ranks; nothing is written.
    """
    raise NotImplementedError  # TODO(kata): write each box once (about 40 lines with helpers)


def load_shards(
    store: Store, state: Mapping[str, Piece], group: dist.ProcessGroup | None = None
) -> None:
    """
    Fill the pieces of `state` in place, each rank from the bytes that it needs and no others.

    Args:
        store: Of which rank 0 of the group alone reads METADATA.
        state: What this rank wants; ranks may want different keys.
        group: Who loads; None is all ranks.

    Raises:
        ValueError: KEY: not in the checkpoint, wanted by no rank, of another shape or dtype, or
            not saved where a rank wants it; a line for each such key. On all ranks; nothing is
            filled.
    """
    # TODO(kata): plan and check, fill in place (about 30 lines with helpers)
    raise NotImplementedError


def ckpt_time(
    kind: str,
    state_bytes: float,
    world: int,
    gpus_per_node: int,
    disk_bytes_per_s: float,
    net_bytes_per_s: float,
) -> float:
    """
    Seconds to save `state_bytes` that are spread evenly over `world` GPUs.

    Args:
        kind: "full": rank 0 receives what the others have, and then its node writes everything.
            "sharded": each node writes what its own GPUs have, all nodes at the same time.
        state_bytes: Of all ranks together.
        world: GPUs.
        gpus_per_node: Of a full node; the last one may have fewer.
        disk_bytes_per_s: What one node writes.
        net_bytes_per_s: What one rank receives.

    Raises:
        ValueError: kind: another one.
    """
    raise NotImplementedError  # TODO(kata): time of a save (about 6 lines)
