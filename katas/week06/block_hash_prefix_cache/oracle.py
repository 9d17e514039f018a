"""A prefix cache in lists, without hashes; prompts that share prefixes; what an order finds."""

import random
from itertools import permutations


class OutOfBlocks(Exception):
    pass


class SlowCache:
    """What the brief says, word for word: whole prefixes are compared, queues are searched."""

    def __init__(self, n_blocks, block_size):
        self.block_size = block_size
        self.queue = [*range(n_blocks)]
        self.full = []  # (block, extra, all tokens up to its end) in the order of filling
        self.tokens, self.extras, self.tables = {}, {}, {}

    def allocate(self, seq, tokens, extra=()):
        size = self.block_size
        if seq in self.tables or not tokens:
            raise ValueError
        table = []
        while (len(table) + 1) * size < len(tokens):
            block = self._find(extra, tokens[: (len(table) + 1) * size])
            if block is None:
                break
            table.append(block)
        found = len(table)
        queue = [block for block in self.queue if block not in table]
        needed = -(-len(tokens) // size) - found
        if needed > len(queue):
            raise OutOfBlocks
        self.queue = queue
        self.tables[seq] = table
        self.tokens[seq], self.extras[seq] = [*tokens[: found * size]], extra
        for token in tokens[found * size :]:
            self.append(seq, token)
        return found * size

    def append(self, seq, token):
        table, tokens = self.tables[seq], self.tokens[seq]
        if len(tokens) == len(table) * self.block_size:
            if not self.queue:
                raise OutOfBlocks
            table.append(self.queue.pop(0))
            self.full = [entry for entry in self.full if entry[0] != table[-1]]
        tokens.append(token)
        if len(tokens) == len(table) * self.block_size:
            self.full.append((table[-1], self.extras[seq], [*tokens]))

    def free(self, seq):
        table = self.tables.pop(seq)
        del self.tokens[seq], self.extras[seq]
        held = {block for other in self.tables.values() for block in other}
        self.queue += [block for block in reversed(table) if block not in held]

    def _find(self, extra, tokens):
        for block, *content in self.full:
            if content == [extra, [*tokens]]:
                return block
        return None


class Ledger:
    """A manager under test beside a SlowCache: each call is made on both."""

    SHOWN = 16

    def __init__(self, kata, n_blocks, block_size, **how):
        self.kata = kata
        self.size = f"{n_blocks} blocks of {block_size}"
        self.manager = kata.PrefixBlockManager(n_blocks, block_size, **how)
        self.slow = SlowCache(n_blocks, block_size)
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments: self._both(name, arguments)

    def _both(self, name, arguments):
        self.calls.append(f"{name}{arguments}")
        try:
            expected = getattr(self.slow, name)(*arguments)
        except (OutOfBlocks, KeyError, ValueError) as fault:
            error = getattr(self.kata, type(fault).__name__, type(fault))
            try:
                found = getattr(self.manager, name)(*arguments)
            except error:
                pass
            else:
                self._hold(error.__name__, found)
            expected = None
        else:
            found = getattr(self.manager, name)(*arguments)
            self._hold(expected, found)
        for seq, table in self.slow.tables.items():
            self._hold(table, self.manager.block_table(seq), f" for {seq!r}")
        self._hold(len(self.slow.queue), self.manager.n_free, " free")
        return expected

    def _hold(self, expected, found, what=""):
        if expected != found:
            calls = ["…", *self.calls[-self.SHOWN :]]
            calls = calls if len(self.calls) > self.SHOWN else self.calls
            raise AssertionError(
                f"expected {expected}{what}, found {found} | {self.size}, after {', '.join(calls)}"
            )


def random_calls(ledger, seed, n_calls, most=6):
    """Make random calls with few different tokens, so that prefixes meet, near exhaustion."""
    rng = random.Random(seed)
    for _ in range(n_calls):
        seq = rng.randrange(most)
        if ledger.slow.tables and rng.random() < 0.9:
            seq = rng.choice([*ledger.slow.tables])
        kind = rng.choices(["append", "allocate", "free"], [6, 3, 2])[0]
        if kind == "allocate":
            longest = 5 * ledger.slow.block_size
            tokens = [int(rng.random() < 0.2) for _ in range(rng.randint(1, longest))]
            ledger.allocate(rng.randrange(most), tokens, rng.choice([(), (), ("lora",)]))
        elif kind == "append":
            ledger.append(seq, int(rng.random() < 0.2))
        else:
            ledger.free(seq)


# ---- prompts ---------------------------------------------------------------------------------


def tokens_of(rng, length):
    return [rng.randrange(50_000) for _ in range(length)]


def few_shot(rng, tasks=8, questions=6, shots=160, instructions=32):
    """Instructions that all share, examples that the questions of a task share; in any order."""
    # no two pieces begin alike by accident
    first = iter(rng.sample(range(50_000), tasks * (1 + questions)))
    common = tokens_of(rng, instructions)
    examples = [[*common, next(first), *tokens_of(rng, shots - 1)] for _ in range(tasks)]
    requests = [
        [*task, next(first), *tokens_of(rng, 19)] for task in examples for _ in range(questions)
    ]
    rng.shuffle(requests)
    return requests


def multi_turn(rng, chats=6, turns=5):
    """Each turn sends the whole chat so far; the chats take turns."""
    said = [tokens_of(rng, 20) for _ in range(chats)]
    requests = []
    for _ in range(turns):
        for chat in said:
            requests.append([*chat])
            chat += tokens_of(rng, rng.randint(5, 60))
    return requests


def tree_of_thought(rng, depth=3, width=3):
    """Every thought is followed by `width` others; a whole level is asked at a time."""
    level, requests = [tokens_of(rng, 50)], []
    for _ in range(depth):
        level = [path + tokens_of(rng, rng.randint(5, 30)) for path in level for _ in range(width)]
        requests += level
    return requests


def unrelated(rng, count=20):
    """Prompts of few tokens, drawn anew each: they share little, and by accident."""
    return [[rng.randrange(3) for _ in range(rng.randint(1, 60))] for _ in range(count)]


WORKLOADS = {
    "few-shot": few_shot,
    "multi-turn": multi_turn,
    "tree of thought": tree_of_thought,
    "unrelated": unrelated,
}


def shared(requests, granularity):
    """By comparing each request with all that came before."""
    found = 0
    for at, tokens in enumerate(requests):
        found += max((longest_common(tokens, e) // granularity for e in requests[:at]), default=0)
    return found * granularity


def longest_common(a, b):
    at = 0
    while at < min(len(a), len(b)) and a[at] == b[at]:
        at += 1
    return at


# ---- orders ----------------------------------------------------------------------------------


def hits(requests, n_blocks, block_size=16, warm=()):
    """Tokens found when the requests are served one after another, after those in `warm`."""
    cache = SlowCache(n_blocks, block_size)
    found = 0
    for at, tokens in enumerate([*warm, *requests]):
        cached = cache.allocate(at, tokens)
        cache.free(at)
        found += cached if at >= len(warm) else 0
    return found


def best_hits(requests, n_blocks, block_size, warm=()):
    """By trying every order."""
    orders = permutations(requests)
    return max(hits(requests, n_blocks, block_size, warm) for requests in orders)


def capacity(requests, share, block_size=16):
    """Blocks for this share of what all of the requests would fill."""
    blocks = sum(-(-len(tokens) // block_size) for tokens in requests)
    return int(share * (blocks - shared(requests, block_size) // block_size))
