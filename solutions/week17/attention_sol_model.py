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
    # check
    for name, size in (("b", b), ("h", h), ("sq", sq), ("sk", sk)):
        if size < 1:
            raise ValueError(f"{name}: expected 1 or more, found {size}")
    per_clock = _tensor_flops_per_clk(d, dtype, profile)
    # count the scores
    scores = sq * sk
    if causal:
        seeing = min(sq, sk)  # queries that see a key at all
        scores = seeing * sk - seeing * (seeing - 1) // 2
    # time of each unit
    flops = 4 * b * h * scores * d
    moved = b * h * d * ((sq + 2 * sk) * BYTES[dtype] + sq * OUT_BYTES)
    clocks_per_s = profile.sms * profile.clock_hz
    return Times(
        flops=flops,
        tensor_s=flops / (per_clock * clocks_per_s),
        exp_s=b * h * scores / (profile.sfu_per_clk_per_sm * clocks_per_s),
        hbm_s=moved / profile.bandwidth,
    )


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
    # check
    if not 0 <= hidden_exp <= 1:
        raise ValueError(f"hidden_exp: expected 0 to 1, found {hidden_exp}")
    _check_efficiency(tensor_eff)
    # overlap of the units
    one_by_one = times.tensor_s / tensor_eff + (1 - hidden_exp) * times.exp_s
    # more than all of a unit's time cannot be hidden
    return times.flops / max(one_by_one, times.exp_s, times.hbm_s) / 1e12


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
    # check
    bound = tflops(times, 1, tensor_eff)
    if not 0 < measured_tflops <= bound * (1 + 1e-9):
        raise ValueError(
            f"measured_tflops: expected above 0 and up to {bound:.1f}, where all exponentials are "
            f"hidden, found {measured_tflops}"
        )
    # solve for the hidden share
    seconds = times.flops / (measured_tflops * 1e12)
    exposed = seconds - times.tensor_s / tensor_eff
    return min(1.0, max(0.0, 1 - exposed / times.exp_s))


def exp_ratio(d: int, dtype: Dtype, profile: Profile) -> float:
    """
    Time of the exponentials over time of the products, for a head of `d` channels.

    Raises:
        ValueError: what `attention_times` refuses of `d` and `dtype`.
    """
    return _tensor_flops_per_clk(d, dtype, profile) / (4 * d * profile.sfu_per_clk_per_sm)


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
    # check
    if tile_m not in (64, 128):
        raise ValueError(f"tile_m: expected 64 or 128, found {tile_m}")
    _check_multiple_of_16("block_n", block_n)
    _check_multiple_of_16("d", d)
    if q_tiles < 1:
        raise ValueError(f"q_tiles: expected 1 or more, found {q_tiles}")
    # columns of tensor memory
    columns = q_tiles * (block_n + d + (0 if p_aliases_s else block_n // 2))
    if columns > TMEM_COLUMNS:
        raise ValueError(f"columns: expected {TMEM_COLUMNS} or fewer, found {columns}")
    allocated = 32
    while allocated < columns:
        allocated *= 2
    return allocated


def link_time(num_bytes: int, generation: int) -> float:
    """
    Seconds in which one GPU sends `num_bytes` over NVLink, at full rate.

    Args:
        num_bytes: All of them in the same direction.
        generation: Of NVLink, a key of `NVLINK`.

    Raises:
        ValueError: `num_bytes` is below 0, or the generation is not in `NVLINK`.
    """
    if num_bytes < 0:
        raise ValueError(f"num_bytes: expected 0 or more, found {num_bytes}")
    if generation not in NVLINK:
        raise ValueError(f"generation: expected one of {list(NVLINK)}, found {generation}")
    return num_bytes / (NVLINK[generation] / 2)


def _tensor_flops_per_clk(d: int, dtype: str, profile: Profile) -> float:
    _check_multiple_of_16("d", d)
    if dtype not in BYTES or dtype not in profile.flops_per_clk_per_sm:
        raise ValueError(f"dtype: expected one that {profile.id} multiplies, found {dtype!r}")
    return profile.flops_per_clk_per_sm[dtype]


def _check_multiple_of_16(name: str, size: int) -> None:
    if size < 16 or size % 16:
        raise ValueError(f"{name}: expected a positive multiple of 16, found {size}")


def _check_efficiency(tensor_eff: float) -> None:
    if not 0 < tensor_eff <= 1:
        raise ValueError(f"tensor_eff: expected above 0 and up to 1, found {tensor_eff}")
