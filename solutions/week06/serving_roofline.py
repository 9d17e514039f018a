"""Kata week06/serving_roofline: a roofline for each op of a step, and where the batch turns it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

from harness.hardware import Profile

# Activations and the KV cache stay in 16 bits, however few the weights have.
DTYPE = "float16"
ITEMSIZE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """
    The sizes of a decoder that set what a step costs.

    `params` are all its weights; `linear_params` those that every token is multiplied with, the
    head among them: all but the token table and the norms.
    """

    params: int
    linear_params: int
    layers: int
    heads: int
    kv_heads: int
    d_head: int


LLAMA2_7B = ServedModel(
    params=6_738_415_616,
    linear_params=6_607_077_376,
    layers=32,
    heads=32,
    kv_heads=32,
    d_head=128,
)
LLAMA3_8B = ServedModel(
    params=8_030_261_248,
    linear_params=7_504_658_432,
    layers=32,
    heads=32,
    kv_heads=8,
    d_head=128,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """
    What a step takes at the speed of light: its linear layers, its attention, both.

    `regime` is "compute", "memory" or "latency".
    """

    linear_s: float
    attention_s: float
    total_s: float
    regime: str


def step_time(
    cfg: ServedModel,
    prefill: Sequence[tuple[int, int]],
    decode_ctx: Sequence[int],
    profile: Profile,
    bits: int = 16,
) -> StepTime:
    """
    Time a step in which prompts are read and sequences decode, one op after the other.

    Args:
        cfg: The model.
        prefill: For each chunk of a prompt its tokens, and those of the same prompt before it.
        decode_ctx: For each decoding sequence the tokens that its new one attends to, itself
            included.
        profile: Whose peak, bandwidth and launch floor count.
        bits: Of each weight.

    Raises:
        ValueError: a chunk has no token or a negative past, a context is below 1, or `bits` is;
            the message names the argument.
    """
    # check
    _check_at_least(1, "bits", bits)
    for tokens, past in prefill:
        _check_at_least(1, "prefill", tokens)
        _check_at_least(0, "prefill", past)
    for ctx in decode_ctx:
        _check_at_least(1, "decode_ctx", ctx)
    # count tokens and pairs
    tokens = sum(tokens for tokens, _ in prefill) + len(decode_ctx)
    cached = sum(tokens + past for tokens, past in prefill) + sum(decode_ctx)
    # token i of a chunk sees what came before the chunk, and i of its own tokens
    pairs = sum(tokens * past + tokens * (tokens + 1) // 2 for tokens, past in prefill)
    pairs += sum(decode_ctx)
    # two rooflines
    peak = profile.peak_of(DTYPE)
    linear = (
        2 * cfg.linear_params * tokens / peak,
        cfg.linear_params * bits / 8 / profile.bandwidth if tokens else 0.0,
    )
    attention = (
        4 * cfg.layers * cfg.heads * cfg.d_head * pairs / peak,
        _kv_bytes_per_token(cfg) * cached / profile.bandwidth,
    )
    # regime
    linear_s, attention_s = max(linear), max(attention)
    total_s = linear_s + attention_s
    if total_s < profile.launch_s:
        regime = "latency"
    else:
        arithmetic_s, memory_s = linear[0] + attention[0], linear[1] + attention[1]
        regime = "compute" if arithmetic_s >= memory_s else "memory"
    return StepTime(
        linear_s=linear_s,
        attention_s=attention_s,
        total_s=max(total_s, profile.launch_s),
        regime=regime,
    )


def crossover_batch(
    cfg: ServedModel, ctx: int, profile: Profile, bits: int = 16
) -> tuple[int, int | None]:
    """
    Smallest batches of decodes at context `ctx` that turn linear layers, and the whole, to compute.

    Returns:
        The batch from which arithmetic takes the linear layers as long as memory or longer; and
        the same of both ops together, or None where no batch is large enough.

    Raises:
        ValueError: `ctx` or `bits` is below 1; the message names which.
    """
    # check
    _check_at_least(1, "ctx", ctx)
    _check_at_least(1, "bits", bits)
    # crossover
    peak = profile.peak_of(DTYPE)
    # seconds that each sequence adds, and those of the weights, which any batch reads once
    weights_s = cfg.linear_params * bits / 8 / profile.bandwidth
    linear_s = 2 * cfg.linear_params / peak
    attention_s = 4 * cfg.layers * cfg.heads * cfg.d_head * ctx / peak
    cache_s = _kv_bytes_per_token(cfg) * ctx / profile.bandwidth
    gained_s = linear_s + attention_s - cache_s
    return ceil(weights_s / linear_s), ceil(weights_s / gained_s) if gained_s > 0 else None


def kv_token_capacity(
    cfg: ServedModel,
    profile: Profile,
    bits: int,
    utilization: float = 0.9,
    reserve: int = 0,
) -> int:
    """
    Count the tokens whose keys and values fit beside the weights; 0 where not even those do.

    Args:
        cfg: The model.
        profile: Whose memory it is.
        bits: Of each weight, the token table's and the norms' too.
        utilization: Share of the memory that the server may take.
        reserve: Bytes of that share for activations and whatever else.

    Raises:
        ValueError: `utilization` is not above 0 and at most 1, `bits` below 1 or `reserve`
            negative; the message names which.
    """
    # check
    _check_at_least(1, "bits", bits)
    _check_at_least(0, "reserve", reserve)
    if not 0 < utilization <= 1:
        raise ValueError(f"utilization: expected above 0 and at most 1, found {utilization}")
    # room for tokens
    weights = -(-cfg.params * bits // 8)
    room = floor(utilization * profile.memory_bytes) - weights - reserve
    return max(0, room // _kv_bytes_per_token(cfg))


def _kv_bytes_per_token(cfg: ServedModel) -> int:
    """Bytes of the keys and values of one token in all layers."""
    return 2 * cfg.layers * cfg.kv_heads * cfg.d_head * ITEMSIZE


def _check_at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise ValueError(f"{name}: expected {least} or more, found {value}")
