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
    # TODO(kata): set up, slots and credit, wait until it is over (about 40 lines)
    raise NotImplementedError


def stream_recv(end: End, blocks: int, size: int) -> Iterator[object]:
    """Receive the blocks of `stream_send` in "ring", and deliver them in order."""
    raise NotImplementedError  # TODO(kata): set up, slots and credit (about 20 lines)


def rendezvous_send(end: End) -> Iterator[object]:
    """Offer all of "data", and return when the other side has read it."""
    # TODO(kata): set up, offer the data, wait until it is over (about 15 lines)
    raise NotImplementedError


def rendezvous_recv(end: End) -> Iterator[object]:
    """Read what `rendezvous_send` offers into the beginning of "inbox"."""
    # TODO(kata): set up, read in parts, wait until it is over (about 25 lines)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): times (about 15 lines with helpers)


def gpudirect_time(nbytes: int, pcie: float, nic: float) -> float:
    """
    Seconds from GPU to GPU when the NICs read and write the GPUs' memory.

    Raises:
        ValueError: As `bounce_time`.
    """
    raise NotImplementedError  # TODO(kata): times (2 lines)
