"""What is right: faults with known culprits, and ranks whose time passes when a test says so."""

import random
import time


class Store:
    """A store in this process that counts, and reports what would wait for ever."""

    def __init__(self):
        self.data = {}
        self.calls = {"set": 0, "get": 0, "check": 0, "compare_set": 0}

    def set(self, key, value):
        self.calls["set"] += 1
        self.data[key] = value.encode() if isinstance(value, str) else value

    def get(self, key):
        self.calls["get"] += 1
        assert key in self.data, (
            f"store.get({key!r}): nobody has written it, so this waits for ever"
        )
        return self.data[key]

    def check(self, keys):
        self.calls["check"] += 1
        return all(key in self.data for key in keys)

    def compare_set(self, key, expected, desired):
        self.calls["compare_set"] += 1
        if self.data.get(key, b"") == expected.encode():
            self.data[key] = desired.encode()
        return self.data.get(key, expected.encode())

    @property
    def accesses(self):
        return sum(self.calls.values())


class Fleet:
    """
    Ranks of one process: each polls once a tick, in an order of its own, until it is killed.

    Each has a clock that is off by days; a tick takes a second.
    """

    def __init__(self, kata, world, *, seed=0, store=None, timeout_s=10.0, silence_s=5.0):
        self._draw = random.Random(seed)
        self.store = store or Store()
        self.now = 0.0
        self.living = set(range(world))
        self.open = {}
        self.dogs = []
        for rank in range(world):
            off = self._draw.randint(-(10**6), 10**6)
            dog = kata.Watchdog(
                self.store, rank, world, timeout_s=timeout_s, poll_s=1.0, silence_s=silence_s,
                clock=lambda off=off: self.now + off,
            )  # fmt: skip
            self.dogs.append(dog)

    def begin(self, ranks, op="all_reduce", shape=(4,), dtype="float32"):
        for rank in ranks:
            self.open[rank] = self.dogs[rank].guard(op, shape, dtype)
            self.open[rank].__enter__()

    def end(self, ranks):
        for rank in ranks:
            self.open.pop(rank).__exit__(None, None, None)

    def all_do(self, times, **what):
        for _ in range(times):
            self.begin(self.living, **what)
            self.end(self.living)

    def tick(self, seconds=1):
        for _ in range(seconds):
            self.now += 1.0
            for rank in self._draw.sample(sorted(self.living), len(self.living)):
                self.dogs[rank].poll()

    @property
    def verdicts(self):
        return [None if dog.verdict is None else tuple(dog.verdict) for dog in self.dogs]


class Clock:
    """Real seconds times 50, from the moment that `go` is called."""

    def __init__(self):
        self._began = None

    def go(self):
        self._began = time.monotonic()

    def __call__(self):
        return 0.0 if self._began is None else 50 * (time.monotonic() - self._began)


class Rounds:
    """
    A clock of real ranks, which no load of the machine speeds up.

    A second has passed when each of `ranks` has polled since the last one.
    """

    def __init__(self, kata, store, ranks):
        self._unpack, self._store, self._ranks = kata.unpack, store, ranks
        self._now, self._last = 0.0, [0] * len(ranks)

    def __call__(self):
        keys = [str(rank) for rank in self._ranks]
        if self._store.check(keys):
            beats = [self._unpack(self._store.get(key))[0] for key in keys]
            if all(beat > last for beat, last in zip(beats, self._last, strict=True)):
                self._now, self._last = self._now + 1.0, beats
        return self._now


SIGNATURES = (
    ("all_reduce", (4,), "float32"), ("all_gather", (4,), "float32"),
    ("all_reduce", (5,), "float32"), ("all_reduce", (2, 2), "float32"),
    ("all_reduce", (4,), "float16"),
)  # fmt: skip


def fault(seed):
    """Draw records of a fleet in which something is wrong, who is alive, and the diagnosis."""
    draw = random.Random(seed)
    world, seq = draw.randint(3, 9), draw.randint(1, 30)
    kind = draw.choice(["dead", "mismatch", "missing", "stuck"])
    usual, odd = draw.sample(SIGNATURES, 2)
    ranks = list(range(world))
    draw.shuffle(ranks)
    count = draw.randint(1, (world - 1) // 2)
    culprits, rest = ranks[:count], ranks[count:]
    if kind == "stuck":
        culprits, rest = ranks, []
    records = {}
    for at, rank in enumerate(rest):
        ahead = kind == "missing" and at > 0 and draw.random() < 0.3
        by = draw.randint(0, 2) if ahead else 0
        records[rank] = (seq + by, *usual, ahead and draw.random() < 0.5)
    for rank in culprits:
        if kind == "dead":  # of any age
            last = draw.randint(0, seq)
            records[rank] = (last, *usual, last < seq and draw.random() < 0.5)
        else:
            signature = odd if kind == "mismatch" else usual
            missing = kind == "missing"
            records[rank] = (seq - missing, *signature, missing)
    alive = [rank for rank in ranks if kind != "dead" or rank in rest]
    by_rank = {rank: records[rank] for rank in draw.sample(ranks, world)}
    return by_rank, alive, (kind, tuple(sorted(culprits)), seq)
