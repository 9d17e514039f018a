"""Kata week20/rdma_queue_pair: verbs between two hosts, and what a bounce through memory costs."""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Protocol

from numpy import ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Wr:
    """
    A work request for the send queue.

    Attributes:
        op: "SEND", "WRITE", "WRITE_IMM" or "READ".
        lkey: Key of the own elements lo to hi, not included; None for no elements.
        rkey: The other side's key, for "WRITE", "WRITE_IMM" and "READ".
        at: The first element there, counted from the beginning of its buffer.
        imm: An int that the completion of the receive has; "WRITE_IMM" must, "SEND" may have one.
        signaled: Whether it gives a completion.
        fence: Whether it begins only when all earlier READs of this queue have ended.
        wr_id: Yours; its completion has it.
    """

    op: str
    lkey: int | None = None
    lo: int = 0
    hi: int = 0
    rkey: int | None = None
    at: int = 0
    imm: int | None = None
    signaled: bool = False
    fence: bool = False
    wr_id: int = 0


class Wc(Protocol):
    """A work completion: what has ended ("RECV" for a receive), and the int that came with it."""

    op: str
    imm: int | None
    wr_id: int


class Mr(Protocol):
    """A registered range of a buffer, with the keys for this side and for the other."""

    lkey: int
    rkey: int


class Qp(Protocol):
    """A reliable connected queue pair: a send queue and a receive queue of `end.depth` places."""

    number: int

    def modify(self, state: str, peer: int | None = None) -> None:
        """RESET to INIT, INIT to RTR with the number of the other side's pair, RTR to RTS."""

    def post_recv(self, lkey: int | None = None, lo: int = 0, hi: int = 0, wr_id: int = 0) -> None:
        """Take a place in the receive queue, with room for elements, or for none."""

    def post_send(self, wr: Wr) -> None:
        """Take a place in the send queue."""

    def next_sent(self) -> object:
        """To be yielded: wait for the next completion of the send queue, a Wc."""

    def next_received(self) -> object:
        """To be yielded: wait for the next completion of the receive queue, a Wc."""


class End(Protocol):
    """
    One host with its NIC.

    Attributes:
        depth: Places of a send queue, and of a receive queue.
        max_read: The most elements that one READ may fetch.
    """

    depth: int
    max_read: int

    def size(self, name: str) -> int:
        """How many elements an own buffer has."""

    def load(self, name: str, lo: int, hi: int) -> ndarray:
        """Copy of elements of a buffer in host memory."""

    def store(self, name: str, lo: int, values: ndarray) -> None:
        """Write to a buffer in host memory."""

    def copy(self, dst: str, at: int, src: str, lo: int, hi: int) -> None:
        """Copy between two own buffers, in host or GPU memory; done when it returns."""

    def block(self, index: int) -> ndarray:
        """The block of that index, to be sent."""

    def deliver(self, values: ndarray) -> None:
        """Hand over a block that has been received."""

    def register(self, name: str, lo: int, hi: int, access: Set[str] = frozenset()) -> Mr:
        """Register a range: "LOCAL_WRITE", "REMOTE_READ", "REMOTE_WRITE"; reading it is free."""

    def deregister(self, mr: Mr) -> None:
        """The keys are void from now on."""

    def create_qp(self) -> Qp:
        """A queue pair in RESET."""

    def tell(self, value: object) -> None:
        """Once: hand a value to the other side over a socket."""

    def hear(self) -> object:
        """To be yielded: wait for what the other side tells."""


