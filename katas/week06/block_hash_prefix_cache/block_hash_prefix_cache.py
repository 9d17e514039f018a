"""Kata week06/block_hash_prefix_cache: blocks of a KV cache, found again by what they hold."""

from collections.abc import Callable, Hashable, Iterable, Sequence

HashFn = Callable[[int | None, tuple[int, ...], tuple[Hashable, ...]], int]


class OutOfBlocks(RuntimeError):
    """Too few blocks are free for what was asked; nothing has changed."""


def block_hash(
    parent_hash: int | None, tokens: Sequence[int], extra: Sequence[Hashable] = ()
) -> int:
    """
    Hash a full block: its tokens, all tokens before it, and what else its keys depend on.

    `parent_hash` is the hash of the block before it, None for the first. `extra` is what makes the
    same tokens give other keys and values: an adapter, an image. Equal in one process, at least.
    """
    raise NotImplementedError  # TODO(kata): a chain (1 line)


class PrefixBlockManager:
    """
    Hands out the blocks of a KV cache, and the same full block to all that begin with its tokens.

    A block that nobody holds is free, and keeps its content until it is handed out again.

    Args:
        n_blocks: Blocks in the pool.
        block_size: Tokens in a block.
        hash_fn: What to call instead of `block_hash`. It may collide.

    Raises:
        ValueError: `n_blocks` or `block_size` is below 1.
    """

    def __init__(self, n_blocks: int, block_size: int, hash_fn: HashFn = block_hash) -> None:
        raise NotImplementedError  # TODO(kata): check (about 20 lines with helpers)

    @property
    def n_free(self) -> int:
        """Blocks that no sequence holds, with or without content."""
        raise NotImplementedError  # TODO(kata): (1 line)

    def allocate(self, seq: Hashable, tokens: Sequence[int], extra: Sequence[Hashable] = ()) -> int:
        """
        Take in a sequence and return how many of its first tokens need not be computed.

        At least one token does: the model has to run to give the next.

        Raises:
            ValueError: `seq` is there already, or there are no `tokens`; the message names which.
            OutOfBlocks: fewer blocks are free, besides those found, than it takes.
        """
        # TODO(kata): check, find by content, hold and take, fill (about 60 lines with helpers)
        raise NotImplementedError

    def append(self, seq: Hashable, token: int) -> None:
        """
        Add a token to a sequence. A block that it fills can be found from then on.

        Raises:
            KeyError: there is no `seq`.
            OutOfBlocks: that takes another block, and none is free.
        """
        raise NotImplementedError  # TODO(kata): check, hold and take, fill (about 10 lines)

    def free(self, seq: Hashable) -> None:
        """
        Let a sequence go; blocks that are no longer held queue up, the last one first.

        Raises:
            KeyError: there is no `seq`.
        """
        raise NotImplementedError  # TODO(kata): give back (about 4 lines)

    def block_table(self, seq: Hashable) -> list[int]:
        """
        List the blocks of a sequence in the order of its tokens; the list is the caller's.

        Raises:
            KeyError: there is no `seq`.
        """
        raise NotImplementedError  # TODO(kata): (1 line)


def shareable_tokens(requests: Iterable[Sequence[int]], granularity: int) -> int:
    """
    Count the prompt tokens that an earlier request has cached, if nothing is ever evicted.

    Prefixes are shared in whole units of `granularity` tokens: 1 as in a radix tree, 16 as in
    blocks of 16.

    Raises:
        ValueError: `granularity` is below 1.
    """
    raise NotImplementedError  # TODO(kata): check, prefix tree (about 10 lines)


def order(requests: Sequence[Sequence[int]], cached: Sequence[Sequence[int]] = ()) -> list[int]:
    """
    Return the positions of the requests in an order in which a small cache serves them well.

    That is a depth-first walk of their prefix tree: those that share a prefix are served in a row.
    At each fork those come first that go on as one of the token lists in `cached` does.
    """
    raise NotImplementedError  # TODO(kata): prefix tree (about 7 lines with helpers)
