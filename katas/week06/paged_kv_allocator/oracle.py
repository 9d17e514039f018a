"""What a cache holds, by brute force over lists of tokens; a chat to serve; attention."""

import random
from itertools import count

import numpy as np

from harness.simulators.serving import chat_trace
from harness.simulators.serving.traces import OUTPUT_LIMITS

SHOWN = 20  # calls that a failure tells of


class Ledger:
    """
    A pool of slots and a list of tokens for each sequence, kept beside a manager under test.

    Each call is made on both. Nothing says which blocks are handed out: whatever the manager says
    is done to the pool, and then each sequence must find its own tokens there, in no more blocks
    than it takes.
    """

    def __init__(self, kata, n_blocks, block_size):
        self.kata, self.n_blocks, self.block_size = kata, n_blocks, block_size
        self.manager = kata.BlockManager(n_blocks, block_size)
        self.pool = [None] * (n_blocks * block_size)
        self.tokens = {}
        self.tables = {}
        self.calls = []
        self.fresh = count()

    def allocate(self, seq, n_tokens):
        needed = -(-n_tokens // self.block_size)
        faults = {ValueError: seq in self.tokens, self.kata.OutOfBlocks: needed > self.n_free()}
        if not self._refused("allocate", (seq, n_tokens), faults):
            self.tokens[seq] = [next(self.fresh) for _ in range(n_tokens)]
            for slot, token in zip(self._slots(seq, n_tokens), self.tokens[seq], strict=True):
                self.pool[slot] = token
            self._compare(used=needed)

    def append(self, seq):
        known = seq in self.tokens
        full = known and len(self.tokens[seq]) % self.block_size == 0
        last = self.tables[seq][-1] if known else None
        shared = known and not full and sum(last in table for table in self.tables.values()) > 1
        no_room = (full or shared) and self.n_free() == 0
        faults = {KeyError: not known, self.kata.OutOfBlocks: no_room}
        if self._refused("append", (seq,), faults):
            return None
        write = self.answer
        if shared:
            self._hold(write.copy is not None, f"a copy of block {last}, which is shared", None)
            source, destination = write.copy
            used = {block for table in self.tables.values() for block in table}
            self._hold(source == last, f"a copy of block {last}", write.copy)
            self._hold(destination not in used, "a copy to a free block", write.copy)
            size = self.block_size
            moved = self.pool[source * size : (source + 1) * size]
            self.pool[destination * size : (destination + 1) * size] = moved
        else:
            self._hold(write.copy is None, "no copy", write.copy)
        self._hold(0 <= write.slot < len(self.pool), "a slot of the pool", write.slot)
        self.tokens[seq].append(next(self.fresh))
        self.pool[write.slot] = self.tokens[seq][-1]
        self._compare(used=full or shared)
        return write

    def fork(self, parent, child):
        faults = {KeyError: parent not in self.tokens, ValueError: child in self.tokens}
        if not self._refused("fork", (parent, child), faults):
            self.tokens[child] = self.tokens[parent].copy()
            self._compare(used=0)

    def free(self, seq):
        if not self._refused("free", (seq,), {KeyError: seq not in self.tokens}):
            del self.tokens[seq]
            others = [table for other, table in self.tables.items() if other != seq]
            kept = {block for table in others for block in table}
            self._compare(used=-len(set(self.tables[seq]) - kept))

    def n_free(self):
        return self.n_blocks - len({block for table in self.tables.values() for block in table})

    def waste(self):
        """By going through all slots."""
        held = {block for table in self.tables.values() for block in table}
        used = {
            table[at // self.block_size] * self.block_size + at % self.block_size
            for seq, table in self.tables.items()
            for at in range(len(self.tokens[seq]))
        }
        return 1 - len(used) / (len(held) * self.block_size) if held else 0.0

    def _refused(self, name, arguments, faults):
        """Make the call, which must raise if there are faults, and then change nothing."""
        self.calls.append(f"{name}({', '.join(map(repr, arguments))})")
        faults = tuple(error for error, present in faults.items() if present)
        try:
            self.answer = getattr(self.manager, name)(*arguments)
        except faults:
            self._compare(used=0, tables=self.tables)
            return True
        self._hold(not faults, " or ".join(error.__name__ for error in faults), self.answer)
        return False

    def _slots(self, seq, n_tokens):
        slots = self.manager.slot_mapping(seq)
        self._hold(len(slots) == n_tokens, f"{n_tokens} slots for {seq!r}", slots)
        lost = [slot for slot in slots if not 0 <= slot < len(self.pool)]
        self._hold(not lost, "slots of the pool", lost)
        return slots

    def _compare(self, used, tables=None):
        """Everybody's tokens, the number of blocks that this call `used`, and nobody else's."""
        before = self.n_free()
        found = {seq: self.manager.block_table(seq) for seq in self.tokens}
        self._hold(tables in (None, found), f"the tables as they were, {tables}", found)
        self.tables = {seq: [*table] for seq, table in found.items()}
        size = self.block_size
        for seq, tokens in self.tokens.items():
            table, blocks = self.tables[seq], -(-len(tokens) // size)
            self._hold(len(table) == blocks, f"{blocks} blocks for {seq!r}", table)
            held = [token for block in table for token in self.pool[block * size :][:size]]
            self._hold(held[: len(tokens)] == tokens, f"the tokens of {seq!r}, {tokens}", held)
        now = before - used
        self._hold(self.n_free() == now, f"{now} blocks in nobody's table", self.n_free())
        told = self.manager.n_free
        self._hold(told == now, f"n_free == {now}", told)

    def _hold(self, true, expected, found):
        if not true:
            calls = ["…", *self.calls[-SHOWN:]] if len(self.calls) > SHOWN else self.calls
            size = f"{self.n_blocks} blocks of {self.block_size}"
            raise AssertionError(
                f"expected {expected}, found {found} | {size}, after {', '.join(calls)}"
            )


def random_calls(ledger, seed, n_calls, most=10):
    """Make random calls, most of them possible, with ids out of order, close to exhaustion."""
    rng = random.Random(seed)
    for _ in range(n_calls):
        seq, other = rng.randrange(most), rng.randrange(most)
        if ledger.tokens and rng.random() < 0.9:
            seq = rng.choice([*ledger.tokens])
        kind = rng.choices(["append", "allocate", "fork", "free"], [10, 2, 2, 2])[0]
        if kind == "allocate":
            ledger.allocate(other, rng.randint(1, 4 * ledger.block_size))
        elif kind == "fork":
            ledger.fork(seq, other)
        else:
            getattr(ledger, kind)(seq)


def chat_waste(kata, n_blocks=12_288, block_size=16, batch=64):
    """
    Serve a chat, `batch` requests at a time; return the mean share of held slots without a token.

    A request that has its answer makes room for the next one. The last token is never cached.
    """
    manager = kata.BlockManager(n_blocks, block_size)
    waste, cached, left = [], {}, {}
    waiting = [*chat_trace(300)][::-1]
    while waiting or left:
        while waiting and len(left) < batch:
            request = waiting.pop()
            manager.allocate(request.id, request.prompt_tokens)
            cached[request.id] = request.prompt_tokens
            left[request.id] = request.output_tokens - 1
        waste.append(1 - sum(cached.values()) / (block_size * (n_blocks - manager.n_free)))
        for seq in [seq for seq, tokens in left.items() if not tokens]:
            manager.free(seq)
            del cached[seq], left[seq]
        for seq in left:
            manager.append(seq)
            cached[seq] += 1
            left[seq] -= 1
    return sum(waste) / len(waste)


def contiguous_waste(batch=64):
    """The same, if each request gets room for its prompt and the longest answer: the baseline."""
    waste, running = [], []
    waiting = [*chat_trace(300)][::-1]
    while waiting or running:
        while waiting and len(running) < batch:
            prompt, output = waiting[-1].prompt_tokens, waiting.pop().output_tokens
            running.append((prompt, output - 1, prompt + OUTPUT_LIMITS[1]))
        reserved = sum(room for _, _, room in running)
        waste.append(1 - sum(cached for cached, _, _ in running) / reserved)
        running = [(cached + 1, left - 1, room) for cached, left, room in running if left]
    return sum(waste) / len(waste)


def attention(query, keys, values):
    """One head, one query, float64."""
    scores = keys @ query / np.sqrt(len(query))
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()