def stream_send(end: End, blocks: int, size: int) -> Iterator[object]:
    """Send blocks 0 to `blocks` - 1, of `size` elements each, through "staging"."""
    # set up
    slots = min(end.size("staging") // size, end.depth)
    batch = max(1, slots // 2)
    qp = end.create_qp()
    qp.modify("INIT")
    for _ in range(end.depth):
        qp.post_recv()
    end.tell(qp.number)
    peer, rkey, credit = yield end.hear()
    qp.modify("RTR", peer)
    qp.modify("RTS")
    source = end.register("staging", 0, slots * size)
    # slots and credit
    free, window = slots, credit
    for block in range(blocks):
        if not free:
            yield qp.next_sent()
            free += batch
        if not credit:
            credit += (yield qp.next_received()).imm
            qp.post_recv()
        lo = block % slots * size
        end.store("staging", lo, end.block(block))
        last = block == blocks - 1
        write = Wr(
            op="WRITE_IMM",
            lkey=source.lkey,
            lo=lo,
            hi=lo + size,
            rkey=rkey,
            at=block % window * size,
            imm=block,
            signaled=block % batch == batch - 1 or last,
            wr_id=block,
        )
        qp.post_send(write)
        free -= 1
        credit -= 1
    # wait until it is over
    done = blocks == 0
    while not done:
        done = (yield qp.next_sent()).wr_id == blocks - 1
    end.deregister(source)


def stream_recv(end: End, blocks: int, size: int) -> Iterator[object]:
    """Receive the blocks of `stream_send` in "ring", and deliver them in order."""
    # set up
    slots = min(end.size("ring") // size, end.depth)
    batch = max(1, slots // 2)
    qp = end.create_qp()
    qp.modify("INIT")
    ring = end.register("ring", 0, slots * size, {"LOCAL_WRITE", "REMOTE_WRITE"})
    for _ in range(slots):
        qp.post_recv()
    qp.modify("RTR", (yield end.hear()))
    end.tell((qp.number, ring.rkey, slots))
    qp.modify("RTS")
    # slots and credit
    for block in range(blocks):
        yield qp.next_received()
        lo = block % slots * size
        end.deliver(end.load("ring", lo, lo + size))
        # the credit below promises that a receive is there
        qp.post_recv()
        if block % batch == batch - 1:
            if block >= batch:
                yield qp.next_sent()
            qp.post_send(Wr(op="SEND", imm=batch, signaled=True))
    end.deregister(ring)


def rendezvous_send(end: End) -> Iterator[object]:
    """Offer all of "data", and return when the other side has read it."""
    # set up
    qp = end.create_qp()
    qp.modify("INIT")
    qp.post_recv()
    end.tell(qp.number)
    qp.modify("RTR", (yield end.hear()))
    qp.modify("RTS")
    # offer the data
    data = end.register("data", 0, end.size("data"), {"REMOTE_READ"})
    header = end.register("header", 0, 2)
    end.store("header", 0, [data.rkey, end.size("data")])
    qp.post_send(Wr(op="SEND", lkey=header.lkey, hi=2, signaled=True))
    yield qp.next_sent()
    end.deregister(header)
    # wait until it is over
    yield qp.next_received()
    end.deregister(data)


def rendezvous_recv(end: End) -> Iterator[object]:
    """Read what `rendezvous_send` offers into the beginning of "inbox"."""
    # set up
    qp = end.create_qp()
    qp.modify("INIT")
    header = end.register("header", 0, 2, {"LOCAL_WRITE"})
    qp.post_recv(header.lkey, 0, 2)
    qp.modify("RTR", (yield end.hear()))
    end.tell(qp.number)
    qp.modify("RTS")
    yield qp.next_received()
    rkey, size = end.load("header", 0, 2)
    end.deregister(header)
    # read in parts
    inbox = end.register("inbox", 0, size, {"LOCAL_WRITE"})
    places = end.depth
    for lo in range(0, size, end.max_read):
        if not places:
            yield qp.next_sent()
            places += 1
        hi = min(lo + end.max_read, size)
        qp.post_send(Wr(op="READ", lkey=inbox.lkey, lo=lo, hi=hi, rkey=rkey, at=lo, signaled=True))
        places -= 1
    if not places:
        yield qp.next_sent()
    # wait until it is over
    # without the fence the news may arrive before the last elements have left
    qp.post_send(Wr(op="SEND", signaled=True, fence=True))
    while (yield qp.next_sent()).op == "READ":
        pass
    end.deregister(inbox)


def bounce_time(nbytes: int, chunk: int, pcie: float, nic: float, dram: float) -> float:
    """
    Seconds from GPU to GPU through host memory on both sides, in chunks.

    A chunk is copied to the host, sent, and copied to the other GPU; the three overlap for
    different chunks, each takes one chunk at a time, and the last chunk may be shorter. Rates in
    bytes/s; each host's memory, of rate `dram`, is written and read at the same time.

    Raises:
        ValueError: `nbytes` is negative, `chunk` below 1, or a rate is not positive. The message
            begins with the argument's name.
    """
    # times
    _check_rates(nbytes=nbytes, chunk=chunk, pcie=pcie, nic=nic, dram=dram)
    rates = [min(rate, dram / 2) for rate in (pcie, nic, pcie)]
    ends = [0.0] * 3
    for at in range(0, nbytes, chunk):
        before = 0.0
        for stage, rate in enumerate(rates):
            before = ends[stage] = max(before, ends[stage]) + min(chunk, nbytes - at) / rate
    return ends[-1]


def gpudirect_time(nbytes: int, pcie: float, nic: float) -> float:
    """
    Seconds from GPU to GPU when the NICs read and write the GPUs' memory.

    Raises:
        ValueError: As `bounce_time`.
    """
    _check_rates(nbytes=nbytes, pcie=pcie, nic=nic)
    return nbytes / min(pcie, nic)


def _check_rates(nbytes: int, chunk: int = 1, **rates: float) -> None:
    if nbytes < 0:
        raise ValueError(f"nbytes: expected 0 or more, found {nbytes}")
    if chunk < 1:
        raise ValueError(f"chunk: expected 1 or more, found {chunk}")
    for name, rate in rates.items():
        if not rate > 0:
            raise ValueError(f"{name}: expected a positive rate, found {rate}")
