"""Kata week25/dcp_reshard: a checkpoint made of boxes, saved on N ranks and loaded on M.

Each rank writes what it has, and reads what it needs: no rank sees the whole state.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
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
    # intersect boxes
    reads = sorted(read for chunk in chunks for read in _runs(chunk, want, itemsize))
    # plan and check
    found, needed = sum(read.nbytes for read in reads), math.prod(want.sizes) * itemsize
    if found != needed:
        raise ValueError(f"want: expected {needed} bytes of {want}, found {found} in the chunks.")
    return reads


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
    # write each box once
    rank = dist.get_rank(group)
    mine = [(key, piece.dtype, piece.shape, piece.box) for key, piece in state.items()]
    itemsizes = {piece.dtype: piece.tensor.itemsize for piece in state.values()}
    everyone = _gathered((mine, itemsizes), group)
    entries = _assigned(everyone)
    parts = sorted(
        (chunk.file_offset, key)
        for key, entry in entries.items()
        for chunk in entry.chunks
        if chunk.file == shard_file(rank)
    )
    if parts:
        store.write(shard_file(rank), (to_bytes(state[key].tensor) for _, key in parts))
    # who reads METADATA may rely on every file that it names
    dist.barrier(group)
    if rank == 0:
        store.write(METADATA, [pack(entries)])
    dist.barrier(group)


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
    # plan and check
    rank = dist.get_rank(group)
    raw = [store.read(METADATA) if rank == 0 else None]
    dist.broadcast_object_list(raw, group=group, group_src=0)
    entries = unpack(raw[0])
    plans, problems = {}, {}
    for key, piece in state.items():
        try:
            plans[key] = _plan(piece, entries.get(key))
        except ValueError as error:
            problems[key] = str(error)
    everyone = _gathered((list(state), problems), group)
    wanted = {key for keys, _ in everyone for key in keys}
    found = dict.fromkeys(entries.keys() - wanted, "expected a rank that wants it, found none.")
    for _, problems in everyone:
        found |= problems
    if found:
        raise ValueError("\n".join(f"{key}: {found[key]}" for key in sorted(found)))
    # fill in place
    for key, reads in plans.items():
        tensor = state[key].tensor.detach()
        raw = bytearray(tensor.numel() * tensor.itemsize)
        for file, file_offset, nbytes, at in reads:
            raw[at : at + nbytes] = store.read(file, file_offset, nbytes)
        tensor.copy_(from_bytes(raw, tensor.dtype, tensor.shape))


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
    share = state_bytes / world
    if kind == "full":
        return (world - 1) * share / net_bytes_per_s + state_bytes / disk_bytes_per_s
    if kind == "sharded":
        return min(gpus_per_node, world) * share / disk_bytes_per_s
    raise ValueError(f"kind: expected 'full' or 'sharded', found {kind!r}.")


def _runs(chunk: Chunk, want: Box, itemsize: int) -> Iterator[Read]:
    """List the longest runs of what `want` has in common with `chunk`."""
    # intersect boxes
    saved = chunk.box
    low = tuple(map(max, saved.offsets, want.offsets))
    sizes = tuple(
        min(a + n, b + m) - start for a, n, b, m, start in zip(*saved, *want, low, strict=True)
    )
    if min(sizes, default=1) <= 0:
        return
    # longest runs
    # axes after `inner` are whole on both sides: from `inner` on it is one run
    inner = max(len(sizes) - 1, 0)
    while inner > 0 and sizes[inner] == saved.sizes[inner] == want.sizes[inner]:
        inner -= 1
    nbytes = math.prod(sizes[inner:]) * itemsize
    for outer in product(*map(range, sizes[:inner])):
        corner = [start + step for start, step in zip(low, outer + (0,) * len(sizes), strict=False)]
        at, dst = _flat(corner, saved) * itemsize, _flat(corner, want) * itemsize
        yield Read(chunk.file, chunk.file_offset + at, nbytes, dst)


def _flat(index: Sequence[int], box: Box) -> int:
    """Return which element of `box`, row-major, the one at `index` of the whole tensor is."""
    flat = 0
    for at, offset, size in zip(index, *box, strict=True):
        flat = flat * size + at - offset
    return flat


def _assigned(everyone: Sequence[tuple]) -> dict[str, Entry]:
    """Decide who writes which box and where: the same answer on every rank."""
    # write each box once
    itemsizes = {dtype: size for _, sizes in everyone for dtype, size in sizes.items()}
    kinds, holders = {}, {}
    for rank, (pieces, _) in enumerate(everyone):
        for key, dtype, shape, box in pieces:
            if kinds.setdefault(key, (dtype, shape)) != (dtype, shape):
                raise ValueError(f"{key}: expected {kinds[key]}, found {(dtype, shape)}.")
            holders.setdefault(key, {}).setdefault(box, []).append(rank)
    written = [0] * len(everyone)
    entries = {}
    for key in sorted(kinds):
        dtype, shape = kinds[key]
        chunks = []
        for box in sorted(holders[key]):
            if nbytes := math.prod(box.sizes) * itemsizes[dtype]:
                writer = min(holders[key][box], key=written.__getitem__)
                chunks.append(Chunk(shard_file(writer), written[writer], box))
                written[writer] += nbytes
        entries[key] = Entry(dtype, shape, tuple(chunks))
    return entries


def _plan(piece: Piece, entry: Entry | None) -> list[Read]:
    """Plan the reads of one piece; ValueError where it cannot be filled."""
    # plan and check
    if entry is None:
        raise ValueError("expected it in the checkpoint, found it missing.")
    if (piece.dtype, piece.shape) != (entry.dtype, entry.shape):
        raise ValueError(
            f"expected {piece.dtype} {piece.shape}, found {entry.dtype} {entry.shape} saved."
        )
    return plan_reads(entry.chunks, piece.box, piece.tensor.itemsize)


def _gathered(mine: object, group: dist.ProcessGroup | None) -> list:
    """Return what every rank passes, in their order."""
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    return everyone
