"""Kata week03/transformer_param_count: every linear layer, table and norm, in five sums."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """
    What a model card says of a transformer.

    `family` is "gpt2", "llama", "bert" or "vit". `bias`: every linear layer has one, except the
    vocabulary head and the patch projection. `gated`: the MLP has a gate beside its up projection.
    `tied`: the vocabulary head is the token embedding itself. `max_pos` is the longest sequence;
    of an image of n patches it is n + 1, the class token included. `patch` is the side of a patch
    of 3 colours.
    """

    family: str
    layers: int
    d: int
    heads: int
    kv_heads: int
    d_ff: int
    vocab: int = 0
    max_pos: int = 0
    type_vocab: int = 0
    patch: int = 0
    bias: bool = False
    gated: bool = False
    tied: bool = False
    pooler: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Parameters by part; every tensor of the model is in exactly one of them."""

    embedding: int
    position: int
    attention: int
    mlp: int
    norm: int
    head: int

    @property
    def total(self) -> int:
        """Parameters of the whole model."""
        parts = (self.embedding, self.position, self.attention, self.mlp, self.norm, self.head)
        return sum(parts)


FAMILIES = ("gpt2", "llama", "bert", "vit")
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}


def param_count(cfg: ModelConfig) -> Breakdown:
    """
    Count every parameter of the model, to the last one.

    Raises:
        ValueError: unknown `family`, `heads` does not divide `d`, or `kv_heads` does not divide
            `heads`; the message names the family, or the field.
    """
    # check
    _check(cfg)
    # attention and MLP
    d, d_kv = cfg.d, cfg.d // cfg.heads * cfg.kv_heads
    attention = 2 * _linear(cfg, d, d) + 2 * _linear(cfg, d, d_kv)  # q and o, k and v
    mlp = (1 + cfg.gated) * _linear(cfg, d, cfg.d_ff) + _linear(cfg, cfg.d_ff, d)
    # norms
    norms = 2 * cfg.layers + (2 if cfg.family == "vit" else 1)
    # add up the parts
    return Breakdown(
        embedding=_embedding_rows(cfg) * d,
        position=0 if cfg.family == "llama" else cfg.max_pos * d,  # rotations have no weights
        attention=cfg.layers * attention,
        mlp=cfg.layers * mlp,
        norm=norms * (d if cfg.family == "llama" else 2 * d),
        head=_head(cfg),
    )


def weight_bytes(cfg: ModelConfig, dtype: str) -> int:
    """
    Bytes of all weights, stored in `dtype`.

    Raises:
        ValueError: `dtype` is not in `ITEMSIZE` (the message names it), or `cfg` is refused by
            the count.
    """
    # check
    if dtype not in ITEMSIZE:
        raise ValueError(f"dtype: expected one of {', '.join(ITEMSIZE)}, found {dtype!r}")
    # add up the parts
    return param_count(cfg).total * ITEMSIZE[dtype]


def _linear(cfg: ModelConfig, n_in: int, n_out: int) -> int:
    return n_in * n_out + (n_out if cfg.bias else 0)


def _embedding_rows(cfg: ModelConfig) -> int:
    """Count the vectors of width d that turn the input into channels."""
    # embeddings
    if cfg.family == "vit":
        return 3 * cfg.patch**2 + 1  # the patch projection, and the class token
    return cfg.vocab + (cfg.type_vocab if cfg.family == "bert" else 0)


def _head(cfg: ModelConfig) -> int:
    # head
    if cfg.family == "bert" and cfg.pooler:
        return _linear(cfg, cfg.d, cfg.d)
    is_decoder = cfg.family in ("gpt2", "llama")
    return cfg.vocab * cfg.d if is_decoder and not cfg.tied else 0


def _check(cfg: ModelConfig) -> None:
    # check
    if cfg.family not in FAMILIES:
        raise ValueError(f"family: expected one of {', '.join(FAMILIES)}, found {cfg.family!r}")
    if cfg.heads < 1 or cfg.d % cfg.heads:
        raise ValueError(f"heads: expected a divisor of d = {cfg.d}, found {cfg.heads}")
    if cfg.kv_heads < 1 or cfg.heads % cfg.kv_heads:
        raise ValueError(f"kv_heads: expected a divisor of {cfg.heads}, found {cfg.kv_heads}")
