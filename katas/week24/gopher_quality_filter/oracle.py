"""The rules in exact fractions, position by position; every order of a cascade."""

import math
import random
from fractions import Fraction
from itertools import pairwise

import numpy as np

TOP = {2: Fraction(20, 100), 3: Fraction(18, 100), 4: Fraction(16, 100)}
DUPLICATE = {n: Fraction(20 - n, 100) for n in range(5, 11)}


def share(part, whole):
    return Fraction(part, whole) if whole else Fraction(0)


def repetition(text):
    words = text.split()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    again = [line for i, line in enumerate(lines) if line in lines[:i]]
    kept = {
        "lines": share(len(again), len(lines)) <= Fraction(3, 10),
        "line_characters": share(len("".join(again)), len("".join(lines))) <= Fraction(2, 10),
    }
    total = len("".join(words))
    for n in range(2, 11):
        grams = [words[i : i + n] for i in range(len(words) - n + 1)]
        if n in TOP:
            # (times, characters) of the n-gram at each place
            found = [(grams.count(gram), _within(words, grams, gram, n)) for gram in grams]
            times, characters = max(found, default=(0, 0))
            kept[f"top_{n}"] = share(characters if times > 1 else 0, total) <= TOP[n]
        else:
            later = [i for i, gram in enumerate(grams) if gram in grams[:i]]
            inside = [any(i <= at < i + n for i in later) for at in range(len(words))]
            characters = sum(len(word) for word, it in zip(words, inside, strict=True) if it)
            kept[f"dup_{n}"] = share(characters, total) <= DUPLICATE[n]
    return kept


def _within(words, grams, gram, n):
    starts = [i for i, other in enumerate(grams) if other == gram]
    return sum(len(word) for at, word in enumerate(words) if any(i <= at < i + n for i in starts))


def page(draw):
    """A short page with repeated lines and phrases, so that rules are kept and broken."""
    vocabulary = [f"{draw.choice('abcdef') * draw.randint(1, 6)}{i}" for i in range(40)]
    phrases = [draw.sample(vocabulary, draw.randint(2, 9)) for _ in range(3)]
    lines = []
    for _ in range(draw.randint(1, 12)):
        line = draw.sample(vocabulary, draw.randint(1, 8))
        if draw.random() < 0.4:
            line += draw.choice(phrases)
        lines.append(" ".join(line))
        if draw.random() < 0.15:
            lines.append(draw.choice(lines))
    return "\n".join(lines)


def perplexity(training, text, k):
    """Each probability counted from the texts themselves."""
    sentences = [["^", *(f"w{word}" for word in each.split()), "$"] for each in training]
    pairs = [pair for sentence in sentences for pair in pairwise(sentence)]
    size = len({word for sentence in sentences for word in sentence[1:-1]}) + 2
    words = ["^", *(f"w{word}" for word in text.split()), "$"]
    logs = []
    for before, word in pairwise(words):
        seen = sum(pair[0] == before for pair in pairs)
        logs.append(math.log((pairs.count((before, word)) + k) / (seen + k * size)))
    return math.exp(-math.fsum(logs) / len(logs))


def corpus(seed, n):
    """
    What six filters cost, and which of n documents they let pass.

    The dear ones come first; 3 and 4 reject nearly the same, 5 is cheap and rejects nothing.
    """
    draw = np.random.default_rng(seed)
    cost = np.array([40.0, 8.0, 4.0, 1.0, 1.2, 0.5])
    rejects = draw.random((6, n)) < np.array([0.9, 0.45, 0.3, 0.55, 0.0, 0.0])[:, None]
    rejects[4] = rejects[3] & (draw.random(n) < 0.95)
    rejects[1] |= rejects[2] & (draw.random(n) < 0.5)
    return cost, ~rejects


def total(order, cost, passes):
    alive, spent = np.ones(passes.shape[1], dtype=bool), 0.0
    for each in order:
        spent += cost[each] * alive.sum()
        alive = alive & passes[each]
    return spent


def least(cost, passes):
    """The cost of the best of all orders: what survives a set does not depend on its order."""
    filters = range(len(cost))
    best = {0: 0.0}
    for chosen in range(1, 2 ** len(cost)):
        options = []
        for last in filters:
            if chosen >> last & 1:
                before = chosen & ~(1 << last)
                rows = [each for each in filters if before >> each & 1]
                options.append(best[before] + cost[last] * passes[rows].all(axis=0).sum())
        best[chosen] = min(options)
    return best[2 ** len(cost) - 1]


def long_page(seed, n):
    draw = random.Random(seed)
    return " ".join(f"word{draw.randrange(n)}" for _ in range(n))
