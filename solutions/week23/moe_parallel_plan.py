"""Kata week23/moe_parallel_plan: what a mixture of experts takes on each GPU, and on the wire."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import comb, inf


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeCfg:
    """
    A transformer with gated MLPs, each of three h x ffn matrices, and an untied head.

    With one expert it is dense, and has no router.
    """

    layers: int
    h: int
    heads: int
    kv: int
    ffn: int
    vocab: int
    experts: int = 1
    top_k: int = 1


MIXTRAL_8X7B = MoeCfg(layers=32, h=4096, heads=32, kv=8, ffn=14336, vocab=32000, experts=8, top_k=2)
LLAMA_13B = MoeCfg(layers=40, h=5120, heads=40, kv=40, ffn=13824, vocab=32000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of attention's axes, dp * tp * pp GPUs, and of the experts', over the same GPUs."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """GPUs in nodes; rates are per GPU and direction."""

    hbm_bytes: int
    gpus_per_node: int
    within_bytes_per_s: float
    between_bytes_per_s: float


BYTES_PER_PARAM = {"infer": 2, "train": 16}


def param_counts(cfg: MoeCfg) -> tuple[int, int]:
    """All parameters, and those that one token uses."""
    # count the parameters
    rest = cfg.layers * (_attention(cfg) + _replicated(cfg)) + 2 * cfg.vocab * cfg.h + cfg.h
    experts = cfg.layers * _expert(cfg)
    return rest + cfg.experts * experts, rest + cfg.top_k * experts


def params_per_gpu(cfg: MoeCfg, plan: Plan) -> int:
    """
    Parameters on a GPU of the fullest pipeline stage.

    Raises:
        ValueError: The plan does not divide the model. The message begins with the plan's field.
    """
    # check
    _check(cfg, plan)
    # share of a GPU
    layer = _attention(cfg) // plan.tp + _replicated(cfg)
    layer += cfg.experts // plan.ep * _expert(cfg) // plan.etp
    rows = -(-cfg.vocab // plan.tp)
    # the last stage has the head and the final norm, and the first nothing that is larger
    ends = 2 if plan.pp == 1 else 1
    return cfg.layers // plan.pp * layer + ends * rows * cfg.h + cfg.h


def vram_per_gpu(cfg: MoeCfg, plan: Plan, mode: str) -> int:
    """
    Bytes of weights ("infer"), or of weights, gradients and Adam's states ("train"), on that GPU.

    Raises:
        ValueError: As `params_per_gpu`, or `mode` is not in `BYTES_PER_PARAM`.
    """
    # check
    if mode not in BYTES_PER_PARAM:
        raise ValueError(f"mode: expected one of {', '.join(BYTES_PER_PARAM)}, found {mode!r}")
    # share of a GPU
    return BYTES_PER_PARAM[mode] * params_per_gpu(cfg, plan)


def a2a_bytes_per_forward(
    cfg: MoeCfg, plan: Plan, tokens: float, itemsize: int = 2, *, dedup: bool = False
) -> float:
    """
    Bytes that a GPU sends on average to have `tokens` of its own pass the experts of its layers.

    Every set of top_k experts is equally likely. With `dedup` a token is sent once to each
    ep group that has any of its experts, however many these are.

    Raises:
        ValueError: As `params_per_gpu`.
    """
    # check
    _check(cfg, plan)
    # copies that leave
    copies = float(cfg.top_k)
    if dedup:
        others = cfg.experts - cfg.experts // plan.ep
        copies = plan.ep * (1 - comb(others, cfg.top_k) / comb(cfg.experts, cfg.top_k))
    # of the copies of a token one in ep stays; all that came go to the rest of the etp group
    sent = copies * (plan.ep - 1) / plan.ep + copies * (plan.etp - 1)
    return 2 * sent * tokens * cfg.h * itemsize * (cfg.layers // plan.pp)


def compare_dense(moe: MoeCfg, dense: MoeCfg, plan: Plan, itemsize: int = 2) -> dict[str, float]:
    """
    The mixture beside a dense model, and its FLOPs for each byte sent.

    Raises:
        ValueError: As `params_per_gpu`, of the mixture.
    """
    # beside a dense model
    (total, active), (dense_total, dense_active) = param_counts(moe), param_counts(dense)
    sent = a2a_bytes_per_forward(moe, plan, 1, itemsize) * plan.pp
    return {
        "weights": total / dense_total,
        "flops": active / dense_active,
        "flops_per_byte": 2 * active / sent if sent else inf,
    }


def comm_s(cfg: MoeCfg, plan: Plan, machine: Machine, tokens: int) -> float:
    """Seconds that a GPU sends in a forward pass of `tokens` tokens, 2 bytes a number."""
    own = tokens / (plan.dp * plan.tp)
    hidden = own * cfg.h * 2
    # an all-gather and a reduce-scatter around attention, tokens being divided over tp
    over_tp = 2 * (plan.tp - 1) * hidden * (cfg.layers // plan.pp)
    over_ep = a2a_bytes_per_forward(cfg, plan, own)
    over_pp = hidden if plan.pp > 1 else 0.0

    def rate(ranks: int) -> float:
        near = ranks <= machine.gpus_per_node
        return machine.within_bytes_per_s if near else machine.between_bytes_per_s

    far = rate(plan.dp * plan.tp * plan.pp)
    return over_tp / rate(plan.tp) + over_ep / rate(plan.ep * plan.etp) + over_pp / far


def best_plan(cfg: MoeCfg, n_gpus: int, machine: Machine, tokens: int, mode: str = "infer") -> Plan:
    """
    Of the plans that leave a tenth of the memory free, one of least `comm_s`, called once each.

    Raises:
        ValueError: `mode` is not in `BYTES_PER_PARAM`, or no plan fits; the message then begins
            with "machine".
    """
    # best of what fits
    fitting = [
        plan
        for plan in _plans(cfg, n_gpus)
        if 10 * vram_per_gpu(cfg, plan, mode) <= 9 * machine.hbm_bytes
    ]
    if not fitting:
        raise ValueError(f"machine: no plan for {n_gpus} GPUs fits into {machine.hbm_bytes} bytes")
    return min(fitting, key=lambda plan: comm_s(cfg, plan, machine, tokens))


def _plans(cfg: MoeCfg, n_gpus: int) -> Iterator[Plan]:
    # best of what fits
    divisors = [size for size in range(1, n_gpus + 1) if n_gpus % size == 0]
    for tp, pp, ep, etp in product(divisors, repeat=4):
        dp, left = divmod(n_gpus, tp * pp)
        plan = Plan(dp=dp, tp=tp, pp=pp, ep=ep, etp=etp)
        if not left and _problem(cfg, plan) is None:
            yield plan


def _attention(cfg: MoeCfg) -> int:
    return 2 * cfg.h * cfg.h + 2 * cfg.h * (cfg.h // cfg.heads) * cfg.kv


def _replicated(cfg: MoeCfg) -> int:
    return 2 * cfg.h + (cfg.h * cfg.experts if cfg.experts > 1 else 0)


def _expert(cfg: MoeCfg) -> int:
    return 3 * cfg.h * cfg.ffn


def _problem(cfg: MoeCfg, plan: Plan) -> str | None:
    # check
    if cfg.heads % plan.tp:
        return f"tp: expected a divisor of {cfg.heads} heads, found {plan.tp}"
    if cfg.layers % plan.pp:
        return f"pp: expected a divisor of {cfg.layers} layers, found {plan.pp}"
    if cfg.experts % plan.ep:
        return f"ep: expected a divisor of {cfg.experts} experts, found {plan.ep}"
    if cfg.ffn % plan.etp:
        return f"etp: expected a divisor of {cfg.ffn}, found {plan.etp}"
    if plan.dp * plan.tp % (plan.ep * plan.etp):
        return f"ep: ep * etp = {plan.ep * plan.etp} does not divide {plan.dp * plan.tp} GPUs"
    return None


def _check(cfg: MoeCfg, plan: Plan) -> None:
    if problem := _problem(cfg, plan):
        raise ValueError(problem)
