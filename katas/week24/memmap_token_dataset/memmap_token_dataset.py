"""Kata week24/memmap_token_dataset: samples of a fixed length from a file that is never read whole.

`PREFIX.bin` holds tokens and nothing else, `PREFIX.idx` where each document begins.
"""

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
    # TODO(kata): check, write the documents (about 20 lines with helpers)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): check, ends and starts (about 10 lines)


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
        # TODO(kata): check, draw the orders (about 35 lines with helpers)
        raise NotImplementedError

    def __len__(self) -> int:
        """Return how many whole samples there are."""
        raise NotImplementedError  # TODO(kata): count the samples (1 line)

    def __getitem__(self, i: int) -> np.ndarray:
        """
        Return seq_len + 1 tokens in the dtype of the file; of one document alone as a view.

        Raises:
            IndexError: `i` is not from 0 to len(self) - 1.
        """
        # TODO(kata): check, cut out a sample (about 15 lines with helpers)
        raise NotImplementedError

    def __reduce__(self) -> tuple[type, tuple]:
        """Pickle the arguments alone; whoever unpickles it maps the file."""
        raise NotImplementedError  # TODO(kata): what a worker needs (1 line)


def cache_key(source_files: Sequence[str | Path], tokenizer_id: str, cfg: dict[str, object]) -> str:
    """
    Return 64 hexadecimal digits for whatever decides the tokens: bytes, tokenizer, settings.

    Args:
        source_files: In the order of their documents. Only their contents count.
        tokenizer_id: Name and version.
        cfg: What JSON can hold, in any order of keys, nested ones included.
    """
    raise NotImplementedError  # TODO(kata): key of the contents (about 6 lines)
