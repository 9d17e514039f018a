"""Documents with known near-duplicates, and the same steps with sets and integers of any size."""

import random
import re
import unicodedata
from hashlib import blake2b
from itertools import combinations

PRIME, EMPTY = 2**61 - 1, 2**64 - 1


def words(text):
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def hash64(text):
    raw = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little")


def shingles(text, n=5):
    found = words(text)
    if found and len(found) < n:
        return {hash64(" ".join(found))}
    return {hash64(" ".join(found[i : i + n])) for i in range(len(found) - n + 1)}


def minhash(values, a, b):
    return [
        min(((int(p) * int(x) + int(q)) % PRIME for x in values), default=EMPTY)
        for p, q in zip(a, b, strict=True)
    ]


def candidates(signatures, bands, rows):
    return [
        [i, j]
        for (i, x), (j, y) in combinations(enumerate(signatures), 2)
        if x != [EMPTY] * len(x)
        and any(x[k * rows : (k + 1) * rows] == y[k * rows : (k + 1) * rows] for k in range(bands))
    ]


def similarity(x, y):
    return len(x & y) / max(1, len(x | y))


def dedup(texts, a, b, bands, rows, threshold):
    """A document is kept unless a chain of near-duplicates leads to an earlier one."""
    sets = [shingles(text) for text in texts]
    signatures = [minhash(each, a, b) for each in sets]
    cluster = list(range(len(texts)))
    for i, j in candidates(signatures, bands, rows):
        if similarity(sets[i], sets[j]) >= threshold:
            old, new = max(cluster[i], cluster[j]), min(cluster[i], cluster[j])
            cluster = [new if each == old else each for each in cluster]
    return [each == doc for doc, each in enumerate(cluster)]


def text(draw, length):
    """Words of which no five in a row occur twice."""
    return " ".join(f"{draw.choice('abcdefgh')}{draw.randrange(10**6)}" for _ in range(length))


def web(seed, originals, copies, boilerplate):
    """
    Originals, near-duplicates of some (similarity 0.85 and more), half-duplicates of others, and
    one page that was crawled `boilerplate` times; shuffled, with the place of each in its family.
    """
    draw = random.Random(seed)
    documents = []  # (text, family, whether it is a near-duplicate of its family)
    for family in range(originals):
        own = text(draw, 60).split()
        documents.append((" ".join(own), family, True))
        if family < copies:
            near = list(own)
            near[draw.choice([0, 1, 58, 59])] = "changed"
            documents.append((" ".join(near), family, True))
        elif family < 2 * copies:
            documents.append((" ".join([*own[:40], *text(draw, 20).split()]), family, False))
    page = text(draw, 60)
    documents += [(page, originals, True)] * boilerplate
    draw.shuffle(documents)
    return documents
