"""What is right: the archive opened at random, its members grouped; and a pipe that counts."""

import io
import random
import tarfile

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


class Pipe:
    """Bytes that can be read on, at most `most` at a time."""

    def __init__(self, raw, most=None):
        self._raw, self._most, self.at, self.reads = memoryview(raw), most, 0, 0

    def read(self, n=-1):
        self.reads += 1
        left = len(self._raw) - self.at
        n = left if n is None or n < 0 else min(n, left)
        if self._most is not None:
            n = min(n, self._most)
        part = bytes(self._raw[self.at : self.at + n])
        self.at += len(part)
        return part

    def seekable(self):
        return False

    def readable(self):
        return True

    def seek(self, *_):
        raise io.UnsupportedOperation("a pipe cannot be read at another place: no seek")

    def tell(self):
        raise io.UnsupportedOperation("a pipe has no places: no tell")


class EndlessPipe(Pipe):
    """An archive of `n` samples of one file each, made while it is read."""

    def __init__(self, n, nbytes):
        self._two = member("a.bin", b"1" * nbytes) + member("b.bin", b"2" * nbytes)
        self.size = n * len(self._two) // 2 + 1024
        self.at = self.reads = 0

    def read(self, n=-1):
        self.reads += 1
        left = self.size - self.at
        n = left if n is None or n < 0 else min(n, left)
        filled = max(0, min(n, left - 1024))
        begin = self.at % len(self._two)
        self.at += n
        repeated = self._two * ((begin + filled) // len(self._two) + 1)
        return repeated[begin : begin + filled] + bytes(n - filled)


def member(name, content, form="pax", kind=tarfile.REGTYPE):
    """Headers and blocks of one member."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    raw = info.tobuf(FORMATS[form], "utf-8", "surrogateescape") + content
    return raw + bytes(-len(raw) % 512)


def archive(members, form="pax"):
    """The bytes of an archive of names and contents, with a third item for what is no file."""
    parts = [member(name, content, form, *kind) for name, content, *kind in members]
    return b"".join(parts) + bytes(1024)


def samples(raw):
    """Runs of members with a common key, in an archive that lies in memory."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as tar:
        for info in tar.getmembers():
            *folders, base = info.name.split("/")
            stem, *rest = base.split(".")
            if not info.isfile() or not stem or not rest:
                continue
            key = "/".join([*folders, stem])
            if not found or found[-1]["__key__"] != key:
                found.append({"__key__": key})
            found[-1][".".join(rest).lower()] = tar.extractfile(info).read()
    return found


SKIPPED = [
    ("README", b"no dot"),
    (".hidden", b"no key"),
    ("x.d/", b"", tarfile.DIRTYPE),
    ("link.jpg", b"", tarfile.SYMTYPE),
    ("link.jpg", b"", tarfile.LNKTYPE),
    ("pipe.jpg", b"", tarfile.FIFOTYPE),
]


def drawn_members(seed, n=12):
    """Samples of one to three files, of sizes about those of blocks, with what is skipped."""
    draw = random.Random(seed)
    members = [("./", b"", tarfile.DIRTYPE)]
    extensions = ["jpg", "JSON", "seg.png", "cls", "Txt.gz"]
    for number in range(n):
        key = f"{draw.choice(['', './', 'train/a.b/', 'x/'])}{number:04d}"
        for extension in draw.sample(extensions, draw.randint(1, 3)):
            size = draw.choice([0, 1, 3, 511, 512, 513, 1024, 1500])
            members.append((f"{key}.{extension}", draw.randbytes(size)))
            if draw.random() < 0.3:
                members.append(draw.choice(SKIPPED))
    return members


def plain_shards(samples, max_bytes, max_count):
    """Which samples go into which shard."""
    shards = []
    for sample in samples:
        last = shards[-1] if shards else None
        together = [*(last or []), sample]
        size = sum(len(one[name]) for one in together for name in one if name != "__key__")
        if last is None or len(together) > max_count or size > max_bytes:
            shards.append([sample])
        else:
            last.append(sample)
    return shards
