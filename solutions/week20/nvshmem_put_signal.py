"""Kata week20/nvshmem_put_signal: one-sided puts, and the signals and fences that order them."""

from collections.abc import Iterator
from typing import Protocol

from numpy import concatenate, ndarray, zeros


class Pe(Protocol):
    """
    One processing element, and what it can ask of the others.

    Attributes:
        rank: Which one it is, from 0.
        n: How many there are.
    """

    rank: int
    n: int

    def size(self, name: str) -> int:
        """How many elements a buffer has, on every PE the same."""

    def load(self, name: str, start: int, stop: int) -> ndarray:
        """Copy of elements of an own buffer."""

    def store(self, name: str, start: int, values: ndarray) -> None:
        """Write to an own buffer."""

    def stencil(self, values: ndarray) -> ndarray:
        """One step: from left halo, own cells and right halo to the own cells."""

    def put_nbi(self, dst: str, offset: int, src: str, start: int, stop: int, to: int) -> None:
        """Begin to copy src[start:stop] from here to dst[offset:] of PE `to`."""

    def put_signal_nbi(
        self, dst: str, offset: int, src: str, start: int, stop: int, to: int, sig: str, value: int
    ) -> None:
        """Begin the same, and set signal `sig` of PE `to` once these elements are there."""

    def signal(self, sig: str, value: int, to: int) -> None:
        """Begin to set signal `sig` of PE `to`."""

    def fence(self) -> None:
        """Let nothing begun later reach a PE before what was begun earlier for the same PE."""

    def quiet(self) -> object:
        """To be yielded: wait until all that was begun here has arrived."""

    def wait_until(self, sig: str, cmp: str, value: int) -> object:
        """To be yielded: wait until an own signal is "eq", "ge" or "gt" the value."""

    def compute(self, slot: int) -> object:
        """To be yielded: multiply the tile that this slot of "tiles" holds."""

    def barrier_all(self) -> object:
        """To be yielded: wait until all PEs are here, and all that was begun has arrived."""


def ring_all_gather(pe: Pe) -> Iterator[object]:
    """Gather the "x" of all PEs in "out", block by block around the ring."""
    # pass on the newest block
    count = pe.size("x")
    pe.store("out", pe.rank * count, pe.load("x", 0, count))
    for step in range(1, pe.n):
        block = (pe.rank - step + 1) % pe.n * count
        # the signal must not fall back when two of these are under way
        pe.fence()
        right = (pe.rank + 1) % pe.n
        pe.put_signal_nbi("out", block, "out", block, block + count, right, "ring", step)
        yield pe.wait_until("ring", "ge", step)


def halo_exchange(pe: Pe, steps: int) -> Iterator[object]:
    """Take `steps` steps of the stencil on "u", with the neighbours' edges as halos."""
    # send both edges
    cells, width = pe.size("u"), pe.size("from_left") // 2
    has_left, has_right = pe.rank > 0, pe.rank < pe.n - 1
    left = right = zeros(width)
    for step in range(steps):
        # what a neighbour sends for one step says that it has read the slot of the step before
        slot = step % 2 * width
        if has_left:
            pe.put_signal_nbi("from_right", slot, "u", 0, width, pe.rank - 1, "right", step + 1)
        if has_right:
            pe.put_signal_nbi(
                "from_left", slot, "u", cells - width, cells, pe.rank + 1, "left", step + 1
            )
        # wait for both halos
        if has_left:
            yield pe.wait_until("left", "ge", step + 1)
            left = pe.load("from_left", slot, slot + width)
        if has_right:
            yield pe.wait_until("right", "ge", step + 1)
            right = pe.load("from_right", slot, slot + width)
        # step and store safely
        new = pe.stencil(concatenate([left, pe.load("u", 0, cells), right]))
        yield pe.quiet()
        pe.store("u", 0, new)


def tiled_matmul_all_gather(pe: Pe, tiles: int) -> Iterator[object]:
    """Multiply the tiles of all PEs while they are gathered."""
    # send the own tiles
    size = pe.size("tiles") // (pe.n * tiles)
    own = pe.rank * tiles
    for distance in range(1, pe.n):
        to = (pe.rank + distance) % pe.n
        for slot in range(own, own + tiles):
            at = slot * size
            pe.put_signal_nbi("tiles", at, "tiles", at, at + size, to, f"tile {slot}", 1)
    # multiply as they arrive
    for distance in range(pe.n):
        first = (pe.rank - distance) % pe.n * tiles
        for slot in range(first, first + tiles):
            if distance:
                yield pe.wait_until(f"tile {slot}", "eq", 1)
            yield pe.compute(slot)
