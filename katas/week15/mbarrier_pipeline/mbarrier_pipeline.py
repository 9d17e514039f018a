"""Kata week15/mbarrier_pipeline: one producer, some consumers, and two mbarriers a stage."""

from collections.abc import Iterator, Sequence
from typing import Protocol


class Barrier(Protocol):
    """An mbarrier of the block, as `MBarrier` says, that an agent can also wait for."""

    def arrive(self, n: int = 1) -> None:
        """Count `n` arrivals."""

    def expect_tx(self, nbytes: int) -> None:
        """Announce bytes."""

    def wait(self, parity: int) -> object:
        """To be yielded: wait until the phase of this parity has ended."""


class Block(Protocol):
    """
    What the agents of a block share.

    Attributes:
        stages: Slots of the ring.
        operand_bytes: How many bytes each operand of a tile has.
        full: A barrier for each stage; a phase takes one arrival, and the bytes announced.
        empty: A barrier for each stage; a phase takes one arrival of each consumer.
    """

    stages: int
    operand_bytes: Sequence[int]
    full: Sequence[Barrier]
    empty: Sequence[Barrier]

    def tma_load(self, operand: int, stage: int, tile: int, barrier: Barrier) -> None:
        """Begin to copy an operand of a tile; when it lands its bytes count on `barrier`."""

    def mma(self, stage: int) -> object:
        """To be yielded: multiply what the stage holds."""


class MBarrier:
    """
    Phases that end once all arrivals and all announced bytes are in.

    The phases count from 0; whoever waits names one by its parity. A phase starts with `count`
    arrivals missing and no bytes announced.

    Raises:
        ValueError: `count` is below 1; the message begins with its name.

    Source: PTX ISA, mbarrier.
    """

    def __init__(self, count: int) -> None:
        # TODO(kata): check, count arrivals and bytes (about 7 lines with helpers)
        raise NotImplementedError

    def arrive(self, n: int = 1) -> None:
        """
        Count `n` arrivals in this phase.

        Raises:
            ValueError: `n` is below 1; the message begins with its name.
            RuntimeError: fewer arrivals are missing; then nothing has changed.
        """
        # TODO(kata): check, count arrivals and bytes, end the phase (about 9 lines with helpers)
        raise NotImplementedError

    def expect_tx(self, nbytes: int) -> None:
        """Announce that so many bytes more will land in this phase; that is no arrival."""
        raise NotImplementedError  # TODO(kata): (2 lines)

    def complete_tx(self, nbytes: int) -> None:
        """Count bytes that have landed, announced before or not."""
        raise NotImplementedError  # TODO(kata): (2 lines)

    def test_wait(self, parity: int) -> bool:
        """
        Whether the latest phase of this parity has ended.

        Of a new barrier the phase before the first, of parity 1, counts as ended.

        Raises:
            ValueError: `parity` is neither 0 nor 1; the message begins with its name.
        """
        raise NotImplementedError  # TODO(kata): (about 5 lines with helpers)


class PipelineState:
    """
    Where an agent is in a ring of stages.

    Attributes:
        index: The stage, from 0.
        phase: The parity that it waits for in this round.

    Raises:
        ValueError: `stages` is below 1, or `phase` neither 0 nor 1; the message begins with its
            name.

    Source: CUTLASS, PipelineState.
    """

    def __init__(self, stages: int, phase: int = 0) -> None:
        raise NotImplementedError  # TODO(kata): check, place in the ring (about 5 lines)

    def advance(self) -> None:
        """Go on to the next stage, after the last one to the first of the next round."""
        raise NotImplementedError  # TODO(kata): place in the ring (about 4 lines)


def producer(p: Block, tiles: int) -> Iterator[object]:
    """Load tiles 0 … `tiles` - 1 into the stages in turn, each as soon as its stage is empty."""
    raise NotImplementedError  # TODO(kata): place in the ring, fill an empty stage (about 9 lines)


def consumer(p: Block, wid: int, tiles: int) -> Iterator[object]:
    """Multiply tiles 0 … `tiles` - 1, each as soon as it is there; consumer `wid` of several."""
    raise NotImplementedError  # TODO(kata): place in the ring, release a full stage (about 6 lines)
