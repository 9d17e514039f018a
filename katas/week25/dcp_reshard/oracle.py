"""What is right and what to feed: whole tensors, cut by slicing, and a folder that counts."""

import math
from itertools import product
from pathlib import Path

import torch

# name: dtype, shape, how it is cut; odd bytes, so that later tensors begin anywhere in a file
TENSORS = {
    "a.flags": ("uint8", (7,), "rows"),
    "b.weight": ("bfloat16", (10, 6), "rows"),
    "c.moment": ("float32", (7, 3, 5), "columns"),
    "d.step": ("int64", (), "replicated"),
    "e.bias": ("float32", (10,), "replicated"),
    "f.empty": ("float32", (0, 4), "rows"),
    "g.grid": ("float64", (6, 9), "grid"),
    "h.few": ("bool", (1, 5), "rows"),
}


def whole(seed, tensors=TENSORS):
    """The tensors of one process, with a -0.0 and a NaN, and an integer that no float holds."""
    draw = torch.Generator().manual_seed(seed)
    state = {}
    for key, (dtype, shape, _) in tensors.items():
        values = torch.randn(shape, generator=draw) * 40
        values = values.abs() if dtype == "uint8" else values
        values = values > 0 if dtype == "bool" else values.to(getattr(torch, dtype))
        if values.is_floating_point() and values.numel() > 1:
            values.view(-1)[0] = -0.0
            values.view(-1)[-1] = math.nan
        state[key] = values + 2**53 + 1 if key == "d.step" else values
    return state


def _parts(n, parts):
    """Offsets and sizes of torch.chunk, with empty parts at the end."""
    size = -(-n // parts)
    return [(min(at * size, n), max(0, min(size, n - at * size))) for at in range(parts)]


def box(shape, kind, rank, world):
    """Offsets and sizes of a rank's part."""
    offsets, sizes = [0] * len(shape), list(shape)
    if kind == "rows":
        offsets[0], sizes[0] = _parts(shape[0], world)[rank]
    elif kind == "columns":
        offsets[1], sizes[1] = _parts(shape[1], world)[rank]
    elif kind == "last":
        offsets[-1], sizes[-1] = _parts(shape[-1], world)[rank]
    elif kind == "grid":  # two halves of the columns, where ranks are even in number
        columns = 2 - world % 2
        offsets[1], sizes[1] = _parts(shape[1], columns)[rank % columns]
        offsets[0], sizes[0] = _parts(shape[0], world // columns)[rank // columns]
    return tuple(offsets), tuple(sizes)


def cut(tensor, offsets, sizes):
    return tensor[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))]


def pieces(kata, state, rank, world, kinds, device):
    """What a rank has: strided views, as slices are."""
    found = {}
    for key, tensor in state.items():
        offsets, sizes = box(tensor.shape, kinds[key], rank, world)
        found[key] = kata.Piece(cut(tensor.to(device), offsets, sizes), offsets, (*tensor.shape,))
    return found


def bits(tensor):
    """The bytes of a tensor, for which -0.0 is not 0.0 and a NaN is what it is."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist()


def element_map(chunks, want):
    """For each element of `want`: the place in its buffer, which chunk, file, place in the file."""
    owner = {}
    for number, chunk in enumerate(chunks):
        for at, index in enumerate(indices(*chunk.box)):
            owner[index] = (number, chunk.file, chunk.file_offset, at)
    return [(dst, *owner[index]) for dst, index in enumerate(indices(*want))]


def indices(offsets, sizes):
    """Every index of a box, row-major."""
    return product(*(range(o, o + n) for o, n in zip(offsets, sizes, strict=True)))


def fewest_reads(chunks, want, itemsize):
    """The longest runs within a chunk, one element after the other."""
    runs = []
    before = None
    for dst, number, file, base, at in element_map(chunks, want):
        if before == (number, at - 1):
            runs[-1][2] += itemsize
        else:
            runs.append([file, base + at * itemsize, itemsize, dst * itemsize])
        before = (number, at)
    return sorted(map(tuple, runs))


class Folder:
    """A folder that remembers what this process has asked of it."""

    def __init__(self, path):
        self.path = Path(path)
        self.written = []  # (name, bytes)
        self.reads = []  # (name, offset, bytes)

    def write(self, name, parts):
        data = b"".join(parts)
        self.written.append((name, len(data)))
        (self.path / name).write_bytes(data)

    def read(self, name, offset=0, nbytes=None):
        with (self.path / name).open("rb") as file:
            file.seek(offset)
            data = file.read() if nbytes is None else file.read(nbytes)
        assert nbytes in (None, len(data)), (
            f"{name}: expected {nbytes} bytes from {offset} on, found {len(data)}"
        )
        self.reads.append((name, offset, len(data)))
        return data
