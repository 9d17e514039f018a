"""What is right: a network of ranks in one process, sums along the tree, and exact fractions."""

import json
import threading
from collections import deque
from fractions import Fraction
from pathlib import Path

import torch


class Deadlock(AssertionError):
    """Every rank that is not done waits for a message that nobody sends."""


class Network:
    """
    Ranks as threads of this process, and the rounds that their messages take.

    A rank has one port to send and one to receive. A message holds both its ports for one round;
    the sender's ports serve in the order of posting, the receiver's in the order of waiting. A
    wait goes on when that round is over. So the rounds follow from what waits for what, and not
    from how the threads happen to run.
    """

    def __init__(self, world):
        self.world = world
        self.bytes_sent = 0
        self.messages = [0] * world
        self.log = [[] for _ in range(world)]
        self.rounds = 0
        self._lock = threading.Lock()
        self._arrived = [threading.Condition(self._lock) for _ in range(world)]  # by receiver
        self._mail = {}
        self._waits_for = {}
        self._alive = set(range(world))
        self._failed = {}
        self._stuck = ""

    def run(self, fn):
        """Call `fn(rank, world, p2p)` on every rank; raise what the first of them raised."""
        threads = [threading.Thread(target=self._live, args=(fn, r)) for r in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failures = sorted(self._failed.items(), key=lambda one: isinstance(one[1], Deadlock))
        for _, error in failures:
            raise error
        left = [pair for pair, letters in self._mail.items() if letters]
        assert not left, f"messages (from, to) that nobody received: {left}"
        return self

    def _live(self, fn, rank):
        port = Port(self, rank)
        try:
            fn(rank, self.world, port)
            assert not port.unfinished, (
                f"rank {rank} of {self.world}: expected one wait() for each message, "
                f"{len(port.unfinished)} lack one"
            )
        except BaseException as error:  # noqa: BLE001 -- run() raises it
            self._failed[rank] = error
        with self._lock:
            self.rounds = max(self.rounds, port.now)
            self._alive.discard(rank)
            self._wake_if_stuck()

    def post(self, src, dst, tensor, leaves):
        with self._lock:
            self.bytes_sent += tensor.nbytes
            self.messages[src] += 1
            self._mail.setdefault((src, dst), deque()).append((tensor.clone(), leaves))
            self._arrived[dst].notify()

    def take(self, src, dst):
        with self._lock:
            self._waits_for[dst] = src
            self._wake_if_stuck()
            while not self._mail.get((src, dst)):
                if self._stuck:
                    raise Deadlock(self._stuck)
                self._arrived[dst].wait()
            del self._waits_for[dst]
            return self._mail[src, dst].popleft()

    def _wake_if_stuck(self):
        if all(
            rank in self._waits_for and not self._mail.get((self._waits_for[rank], rank))
            for rank in self._alive
        ):
            waits = [f"{to} for {src}" for to, src in sorted(self._waits_for.items())]
            self._stuck = f"{self.world} ranks wait for messages that none sends: {waits}"
            for arrived in self._arrived:
                arrived.notify()


class Port:
    """One rank's end of the network."""

    def __init__(self, network, rank):
        self.network = network
        self.rank = rank
        self.now = 0
        self.unfinished = []
        self._sends_until = 0
        self._receives_until = 0

    def isend(self, tensor, dst):
        self._check("isend", tensor, dst)
        leaves = max(self.now, self._sends_until)
        self._sends_until = leaves + 1
        self.network.post(self.rank, dst, tensor, leaves)
        sent = tensor.clone()

        def done():
            assert torch.equal(tensor, sent), f"rank {self.rank}: changed while it was being sent"
            self.now = max(self.now, leaves + 1)

        return Message(self, ("isend", dst), done)

    def irecv(self, tensor, src):
        self._check("irecv", tensor, src)
        tensor.fill_(-77)

        def done():
            letter, leaves = self.network.take(src, self.rank)
            where = f"rank {self.rank}, from {src}"
            assert letter.shape == tensor.shape, f"{where}: {letter.shape} into {tensor.shape}"
            assert letter.dtype == tensor.dtype, f"{where}: {letter.dtype} into {tensor.dtype}"
            tensor.copy_(letter)
            self._receives_until = max(leaves, self._receives_until) + 1
            self.now = max(self.now, self._receives_until)

        return Message(self, ("irecv", src), done)

    def _check(self, op, tensor, peer):
        who = f"rank {self.rank} of {self.network.world}: {op}"
        assert 0 <= peer < self.network.world, f"{who}: there is no rank {peer}"
        assert peer != self.rank, f"{who}: to itself"
        assert tensor.is_contiguous(), f"{who}: expected a contiguous tensor"


class Message:
    """A message under way."""

    def __init__(self, port, told, done):
        self.port, self.told, self.done = port, told, done
        port.unfinished.append(self)
        port.network.log[port.rank].append(told)

    def wait(self):
        assert self in self.port.unfinished, f"rank {self.port.rank}: waited twice for {self.told}"
        self.port.unfinished.remove(self)
        self.done()
        op, peer = self.told
        self.port.network.log[self.port.rank].append((f"wait_{op}", peer))


def tensors(*, world, shape, dtype, seed):
    """Draw one tensor a rank: N(0, 1), or integers; int64 ones need more than float64 has."""
    generator = torch.Generator().manual_seed(seed)
    drawn = (world, *shape)
    if dtype.is_floating_point:
        return list(torch.randn(drawn, generator=generator, dtype=torch.float64).to(dtype))
    integers = torch.randint(-(2**20), 2**20, drawn, generator=generator).to(dtype)
    return list(integers + 2**54 if dtype == torch.int64 else integers)


def tree_sum(tensors):
    """Add up as the tree does: subtree sizes double, each is added to what lies before it."""
    sums = [one.clone() for one in tensors]
    step = 1
    while step < len(sums):
        for rank in range(0, len(sums) - step, 2 * step):
            sums[rank] = sums[rank] + sums[rank + step]
        step *= 2
    return sums[0]


def rounds(n):
    """Smallest number of doublings that make n or more of 1."""
    count = 0
    while 2**count < n:
        count += 1
    return count


def ring_seconds(nbytes, n, alpha, bw):
    """Send the ring's messages, one step after the other, there and back."""
    message = Fraction(alpha) + Fraction(nbytes) / n / Fraction(bw)
    return message * (n - 1) + message * (n - 1)


def tree_seconds(nbytes, n, alpha, bw, chunks=1):
    """Let the last chunk go through all levels, after the others have begun before it."""
    if n == 1:
        return Fraction(0)
    message = Fraction(alpha) + Fraction(nbytes) / chunks / Fraction(bw)
    return message * (chunks - 1) + message * rounds(n) * 2


def crossover(n, alpha, bw):
    """Halve the interval in which the ring becomes faster."""
    low, high = Fraction(0), Fraction(2**60)
    if n == 1:
        return low
    for _ in range(200):
        middle = (low + high) / 2
        faster = tree_seconds(middle, n, alpha, bw) < ring_seconds(middle, n, alpha, bw)
        low, high = (middle, high) if faster else (low, middle)
    return high


def fit(points):
    """Latency and bandwidth with the least squared relative errors, by normal equations."""
    exact = [(Fraction(size), Fraction(seconds)) for size, seconds in points]
    ones, mixed, squares, right, right_size = (
        sum(term(s, t) for s, t in exact)
        for term in (
            lambda _, t: 1 / t**2,
            lambda s, t: s / t**2,
            lambda s, t: s**2 / t**2,
            lambda _, t: 1 / t,
            lambda s, t: s / t,
        )
    )
    determinant = ones * squares - mixed**2
    alpha = (right * squares - right_size * mixed) / determinant
    slope = (ones * right_size - mixed * right) / determinant
    return float(alpha), float(1 / slope)


def measured(ranks):
    """(bytes, seconds) of NCCL's all-reduce on so many H200s, without NVLink SHARP."""
    path = Path(__file__).parent / "data" / "nccl_all_reduce_h200.json"
    return [tuple(row) for row in json.loads(path.read_text(encoding="utf-8"))[str(ranks)]]
