"""Kata week21/parallel_memory_model: which axis divides weights, states and activations."""

from collections.abc import Callable
from dataclasses import dataclass


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
    # TODO(kata): check, activations of a layer, micro-batches in flight (about 30 lines with
    # helpers)
    raise NotImplementedError


def state_bytes(m: ModelCfg, p: Plan) -> dict[str, int]:
    """
    Bytes of "params", "grads" and "optim" on a GPU of the first pipeline stage.

    Raises:
        ValueError: As `activation_bytes`.

    Source: Rajbhandari et al. 2019; Megatron-Core's distributed optimizer.
    """
    raise NotImplementedError  # TODO(kata): check, states (about 15 lines)


def max_seqlen(m: ModelCfg, p: Plan, hbm_bytes: int, multiple: int = 128) -> int:
    """
    The longest sequence for which states and activations fit into `hbm_bytes`.

    A multiple of `multiple`, and of what the plan divides sequences by; 0 if none fits. Whatever
    `p.s` is.

    Raises:
        ValueError: `hbm_bytes` is negative, `multiple` below 1, or as `activation_bytes`, apart
            from the sequence. The message begins with the name.
    """
    raise NotImplementedError  # TODO(kata): check, longest sequence (about 20 lines)


def best_plan(
    m: ModelCfg, world: int, batch: int, s: int, hbm_bytes: int, comm_time: Callable[[Plan], float]
) -> Plan:
    """
    Of the plans that fit into `hbm_bytes`, one of least `comm_time`, which is costly to call.

    Raises:
        ValueError: No plan fits; the message begins with "hbm_bytes".
    """
    raise NotImplementedError  # TODO(kata): best plan (about 20 lines with helpers)
