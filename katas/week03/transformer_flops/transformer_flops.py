"""Kata week03/transformer_flops: what a forward pass and a training run compute.

Where 2ND and 6ND come from, and what they leave out.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """
    The sizes of a transformer that decide its FLOPs.

    A decoder ends in a head, d to vocab, which it applies to every position; `tied` says that the
    head's weight is the token table's. An `encoder` is bidirectional and has no head. With `gated`
    the MLP has three matrices instead of two.
    """

    layers: int
    d: int
    heads: int
    kv_heads: int
    d_ff: int
    vocab: int
    gated: bool = False
    tied: bool = False
    encoder: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """FLOPs of matrix products: weights of the layers, query-key-value products, the head."""

    linear: int
    attention: int
    head: int

    @property
    def total(self) -> int:
        """FLOPs of all three."""
        return self.linear + self.attention + self.head


def matmul_params(cfg: ModelConfig) -> int:
    """Weights that every token is multiplied with: the N for which 2N and 6N are true."""
    raise NotImplementedError  # TODO(kata): weights that multiply (about 7 lines with helpers)


def forward_flops(cfg: ModelConfig, batch: int, q_len: int, kv_len: int, causal: bool) -> Flops:
    """
    FLOPs of the matrix products of one forward pass.

    Args:
        cfg: The model.
        batch: Sequences, all alike.
        q_len: Tokens of each sequence that pass through the model: its last ones.
        kv_len: Tokens that can be attended to, the new ones included.
        causal: Count only the keys that a query may see; without it all `kv_len` of them.

    Raises:
        ValueError: `q_len` is below 1 or above `kv_len`, or the model is an encoder and `q_len`
            is not `kv_len` or `causal` is set; the message names the argument.
    """
    # TODO(kata): check, pairs of query and key, FLOPs by part (about 15 lines with helpers)
    raise NotImplementedError


def train_flops(cfg: ModelConfig, tokens: int, seq: int) -> int:
    """
    FLOPs to train on `tokens` in sequences of `seq`: forward and backward, nothing recomputed.

    Decoders attend causally, encoders to everything.

    Raises:
        ValueError: `tokens` is not a multiple of `seq`; the message names `tokens`.
    """
    raise NotImplementedError  # TODO(kata): check, forward and backward (about 4 lines)


def attention_crossover(cfg: ModelConfig, causal: bool) -> float:
    """
    Length of a sequence whose attention costs as much as all its other matrix products.

    Raises:
        ValueError: `causal` is set for an encoder; the message names it.
    """
    raise NotImplementedError  # TODO(kata): check, solve for the length (3 lines)
