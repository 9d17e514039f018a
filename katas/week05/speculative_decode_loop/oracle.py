"""What is right and what to feed: models whose every law is known, and whose caches watch."""

import random
from fractions import Fraction
from itertools import product
from typing import NamedTuple

import torch


class Call(NamedTuple):
    """A forward: the tokens that the cache held when it was over, the last `fed` of them new."""

    tokens: tuple[int, ...]
    fed: int


class Cache:
    """The tokens that have been through a model. What is truncated is gone."""

    def __init__(self, owner):
        self.owner, self.tokens = owner, []

    @property
    def length(self):
        return len(self.tokens)

    def truncate(self, length):
        assert 0 <= length <= self.length, (
            f"cache.truncate({length}): the {self.owner.name}'s cache holds {self.length} tokens"
        )
        del self.tokens[length:]

    def __reduce_ex__(self, protocol):
        # what copy.copy, copy.deepcopy and pickle call
        raise AssertionError(f"the {self.owner.name}'s cache was copied")


class Model:
    """A model whose law of the next token is a function of all tokens before it."""

    def __init__(self, name, vocab, law):
        self.name, self.vocab, self.law = name, vocab, law
        self.caches = 0
        self.calls = []

    def new_cache(self):
        self.caches += 1
        return Cache(self)

    def forward(self, tokens, cache):
        assert cache.owner is self, f"the {self.name} was given the cache of another model"
        assert len(tokens) > 0, f"the {self.name} was called without a token"
        assert tokens.dtype == torch.int64, f"the {self.name} was given tokens of {tokens.dtype}"
        rows = []
        for token in tokens.tolist():
            cache.tokens.append(token)
            rows.append(self.law(tuple(cache.tokens)))
        self.calls.append(Call(tuple(cache.tokens), len(tokens)))
        return torch.tensor(rows, dtype=torch.float64)

    @property
    def positions(self):
        """Tokens put through the model, all calls together."""
        return sum(call.fed for call in self.calls)


class Pair(NamedTuple):
    target: Model
    draft: Model


def pair_of(vocab, target_law, draft_law):
    return Pair(Model("target", vocab, target_law), Model("draft", vocab, draft_law))


# ---- one token is certain: what is emitted is what the target alone would emit ----------------


def greedy_pair(vocab, agreement, salt=0):
    """
    Two models that are certain, the target of a token that hangs on every token before it.

    The draft says the same after `agreement` tenths of all prefixes.
    """

    def mixed(prefix, factor):
        return sum((at + factor) * (token + 1) for at, token in enumerate(prefix)) + salt

    def choice(prefix):
        return mixed(prefix, 2) * 7 // 3 % vocab

    def guess(prefix):
        return (choice(prefix) + (mixed(prefix, 5) % 10 >= agreement)) % vocab

    def one_hot(token):
        return [float(token == other) for other in range(vocab)]

    return pair_of(vocab, lambda prefix: one_hot(choice(prefix)), lambda p: one_hot(guess(p)))


def plain(model, prompt, n_new):
    """What a certain model emits alone, one token after the other."""
    tokens = [*prompt]
    for _ in range(n_new):
        tokens.append(model.law(tuple(tokens)).index(1.0))
    return tokens[len(prompt) :]


# ---- laws of quarters: every outcome of the uniforms can be tried -----------------------------

QUARTERS = 4


def quarter_pair(seed, vocab=3):
    """
    Two models all of whose probabilities are quarters, those of accepting and of residuals too.

    So it is enough to try the uniform numbers 1/8, 3/8, 5/8 and 7/8. The laws hang on the place
    and on the token before.
    """
    laws = [law for law in product(range(5), repeat=vocab) if sum(law) == QUARTERS]
    pairs = [(p, q) for p in laws for q in laws if _stays_in_quarters(p, q)]
    random.Random(seed).shuffle(pairs)

    def law_of(which):
        def law(prefix):
            pair = pairs[(len(prefix) * vocab + prefix[-1]) % len(pairs)]
            return [quarters / QUARTERS for quarters in pair[which]]

        return law

    return pair_of(vocab, law_of(0), law_of(1))


def _stays_in_quarters(p, q):
    accepted = [QUARTERS * min(a, b) % b == 0 for a, b in zip(p, q, strict=True) if b]
    uncovered = [max(a - b, 0) for a, b in zip(p, q, strict=True)]
    mass = sum(uncovered)
    return mass > 0 and all(accepted) and all(QUARTERS * part % mass == 0 for part in uncovered)


class Reads:
    """An iterator over given numbers, which says so when it is asked for more."""

    def __init__(self, numbers):
        self.left = list(numbers)

    def __iter__(self):
        return self

    def __next__(self):
        assert self.left, "u was read more often than there are decisions to make"
        return self.left.pop(0)


class _Branch:
    """Numbers from the middles of the quarters: first those given, then always the lowest."""

    def __init__(self, digits):
        self.digits, self.at = [*digits], 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.digits):
            self.digits.append(0)
        self.at += 1
        return (self.digits[self.at - 1] + 0.5) / QUARTERS


def outcomes(run):
    """The law of what `run(u)` returns: every branch of its uniforms, each with its chance."""
    law, waiting = {}, [[]]
    while waiting:
        given = waiting.pop()
        u = _Branch(given)
        found = run(u)
        law[found] = law.get(found, 0) + Fraction(1, QUARTERS ** len(u.digits))
        for at in range(len(given), len(u.digits)):
            waiting += [[*u.digits[:at], digit] for digit in range(1, QUARTERS)]
    return law


def joint_law(model, prompt, n_new):
    """Chance of every continuation by `n_new` tokens."""
    law = {}
    for tokens in product(range(model.vocab), repeat=n_new):
        chance = Fraction(1)
        for at, token in enumerate(tokens):
            chance *= Fraction(model.law((*prompt, *tokens[:at]))[token])
        if chance:
            law[tokens] = chance
    return law


# ---- tables of n-grams ------------------------------------------------------------------------


def table_pair(ngrams):
    """Models that look at the last two tokens: `ngrams` has their laws."""

    def law_of(table):
        rows = table.tolist()

        def law(prefix):
            return rows[prefix[-2] if len(prefix) > 1 else 0][prefix[-1]]

        return law

    return pair_of(ngrams.vocab, law_of(ngrams.target), law_of(ngrams.draft))


def uniforms(seed, most=10**6):
    """At most so many numbers from [0, 1)."""
    numbers = random.Random(seed)
    return (numbers.random() for _ in range(most))


def random_law(vocab, seed, zeros=0):
    """A law with `zeros` tokens that cannot come."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(vocab, generator=generator, dtype=torch.float64) + 1e-3
    weights[torch.randperm(vocab, generator=generator)[:zeros]] = 0
    return weights / weights.sum()
