"""Kata week03/kv_cache_bytes: what the past of a sequence weighs, and how many users fit.

MHA, GQA, MQA, MLA and sliding windows; then the same formula inverted.
"""

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """
    What a decoder keeps of each token it has read.

    `kind` is "gqa" (keys and values of `kv_heads` heads: `heads` of them in multi-head attention,
    one in multi-query) or "mla" (one compressed vector of `d_c` channels for keys and values
    together, and a rotary key of `d_rope` channels that all heads share). `windows` is a pattern,
    repeated over the layers: how many of the last tokens a layer can see, None for all of them.
    `max_seq` is the longest sequence that the model was trained for.
    """

    kind: str
    layers: int
    heads: int
    d_head: int
    max_seq: int
    kv_heads: int = 0
    d_c: int = 0
    d_rope: int = 0
    windows: tuple[int | None, ...] = (None,)


KINDS = ("gqa", "mla")
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}


def kv_bytes_per_token(cfg: CacheConfig, dtype: str) -> int:
    """
    Bytes that one more token takes in all layers together, while every window has room.

    Raises:
        ValueError: `kind` or `dtype` is unknown; the message names what it was given.
    """
    # TODO(kata): check, bytes of a token in a layer (about 9 lines with helpers)
    raise NotImplementedError


def kv_cache_bytes(cfg: CacheConfig, batch: int, seq: int, dtype: str) -> int:
    """
    Bytes of the cache of `batch` sequences that are `seq` tokens long.

    Raises:
        ValueError: `batch` or `seq` is negative (the message names which), or what
            `kv_bytes_per_token` refuses.
    """
    # TODO(kata): check, tokens that a layer holds (about 9 lines with helpers)
    raise NotImplementedError


def max_batch(cfg: CacheConfig, seq: int, dtype: str, free_bytes: int) -> int:
    """
    Count the sequences of `seq` tokens that fit into `free_bytes`; 0 when not even one does.

    Raises:
        ValueError: `free_bytes` is negative, `seq` is below 1, or what `kv_cache_bytes` refuses.
    """
    raise NotImplementedError  # TODO(kata): check, sequences that fit (3 lines)


def max_context(cfg: CacheConfig, batch: int, dtype: str, free_bytes: int) -> int:
    """
    Longest sequences, up to `cfg.max_seq`, of which `batch` fit into `free_bytes`.

    0 when not even one token of each does. Calls `kv_cache_bytes` at most 64 times.

    Raises:
        ValueError: `free_bytes` is negative, `batch` is below 1, or what `kv_cache_bytes` refuses.
    """
    raise NotImplementedError  # TODO(kata): check, longest that fits (about 4 lines)
