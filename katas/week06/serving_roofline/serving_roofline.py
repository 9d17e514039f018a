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
    # TODO(kata): check, count tokens and pairs, two rooflines, regime (about 35 lines with helpers)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): check, crossover (about 9 lines)


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
    raise NotImplementedError  # TODO(kata): check, room for tokens (about 7 lines)
