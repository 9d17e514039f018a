"""Kata week06/paged_kv_allocator: who holds which block of a KV cache, and who may write to it."""

from collections.abc import Hashable
from dataclasses import dataclass
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


@dataclass(slots=True)
class _Sequence:
    """Tokens of a sequence, and the blocks that hold them, all full but perhaps the last."""

    length: int
    blocks: list[int]


class BlockManager:
    """
    Hands out the blocks of a KV cache to sequences that grow, fork and end.

    Block b is the slots from b * block_size on, one slot per token. It moves no keys or values:
    that is the engine's work, told in what `append` returns.

    Raises:
        ValueError: `n_blocks` or `block_size` is below 1.
    """

    def __init__(self, n_blocks: int, block_size: int) -> None:
        # check
        if n_blocks < 1:
            raise ValueError(f"n_blocks: expected 1 or more, found {n_blocks}")
        if block_size < 1:
            raise ValueError(f"block_size: expected 1 or more, found {block_size}")
        # pool of blocks
        self._block_size = block_size
        self._holders = [0] * n_blocks  # of each block: the sequences whose table has it
        self._free = [*range(n_blocks)]  # a stack
        self._sequences: dict[Hashable, _Sequence] = {}

    @property
    def n_free(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._free)

    def allocate(self, seq: Hashable, n_tokens: int) -> None:
        """
        Take in a sequence of `n_tokens`, with as few blocks of its own as hold them.

        Raises:
            ValueError: `seq` is there already, or `n_tokens` is below 1; the message names which.
            OutOfBlocks: fewer blocks are free than that takes.
        """
        # check
        self._check_new(seq)
        if n_tokens < 1:
            raise ValueError(f"n_tokens: expected 1 or more, found {n_tokens}")
        # take blocks
        needed = -(-n_tokens // self._block_size)
        self._check_free(needed)
        self._sequences[seq] = _Sequence(n_tokens, [self._take() for _ in range(needed)])

    def append(self, seq: Hashable) -> Write:
        """
        Make room for one more token, in a block that nobody else holds.

        Raises:
            KeyError: there is no `seq`.
            OutOfBlocks: that takes another block, and none is free.
        """
        # copy on write
        sequence = self._sequences[seq]
        offset = sequence.length % self._block_size
        last = sequence.blocks[-1]
        copy = None
        if offset == 0:  # the last block is full, so it is never written again: shared or not
            self._check_free(1)
            sequence.blocks.append(self._take())
        elif self._holders[last] > 1:
            self._check_free(1)
            sequence.blocks[-1] = self._take()
            self._holders[last] -= 1
            copy = last, sequence.blocks[-1]
        sequence.length += 1
        return Write(sequence.blocks[-1] * self._block_size + offset, copy)

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """
        Take in `child` with the tokens of `parent`, and with its blocks instead of copies.

        Raises:
            KeyError: there is no `parent`.
            ValueError: `child` is there already.
        """
        # check
        sequence = self._sequences[parent]
        self._check_new(child)
        # share and give back
        for block in sequence.blocks:
            self._holders[block] += 1
        self._sequences[child] = _Sequence(sequence.length, sequence.blocks.copy())

    def free(self, seq: Hashable) -> None:
        """
        Let a sequence go, and with it the blocks that it was the last to hold.

        Raises:
            KeyError: there is no `seq`.
        """
        # share and give back
        for block in self._sequences.pop(seq).blocks:
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free.append(block)

    def block_table(self, seq: Hashable) -> list[int]:
        """
        List the blocks of a sequence in the order of its tokens; the list is the caller's.

        Raises:
            KeyError: there is no `seq`.
        """
        return self._sequences[seq].blocks.copy()

    def slot_mapping(self, seq: Hashable) -> Int64[np.ndarray, " n"]:
        """
        Give the slot of each token of a sequence, in order.

        Raises:
            KeyError: there is no `seq`.
        """
        # slots and waste
        sequence = self._sequences[seq]
        tokens = np.arange(sequence.length)
        blocks = np.array(sequence.blocks)
        return blocks[tokens // self._block_size] * self._block_size + tokens % self._block_size

    def waste(self) -> float:
        """Share of the slots in blocks that are held that have no token; 0 while none is held."""
        # slots and waste
        held = len(self._holders) - len(self._free)
        # who shares a last block has as many tokens in it, so each block has one count
        empty = {
            sequence.blocks[-1]: -sequence.length % self._block_size
            for sequence in self._sequences.values()
        }
        return sum(empty.values()) / (held * self._block_size) if held else 0.0

    def _take(self) -> int:
        block = self._free.pop()
        self._holders[block] += 1
        return block

    def _check_new(self, seq: Hashable) -> None:
        if seq in self._sequences:
            raise ValueError(f"expected a new sequence, found {seq!r}, which has not been freed")

    def _check_free(self, needed: int) -> None:
        if needed > len(self._free):
            raise OutOfBlocks(f"expected {needed} free blocks, found {len(self._free)}")
