"""Kata week03/transformer_flops: two FLOPs per weight and token, four per channel and pair."""

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
    # weights that multiply
    return _layer_params(cfg) + _head_params(cfg)


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
    # check
    if not 1 <= q_len <= kv_len:
        raise ValueError(f"q_len: expected 1 to kv_len = {kv_len}, found {q_len}")
    if cfg.encoder and q_len != kv_len:
        raise ValueError(f"q_len: expected kv_len = {kv_len} for an encoder, found {q_len}")
    _check_causal(cfg, causal)
    # pairs of query and key
    pairs = q_len * kv_len
    if causal:
        pairs -= q_len * (q_len - 1) // 2  # the last query sees all keys, each one before 1 fewer
    # FLOPs by part
    tokens = batch * q_len
    return Flops(
        linear=2 * tokens * _layer_params(cfg),
        # q·k takes 2 FLOPs for each channel of each query head, weighting v another 2
        attention=4 * batch * cfg.layers * cfg.d * pairs,
        head=2 * tokens * _head_params(cfg),
    )


def train_flops(cfg: ModelConfig, tokens: int, seq: int) -> int:
    """
    FLOPs to train on `tokens` in sequences of `seq`: forward and backward, nothing recomputed.

    Decoders attend causally, encoders to everything.

    Raises:
        ValueError: `tokens` is not a multiple of `seq`; the message names `tokens`.
    """
    # check
    if tokens % seq:
        raise ValueError(f"tokens: expected a multiple of seq = {seq}, found {tokens}")
    # forward and backward
    forward = forward_flops(cfg, tokens // seq, seq, seq, causal=not cfg.encoder)
    return 3 * forward.total  # each product has two gradients, each a product of the same size


def attention_crossover(cfg: ModelConfig, causal: bool) -> float:
    """
    Length of a sequence whose attention costs as much as all its other matrix products.

    Raises:
        ValueError: `causal` is set for an encoder; the message names it.
    """
    # check
    _check_causal(cfg, causal)
    # solve for the length
    # per token: 4 L d S = 2 N; causal queries see (S + 1) / 2 keys on average
    length = matmul_params(cfg) / (2 * cfg.layers * cfg.d)
    return 2 * length - 1 if causal else length


def _layer_params(cfg: ModelConfig) -> int:
    # weights that multiply
    d_kv = cfg.d // cfg.heads * cfg.kv_heads
    mlp = (2 + cfg.gated) * cfg.d * cfg.d_ff
    return cfg.layers * (2 * cfg.d * cfg.d + 2 * cfg.d * d_kv + mlp)


def _head_params(cfg: ModelConfig) -> int:
    return 0 if cfg.encoder else cfg.d * cfg.vocab  # tied or not, it is multiplied with


def _check_causal(cfg: ModelConfig, causal: bool) -> None:
    if causal and cfg.encoder:
        raise ValueError("causal: expected False for an encoder, found True")
