"""Kata week03/kv_cache_decode: attention over a cache that is written in place.

Per step: the new keys and values are written once, the past is read once and never copied.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


class CatCache:
    """The cache most people write first, right and slow: every append copies the whole past."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all tokens so far, with `k` and `v` at the end."""
        self.k = k if self.k is None else torch.cat((self.k, k), dim=2)
        self.v = v if self.v is None else torch.cat((self.v, v), dim=2)
        return self.k, self.v


@dataclass(slots=True)
class KVCache:
    """
    The keys and values of the tokens so far, in buffers allocated once.

    Slots from `length` on hold nothing of use: whatever memory held before, NaN included.
    """

    k: Float[Tensor, "b h_kv max_len d"]
    v: Float[Tensor, "b h_kv max_len d"]
    length: int = 0

    @classmethod
    def allocate(
        cls,
        batch: int,
        max_len: int,
        kv_heads: int,
        d: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> "KVCache":
        """Return an empty cache with room for `max_len` tokens."""
        raise NotImplementedError  # TODO(kata): allocate (1 line)

    def append(
        self, k: Float[Tensor, "b h_kv t d"], v: Float[Tensor, "b h_kv t d"]
    ) -> tuple[Float[Tensor, "b h_kv s d"], Float[Tensor, "b h_kv s d"]]:
        """
        Write the next t tokens and return views of all s = length tokens held then.

        Raises:
            ValueError: the shape of `k` does not fit the buffers, `v` is not shaped like `k`, or
                the tokens do not fit below `max_len`. Nothing has been written then.
        """
        raise NotImplementedError  # TODO(kata): check, write the free slots (about 15 lines)


def attend(
    q: Float[Tensor, "b h_q t d"],
    k: Float[Tensor, "b h_kv t d"],
    v: Float[Tensor, "b h_kv t d"],
    cache: KVCache | CatCache,
) -> Float[Tensor, "b h_q t d"]:
    """
    Append the next t tokens to `cache` and attend from them, causally, to all tokens so far.

    Scores are scaled by d ** -0.5. Query head h reads K/V head h // (h_q / h_kv). Prefill, a chunk
    of it and a decode step (t = 1) are the same call.

    Raises:
        ValueError: `q` does not fit `k` in batch, tokens or d, or its heads are not a multiple of
            the K/V heads; what `KVCache.append` refuses. The cache is then as it was.
    """
    # TODO(kata): check, write the free slots, group the query heads, hide the future, attend (about
    # 15 lines with helpers)
    raise NotImplementedError


def kv_cache_decode(
    q: Float[Tensor, "b h_q t d"],
    k: Float[Tensor, "b h_kv t d"],
    v: Float[Tensor, "b h_kv t d"],
    k_cache: Float[Tensor, "b h_kv max_len d"],
    v_cache: Float[Tensor, "b h_kv max_len d"],
    length: int,
) -> Float[Tensor, "b h_q t d"]:
    """
    Take one step over buffers that hold `length` tokens already.

    Called again with the same `length` it takes the same step again: a speculative decoder does so
    when it drops rejected tokens, and the clock does so here.
    """
    return attend(q, k, v, KVCache(k_cache, v_cache, length))
