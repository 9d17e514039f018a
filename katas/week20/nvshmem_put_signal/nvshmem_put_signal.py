"""Kata week20/nvshmem_put_signal: one-sided puts, and the signals and fences that order them."""

from collections.abc import Iterator
from typing import Protocol

from numpy import ndarray


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
    raise NotImplementedError  # TODO(kata): pass on the newest block (about 8 lines)


def halo_exchange(pe: Pe, steps: int) -> Iterator[object]:
    """Take `steps` steps of the stencil on "u", with the neighbours' edges as halos."""
    # TODO(kata): send both edges, wait for both halos, step and store safely (about 20 lines)
    raise NotImplementedError


def tiled_matmul_all_gather(pe: Pe, tiles: int) -> Iterator[object]:
    """Multiply the tiles of all PEs while they are gathered."""
    # TODO(kata): send the own tiles, multiply as they arrive (about 15 lines)
    raise NotImplementedError
