"""Kata week21/parallel_memory_model: which axis divides weights, states and activations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import lcm


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCfg:
    """
    A transformer: `kv` heads for keys and values, `mlp` matrices of h x ffn in each MLP.

    With more than one expert each layer has so many MLPs, and a router.
    """

    layers: int
    h: int
    a: int
    kv: int
    ffn: int
    mlp: int
    vocab: int
    experts: int = 1


GPT3_175B = ModelCfg(layers=96, h=12288, a=96, kv=96, ffn=49152, mlp=2, vocab=51200)
MT_NLG_530B = ModelCfg(layers=105, h=20480, a=128, kv=128, ffn=81920, mlp=2, vocab=51200)
LLAMA2_7B = ModelCfg(layers=32, h=4096, a=32, kv=32, ffn=11008, mlp=3, vocab=32000)
LLAMA2_70B = ModelCfg(layers=80, h=8192, a=64, kv=8, ffn=28672, mlp=3, vocab=32000)
MIXTRAL_8X7B = ModelCfg(layers=32, h=4096, a=32, kv=8, ffn=14336, mlp=3, vocab=32000, experts=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    Sizes of the axes, and how they are used: dp * tp * pp * cp GPUs.

    Attributes:
        sp: Whether norms and dropouts are divided over tp, by tokens.
        vpp: Model chunks of a pipeline stage; 1 is plain 1F1B.
        ep, etp: Axes of the experts, over the same GPUs.
        microbatches: Of a step, on each pipeline.
        b: Sequences of a micro-batch.
        s: Tokens of a sequence.
        zero: ZeRO's stage, 0 to 3.
        attn: "math" or "flash".
        recompute: "none", "selective" or "full".
    """

    dp: int = 1
    tp: int = 1
    sp: bool = False
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    microbatches: int = 1
    b: int = 1
    s: int = 2048
    zero: int = 1
    attn: str = "flash"
    recompute: str = "none"


