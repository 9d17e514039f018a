"""Kata week05/quantized_lm_eval: what a format costs in perplexity, and saves in bytes and time."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Int, UInt8
from torch import Tensor, nn

from harness.hardware import Profile

FORMATS = ("fp16", "int8", "int4-g32", "int4")
GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The sizes of a decoder in LLaMA's style; its head is a matrix [vocab, d_model] of its own."""

    layers: int
    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int


LLAMA3_8B = ModelConfig(
    layers=32, d_model=4096, heads=32, kv_heads=8, head_dim=128, hidden=14336, vocab=128_256
)


def perplexity(
    logits_fn: Callable[[Tensor], Tensor], tokens: Int[Tensor, " t"], window: int, stride: int
) -> float:
    """
    exp of the mean NLL of all tokens but the first, each scored once.

    `logits_fn` takes at most `window` tokens, [n], and returns the logits of the token after each,
    [n, vocab]. Windows begin at tokens 0, stride, 2 · stride … and the last is the first to reach
    the end; each scores the targets that no earlier one did. The NLL is computed in float32 at
    least, and windows are added up in float64.

    Raises:
        ValueError: there are fewer than 2 `tokens`, `window` is below 2, or `stride` is not from 1
            to `window`; the message begins with the argument's name.
    """
    raise NotImplementedError  # TODO(kata): check, score the new targets (about 15 lines)


def pack_nibbles(codes: UInt8[Tensor, "rows cols"]) -> UInt8[Tensor, "rows half_cols"]:
    """Two codes of 0 to 15 per byte, the earlier in the low half; odd rows are padded with 0."""
    raise NotImplementedError  # TODO(kata): pack two codes in a byte (2 lines)


def unpack_nibbles(
    packed: UInt8[Tensor, "rows half_cols"], cols: int
) -> UInt8[Tensor, "rows {cols}"]:
    """Return the first `cols` codes of each row."""
    raise NotImplementedError  # TODO(kata): low and high, interleaved (1 line)


def quantize_(model: nn.Module, fmt: str) -> None:
    """
    Keep the weight of every `nn.Linear` in `model` in the format `fmt`, and nothing else of it.

    Layers have no bias. Scales are float16, made of the largest magnitude in a row ("int8",
    "int4") or in each group of 32 of a row ("int4-g32"; the last may be shorter), over 127 or 7;
    codes are the weight over the scale as it is in float16, rounded. A 4-bit code is stored plus
    8. Computing is in the dtype of the layer's input. All other modules stay as they are.

    Raises:
        ValueError: `fmt` is none of FORMATS; the message begins with its name. Nothing has changed.
    """
    # TODO(kata): check, codes and scales of a layer, replace the layers (about 30 lines with
    # helpers)
    raise NotImplementedError


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers in memory; what several share counts once."""
    raise NotImplementedError  # TODO(kata): each storage once (3 lines)


def decode_latency(
    cfg: ModelConfig, fmt: str, batch: int, ctx: int, profile: Profile, new_tokens: int = 1
) -> float:
    """
    Seconds that a forward pass of `new_tokens` tokens in each of `batch` sequences takes at least.

    Moved are the weights of the layers in their format, the head in float16, and keys and values,
    float16, of the `ctx` tokens before in each sequence; norms and embeddings are too small to
    count. Computed, at the peak of float16 whatever the format, are the products of each token
    with the layers and the head; attention is left out. The longer of the two is the answer.

    Raises:
        ValueError: `fmt` is none of FORMATS; the message begins with its name.
    """
    # TODO(kata): check, bytes and FLOPs of a step (about 15 lines with helpers)
    raise NotImplementedError
