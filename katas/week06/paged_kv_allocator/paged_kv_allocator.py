"""Kata week06/paged_kv_allocator: who holds which block of a KV cache, and who may write to it."""

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64


class OutOfBlocks(RuntimeError):
    """Too few blocks are free for what was asked; nothing has changed."""


class Write(NamedTuple):
    """
    Where the next token's keys and values go.

    `copy` is what the engine has to do first: `(source, destination)`, two blocks of which the
    first is copied to the second. Mostly it is None.
    """

    slot: int
    copy: tuple[int, int] | None


class BlockManager:
    """
    Hands out the blocks of a KV cache to sequences that grow, fork and end.

    Block b is the slots from b * block_size on, one slot per token. It moves no keys or values:
    that is the engine's work, told in what `append` returns.

    Raises:
        ValueError: `n_blocks` or `block_size` is below 1.
    """

    def __init__(self, n_blocks: int, block_size: int) -> None:
        raise NotImplementedError  # TODO(kata): check, pool of blocks (about 10 lines with helpers)

    @property
    def n_free(self) -> int:
        """Blocks that no sequence holds."""
        raise NotImplementedError  # TODO(kata): (1 line)

    def allocate(self, seq: Hashable, n_tokens: int) -> None:
        """
        Take in a sequence of `n_tokens`, with as few blocks of its own as hold them.

        Raises:
            ValueError: `seq` is there already, or `n_tokens` is below 1; the message names which.
            OutOfBlocks: fewer blocks are free than that takes.
        """
        raise NotImplementedError  # TODO(kata): check, take blocks (about 15 lines with helpers)

    def append(self, seq: Hashable) -> Write:
        """
        Make room for one more token, in a block that nobody else holds.

        Raises:
            KeyError: there is no `seq`.
            OutOfBlocks: that takes another block, and none is free.
        """
        raise NotImplementedError  # TODO(kata): copy on write (about 15 lines)

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """
        Take in `child` with the tokens of `parent`, and with its blocks instead of copies.

        Raises:
            KeyError: there is no `parent`.
            ValueError: `child` is there already.
        """
        raise NotImplementedError  # TODO(kata): check, share and give back (about 5 lines)

    def free(self, seq: Hashable) -> None:
        """
        Let a sequence go, and with it the blocks that it was the last to hold.

        Raises:
            KeyError: there is no `seq`.
        """
        raise NotImplementedError  # TODO(kata): share and give back (about 4 lines)

    def block_table(self, seq: Hashable) -> list[int]:
        """
        List the blocks of a sequence in the order of its tokens; the list is the caller's.

        Raises:
            KeyError: there is no `seq`.
        """
        raise NotImplementedError  # TODO(kata): (1 line)

    def slot_mapping(self, seq: Hashable) -> Int64[np.ndarray, " n"]:
        """
        Give the slot of each token of a sequence, in order.

        Raises:
            KeyError: there is no `seq`.
        """
        raise NotImplementedError  # TODO(kata): slots and waste (about 4 lines)

    def waste(self) -> float:
        """Share of the slots in blocks that are held that have no token; 0 while none is held."""
        raise NotImplementedError  # TODO(kata): slots and waste (about 6 lines)
