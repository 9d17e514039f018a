"""What is right and what to feed: states that a step determines, and a disk that can fail."""

import errno
import os
import pickle
import shutil
import threading
import time
from pathlib import Path

import torch

from harness.simulators.deaths import point


def state(seed, rank, step, device="cpu"):
    """What a rank has at a step: a function of both, so that any mixture shows."""
    draw = torch.Generator().manual_seed(hash((seed, rank, step)) % 2**32)
    found = {
        "weight": torch.randn(5, 7, generator=draw),
        "half": torch.randn(3, generator=draw).to(torch.bfloat16),
        "step": torch.tensor(step + 2**53 + 1),
        "rank.rows": torch.randn(rank, 2, generator=draw),  # none on rank 0
    }
    found["weight"][0, 0] = -0.0
    return {key: tensor.to(device) for key, tensor in found.items()}


def bits(tensor):
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist()


def same(found, expected):
    return all(bits(found[key]) == bits(tensor) for key, tensor in expected.items())


class Disk:
    """
    A real folder. Each change is a point at which a rank can be killed, and is noted in a log.

    Attributes:
        full: For want of space folders are not made, and files are left half written.
        gate: Unless set, writes wait for it.
        slow_s: How long each change takes.
        fails_in: So many changes from now one raises EIO; None for no failure.
        read_bytes: How much this process has read.
    """

    def __init__(self, root, log=None):
        self.root, self.log = Path(root), log and os.open(log, os.O_APPEND | os.O_WRONLY)
        self.full, self.read_bytes, self.slow_s = False, 0, 0.0
        self.fails_in = None
        self.gate = threading.Event()
        self.gate.set()

    def note(self, *record):
        """Append to the log, in one piece."""
        if self.log is not None:
            raw = pickle.dumps(record)
            os.write(self.log, len(raw).to_bytes(4, "little") + raw)

    def _point(self, name):
        time.sleep(self.slow_s)
        point(name)
        if self.fails_in is not None:
            self.fails_in -= 1
            if self.fails_in < 0:
                self.fails_in = None
                raise OSError(errno.EIO, "Input/output error", name)

    def make(self, folder):
        self._point(f"make {folder}")
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", folder)
        (self.root / folder).mkdir()
        self.note("make", folder)

    def write(self, path, parts):
        if not self.gate.wait(5):
            raise RuntimeError("this write has been waiting for save_async to return, for 5 s")
        data = b"".join(parts)
        self._point(f"write {path}")
        for part in (data[: len(data) // 2], data):
            (self.root / path).write_bytes(part)
            self.note("write", path, part)
            if part is not data:
                self._point(f"half of {path}")
                if self.full:
                    raise OSError(errno.ENOSPC, "No space left on device", path)

    def fsync(self, path):
        self._point(f"fsync {path}")
        assert (self.root / path).exists(), f"fsync: expected {path!r} to exist"
        self.note("fsync", path)

    def rename(self, old, new):
        self._point(f"rename {old} {new}")
        if (self.root / new).exists():
            raise FileExistsError(errno.EEXIST, "File exists", new)
        (self.root / old).rename(self.root / new)
        self.note("rename", old, new)

    def remove(self, path):
        whole = self.root / path
        if whole.is_dir():
            for file in sorted(whole.iterdir()):
                self.remove(f"{path}/{file.name}")
        self._point(f"remove {path}")
        whole.rmdir() if whole.is_dir() else whole.unlink()
        self.note("remove", path)

    def names(self):
        return sorted(file.name for file in self.root.iterdir())

    def read(self, path):
        data = (self.root / path).read_bytes()
        self.read_bytes += len(data)
        return data


def records(log):
    """What a log says, in order."""
    raw, found = Path(log).read_bytes(), []
    while raw:
        n = int.from_bytes(raw[:4], "little")
        found.append(pickle.loads(raw[4 : 4 + n]))
        raw = raw[4 + n :]
    return found


class _Node:
    """A file or a folder, as it is and as it is on the platter."""

    def __init__(self, content):
        self.content = content  # bytes, or {name: node}
        self.durable = type(content)()


def replayed(log):
    """The root folder after these records, with what each node would keep."""
    root = _Node({})

    def node(path):
        found = root
        for name in filter(None, path.split("/")):
            found = found.content[name]
        return found

    def place(path):
        folder, _, name = path.rpartition("/")
        return node(folder).content, name

    for op, path, *rest in log:
        if op == "fsync":
            synced = node(path)
            folder = isinstance(synced.content, dict)
            synced.durable = dict(synced.content) if folder else synced.content
        elif op in ("make", "write"):
            folder, name = place(path)
            if op == "make":
                folder[name] = _Node({})
            elif name in folder:
                folder[name].content = rest[0]
            else:
                folder[name] = _Node(rest[0])
        elif op in ("rename", "remove"):
            folder, name = place(path)
            moved = folder.pop(name)
            if op == "rename":
                other, new = place(rest[0])
                other[new] = moved
    return root


# what is lost besides: contents of files; names of the folder itself; those of the folders in it
LOSSES = {
    "killed": (False, False, False),
    "contents lost": (True, False, False),
    "contents and published names lost": (True, True, False),
    "contents and all names lost": (True, True, True),
}


def crashed(log, loss):
    """{path: bytes, or None for a folder} that is left after these records and this loss."""
    found = {}
    contents, names, inner_names = LOSSES[loss]

    def walk(node, path):
        lost = inner_names if path else names
        for name, child in (node.durable if lost else node.content).items():
            at = f"{path}{name}"
            if isinstance(child.content, dict):
                found[at] = None
                walk(child, f"{at}/")
            else:
                found[at] = child.durable if contents else child.content

    walk(replayed(log), "")
    return found


def laid_out(tree, root):
    """Make a folder of what `crashed` returns."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for path, data in tree.items():
        if data is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(data)
