"""Kata week17/nvfp4_gemv: one vector through weights of four bits, NVFP4.

HBM: codes and scales are read once, 0.5625 bytes a weight. The vector stays in the caches.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float16, Float32, UInt8
from torch import Tensor

GROUP = 16  # weights that share a scale
# what the codes 0 to 7 stand for; 8 more are negative
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_LARGEST, E4M3_LARGEST = 6.0, 448.0
E4M3_LEAST = 2.0**-9  # above zero
TINY = torch.finfo(torch.float32).tiny  # the smallest normal number


@triton.jit
def _nvfp4_gemv_kernel(
    codes_ptr, scales_ptr, global_ptr, x_ptr, y_ptr, N, groups,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    # TODO(kata): load codes and scales, decode and multiply, scale and add up (about 25 lines with
    # helpers)
    pass


def nvfp4_gemv(
    packed: UInt8[Tensor, "n half_k"],
    scales: Float[Tensor, "n groups"],
    global_scale: Float32[Tensor, ""],
    x: Float16[Tensor, " k"],
) -> Float32[Tensor, " n"]:
    """
    w @ x of weights as `nvfp4_quantize` leaves them; codes and scales are read once.

    Weights are decoded exactly; products and sums are float32.

    Args:
        packed: Two codes a byte, the low four bits the even k. Contiguous, and begins at a
            multiple of 8 bytes.
        scales: torch.float8_e4m3fn, one for each 16 weights of a row, not negative. Contiguous.
        global_scale: One for all weights.
        x: The vector, contiguous; k is a multiple of 16.

    Raises:
        ValueError: an argument is not as said above; the message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): check (about 15 lines with helpers)


def _check(packed: Tensor, scales: Tensor, global_scale: Tensor, x: Tensor) -> None:
    raise NotImplementedError  # TODO(kata): check (about 25 lines)


def nvfp4_quantize(
    w: Float32[Tensor, "n k"],
) -> tuple[UInt8[Tensor, "n half_k"], Float[Tensor, "n groups"], Float32[Tensor, ""]]:
    """
    `w` as packed E2M1 codes, an e4m3 scale for each 16 of a row, and a float32 scale for all.

    The scale of all puts the largest magnitude at 6 · 448, and is at least `TINY`; a group's puts
    the group's largest at 6, rounds to the nearest e4m3 number, and is at least `E4M3_LEAST`.
    A code is that of the nearest value, ties to the code without the last bit; beyond 6 it is 6.
    All three are contiguous, however `w` lies.

    Raises:
        ValueError: `w` is not 2-D, its columns are no multiple of 16, or not all of it is finite.
    """
    # TODO(kata): check, scales of all and of groups, nearest codes (about 20 lines with helpers)
    raise NotImplementedError
