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
    # check
    _check_at_least(1, "d", d)
    # exponentials over products
    # a score takes 2d FLOPs to make, one exponential, and 2d FLOPs to weigh the values
    return (1 / profile.special_rate()) / (4 * d / profile.peak_of(dtype))


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
    # check
    _check_at_least(0, "n_blocks", n_blocks)
    _check_at_least(1, "n_wg", n_wg)
    _check_at_least(1, "max_live", max_live)
    for name, time in (("t_qk", t_qk), ("t_sm", t_sm), ("t_pv", t_pv)):
        _check_positive(name, time)
    # operations that may begin
    takes = {"QK": t_qk, "SM": t_sm, "PV": t_pv}
    free: dict[str, Time] = dict.fromkeys(("tensor cores", "special functions"), 0)
    ends: dict[tuple[int, Op, int], Time] = {}
    begun = {(wg, op): 0 for wg in range(n_wg) for op in OPS}
    issues = []
    for _ in range(n_blocks * n_wg * len(OPS)):
        possible = []
        for (wg, op), block in begun.items():
            need, of = _need(op, block, max_live)
            if block < n_blocks and (of < 0 or (wg, need, of) in ends):
                now = free[_unit(op)]
                possible.append(Issue(max(now, ends.get((wg, need, of), now)), wg, op, block))
        # choose the operation
        # whoever can begin first; QK before PV, since every exponential waits for one
        issue = min(possible, key=lambda issue: (issue.start, issue.op != "QK", issue.block))
        # occupy the unit
        start, wg, op, block = issue
        ends[wg, op, block] = free[_unit(op)] = start + takes[op]
        begun[wg, op] += 1
        issues.append(issue)
    return issues


def utilization(sched: Iterable[Issue], t_qk: Time, t_pv: Time) -> float:
    """
    Share of the time up to the end of the last product in which tensor cores work.

    0 for a schedule without products.

    Raises:
        ValueError: a time is not above 0; the message begins with its name.
    """
    # check
    takes = {"QK": t_qk, "PV": t_pv}
    for name, time in (("t_qk", t_qk), ("t_pv", t_pv)):
        _check_positive(name, time)
    # share of busy time
    products = [issue for issue in sched if issue.op in takes]
    if not products:
        return 0.0
    busy = sum(takes[issue.op] for issue in products)
    return float(busy / max(issue.start + takes[issue.op] for issue in products))


def _need(op: Op, block: int, max_live: int) -> tuple[Op, int]:
    """What the same warpgroup must have done; that its blocks go in order, each unit sees to."""
    if op == "QK":
        return "PV", block - max_live  # its scores have room
    return ("QK", block) if op == "SM" else ("SM", block)


def _unit(op: Op) -> str:
    return "special functions" if op == "SM" else "tensor cores"


def _check_at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise ValueError(f"{name}: expected {least} or more, found {value}")


def _check_positive(name: str, time: Time) -> None:
    if not time > 0:
        raise ValueError(f"{name}: expected a time above 0, found {time}")
