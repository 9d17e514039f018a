"""Kata week28/preference_step_cost: what a step of PPO, GRPO, RLOO, DPO, KTO, ORPO keeps and takes.

Bytes are bytes, times are seconds, rates are per second. All models of a method are of one size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

WEIGHT_BYTES = 2
STATE_BYTES = 14  # gradient, master weight and two moments of a trained parameter
UPDATE_BYTES = 28  # read and written for it by one update
ACTIVATION_BYTES = 34  # for a token in a layer, of each element of the hidden state
INPUT_BYTES = 2  # the same of a layer that is recomputed
LOGIT_BYTES = 4
USABLE = {
    "pairs": ("dpo", "orpo", "kto"),
    "binary": ("kto",),
    "reward": ("ppo", "grpo", "rloo"),
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A transformer without biases: `kv_heads` heads for keys and values, three MLP matrices."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int

    @property
    def matmul_params(self) -> int:
        """What each token is multiplied with: all matrices but the embedding."""
        attention = 2 * self.hidden**2 * (self.heads + self.kv_heads) // self.heads
        return self.layers * (attention + 3 * self.hidden * self.ffn) + self.hidden * self.vocab

    @property
    def params(self) -> int:
        """All of them, the embedding included."""
        return self.matmul_params + self.hidden * self.vocab

    @property
    def kv_bytes(self) -> int:
        """Cache of one token, of all layers, in 16 bits."""
        return self.layers * 2 * 2 * self.hidden // self.heads * self.kv_heads


LLAMA3_8B = Model(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128_256)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU at its peaks."""

    flops_per_s: float
    bytes_per_s: float
    memory_bytes: float


@dataclass(frozen=True, kw_only=True)
class Job:
    """
    One step.

    Attributes:
        b: Prompts; of "kto" responses.
        prompt, resp: Tokens of each prompt, and of each response.
        group: Responses generated for each prompt; for the methods that generate.
        beta: Weight of the KL term; at 0 methods that generate need no reference.
        lora_params: Parameters of a model's adapter; 0 trains all parameters instead.
        ref_cached: Whether "dpo" and "kto" have the reference's log-probabilities on disk.
        recompute: Whether layers are computed again for the backward pass.
        tp: GPUs over which everything is divided evenly.
    """

    b: int
    prompt: int
    resp: int
    group: int = 1
    beta: float = 0.1
    lora_params: int = 0
    ref_cached: bool = False
    recompute: bool = False
    tp: int = 1


def inventory(
    method: str, *, lora: bool = False, ref_cached: bool = False, beta: float = 0.1
) -> dict[str, object]:
    """
    Return what a step of `method` needs.

    "resident" and "trained" are tuples of "policy", "critic", "reference", "reward", in this order;
    "forwards" and "backwards" say for each model how often, unless never; "generates" whether.

    Raises:
        ValueError: method is unknown, beta is negative. The message begins with the name.
    """
    raise NotImplementedError  # TODO(kata): check, models and passes (about 25 lines)


def sequences(method: str, job: Job) -> int:
    """
    Return how many sequences, prompt and response, a step trains on.

    Raises:
        ValueError: as `inventory`; a size of the job is below 1.
    """
    raise NotImplementedError  # TODO(kata): check (about 10 lines with helpers)


def step_memory(method: str, cfg: Model, job: Job) -> float:
    """
    Return the bytes on each GPU when a step holds most: while it generates, or while it trains.

    Raises:
        ValueError: as `sequences`.
    """
    raise NotImplementedError  # TODO(kata): what stays and the larger phase (about 15 lines)


def step_time(method: str, cfg: Model, job: Job, gpu: Gpu) -> dict[str, float]:
    """
    Return the seconds of a step: "generate", "forward", "backward", "update", and "total".

    Raises:
        ValueError: as `sequences`.
    """
    # TODO(kata): generation token by token, passes and updates (about 25 lines)
    raise NotImplementedError


def cheapest(methods: Sequence[str], cfg: Model, job: Job, gpu: Gpu, data: str) -> str | None:
    """
    Return the method with the least time for each sequence it trains on; None if there is none.

    It has to be able to use the data, and to fit in memory. Of equal ones it is the first.

    Raises:
        ValueError: data is unknown, ``data: ``; as `sequences` for any of the methods.
    """
    raise NotImplementedError  # TODO(kata): check, compare what fits (about 8 lines)
