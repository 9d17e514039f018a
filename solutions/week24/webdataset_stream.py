"""Kata week24/webdataset_stream: samples out of tar shards, in one pass over a pipe.

A sample is a run of members with a common key: `dogs/7.jpg` and `dogs/7.json` belong to `dogs/7`.
"""

import random
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import DEFAULT_BUFFER_SIZE, BytesIO
from typing import Protocol, TypeVar

BLOCK = 512
T = TypeVar("T")
Sample = dict[str, str | bytes]  # "__key__" to its key, each extension to a content


class Pipe(Protocol):
    """What a process or a socket sends: it can be read forward, and nothing else."""

    def read(self, n: int) -> bytes:
        """Return from 1 to `n` bytes; none at the end."""


def iter_samples(fileobj: Pipe) -> Iterator[Sample]:
    """
    Yield each sample of an archive once it is complete, and hold no other.

    Args:
        fileobj: Read forward, to its end.

    Raises:
        ValueError: the archive is cut off or a header damaged, ``archive: ``; a sample has an
            extension twice, which begins with the name of the second member and a colon.
    """
    # group by key
    sample: Sample = {}
    for name, content in _members(fileobj):
        key, extension = _key_and_extension(name)
        if not key:
            continue
        if sample and sample["__key__"] != key:
            yield sample
            sample = {}
        sample["__key__"] = key
        if extension in sample:
            raise ValueError(f"{name}: expected each extension once in {key}, found it again.")
        sample[extension] = content
    if sample:
        yield sample


def _members(fileobj: Pipe) -> Iterator[tuple[str, bytes]]:
    """Name and content of each regular file, up to the block of zeros that ends the archive."""
    # read a member
    long_name = ""
    while any(block := _exactly(fileobj, BLOCK)):
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise ValueError(f"archive: expected a header, found a block with {error}.") from None
        content = _exactly(fileobj, -(-header.size // BLOCK) * BLOCK)[: header.size]
        if header.type == tarfile.GNUTYPE_LONGNAME:
            long_name = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif header.type == tarfile.XHDTYPE:
            long_name = pax_records(content).get("path", "")
        elif header.type != tarfile.XGLTYPE and header.type != tarfile.GNUTYPE_LONGLINK:
            if header.isreg():
                yield long_name or header.name, content
            long_name = ""
    while fileobj.read(DEFAULT_BUFFER_SIZE):
        pass


def _exactly(fileobj: Pipe, size: int) -> bytes:
    # read a member
    parts = []
    while size:
        part = fileobj.read(size)
        if not part:
            raise ValueError(f"archive: expected {size} more bytes, found the end.")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _key_and_extension(name: str) -> tuple[str, str]:
    """Cut a name at the first dot of its last part; the key is empty if there is none to cut."""
    # group by key
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    if not stem or not dot:
        return "", ""
    return folder + slash + stem, extension.lower()


def pax_records(content: bytes) -> dict[str, str]:
    """Return what an extended header of pax says: lines such as `18 path=a/b.jpg`."""
    records = {}
    while content:
        length, _, _ = content.partition(b" ")
        record = content[len(length) + 1 : int(length) - 1]
        name, _, text = record.partition(b"=")
        records[name.decode()] = text.decode("utf-8", "surrogateescape")
        content = content[int(length) :]
    return records


def write_shards(
    samples: Iterable[Mapping[str, str | bytes]], pattern: str, max_bytes: int, max_count: int
) -> list[str]:
    """
    Write samples into archives, as many into each as there is room for; return their paths.

    Args:
        samples: Read once, and never held all at the same time.
        pattern: What makes a path of a shard's number with the operator %.
        max_bytes: Of a shard's contents together, unless it has one sample alone.
        max_count: Samples of a shard.

    Raises:
        ValueError: a limit is below 1; a sample would not be read back as it is. The message
            begins with the name of the argument and a colon.
    """
    # check
    if max_bytes < 1:
        raise ValueError(f"max_bytes: expected at least 1, found {max_bytes}.")
    if max_count < 1:
        raise ValueError(f"max_count: expected at least 1, found {max_count}.")
    # fill a shard
    paths: list[str] = []
    tar, key, count, held = None, None, 0, 0
    try:
        for sample in samples:
            contents = _contents(sample, key)
            key = sample["__key__"]
            size = sum(map(len, contents.values()))
            if tar is None or count == max_count or held + size > max_bytes:
                if tar is not None:
                    tar.close()
                paths.append(pattern % len(paths))
                tar = tarfile.open(paths[-1], "w")  # noqa: SIM115 -- for many
                count = held = 0
            for extension, content in contents.items():
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = len(content)
                tar.addfile(info, BytesIO(content))
            tar.members = []  # where it would keep all that was written
            count += 1
            held += size
    finally:
        if tar is not None:
            tar.close()
    return paths


def _contents(sample: Mapping[str, str | bytes], previous_key: str | None) -> dict[str, bytes]:
    """Return the contents by extension, if `iter_samples` would give the same sample."""
    # check
    contents = dict(sample)
    key = contents.pop("__key__", "")
    if key == previous_key or not contents:
        raise ValueError(f"samples: expected another key than before, and a content: {key!r}.")
    for extension in contents:
        if not key or _key_and_extension(f"{key}.{extension}") != (key, extension):
            raise ValueError(f"samples: {key!r}, {extension!r} would be read as something else.")
    return contents


def split_shards(
    urls: Sequence[str], rank: int, world: int, worker: int, workers: int, epoch: int, seed: int
) -> list[str]:
    """
    Return the shards that a worker of a rank reads in this epoch, in an order of the epoch's own.

    Raises:
        ValueError: world or workers below 1; rank or worker not below them, or negative.
    """
    # check
    for name, number, of, count in (
        ("rank", rank, "world", world),
        ("worker", worker, "workers", workers),
    ):
        if count < 1:
            raise ValueError(f"{of}: expected at least 1, found {count}.")
        if not 0 <= number < count:
            raise ValueError(f"{name}: expected 0 to {count - 1}, found {number}.")
    # shards of one reader
    order = list(urls)
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order[rank::world][worker::workers]


def shuffle_buffer(it: Iterable[T], size: int, rng: random.Random) -> Iterator[T]:
    """
    Yield every item once, each drawn from at most `size` that wait; hold no more than these.

    Raises:
        ValueError: size is below 1.
    """
    # check
    if size < 1:
        raise ValueError(f"size: expected at least 1, found {size}.")
    # draw from the buffer
    waiting = []
    for item in it:
        waiting.append(item)
        if len(waiting) == size:
            yield _drawn(waiting, rng)
    while waiting:
        yield _drawn(waiting, rng)


def _drawn(waiting: list[T], rng: random.Random) -> T:
    # draw from the buffer
    at = rng.randrange(len(waiting))
    waiting[at], waiting[-1] = waiting[-1], waiting[at]
    return waiting.pop()
