"""Kata week05/quantized_lm_eval: what a format costs in perplexity, and saves in bytes and time."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Int, UInt8
from torch import Tensor, nn

from harness.hardware import Profile

FORMATS = ("fp16", "int8", "int4-g32", "int4")
GROUP = 32
BITS = {"int8": 8, "int4-g32": 4, "int4": 4}


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
    # check
    targets = len(tokens) - 1
    if targets < 1:
        raise ValueError(f"tokens: expected 2 or more, found {len(tokens)}")
    if window < 2:
        raise ValueError(f"window: expected 2 or more, found {window}")
    if not 1 <= stride <= window:
        raise ValueError(f"stride: expected 1 to window = {window}, found {stride}")
    # score the new targets
    total, scored = 0.0, 0
    for begin in range(0, targets, stride):
        end = min(begin + window, targets)
        logits = logits_fn(tokens[begin:end])[scored - begin :]
        nll = F.cross_entropy(logits.float(), tokens[scored + 1 : end + 1], reduction="none")
        total, scored = total + nll.sum().item(), end
        if end == targets:
            break
    return math.exp(total / targets)


def pack_nibbles(codes: UInt8[Tensor, "rows cols"]) -> UInt8[Tensor, "rows half_cols"]:
    """Two codes of 0 to 15 per byte, the earlier in the low half; odd rows are padded with 0."""
    even = F.pad(codes, (0, codes.shape[1] % 2))
    return even[:, ::2] | even[:, 1::2] << 4


def unpack_nibbles(
    packed: UInt8[Tensor, "rows half_cols"], cols: int
) -> UInt8[Tensor, "rows {cols}"]:
    """Return the first `cols` codes of each row."""
    return torch.stack((packed & 15, packed >> 4), dim=2).flatten(1)[:, :cols]


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
    # check
    if fmt not in FORMATS:
        raise ValueError(f"fmt: expected one of {', '.join(FORMATS)}, found {fmt!r}")
    # replace the layers
    linears = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    packed = {layer: _PackedLinear(layer.weight.detach(), fmt) for layer in linears}
    # with duplicates: what a model has in two places stays one layer
    for path, layer in model.named_modules(remove_duplicate=False):
        if layer in packed:
            model.set_submodule(path, packed[layer])


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers in memory; what several share counts once."""
    held = [*model.parameters(), *model.buffers()]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in held}
    return sum(storages.values())


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
    # check
    if fmt not in FORMATS:
        raise ValueError(f"fmt: expected one of {', '.join(FORMATS)}, found {fmt!r}")
    # bytes and FLOPs of a step
    head = cfg.vocab * cfg.d_model
    shapes = _linear_shapes(cfg)
    weights = cfg.layers * sum(_bytes_of(rows, cols, fmt) for rows, cols in shapes) + 2 * head
    cache = 4 * cfg.layers * cfg.kv_heads * cfg.head_dim * batch * ctx
    products = cfg.layers * sum(rows * cols for rows, cols in shapes) + head
    flops = 2 * products * batch * new_tokens
    return max((weights + cache) / profile.bandwidth, flops / profile.peak["float16"])


def _linear_shapes(cfg: ModelConfig) -> list[tuple[int, int]]:
    """[outputs, inputs] of the linear layers of one block."""
    d, q, kv = cfg.d_model, cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim
    return [(q, d), (kv, d), (kv, d), (d, q), (cfg.hidden, d), (cfg.hidden, d), (d, cfg.hidden)]


def _bytes_of(rows: int, cols: int, fmt: str) -> int:
    if fmt == "fp16":
        return 2 * rows * cols
    groups = -(-cols // GROUP) if fmt == "int4-g32" else 1
    return rows * (cols if fmt == "int8" else (cols + 1) // 2) + 2 * rows * groups


class _PackedLinear(nn.Module):
    """A linear layer that rebuilds its weight from packed codes at each call."""

    def __init__(self, weight: Tensor, fmt: str) -> None:
        # codes and scales of a layer
        super().__init__()
        self.fmt, self.cols = fmt, weight.shape[1]
        if fmt == "fp16":
            self.register_buffer("codes", weight.half())
            return
        qmax, weight = 2 ** (BITS[fmt] - 1) - 1, weight.float()
        self.group = GROUP if fmt == "int4-g32" else self.cols
        grouped = F.pad(weight, (0, -self.cols % self.group)).unflatten(1, (-1, self.group))
        scale = (grouped.abs().amax(2, keepdim=True) / qmax).half()  # [rows, groups, 1]
        codes = (grouped / scale).nan_to_num().round().clamp(-qmax, qmax)
        codes = codes.flatten(1)[:, : self.cols]
        packed = codes.to(torch.int8) if fmt == "int8" else pack_nibbles((codes + 8).byte())
        self.register_buffer("codes", packed)
        self.register_buffer("scale", scale.squeeze(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight().to(x.dtype))

    def _weight(self) -> Tensor:
        if self.fmt == "fp16":
            return self.codes
        codes = self.codes if self.fmt == "int8" else unpack_nibbles(self.codes, self.cols)
        codes = codes.float() - (0 if self.fmt == "int8" else 8)
        return codes * self.scale.repeat_interleave(self.group, dim=1)[:, : self.cols]
