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
    # check
    online = method in USABLE["reward"]
    if not online and method not in USABLE["pairs"]:
        raise ValueError(f"method: expected one of {USABLE}, found {method!r}.")
    if not beta >= 0:
        raise ValueError(f"beta: expected at least 0, found {beta}.")
    # models and passes
    passes = 2 if online or method == "kto" else 1
    forwards = {"policy": passes}
    if method == "ppo":
        forwards["critic"] = 2
    if online and beta > 0:
        forwards["reference"] = 1
    if method in ("dpo", "kto") and not ref_cached:
        forwards["reference"] = passes
    if online:
        forwards["reward"] = 1
    trained = ("policy", "critic") if method == "ppo" else ("policy",)
    return {
        "resident": tuple(one for one in forwards if not (lora and one == "reference")),
        "trained": trained,
        "forwards": forwards,
        "backwards": dict.fromkeys(trained, 1),
        "generates": online,
    }


def sequences(method: str, job: Job) -> int:
    """
    Return how many sequences, prompt and response, a step trains on.

    Raises:
        ValueError: as `inventory`; a size of the job is below 1.
    """
    needs = _needs(method, job)
    if needs["generates"]:
        return job.b * job.group
    return job.b if method == "kto" else 2 * job.b


def step_memory(method: str, cfg: Model, job: Job) -> float:
    """
    Return the bytes on each GPU when a step holds most: while it generates, or while it trains.

    Raises:
        ValueError: as `sequences`.
    """
    # what stays and the larger phase
    tokens = sequences(method, job) * (job.prompt + job.resp)
    needs = _needs(method, job)
    held = len(needs["resident"]) * cfg.params * WEIGHT_BYTES
    if job.lora_params:
        held += len(needs["trained"]) * job.lora_params * (WEIGHT_BYTES + STATE_BYTES)
    else:
        held += len(needs["trained"]) * cfg.params * STATE_BYTES
    layers = cfg.layers * ACTIVATION_BYTES
    if job.recompute:
        layers = cfg.layers * INPUT_BYTES + ACTIVATION_BYTES
    training = tokens * (len(needs["trained"]) * layers * cfg.hidden + cfg.vocab * LOGIT_BYTES)
    phases = [training]
    if needs["generates"]:
        phases.append(job.b * (job.prompt + job.group * job.resp) * cfg.kv_bytes)
    return (held + max(phases)) / job.tp


def step_time(method: str, cfg: Model, job: Job, gpu: Gpu) -> dict[str, float]:
    """
    Return the seconds of a step: "generate", "forward", "backward", "update", and "total".

    Raises:
        ValueError: as `sequences`.
    """
    # generation token by token
    number = sequences(method, job)
    needs = _needs(method, job)
    weights = cfg.matmul_params * WEIGHT_BYTES

    def seconds(flops: float, nbytes: float) -> float:
        return max(flops / gpu.flops_per_s, nbytes / gpu.bytes_per_s) / job.tp

    def forward(number: int, length: int) -> float:
        attention = 2 * cfg.layers * cfg.hidden * length * (length + 1)
        return seconds(number * (2 * cfg.matmul_params * length + attention), weights)

    generate = 0.0
    if needs["generates"]:
        generate = forward(job.b, job.prompt) + sum(
            seconds(
                number * (2 * cfg.matmul_params + 4 * cfg.layers * cfg.hidden * context),
                weights + number * context * cfg.kv_bytes,
            )
            for context in range(job.prompt + 1, job.prompt + job.resp)
        )
    # passes and updates
    once = forward(number, job.prompt + job.resp)
    trained = job.lora_params or cfg.params
    times = {
        "generate": generate,
        "forward": sum(needs["forwards"].values()) * once,
        "backward": len(needs["trained"]) * ((1 if job.lora_params else 2) + job.recompute) * once,
        "update": len(needs["trained"]) * trained * UPDATE_BYTES / gpu.bytes_per_s / job.tp,
    }
    return times | {"total": sum(times.values())}


def cheapest(methods: Sequence[str], cfg: Model, job: Job, gpu: Gpu, data: str) -> str | None:
    """
    Return the method with the least time for each sequence it trains on; None if there is none.

    It has to be able to use the data, and to fit in memory. Of equal ones it is the first.

    Raises:
        ValueError: data is unknown, ``data: ``; as `sequences` for any of the methods.
    """
    # check
    if data not in USABLE:
        raise ValueError(f"data: expected one of {[*USABLE]}, found {data!r}.")
    # compare what fits
    found = {}
    for method in methods:
        number = sequences(method, job)
        if method in USABLE[data] and step_memory(method, cfg, job) <= gpu.memory_bytes:
            found[method] = step_time(method, cfg, job, gpu)["total"] / number
    return min(found, key=found.__getitem__, default=None)


def _needs(method: str, job: Job) -> dict[str, object]:
    lora = job.lora_params != 0
    needs = inventory(method, lora=lora, ref_cached=job.ref_cached, beta=job.beta)
    # check
    for name in ("b", "prompt", "resp", "group", "tp"):
        if getattr(job, name) < 1:
            raise ValueError(f"{name}: expected at least 1, found {getattr(job, name)}.")
    return needs
