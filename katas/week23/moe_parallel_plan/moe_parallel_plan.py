"""Kata week23/moe_parallel_plan: what a mixture of experts takes on each GPU, and on the wire."""

from dataclasses import dataclass


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
    raise NotImplementedError  # TODO(kata): count the parameters (about 9 lines with helpers)


def params_per_gpu(cfg: MoeCfg, plan: Plan) -> int:
    """
    Parameters on a GPU of the fullest pipeline stage.

    Raises:
        ValueError: The plan does not divide the model. The message begins with the plan's field.
    """
    raise NotImplementedError  # TODO(kata): check, share of a GPU (about 20 lines with helpers)


def vram_per_gpu(cfg: MoeCfg, plan: Plan, mode: str) -> int:
    """
    Bytes of weights ("infer"), or of weights, gradients and Adam's states ("train"), on that GPU.

    Raises:
        ValueError: As `params_per_gpu`, or `mode` is not in `BYTES_PER_PARAM`.
    """
    raise NotImplementedError  # TODO(kata): check, share of a GPU (3 lines)


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
    raise NotImplementedError  # TODO(kata): check, copies that leave (about 7 lines)


def compare_dense(moe: MoeCfg, dense: MoeCfg, plan: Plan, itemsize: int = 2) -> dict[str, float]:
    """
    The mixture beside a dense model, and its FLOPs for each byte sent.

    Raises:
        ValueError: As `params_per_gpu`, of the mixture.
    """
    raise NotImplementedError  # TODO(kata): beside a dense model (about 7 lines)


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
    raise NotImplementedError  # TODO(kata): best of what fits (about 15 lines with helpers)
