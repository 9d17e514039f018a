"""Kata week24/memmap_token_dataset: samples of a fixed length from a file that is never read whole.

`PREFIX.bin` holds tokens and nothing else, `PREFIX.idx` where each document begins.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

MAGIC = b"KATATOKS"
HEADER = struct.Struct("<8sQQ")  # MAGIC, a code of DTYPES, how many documents
DTYPES = {1: np.dtype("<u2"), 2: np.dtype("<i4")}
SMALL_VOCAB = 65_500  # vocabularies below this are stored as uint16


def write_tokens(docs: Iterable[Sequence[int]], prefix: str | Path, vocab_size: int) -> None:
    """
    Write PREFIX.bin and PREFIX.idx, one document after the other.

    Args:
        docs: Read once, and never held all at the same time. A document may be empty.
        prefix: What the names of both files begin with, dots and all.
        vocab_size: Decides the dtype of the tokens.

    Raises:
        ValueError: `vocab_size` is not from 1 to 2**31, or a token not from 0 to vocab_size - 1;
            the message begins with ``vocab_size: `` or ``docs: ``.
    """
    # check
    if not 1 <= vocab_size <= 2**31:
        raise ValueError(f"vocab_size: expected 1 to 2**31, found {vocab_size}.")
    # write the documents
    code = 1 if vocab_size < SMALL_VOCAB else 2
    lengths = []
    with _file(prefix, "bin").open("wb") as file:
        for at, doc in enumerate(docs):
            if doc and not 0 <= min(doc) <= max(doc) < vocab_size:
                raise ValueError(
                    f"docs: expected tokens from 0 to {vocab_size - 1}, found {min(doc)} to "
                    f"{max(doc)} in document {at}."
                )
            file.write(np.array(doc, DTYPES[code]).tobytes())
            lengths.append(len(doc))
    sizes = np.array(lengths, "<i8")
    offsets = (np.cumsum(sizes) - sizes) * DTYPES[code].itemsize
    header = HEADER.pack(MAGIC, code, len(sizes))
    _file(prefix, "idx").write_bytes(header + sizes.tobytes() + offsets.astype("<i8").tobytes())


def build_sample_index(doc_lens: np.ndarray, doc_order: np.ndarray, seq_len: int) -> np.ndarray:
    """
    Locate each token j * seq_len that exists: int64 [samples + 1, 2].

    The tokens are those of the documents in `doc_order`, one document after the other; a row is a
    position in `doc_order` and the offset of the token in that document. Sample j begins at row j
    and ends with the token of row j + 1.

    Args:
        doc_lens: int32 or int64, the tokens of each document, 0 or more.
        doc_order: int64, numbers of documents; one may occur several times or never.
        seq_len: Tokens from one sample's start to the next one's.

    Raises:
        ValueError: `seq_len` is below 1, or there is no sample of seq_len + 1 tokens; the message
            begins with ``seq_len: ``.
    """
    # check
    lens = doc_lens[doc_order].astype(np.int64)
    ends = np.cumsum(lens)
    total = lens.sum()
    if not 1 <= seq_len < total:
        raise ValueError(
            f"seq_len: expected at least 1 and fewer than the {total} tokens, found {seq_len}."
        )
    # ends and starts
    starts = np.arange(0, total, seq_len)
    position = np.searchsorted(ends, starts, side="right")
    return np.stack([position, starts - (ends - lens)[position]], axis=1)


class GPTTokens:
    """
    Samples of seq_len + 1 tokens: those to predict from, and the same one token later.

    Attributes:
        tokens: The whole of PREFIX.bin, mapped and read-only.

    Args:
        prefix: Of the two files.
        seq_len: Tokens that a sample predicts; the last of one sample is the first of the next.
        seed: Of the order of documents and samples.
        epochs: How many times each document occurs.

    Raises:
        ValueError: a file is damaged, or an argument too small or too large; the message begins
            with the path of the file, or with the name of the argument, and a colon.
    """

    tokens: np.ndarray

    def __init__(self, prefix: str | Path, seq_len: int, seed: int, epochs: int) -> None:
        # check
        if epochs < 1:
            raise ValueError(f"epochs: expected at least 1, found {epochs}.")
        self._arguments = (prefix, seq_len, seed, epochs)
        dtype, self._lens, offsets = _read_index(_file(prefix, "idx"))
        path = _file(prefix, "bin")
        size = path.stat().st_size
        if size % dtype.itemsize or (offsets + self._lens * dtype.itemsize > size).any():
            raise ValueError(
                f"{path}: expected tokens of {dtype.itemsize} bytes and no document behind its "
                f"end, found {size} bytes."
            )
        # draw the orders
        rng = np.random.default_rng(seed)
        orders = [rng.permutation(len(self._lens)) for _ in range(epochs)]
        self._doc_order = np.concatenate(orders)
        self._index = build_sample_index(self._lens, self._doc_order, seq_len)
        self._shuffled = rng.permutation(len(self._index) - 1)
        self._begins = offsets // dtype.itemsize
        self.tokens = np.memmap(path, dtype, mode="r")

    def __len__(self) -> int:
        """Return how many whole samples there are."""
        return len(self._shuffled)

    def __getitem__(self, i: int) -> np.ndarray:
        """
        Return seq_len + 1 tokens in the dtype of the file; of one document alone as a view.

        Raises:
            IndexError: `i` is not from 0 to len(self) - 1.
        """
        # check
        if not 0 <= i < len(self):
            raise IndexError(f"i: expected 0 to {len(self) - 1}, found {i}.")
        # cut out a sample
        j = self._shuffled[i]
        (first, start), (last, end) = self._index[j], self._index[j + 1]
        parts = [
            self._part(
                position,
                start if position == first else 0,
                end + 1 if position == last else self._lens[self._doc_order[position]],
            )
            for position in range(first, last + 1)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def __reduce__(self) -> tuple[type, tuple]:
        """Pickle the arguments alone; whoever unpickles it maps the file."""
        return type(self), self._arguments

    def _part(self, position: int, start: int, end: int) -> np.ndarray:
        """View of some tokens of the document at a position of the order."""
        begin = self._begins[self._doc_order[position]]
        return self.tokens[begin + start : begin + end]


def cache_key(source_files: Sequence[str | Path], tokenizer_id: str, cfg: dict[str, object]) -> str:
    """
    Return 64 hexadecimal digits for whatever decides the tokens: bytes, tokenizer, settings.

    Args:
        source_files: In the order of their documents. Only their contents count.
        tokenizer_id: Name and version.
        cfg: What JSON can hold, in any order of keys, nested ones included.
    """
    # key of the contents
    sources = []
    for source in source_files:
        with Path(source).open("rb") as file:
            sources.append(hashlib.file_digest(file, "sha256").hexdigest())
    # JSON says where each part ends, and of what type it is
    described = json.dumps([sources, tokenizer_id, cfg], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()


def _file(prefix: str | Path, suffix: str) -> Path:
    return Path(f"{prefix}.{suffix}")


def _read_index(path: Path) -> tuple[np.dtype, np.ndarray, np.ndarray]:
    """Return the dtype of the tokens, and length and byte offset of each document."""
    # check
    raw = path.read_bytes()
    if len(raw) < HEADER.size or not raw.startswith(MAGIC):
        raise ValueError(f"{path}: expected a header that begins with {MAGIC!r}, found {raw[:8]!r}")
    _, code, n_docs = HEADER.unpack_from(raw)
    if code not in DTYPES:
        raise ValueError(f"{path}: expected a dtype code of {[*DTYPES]}, found {code}.")
    if len(raw) != HEADER.size + 16 * n_docs:
        raise ValueError(
            f"{path}: expected {HEADER.size + 16 * n_docs} bytes for {n_docs} documents, found "
            f"{len(raw)}."
        )
    lens, offsets = np.frombuffer(raw, "<i8", offset=HEADER.size).reshape(2, n_docs)
    if (lens < 0).any() or (offsets < 0).any() or (offsets % DTYPES[code].itemsize).any():
        raise ValueError(f"{path}: expected lengths and offsets of whole tokens from 0 on.")
    return DTYPES[code], lens, offsets
