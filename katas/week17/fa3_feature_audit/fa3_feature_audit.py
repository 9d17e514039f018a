"""Kata week17/fa3_feature_audit: name what an attention kernel uses, and prove it.

Features are read from the instructions a compiler emitted, not from what it was asked for.
"""

from dataclasses import dataclass
from typing import Literal

from harness.hardware import Profile

Where = Literal["ptx", "ttgir"]
FEATURES = (
    "tma_load", "mbarrier_depth", "cp_async", "wgmma_async", "wgmma_wait", "mma_sync", "tcgen05",
    "register_p", "warp_specialized", "mufu_exp2", "swizzle", "fp8",
)  # fmt: skip
ATTAINED = 0.8  # of the tensor cores' rate, by the best matrix products: 794 of 989 on an H100
MMA_SYNC = 0.62  # of what wgmma reaches, by mma.sync on Hopper


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """
    A feature of a kernel, and what proves it.

    `feature` is one of `FEATURES`, three of them with a number, as in "wgmma_wait(1)". `lines`
    are the numbers of the lines, from 1 and rising, of the text `where`; `evidence` is what all
    of these lines contain.
    """

    feature: str
    evidence: str
    where: Where
    lines: tuple[int, ...]


def annotate(ttgir: str, ptx: str) -> list[Annotation]:
    """
    The features that a kernel uses, in any order.

    Args:
        ttgir: Triton's own representation of the kernel, after its last pass.
        ptx: The instructions it became.

    Raises:
        ValueError: a text is blank, or the PTX has no entry function.
    """
    # TODO(kata): check, instructions of the PTX, features by opcode, waits in loops, buffers of the
    # TTGIR (about 80 lines with helpers)
    raise NotImplementedError


def impact(feature: str, d: int, dtype: str, profile: Profile) -> float:
    """
    TFLOP/s of a forward pass of attention that has everything but this feature.

    Args:
        feature: What is missing: "wgmma_async", "wgmma_wait", "warp_specialized" or "fp8".
        d: Channels of a head.
        dtype: Of both products, a key of `profile.flops_per_clk_per_sm`.
        profile: Whose rates count.

    Raises:
        ValueError: another feature, or "fp8" where the products are in another dtype; `d` below
            1; a dtype that the profile lacks.
    """
    raise NotImplementedError  # TODO(kata): check, clocks of a score (about 15 lines)
