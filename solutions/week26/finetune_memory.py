"""Kata week26/finetune_memory: bytes of weights, states, activations and logits in a training step.

Full finetuning, LoRA and QLoRA, each at the two moments when most is alive.
"""

from dataclasses import dataclass
from functools import partial

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
    # NF4 bytes
    blocks = -(-n // 64)
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks
    return -(-n // 2) + scales


def trainable_params(cfg: Llama, plan: Plan) -> int:
    """
    Count the parameters that are trained: all of them, or those of the adapters.

    Raises:
        ValueError: of `plan` the method, r, targets, optim or fsdp is impossible. The message
            begins with that name; the first of them counts.
    """
    return sum(_trained(cfg, plan))


def state_bytes(cfg: Llama, plan: Plan) -> dict[str, int]:
    """
    Bytes of "weights", "grads", "master" and "optim" on each GPU.

    Raises:
        ValueError: as `trainable_params`.

    Source: Rajbhandari et al. 2020 (ZeRO), section 3.1.
    """
    # states
    trained = trainable_params(cfg, plan)
    layer, rest = _base(cfg)
    matrix = nf4_bytes if plan.method == "qlora" else partial(int.__mul__, 2)
    weights = 2 * rest + cfg.layers * sum(map(matrix, layer))
    if plan.method != "full":
        weights += 2 * trained
    moments = 8 * trained if plan.optim == "adamw" else 2 * trained + 2 * 4 * -(-trained // 256)
    whole = {
        "weights": weights,
        "grads": 2 * trained,
        "master": 4 * trained if plan.master else 0,
        "optim": moments,
    }
    return {name: -(-size // plan.fsdp) for name, size in whole.items()}


def activation_bytes(cfg: Llama, plan: Plan, b: int, s: int) -> int:
    """
    Bytes kept for the backward pass by everything below the logits, for b sequences of s tokens.

    Raises:
        ValueError: as `trainable_params`.
    """
    # activations
    trainable_params(cfg, plan)
    full = plan.method == "full"
    trained = set(cfg.projections if full else plan.targets)
    norm = 2 * cfg.d + 4
    layer = 2 * norm + 2 * (2 * cfg.d + 2 * cfg.kv) + 4 * cfg.heads + 4 * cfg.ffn
    if trained & {"q", "k", "v"}:
        layer += 2 * cfg.d
    if trained & {"gate", "up"}:
        layer += 2 * cfg.d
    if "down" in trained:
        layer += 2 * cfg.ffn
    if not full:
        layer += 2 * plan.r * len(trained)
    if plan.recompute:
        layer = 2 * cfg.d
    last = norm + (2 * cfg.d if full else 0)
    return b * s * (cfg.layers * layer + last)


def peak_bytes(cfg: Llama, plan: Plan, b: int, s: int) -> int:
    """
    Bytes alive at once on each GPU: in the derivative of the loss, or in the optimizer's step.

    Raises:
        ValueError: as `trainable_params`.
    """
    # peak
    states = state_bytes(cfg, plan)
    total = sum(states.values())
    loss = total - states["grads"] + activation_bytes(cfg, plan, b, s) + 14 * b * s * cfg.vocab
    if plan.optim == "adam8bit":
        return max(loss, total)
    trained = _trained(cfg, plan)
    at_once = sum(trained) if plan.foreach else max(trained)
    return max(loss, total + -(-8 * at_once // plan.fsdp))


def max_batch(cfg: Llama, plan: Plan, s: int, memory_bytes: int) -> int:
    """
    Find the most sequences of `s` tokens whose step fits into `memory_bytes`; 0 if none does.

    Raises:
        ValueError: as `trainable_params`.
    """
    # largest batch
    if peak_bytes(cfg, plan, 1, s) > memory_bytes:
        return 0
    states = state_bytes(cfg, plan)
    free = memory_bytes - sum(states.values()) + states["grads"]
    return free // (activation_bytes(cfg, plan, 1, s) + 14 * s * cfg.vocab)


def _base(cfg: Llama) -> tuple[list[int], int]:
    """Parameters of each matrix of a layer, and of everything that is not in one of those."""
    norms = (2 * cfg.layers + 1) * cfg.d
    tables = cfg.vocab * cfg.d * (1 if cfg.tied else 2)
    return [out * into for out, into in cfg.projections.values()], norms + tables


def _trained(cfg: Llama, plan: Plan) -> list[int]:
    """Elements of each tensor that is trained."""
    # what is trained
    if plan.method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, found {plan.method!r}")
    if plan.method != "full":
        if plan.r < 1:
            raise ValueError(f"r: expected 1 or more, found {plan.r}")
        known = set(plan.targets) <= set(cfg.projections)
        if not plan.targets or not known or len(set(plan.targets)) < len(plan.targets):
            expected = f"some of {', '.join(cfg.projections)}, each once"
            raise ValueError(f"targets: expected {expected}, found {plan.targets}")
    if plan.optim not in OPTIMS:
        raise ValueError(f"optim: expected one of {', '.join(OPTIMS)}, found {plan.optim!r}")
    if plan.fsdp < 1:
        raise ValueError(f"fsdp: expected 1 or more, found {plan.fsdp}")
    if plan.method == "full":
        layer, _ = _base(cfg)
        norms = [cfg.d] * (2 * cfg.layers + 1)
        return layer * cfg.layers + norms + [cfg.vocab * cfg.d] * (1 if cfg.tied else 2)
    shapes = [cfg.projections[name] for name in plan.targets]
    return [plan.r * size for shape in shapes for size in shape] * cfg.layers
