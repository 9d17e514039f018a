"""What is right: the tokens of the shuffled documents in one list, and slices of it."""

import random
import struct
from pathlib import Path

import numpy as np


def documents(seed, lens, vocab_size):
    draw = random.Random(seed)
    return [[draw.randrange(vocab_size) for _ in range(n)] for n in lens]


def index_bytes(lens, offsets, code=1, magic=b"KATATOKS"):
    n = len(lens)
    return struct.pack(f"<8sQQ{n}q{n}q", magic, code, n, *lens, *offsets)


def token_bytes(doc, code=1):
    return struct.pack(f"<{len(doc)}{'Hi'[code - 1]}", *doc)


def write(prefix, docs, code=1, places=None):
    """Both files; `places` are numbers of documents in the order in which .bin has them."""
    parts, offsets, at = [], [0] * len(docs), 0
    for number in range(len(docs)) if places is None else places:
        offsets[number] = at
        parts.append(token_bytes(docs[number], code))
        at += len(parts[-1])
    Path(f"{prefix}.bin").write_bytes(b"".join(parts))
    Path(f"{prefix}.idx").write_bytes(index_bytes([len(doc) for doc in docs], offsets, code))


def write_sparse(prefix, lens, offsets, size):
    """uint16 documents of zeros in a file of this size, which takes no room on the disk."""
    with Path(f"{prefix}.bin").open("wb") as file:
        file.truncate(size)
    Path(f"{prefix}.idx").write_bytes(index_bytes(lens, offsets))


def sample_index(doc_lens, doc_order, seq_len):
    """A row for each token, of which every seq_len-th counts."""
    each = [
        [position, offset]
        for position, number in enumerate(doc_order)
        for offset in range(doc_lens[number])
    ]
    return each[::seq_len]


def samples(docs, seq_len, seed, epochs):
    """Slices of one list."""
    rng = np.random.default_rng(seed)
    tokens = []
    for _ in range(epochs):
        for number in rng.permutation(len(docs)):
            tokens += docs[number]
    starts = [s for s in range(0, len(tokens), seq_len) if s + seq_len < len(tokens)]
    return [tokens[starts[j] : starts[j] + seq_len + 1] for j in rng.permutation(len(starts))]
