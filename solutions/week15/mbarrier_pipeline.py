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
        # check
        _check_at_least(1, "count", count)
        # count arrivals and bytes
        self._count = self._missing = count
        self._tx = 0  # bytes announced that have not landed; below 0 where they came first
        self._phase = 0

    def arrive(self, n: int = 1) -> None:
        """
        Count `n` arrivals in this phase.

        Raises:
            ValueError: `n` is below 1; the message begins with its name.
            RuntimeError: fewer arrivals are missing; then nothing has changed.
        """
        # check
        _check_at_least(1, "n", n)
        if n > self._missing:
            raise RuntimeError(f"arrive: expected at most {self._missing} arrivals, found {n}")
        # count arrivals and bytes
        self._missing -= n
        self._flip()

    def expect_tx(self, nbytes: int) -> None:
        """Announce that so many bytes more will land in this phase; that is no arrival."""
        self._tx += nbytes
        self._flip()

    def complete_tx(self, nbytes: int) -> None:
        """Count bytes that have landed, announced before or not."""
        self._tx -= nbytes
        self._flip()

    def test_wait(self, parity: int) -> bool:
        """
        Whether the latest phase of this parity has ended.

        Of a new barrier the phase before the first, of parity 1, counts as ended.

        Raises:
            ValueError: `parity` is neither 0 nor 1; the message begins with its name.
        """
        _check_bit("parity", parity)
        return self._phase != parity

    def _flip(self) -> None:
        # end the phase
        if self._missing == 0 and self._tx == 0:
            self._phase ^= 1
            self._missing = self._count


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
        # check
        _check_at_least(1, "stages", stages)
        _check_bit("phase", phase)
        # place in the ring
        self._stages = stages
        self.index = 0
        self.phase = phase

    def advance(self) -> None:
        """Go on to the next stage, after the last one to the first of the next round."""
        # place in the ring
        self.index += 1
        if self.index == self._stages:
            self.index = 0
            self.phase ^= 1


def producer(p: Block, tiles: int) -> Iterator[object]:
    """Load tiles 0 … `tiles` - 1 into the stages in turn, each as soon as its stage is empty."""
    # place in the ring
    state = PipelineState(p.stages, phase=1)  # nobody has to empty a new stage
    for tile in range(tiles):
        # fill an empty stage
        full = p.full[state.index]
        yield p.empty[state.index].wait(state.phase)
        full.expect_tx(sum(p.operand_bytes))
        full.arrive()
        for operand in range(len(p.operand_bytes)):
            p.tma_load(operand, state.index, tile, full)
        state.advance()


def consumer(p: Block, wid: int, tiles: int) -> Iterator[object]:
    """Multiply tiles 0 … `tiles` - 1, each as soon as it is there; consumer `wid` of several."""
    # place in the ring
    state = PipelineState(p.stages)
    for _ in range(tiles):
        # release a full stage
        yield p.full[state.index].wait(state.phase)
        yield p.mma(state.index)
        p.empty[state.index].arrive()
        state.advance()


def _check_at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise ValueError(f"{name}: expected {least} or more, found {value}")


def _check_bit(name: str, value: int) -> None:
    if value not in (0, 1):
        raise ValueError(f"{name}: expected 0 or 1, found {value}")
