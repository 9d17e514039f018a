"""Kata week10/softmax_gemm_overlap: FlashAttention-3's ping-pong as a schedule of two units.

Tensor cores multiply, the special function unit takes exponentials; neither should wait.
"""

from collections.abc import Iterable
from fractions import Fraction
from typing import Literal, NamedTuple

from harness.hardware import Profile

Time = int | float | Fraction
Op = Literal["QK", "SM", "PV"]
# SM takes the special function unit; the others take the tensor cores.
OPS: tuple[Op, ...] = ("QK", "SM", "PV")


class Issue(NamedTuple):
    """Operation `op` of a warpgroup on a block of keys begins at `start`."""

    start: Time
    wg: int
    op: Op
    block: int


def exp_to_gemm_ratio(d: int, profile: Profile, dtype: str) -> float:
    """
    How long the exponentials of attention take, as a share of its two matrix products.

    Args:
        d: Channels of a head.
        profile: Whose peak and rate of special functions count.
        dtype: Of the products.

    Raises:
        ValueError: `d` is below 1; the message begins with its name.
    """
    # TODO(kata): check, exponentials over products (about 5 lines with helpers)
    raise NotImplementedError


def schedule(
    n_blocks: int, n_wg: int, t_qk: Time, t_sm: Time, t_pv: Time, max_live: int = 2
) -> list[Issue]:
    """
    Say when each warpgroup begins QK, SM and PV of each of its blocks; in any order.

    Args:
        n_blocks: Blocks of keys that each warpgroup goes through.
        n_wg: Warpgroups of a multiprocessor.
        t_qk: What a product of queries and keys takes.
        t_sm: What the softmax of its scores takes.
        t_pv: What the product with the values takes.
        max_live: Tiles of scores that fit into a warpgroup's registers, from the beginning of
            QK to the end of PV.

    Raises:
        ValueError: `n_blocks` is below 0, `n_wg` or `max_live` below 1, or a time not above 0;
            the message begins with its name.

    Source: Shah et al. 2024 (FlashAttention-3), sections 3.1 and 3.2.
    """
    # TODO(kata): check, operations that may begin, choose the operation, occupy the unit (about 30
    # lines with helpers)
    raise NotImplementedError


def utilization(sched: Iterable[Issue], t_qk: Time, t_pv: Time) -> float:
    """
    Share of the time up to the end of the last product in which tensor cores work.

    0 for a schedule without products.

    Raises:
        ValueError: a time is not above 0; the message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): check, share of busy time (about 8 lines)
