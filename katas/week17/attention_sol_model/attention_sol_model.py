"""Kata week17/attention_sol_model: where the ceiling of attention is, and what must be hidden.

Tensor cores, special function units and memory each take their time; overlap decides the sum.
"""

from dataclasses import dataclass
from typing import Literal

from harness.hardware import Profile

Dtype = Literal["float16", "bfloat16", "float8"]
BYTES: dict[str, int] = {"float16": 2, "bfloat16": 2, "float8": 1}  # of an element of Q, K, V
OUT_BYTES = 2  # of an element of the result, whatever the dtype of Q, K, V
TMEM_COLUMNS = 512  # of 4 bytes in each of 128 lanes: the tensor memory of an SM of sm_100
NVLINK = {4: 900e9, 5: 1800e9}  # bytes per second of one GPU as data sheets count: in and out added


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """
    FLOPs of one forward pass of attention, and the seconds that each unit is busy with it.

    `tensor_s` of the tensor cores, `exp_s` of the special function units, `hbm_s` of the memory.
    """

    flops: int
    tensor_s: float
    exp_s: float
    hbm_s: float


def attention_times(
    b: int, h: int, sq: int, sk: int, d: int, causal: bool, dtype: Dtype, profile: Profile
) -> Times:
    """
    Count the work of O = softmax(Q Kᵀ) V, and the seconds of each unit at full rate.

    Args:
        b: Sequences.
        h: Heads, of Q as of K and V.
        sq: Queries of a sequence.
        sk: Keys of a sequence.
        d: Channels of a head.
        causal: Whether the last query sees all keys, each one before it a key less.
        dtype: Of Q, K, V and of both products.
        profile: Whose rates count, at its `clock_hz`.

    Raises:
        ValueError: a size below 1, a `d` that is no multiple of 16, or a dtype that is not in
            `BYTES` or that the tensor cores of the profile lack.
    """
    # TODO(kata): check, count the scores, time of each unit (about 25 lines with helpers)
    raise NotImplementedError


def tflops(times: Times, hidden_exp: float, tensor_eff: float = 1.0) -> float:
    """
    TFLOP/s of a kernel that hides a share of its exponentials behind its products.

    Args:
        times: Of each unit at full rate.
        hidden_exp: Share of `exp_s` that does not add to the time of the products, 0 to 1.
        tensor_eff: Share of the tensor cores' rate that the kernel's instructions reach.

    Raises:
        ValueError: `hidden_exp` is not in 0 to 1, or `tensor_eff` not above 0 and up to 1.
    """
    # TODO(kata): check, overlap of the units (about 8 lines with helpers)
    raise NotImplementedError


def hidden_needed(measured_tflops: float, times: Times, tensor_eff: float = 1.0) -> float:
    """
    Least share of the exponentials that a kernel must have hidden to run as fast as measured.

    Args:
        measured_tflops: TFLOP/s of the kernel.
        times: Of its shape.
        tensor_eff: Share of the tensor cores' rate that its instructions reach.

    Raises:
        ValueError: `tensor_eff` is not above 0 and up to 1; `measured_tflops` is not above 0, or
            more than a billionth above what is possible with everything hidden.
    """
    raise NotImplementedError  # TODO(kata): check, solve for the hidden share (about 9 lines)


def exp_ratio(d: int, dtype: Dtype, profile: Profile) -> float:
    """
    Time of the exponentials over time of the products, for a head of `d` channels.

    Raises:
        ValueError: what `attention_times` refuses of `d` and `dtype`.
    """
    # TODO(kata): clocks of an exponential over clocks of the products (1 line)
    raise NotImplementedError


def tmem_plan(tile_m: int, block_n: int, d: int, q_tiles: int, p_aliases_s: bool) -> int:
    """
    Columns of tensor memory that an attention kernel allocates on sm_100.

    Each tile of queries keeps S (float32, `block_n` wide), O (float32, `d` wide) and P (16 bits,
    `block_n` wide, two elements to a column) there.

    Args:
        tile_m: Queries of a tile, 64 or 128: a lane each.
        block_n: Keys of a block.
        d: Channels of a head.
        q_tiles: Tiles of queries that a block of threads works on at a time.
        p_aliases_s: Whether P overwrites S.

    Raises:
        ValueError: `tile_m` is neither 64 nor 128, `block_n` or `d` is no positive multiple of 16,
            `q_tiles` below 1, or there are fewer columns than are needed (`columns: `).
    """
    raise NotImplementedError  # TODO(kata): check, columns of tensor memory (about 15 lines)


def link_time(num_bytes: int, generation: int) -> float:
    """
    Seconds in which one GPU sends `num_bytes` over NVLink, at full rate.

    Args:
        num_bytes: All of them in the same direction.
        generation: Of NVLink, a key of `NVLINK`.

    Raises:
        ValueError: `num_bytes` is below 0, or the generation is not in `NVLINK`.
    """
    raise NotImplementedError  # TODO(kata): one direction (about 5 lines)
