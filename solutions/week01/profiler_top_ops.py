"""Kata week01/profiler_top_ops: from kernels to the ops that launched them, to the roof."""

import gzip
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from harness.hardware import Profile

Event = Mapping[str, Any]

UNATTRIBUTED = "<unattributed>"
GPU_WORK = ("kernel", "gpu_memcpy", "gpu_memset")  # `cat` of what ran on the GPU
LAUNCHES = ("cuda_runtime", "cuda_driver")  # `cat` of the calls that put it there

# how a trace spells element types: bytes, and whose FLOP/s count (integers do no FLOPs)
ITEMSIZES = {"c10::Half": 2, "c10::BFloat16": 2, "float": 4, "long int": 8, "int": 4, "bool": 1}
FLOATS = {"c10::Half": "float16", "c10::BFloat16": "bfloat16", "float": "float32"}
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # where the first factor stands
ATTENTION = ("_cudnn_attention_forward", "_flash_attention_forward")
POINTWISE = ("add", "div", "exp", "gelu", "mul", "pow", "rsqrt", "sigmoid", "silu", "sub", "tanh")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpStat:
    """
    All calls of one op that put work on the GPU, from where to how well.

    `cuda_us` is the time of that work in microseconds, of the op itself without those it called.
    `calls` counts calls of the op, `flops` and `bytes` the work of those whose work is known.
    `regime` is "compute", "memory", "latency" or "unknown", `sol_fraction` the time they take at
    the speed of light over `cuda_us` (above 1 where a cache helped); None where the regime is
    unknown.
    """

    name: str
    cuda_us: float
    calls: int
    flops: int
    bytes: int
    regime: str
    sol_fraction: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call has to do: FLOPs at the peak of `dtype`, and bytes to and from memory."""

    flops: int
    bytes: int
    dtype: str


def load_trace(path: Path) -> dict[str, Any]:
    """Read what `torch.profiler` exported with `export_chrome_trace`, gzipped or not."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def op_work(op: Event) -> Work | None:
    """
    Work of a `cpu_op` event by the shapes it recorded, or None where no formula is known.

    Products, attention, layer norm and common pointwise ops are; nobody reuses what is in a cache.
    """
    args = op.get("args", {})
    shapes, types = args.get("Input Dims"), args.get("Input type")
    name = op["name"].removeprefix("aten::").removesuffix("_")
    if not shapes or not types or types[0] not in ITEMSIZES:
        return None
    if name in PRODUCTS:
        read = PRODUCTS[name] + 2
        left, right = shapes[read - 2 : read]
        written, flops = [*left[:-1], right[-1]], 2 * math.prod(left) * right[-1]
    elif name in ATTENTION:
        read = 3
        q, k, v = shapes[:read]
        written, flops = [*q[:-1], v[-1]], 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])
    elif name == "native_layer_norm":
        read = len(shapes)
        written, flops = shapes[0], 8 * math.prod(shapes[0])
    elif name in POINTWISE:
        read = len(shapes)
        sizes = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
        written = [max(along) for along in sizes]
        flops = math.prod(written)
    else:
        return None
    operands = zip(shapes[:read], types, strict=False)
    # an empty shape is a number, not a tensor
    loaded = sum(math.prod(shape) * ITEMSIZES.get(kind, 0) for shape, kind in operands if shape)
    return Work(
        flops=flops if types[0] in FLOATS else 0,
        bytes=loaded + math.prod(written) * ITEMSIZES[types[0]],
        dtype=FLOATS.get(types[0], ""),
    )


def top_ops(trace: Mapping[str, Any], k: int, profile: Profile) -> list[OpStat]:
    """
    The `k` ops with the most GPU time of their own, the longest first.

    A kernel, copy or fill belongs to the innermost op around its launch: the runtime or driver
    call with its correlation id, on the thread of that call. What has no launch in the trace, or a
    launch outside every op, is one more entry, `UNATTRIBUTED`, whose calls are the launches.

    Args:
        trace: As `load_trace` returns it; its events are in no order.
        k: How many; fewer where there are not as many.
        profile: Whose peaks, bandwidth and launch floor make the roof.

    Raises:
        ValueError: "no GPU activity in trace".
    """
    # collect GPU work
    work = _gpu_work(trace)
    # innermost op of the launch
    ops = _launching_ops(trace["traceEvents"])
    # add up by op
    cuda_us: Counter[str] = Counter()
    calls: defaultdict[str, dict[int, Event | None]] = defaultdict(dict)
    for event in work:
        correlation = event["args"]["correlation"]
        op = ops.get(correlation)
        name = UNATTRIBUTED if op is None else op["name"]
        cuda_us[name] += event["dur"]
        calls[name][correlation if op is None else id(op)] = op
    return [
        _stat(name, total_us, calls[name].values(), profile)
        for name, total_us in cuda_us.most_common(k)
    ]


def gpu_busy_fraction(trace: Mapping[str, Any]) -> float:
    """
    Share of the time from the first to the last GPU event in which at least one was running.

    Raises:
        ValueError: "no GPU activity in trace".
    """
    # union of the spans
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in _gpu_work(trace))
    first = done = spans[0][0]
    busy_us = 0.0
    for start, end in spans:
        busy_us += max(0.0, end - max(start, done))
        done = max(done, end)
    return busy_us / (done - first)


def _gpu_work(trace: Mapping[str, Any]) -> list[Event]:
    # collect GPU work
    work = [event for event in trace.get("traceEvents", []) if event.get("cat") in GPU_WORK]
    if not work:
        raise ValueError("no GPU activity in trace: expected kernels, copies or fills, found none")
    return work


def _launching_ops(events: Sequence[Event]) -> dict[int, Event]:
    """Sweep each thread in time, the ops that are open on a stack: correlation id to op."""
    # innermost op of the launch
    threads: defaultdict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op" or event.get("cat") in LAUNCHES:
            threads[event["pid"], event["tid"]].append(event)
    found = {}
    for thread in threads.values():
        # of events that start together the longest is the outermost, and no op is within a launch
        thread.sort(key=lambda event: (event["ts"], event["cat"] != "cpu_op", -event["dur"]))
        stack: list[Event] = []
        for event in thread:
            while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
                stack.pop()
            if event["cat"] == "cpu_op":
                stack.append(event)
            elif stack:
                found[event["args"]["correlation"]] = stack[-1]
    return found


def _stat(name: str, cuda_us: float, ops: Collection[Event | None], profile: Profile) -> OpStat:
    # compare with the roof
    works = [work for op in ops if op is not None and (work := op_work(op)) is not None]
    least_us: Counter[str] = Counter()
    for work in works:
        regime, seconds = _roof(work, profile)
        least_us[regime] += 1e6 * seconds
    known = len(works) == len(ops)
    return OpStat(
        name=name,
        cuda_us=cuda_us,
        calls=len(ops),
        flops=sum(work.flops for work in works),
        bytes=sum(work.bytes for work in works),
        regime=max(least_us, key=least_us.__getitem__) if known else "unknown",
        sol_fraction=least_us.total() / cuda_us if known else None,
    )


def _roof(work: Work, profile: Profile) -> tuple[str, float]:
    """What bounds one call, and the seconds it takes at least."""
    # least time of a call
    compute_s = work.flops / profile.peak_of(work.dtype) if work.flops else 0.0
    memory_s = work.bytes / profile.bandwidth
    least_s = max(compute_s, memory_s)
    if least_s < profile.launch_s:
        return "latency", least_s
    return ("compute" if compute_s >= memory_s else "memory"), least_s
