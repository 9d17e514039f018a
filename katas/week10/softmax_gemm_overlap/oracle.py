"""What is right: schedules looked at operation by operation, and times that none can beat."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

OPS = ("QK", "SM", "PV")


def hopper(profile, **figures):
    """`profile` with the H100's figures, or others, so that numbers by hand hold on any device."""
    known = {
        "peak": {"float16": 989.4e12, "float8": 1979e12}, "sms": 132, "sfu_per_clk_per_sm": 16,
        "clock_hz": 1.83e9, "max_clock_hz": 1.98e9,
    }  # fmt: skip
    return replace(profile, **known | figures)


def end(sched, t_qk, t_sm, t_pv):
    """When the last operation is done."""
    takes = dict(zip(OPS, (t_qk, t_sm, t_pv), strict=True))
    return max((issue.start + takes[issue.op] for issue in sched), default=0)


def fault(sched, n_blocks, n_wg, t_qk, t_sm, t_pv, max_live=2):
    """The first rule that `sched` breaks, in words; nothing where it breaks none."""
    takes = dict(zip(OPS, (t_qk, t_sm, t_pv), strict=True))
    found = Counter((issue.wg, issue.op, issue.block) for issue in sched)
    wanted = Counter((wg, op, j) for wg in range(n_wg) for op in OPS for j in range(n_blocks))
    if found != wanted:
        return f"missing {[*(wanted - found)][:3]}, too many {[*(found - wanted)][:3]}"
    starts = {(issue.wg, issue.op, issue.block): issue.start for issue in sched}
    ends = {key: start + takes[key[1]] for key, start in starts.items()}
    if min(starts.values(), default=0) < 0:
        return "begins before 0"
    for unit in (("QK", "PV"), ("SM",)):
        used = sorted((start, ends[key], key) for key, start in starts.items() if key[1] in unit)
        for one, other in pairwise(used):
            if other[0] < one[1]:
                return f"{one[2]} until {one[1]} and {other[2]} from {other[0]} on the same unit"
    for wg, op, block in starts:
        before = {"QK": [], "SM": [("QK", block), ("SM", block - 1)]}.get(
            op, [("SM", block), ("PV", block - 1)]
        )
        for need in before:
            if need[1] >= 0 and starts[wg, op, block] < ends[wg, *need]:
                return f"{(wg, op, block)} begins before the end of {(wg, *need)}"
        if op == "QK":
            now = starts[wg, op, block]
            live = sum(starts[wg, op, j] <= now < ends[wg, "PV", j] for j in range(n_blocks))
            if live > max_live:
                return f"warpgroup {wg} has {live} tiles of scores at {now}"
    return ""


def least(n_blocks, n_wg, t_qk, t_sm, t_pv, max_live=2):
    """
    A time that no schedule can beat.

    Tensor cores busy all the time; the special functions busy between the first QK and the last
    PV; and with one tile of scores a warpgroup does one thing after the other.
    """
    blocks = n_blocks * n_wg
    times = [blocks * (t_qk + t_pv), t_qk + blocks * t_sm + t_pv]
    if max_live == 1:
        times.append(n_blocks * (t_qk + t_sm + t_pv))
    return max(times)
