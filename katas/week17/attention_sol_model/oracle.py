"""What is right: scores counted one by one, tensor memory column by column, measured kernels."""

from dataclasses import dataclass


def _gpu(sms, clock_hz, bandwidth, float16, sfu=16, **others):
    rates = {"float16": float16, "bfloat16": float16, "tf32": float16 // 2} | others
    return {
        "sms": sms, "clock_hz": clock_hz, "max_clock_hz": 2 * clock_hz, "bandwidth": bandwidth,
        "flops_per_clk_per_sm": rates, "sfu_per_clk_per_sm": sfu,
        "peak": dict.fromkeys(rates, 3.0),  # not what it says
    }  # fmt: skip


# dense, at the clock of the data sheet's tensor figures
GPUS = {
    "a100": _gpu(108, 1.41e9, 2.039e12, 2048),
    "h100": _gpu(132, 1.83e9, 3.35e12, 4096, float8=8192),
    "h200": _gpu(132, 1.83e9, 4.8e12, 4096, float8=8192),
    "b200": _gpu(148, 1.85e9, 8.0e12, 8192, float8=16384),
    # for sums by hand: 1000 clocks a second
    "toy": _gpu(3, 1e3, 6e4, 4096, sfu=4, float8=8192),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A kernel as published or measured; `overlaps`: faster than one unit after the other."""

    name: str
    gpu: str
    shape: tuple[int, int, int, int, int]  # b h sq sk d
    causal: bool
    dtype: str
    tflops: float
    overlaps: bool


def _point(name, gpu, tflops, overlaps, *, b=2, s=8192, causal=False, dtype="bfloat16"):
    shape = (b, 16, s, s, 128)
    return Point(
        name=name, gpu=gpu, shape=shape, causal=causal, dtype=dtype, tflops=tflops,
        overlaps=overlaps,
    )  # fmt: skip


# FlashAttention-3, table 2: seconds of b 4, h 16, s 8448, d 128, in its three forms
ABLATION_S = {"both": 3.538e-3, "no pipelining": 4.021e-3, "no warp specialization": 4.105e-3}

POINTS = [
    _point("FlashAttention-3", "h100", 661, True, b=4, s=8448, dtype="float16"),
    _point("without pipelining", "h100", 582, False, b=4, s=8448, dtype="float16"),
    _point("without warp specialization", "h100", 570, False, b=4, s=8448, dtype="float16"),
    # measured on one H200: torch 2.11, Triton 3.6; causal ones count half of the scores
    _point("cuDNN", "h200", 684, True),
    _point("cuDNN, causal", "h200", 557, False, causal=True),
    _point("FlashAttention-2 of PyTorch", "h200", 343, False),
    _point("FlashAttention-2 of PyTorch, causal", "h200", 314, False, causal=True),
    _point("Triton, descriptors", "h200", 536, False),
    _point("Triton, descriptors, causal", "h200", 471, False, causal=True),
    _point("FlashAttention-2", "a100", 228, False, dtype="float16"),
    _point("FlashAttention-4", "b200", 1613, True, s=16384),
]


def scores(sq, sk, causal):
    """Pairs of a query and a key that it sees, row by row."""
    return sum(
        1 for query in range(sq) for key in range(sk) if not causal or key <= query + sk - sq
    )


def tmem_columns(block_n, d, q_tiles, p_aliases_s):
    """Bytes of one lane, in columns of 4."""
    lane = 0
    for _ in range(q_tiles):
        lane += block_n * 4 + d * 4
        if not p_aliases_s:
            lane += block_n * 2
    return lane // 4
