"""Kata week26/finetune_memory: bytes of weights, states, activations and logits in a training step.

Full finetuning, LoRA and QLoRA.
"""

from dataclasses import dataclass

METHODS = ("full", "lora", "qlora")
OPTIMS = ("adamw", "adam8bit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama:
    """A LLaMA: width `d`, `heads` query heads and `kv_heads` of d / heads channels each."""

    layers: int
    d: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool = False

    @property
    def kv(self) -> int:
        """Channels of all keys of a token."""
        return self.d // self.heads * self.kv_heads

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of the seven matrices of a layer."""
        return {
            "q": (self.d, self.d),
            "k": (self.kv, self.d),
            "v": (self.kv, self.d),
            "o": (self.d, self.d),
            "gate": (self.ffn, self.d),
            "up": (self.ffn, self.d),
            "down": (self.d, self.ffn),
        }


LLAMA3_8B = Llama(layers=32, d=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
LLAMA3_70B = Llama(layers=80, d=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)
LLAMA_65B = Llama(layers=80, d=8192, heads=64, kv_heads=64, ffn=22016, vocab=32000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    How a model is finetuned.

    Attributes:
        method: One of `METHODS`.
        r: Rank of the adapters; ignored by "full".
        targets: Projections that have an adapter, in any order; ignored by "full".
        optim: One of `OPTIMS`.
        master: Whether there is a float32 copy of what is trained.
        foreach: Whether AdamW handles all tensors at once, or one after the other.
        recompute: Whether a layer keeps only its input.
        fsdp: GPUs that share the states.
    """

    method: str
    r: int = 8
    targets: tuple[str, ...] = ("q", "v")
    optim: str = "adamw"
    master: bool = True
    foreach: bool = True
    recompute: bool = False
    fsdp: int = 1


def nf4_bytes(n: int, double: bool = True) -> int:
    """
    Bytes of a matrix of `n` elements in NF4: 4 bits each, and a scale for each block of 64.

    With `double` quantisation a scale has one byte, 256 of them share a float32, and all of the
    matrix have one float32 as their offset; without it each scale is a float32.

    Source: Dettmers et al. 2023 (QLoRA), section 3.
    """
    raise NotImplementedError  # TODO(kata): NF4 bytes (3 lines)


def trainable_params(cfg: Llama, plan: Plan) -> int:
    """
    Count the parameters that are trained: all of them, or those of the adapters.

    Raises:
        ValueError: of `plan` the method, r, targets, optim or fsdp is impossible. The message
            begins with that name; the first of them counts.
    """
    raise NotImplementedError  # TODO(kata): what is trained (about 25 lines with helpers)


def state_bytes(cfg: Llama, plan: Plan) -> dict[str, int]:
    """
    Bytes of "weights", "grads", "master" and "optim" on each GPU.

    Raises:
        ValueError: as `trainable_params`.

    Source: Rajbhandari et al. 2020 (ZeRO), section 3.1.
    """
    raise NotImplementedError  # TODO(kata): states (about 15 lines)


def activation_bytes(cfg: Llama, plan: Plan, b: int, s: int) -> int:
    """
    Bytes kept for the backward pass by everything below the logits, for b sequences of s tokens.

    Raises:
        ValueError: as `trainable_params`.
    """
    raise NotImplementedError  # TODO(kata): activations (about 15 lines)


def peak_bytes(cfg: Llama, plan: Plan, b: int, s: int) -> int:
    """
    Bytes alive at once on each GPU: in the derivative of the loss, or in the optimizer's step.

    Raises:
        ValueError: as `trainable_params`.
    """
    raise NotImplementedError  # TODO(kata): peak (about 8 lines)


def max_batch(cfg: Llama, plan: Plan, s: int, memory_bytes: int) -> int:
    """
    Find the most sequences of `s` tokens whose step fits into `memory_bytes`; 0 if none does.

    Raises:
        ValueError: as `trainable_params`.
    """
    raise NotImplementedError  # TODO(kata): largest batch (about 5 lines)
