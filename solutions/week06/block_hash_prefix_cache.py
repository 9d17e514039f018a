"""Kata week06/block_hash_prefix_cache: blocks of a KV cache, found again by what they hold."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

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
    return hash((parent_hash, tuple(tokens), tuple(extra)))


@dataclass(slots=True, eq=False, kw_only=True)
class _Content:
    """What a full block holds, and after what: a chain back to the first block."""

    parent: "_Content | None"
    tokens: tuple[int, ...]
    extra: tuple[Hashable, ...]
    hash: int


@dataclass(slots=True, kw_only=True)
class _Sequence:
    """Blocks of a sequence, the content of the last full one, and the tokens behind it."""

    blocks: list[int]
    tip: _Content | None
    tail: list[int]
    extra: tuple[Hashable, ...]


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
        # check
        if n_blocks < 1:
            raise ValueError(f"n_blocks: expected 1 or more, found {n_blocks}")
        if block_size < 1:
            raise ValueError(f"block_size: expected 1 or more, found {block_size}")
        self._block_size = block_size
        self._hash_fn = hash_fn
        self._holders = [0] * n_blocks
        self._queue = OrderedDict.fromkeys(range(n_blocks))  # free blocks, the next one first
        self._contents: dict[int, _Content] = {}  # by block
        self._filled: dict[int, dict[int, None]] = {}  # by hash: blocks in the order of filling
        self._sequences: dict[Hashable, _Sequence] = {}

    @property
    def n_free(self) -> int:
        """Blocks that no sequence holds, with or without content."""
        return len(self._queue)

    def allocate(self, seq: Hashable, tokens: Sequence[int], extra: Sequence[Hashable] = ()) -> int:
        """
        Take in a sequence and return how many of its first tokens need not be computed.

        At least one token does: the model has to run to give the next.

        Raises:
            ValueError: `seq` is there already, or there are no `tokens`; the message names which.
            OutOfBlocks: fewer blocks are free, besides those found, than it takes.
        """
        # check
        tokens, extra, size = tuple(tokens), tuple(extra), self._block_size
        if seq in self._sequences:
            raise ValueError(f"expected a new sequence, found {seq!r}, which has not been freed")
        if not tokens:
            raise ValueError("tokens: expected one or more, found none")
        # find by content
        full, computed = len(tokens) // size, (len(tokens) - 1) // size
        found: list[int] = []
        missed: list[_Content] = []
        tip = None
        for at in range(full):
            tip = self._content(tip, tokens[at * size : (at + 1) * size], extra)
            block = self._find(tip) if at == len(found) < computed else None
            if block is None:
                missed.append(tip)
            else:
                found.append(block)
                tip = self._contents[block]  # so that what follows is compared by identity
        # hold and take
        needed = -(-len(tokens) // size) - len(found)
        self._check_free(needed + sum(not self._holders[block] for block in found))
        for block in found:
            self._hold(block)
        blocks = found + [self._take() for _ in range(needed)]
        # fill
        for at, content in enumerate(missed, start=len(found)):
            self._fill(blocks[at], content)
        tail = [*tokens[full * size :]]
        self._sequences[seq] = _Sequence(blocks=blocks, tip=tip, tail=tail, extra=extra)
        return len(found) * size

    def append(self, seq: Hashable, token: int) -> None:
        """
        Add a token to a sequence. A block that it fills can be found from then on.

        Raises:
            KeyError: there is no `seq`.
            OutOfBlocks: that takes another block, and none is free.
        """
        # check
        sequence = self._sequences[seq]
        if not sequence.tail:
            self._check_free(1)
        # fill
        filled = None
        if len(sequence.tail) + 1 == self._block_size:
            # before anything changes: `hash_fn` may raise
            filled = self._content(sequence.tip, (*sequence.tail, token), sequence.extra)
        # hold and take
        if not sequence.tail:
            sequence.blocks.append(self._take())
        # fill
        sequence.tail.append(token)
        if filled:
            self._fill(sequence.blocks[-1], filled)
            sequence.tip, sequence.tail = filled, []

    def free(self, seq: Hashable) -> None:
        """
        Let a sequence go; blocks that are no longer held queue up, the last one first.

        Raises:
            KeyError: there is no `seq`.
        """
        # give back
        for block in reversed(self._sequences.pop(seq).blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._queue[block] = None

    def block_table(self, seq: Hashable) -> list[int]:
        """
        List the blocks of a sequence in the order of its tokens; the list is the caller's.

        Raises:
            KeyError: there is no `seq`.
        """
        return self._sequences[seq].blocks.copy()

    def _content(
        self, parent: _Content | None, tokens: tuple[int, ...], extra: tuple[Hashable, ...]
    ) -> _Content:
        hashed = self._hash_fn(parent.hash if parent else None, tokens, extra)
        return _Content(parent=parent, tokens=tokens, extra=extra, hash=hashed)

    def _find(self, content: _Content) -> int | None:
        """Return the block that holds this, of several the one that was filled first."""
        for block in self._filled.get(content.hash, ()):
            if _same(self._contents[block], content):
                return block
        return None

    def _fill(self, block: int, content: _Content) -> None:
        self._contents[block] = content
        self._filled.setdefault(content.hash, {})[block] = None

    def _hold(self, block: int) -> None:
        if not self._holders[block]:
            del self._queue[block]
        self._holders[block] += 1

    def _take(self) -> int:
        """Hand out the block that has been free the longest, and forget what it holds."""
        block, _ = self._queue.popitem(last=False)
        content = self._contents.pop(block, None)
        if content:
            del self._filled[content.hash][block]
            if not self._filled[content.hash]:
                del self._filled[content.hash]
        self._holders[block] += 1
        return block

    def _check_free(self, needed: int) -> None:
        if needed > len(self._queue):
            raise OutOfBlocks(f"expected {needed} free blocks, found {len(self._queue)}")


def _same(a: _Content | None, b: _Content | None) -> bool:
    """Compare two blocks and all that is before them, up to where they are one and the same."""
    while a is not b:
        if a is None or b is None or (a.tokens, a.extra) != (b.tokens, b.extra):
            return False
        a, b = a.parent, b.parent
    return True


def shareable_tokens(requests: Iterable[Sequence[int]], granularity: int) -> int:
    """
    Count the prompt tokens that an earlier request has cached, if nothing is ever evicted.

    Prefixes are shared in whole units of `granularity` tokens: 1 as in a radix tree, 16 as in
    blocks of 16.

    Raises:
        ValueError: `granularity` is below 1.
    """
    # check
    if granularity < 1:
        raise ValueError(f"granularity: expected 1 or more, found {granularity}")
    # prefix tree
    tree: dict[tuple[int, ...], dict] = {}
    shared = 0
    for tokens in requests:
        node = tree
        for at in range(0, len(tokens) - granularity + 1, granularity):
            unit = tuple(tokens[at : at + granularity])
            if unit in node:
                shared += granularity
            node = node.setdefault(unit, {})
    return shared


def order(requests: Sequence[Sequence[int]], cached: Sequence[Sequence[int]] = ()) -> list[int]:
    """
    Return the positions of the requests in an order in which a small cache serves them well.

    That is a depth-first walk of their prefix tree: those that share a prefix are served in a row.
    At each fork those come first that go on as one of the token lists in `cached` does.
    """

    # prefix tree
    def place(at: int) -> list[tuple[bool, int]]:
        held = max((_common(requests[at], tokens) for tokens in cached), default=0)
        return [(depth >= held, token) for depth, token in enumerate(requests[at])]

    return sorted(range(len(requests)), key=place)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    length = min(len(a), len(b))
    return next((at for at in range(length) if a[at] != b[at]), length)
