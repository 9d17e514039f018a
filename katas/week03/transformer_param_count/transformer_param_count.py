"""Kata week03/transformer_param_count: account for every tensor of a transformer.

From a model card to its parameters, part by part, without building the model.
"""

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
    # TODO(kata): check, attention and MLP, norms, embeddings, head, add up the parts (about 30
    # lines with helpers)
    raise NotImplementedError


def weight_bytes(cfg: ModelConfig, dtype: str) -> int:
    """
    Bytes of all weights, stored in `dtype`.

    Raises:
        ValueError: `dtype` is not in `ITEMSIZE` (the message names it), or `cfg` is refused by
            the count.
    """
    raise NotImplementedError  # TODO(kata): check, add up the parts (3 lines)
