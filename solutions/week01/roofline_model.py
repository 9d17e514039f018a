"""Kata week01/roofline_model: compare times, take the longest; bisect on who is longer."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """
    The ceilings of one GPU.

    `peak` is dense FLOP/s by dtype, `bandwidth` bytes/s by memory level from the outermost
    inwards, `launch_s` the least time any kernel takes, above 0.
    """

    name: str
    peak: Mapping[str, float]
    bandwidth: Mapping[str, float]
    launch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    What the model says of one op.

    `time_s` is the least time it can take, `attainable` the FLOP/s it then reaches, `regime`
    what keeps it from being faster: "compute", "latency", or "memory:" and the name of a level.
    """

    time_s: float
    attainable: float
    regime: str


# Peaks and HBM rates as the datasheets say, the A100's 2.04 TB/s rounded to 2. On chip it is bytes
# per clock times clock: 128 per SM for shared memory, 5120 in all for the A100's L2. Nothing is
# published for Hopper's L2, so 5120 is assumed there. The launch floors are typical, not measured.
A100 = Machine(
    name="A100",
    peak={"float16": 312e12, "bfloat16": 312e12, "float32": 19.5e12},
    bandwidth={"hbm": 2e12, "l2": 5120 * 1.41e9, "smem": 108 * 128 * 1.41e9},
    launch_s=3e-6,
)
H100 = Machine(
    name="H100",
    peak={"float16": 989.4e12, "bfloat16": 989.4e12, "float32": 67e12, "float8": 1979e12},
    bandwidth={"hbm": 3.35e12, "l2": 5120 * 1.83e9, "smem": 132 * 128 * 1.83e9},
    launch_s=2e-6,
)
H200 = Machine(
    name="H200",
    peak={"float16": 989.4e12, "bfloat16": 989.4e12, "float32": 67e12, "float8": 1979e12},
    bandwidth={"hbm": 4.8e12, "l2": 5120 * 1.83e9, "smem": 132 * 128 * 1.83e9},
    launch_s=2e-6,
)


def ridge(machine: Machine, dtype: str, level: str = "hbm") -> float:
    """
    FLOP per byte at which the peak of `dtype` and the bandwidth of `level` take equally long.

    Raises:
        ValueError: `machine` has no such `dtype` or `level`; the message names what it was given.
    """
    return _ceiling(machine.peak, "dtype", dtype) / _ceiling(machine.bandwidth, "level", level)


def roofline(
    flops: float, bytes_by_level: Mapping[str, float], machine: Machine, dtype: str
) -> Verdict:
    """
    Judge an op that does `flops` FLOP and moves these bytes through each memory level.

    Levels overlap with each other and with arithmetic; a level that is not given costs nothing.
    The regime is the slowest ceiling. At a tie "compute" wins over any memory level and an outer
    level over an inner one. It is "latency" when every ceiling is below `machine.launch_s`.
    An op without FLOPs (a copy) has attainable 0.

    Raises:
        ValueError: `flops` or a level's bytes are negative, bytes are 0 although there are
            FLOPs, or `machine` has no such dtype or level; the message names which.
    """
    # check
    for level in bytes_by_level:
        _ceiling(machine.bandwidth, "level", level)
    _check_work(flops, bytes_by_level)
    # time of each ceiling
    # max() keeps the first of equals, so the order of insertion settles ties
    times = {"compute": flops / _ceiling(machine.peak, "dtype", dtype)}
    for level, bandwidth in machine.bandwidth.items():
        if level in bytes_by_level:
            times[f"memory:{level}"] = bytes_by_level[level] / bandwidth
    times["latency"] = machine.launch_s
    # longest of them
    regime = max(times, key=times.__getitem__)
    return Verdict(time_s=times[regime], attainable=flops / times[regime], regime=regime)


def crossover(
    cost_fn: Callable[[int], tuple[float, float]],
    machine: Machine,
    dtype: str,
    hi: int = 2**20,
) -> int | None:
    """
    Smallest batch in 1..hi that is not bound by HBM, or None when every one of them is.

    Args:
        cost_fn: Batch, which must be in 1..hi, to (FLOPs, HBM bytes); the intensity never falls
            as the batch grows. May be slow: call it at most 42 times for hi = 2**20.
        machine: Whose peak and HBM bandwidth count; the launch floor plays no part.
        dtype: Which peak.
        hi: The largest batch to consider.

    Raises:
        ValueError: `hi` is below 1, `machine` has no such `dtype` or no "hbm", or `cost_fn`
            returns what `roofline` would refuse.
    """
    # check
    if hi < 1:
        raise ValueError(f"hi: expected a batch of 1 or more, found {hi}")
    peak = _ceiling(machine.peak, "dtype", dtype)
    bandwidth = _ceiling(machine.bandwidth, "level", "hbm")

    # judge one batch
    def compute_bound(batch: int) -> bool:
        flops, moved = cost_fn(batch)
        _check_work(flops, {"hbm": moved})
        return flops / peak >= moved / bandwidth

    # halve the range
    if not compute_bound(hi):
        return None
    # intensity never falls, so compute_bound is False up to some batch and True from there on
    return 1 + bisect_left(range(1, hi), True, key=compute_bound)


def _ceiling(ceilings: Mapping[str, float], what: str, name: str) -> float:
    if name not in ceilings:
        raise ValueError(f"{what}: expected one of {', '.join(ceilings)}, found {name!r}")
    return ceilings[name]


def _check_work(flops: float, bytes_by_level: Mapping[str, float]) -> None:
    # check
    if flops < 0:
        raise ValueError(f"flops: expected 0 or more, found {flops}")
    for level, moved in bytes_by_level.items():
        if moved < 0:
            raise ValueError(f"{level}: expected 0 bytes or more, found {moved}")
        if moved == 0 and flops > 0:
            raise ValueError(f"{level}: expected some bytes for {flops} FLOP, found none")