def layer_params(m: ModelCfg) -> dict[str, int]:
    """
    Parameters of a layer: "attention", "replicated" (two norms and a router), and "mlp".

    The last is one MLP, or one expert.
    """
    return {
        "attention": 2 * m.h * m.h + 2 * m.h * m.kv * (m.h // m.a),
        "replicated": 2 * m.h + (m.h * m.experts if m.experts > 1 else 0),
        "mlp": m.mlp * m.h * m.ffn,
    }


def activation_bytes(m: ModelCfg, p: Plan) -> int:
    """
    Bytes that a GPU of the first pipeline stage keeps for backward, at its fullest moment.

    Raises:
        ValueError: The plan does not divide the model or the sequence. The message begins with
            the plan's field.

    Source: Korthikanti et al. 2022, section 4.
    """
    # check
    _check(m, p)
    # micro-batches in flight
    chunks = min(p.pp, p.microbatches)
    if p.vpp > 1:
        chunks = min(p.pp * p.vpp + p.pp - 1, p.microbatches * p.vpp)
    return _layer_bytes(m, p) * m.layers // (p.pp * p.vpp) * chunks


def state_bytes(m: ModelCfg, p: Plan) -> dict[str, int]:
    """
    Bytes of "params", "grads" and "optim" on a GPU of the first pipeline stage.

    Raises:
        ValueError: As `activation_bytes`.

    Source: Rajbhandari et al. 2019; Megatron-Core's distributed optimizer.
    """
    # check
    _check(m, p)
    # states
    layers, sizes = m.layers // p.pp, layer_params(m)
    dense = -(-m.vocab // p.tp) * m.h
    dense += layers * (sizes["attention"] // p.tp + sizes["replicated"])
    expert = 0
    if m.experts > 1:
        expert = layers * (m.experts // p.ep) * sizes["mlp"] // p.etp
    else:
        dense += layers * sizes["mlp"] // p.tp
    found = {}
    for stage, (part, size) in enumerate((("optim", 12), ("grads", 2), ("params", 2)), start=1):
        sharded = p.zero >= stage
        over_dense = p.dp * p.cp if sharded else 1
        over_expert = p.dp * p.cp * p.tp // (p.ep * p.etp) if sharded else 1
        found[part] = size * (-(-dense // over_dense) + -(-expert // over_expert))
    return found


def max_seqlen(m: ModelCfg, p: Plan, hbm_bytes: int, multiple: int = 128) -> int:
    """
    The longest sequence for which states and activations fit into `hbm_bytes`.

    A multiple of `multiple`, and of what the plan divides sequences by; 0 if none fits. Whatever
    `p.s` is.

    Raises:
        ValueError: `hbm_bytes` is negative, `multiple` below 1, or as `activation_bytes`, apart
            from the sequence. The message begins with the name.
    """
    # check
    if hbm_bytes < 0:
        raise ValueError(f"hbm_bytes: expected 0 or more, found {hbm_bytes}")
    if multiple < 1:
        raise ValueError(f"multiple: expected 1 or more, found {multiple}")
    # longest sequence
    step = lcm(multiple, _divides(p))
    room = hbm_bytes - sum(state_bytes(m, replace(p, s=step)).values())

    def fits(steps: int) -> bool:
        return activation_bytes(m, replace(p, s=steps * step)) <= room

    # `least` steps fit, or are none; `most` do not, in the end
    least, most = 0, 1
    while fits(most):
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        if fits(middle):
            least = middle
        else:
            most = middle
    return least * step


def best_plan(
    m: ModelCfg, world: int, batch: int, s: int, hbm_bytes: int, comm_time: Callable[[Plan], float]
) -> Plan:
    """
    Of the plans that fit into `hbm_bytes`, one of least `comm_time`, which is costly to call.

    Raises:
        ValueError: No plan fits; the message begins with "hbm_bytes".
    """
    # best plan
    fitting = [
        p
        for p in _plans(m, world, batch, s)
        if activation_bytes(m, p) + sum(state_bytes(m, p).values()) <= hbm_bytes
    ]
    if not fitting:
        raise ValueError(f"hbm_bytes: no plan for {world} GPUs fits into {hbm_bytes}")
    return min(fitting, key=comm_time)


def _layer_bytes(m: ModelCfg, p: Plan) -> int:
    """Of one micro-batch in one layer."""
    # activations of a layer
    rows = p.s // p.cp * p.b
    unsharded = rows * m.h // (p.tp if p.sp else 1)
    if p.recompute == "full":
        return 2 * unsharded
    scores = 0
    if p.attn == "math" and p.recompute == "none":
        scores = 5 * m.a // p.tp * rows * p.s
    return 10 * unsharded + 24 * rows * m.h // p.tp + scores


def _plans(m: ModelCfg, world: int, batch: int, s: int) -> Iterator[Plan]:
    # best plan
    divisors = [size for size in range(1, world + 1) if world % size == 0]
    for tp, pp, cp, ep in product(divisors, divisors, divisors, divisors):
        dp, left = divmod(world, tp * pp * cp)
        if tp > 8 or left or batch % dp:
            continue
        plan = Plan(
            dp=dp, tp=tp, sp=tp > 1, pp=pp, cp=cp, ep=ep, microbatches=batch // dp, s=s
        )  # fmt: skip
        try:
            _check(m, plan)
        except ValueError:
            continue
        yield plan


def _divides(p: Plan) -> int:
    return p.cp * (p.tp if p.sp else 1)


def _check(m: ModelCfg, p: Plan) -> None:
    # check
    if m.a % p.tp:
        raise ValueError(f"tp: expected a divisor of {m.a} heads, found {p.tp}")
    if m.layers % (p.pp * p.vpp):
        raise ValueError(f"pp: expected pp * vpp to divide {m.layers}, found {p.pp} * {p.vpp}")
    if p.s % _divides(p):
        raise ValueError(f"s: expected a multiple of {_divides(p)}, found {p.s}")
    if m.experts % p.ep:
        raise ValueError(f"ep: expected a divisor of {m.experts} experts, found {p.ep}")
    if p.dp * p.tp * p.cp % (p.ep * p.etp):
        raise ValueError(f"ep: ep * etp = {p.ep * p.etp} does not divide dp * tp * cp")
    if p.vpp > 1 and p.microbatches % p.pp:
        raise ValueError(f"microbatches: expected a multiple of {p.pp}, found {p.microbatches}")
