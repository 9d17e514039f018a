"""Kata week03/kv_cache_bytes: bytes per layer and token, times the tokens a layer still sees."""

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
    # bytes of a token in a layer
    return cfg.layers * _layer_bytes(cfg, dtype)


def kv_cache_bytes(cfg: CacheConfig, batch: int, seq: int, dtype: str) -> int:
    """
    Bytes of the cache of `batch` sequences that are `seq` tokens long.

    Raises:
        ValueError: `batch` or `seq` is negative (the message names which), or what
            `kv_bytes_per_token` refuses.
    """
    # check
    for name, value in (("batch", batch), ("seq", seq)):
        _check_at_least(0, name, value)
    # tokens that a layer holds
    held = (seq if window is None else min(seq, window) for window in _layer_windows(cfg))
    return batch * sum(held) * _layer_bytes(cfg, dtype)


def max_batch(cfg: CacheConfig, seq: int, dtype: str, free_bytes: int) -> int:
    """
    Count the sequences of `seq` tokens that fit into `free_bytes`; 0 when not even one does.

    Raises:
        ValueError: `free_bytes` is negative, `seq` is below 1, or what `kv_cache_bytes` refuses.
    """
    # check
    _check_at_least(0, "free_bytes", free_bytes)
    _check_at_least(1, "seq", seq)
    # sequences that fit
    return free_bytes // kv_cache_bytes(cfg, 1, seq, dtype)


def max_context(cfg: CacheConfig, batch: int, dtype: str, free_bytes: int) -> int:
    """
    Longest sequences, up to `cfg.max_seq`, of which `batch` fit into `free_bytes`.

    0 when not even one token of each does. Calls `kv_cache_bytes` at most 64 times.

    Raises:
        ValueError: `free_bytes` is negative, `batch` is below 1, or what `kv_cache_bytes` refuses.
    """
    # check
    _check_at_least(0, "free_bytes", free_bytes)
    _check_at_least(1, "batch", batch)
    # longest that fits
    # the bytes never fall as the sequence grows, so the lengths are sorted by them
    lengths = range(1, cfg.max_seq + 1)
    return bisect_right(lengths, free_bytes, key=lambda seq: kv_cache_bytes(cfg, batch, seq, dtype))


def _layer_bytes(cfg: CacheConfig, dtype: str) -> int:
    """Bytes of one token in one layer."""
    # check
    if dtype not in ITEMSIZE:
        raise ValueError(f"dtype: expected one of {', '.join(ITEMSIZE)}, found {dtype!r}")
    # bytes of a token in a layer
    if cfg.kind == "mla":
        return (cfg.d_c + cfg.d_rope) * ITEMSIZE[dtype]
    if cfg.kind == "gqa":
        return 2 * cfg.kv_heads * cfg.d_head * ITEMSIZE[dtype]  # a key and a value
    raise ValueError(f"kind: expected one of {', '.join(KINDS)}, found {cfg.kind!r}")


def _layer_windows(cfg: CacheConfig) -> list[int | None]:
    # tokens that a layer holds
    return [cfg.windows[layer % len(cfg.windows)] for layer in range(cfg.layers)]


def _check_at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise ValueError(f"{name}: expected {least} or more, found {value}")
