"""What is right and what to feed: a timeline in cells of 1 us, and traces made by hand."""

from dataclasses import replace
from fractions import Fraction

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
LINK = {"link_bandwidth": 450e9, "link_latency_s": 2e-6}


def machine(profile, **figures):
    """`profile` with the H200's link, or another."""
    return replace(profile, **LINK | figures)


def kernel(ts, dur, name=GEMM, *, stream=7, cat="kernel"):
    return _event(cat, name, ts, dur, 0, stream)


def comm(ts, dur, name=ALL_REDUCE, *, stream=20):
    return kernel(ts, dur, name, stream=stream)


def annotation(step, ts, dur, *, cat="user_annotation"):
    return _event(cat, f"ProfilerStep#{step}", ts, dur, 100, 1)


def op(name, ts, dur, cat="cpu_op"):
    return _event(cat, name, ts, dur, 100, 1)


def _event(cat, name, ts, dur, pid, tid):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}


def trace(*events):
    return {"schemaVersion": 1, "traceEvents": [*events]}


def rasterised(computed, communicated, start, end):
    """The split in seconds, cell by cell; all spans are (start, duration) in whole us."""

    def cells(spans):
        return {at for ts, dur in spans for at in range(ts, ts + dur)} & {*range(start, end)}

    compute, comm = cells(computed), cells(communicated)
    return {
        "compute": len(compute) / 1e6,
        "comm": len(comm) / 1e6,
        "exposed": len(comm - compute) / 1e6,
        "idle": (end - start - len(compute | comm)) / 1e6,
        "total": (end - start) / 1e6,
    }


def training(layers):
    """A step of `layers` kernels of 10 us on one stream, and a bucket of 5 us after each."""
    step = annotation(1, 0, 20 * layers + 20)
    made = [kernel(20 * at, 10) for at in range(layers)]
    return trace(step, *made, *(comm(20 * at + 8, 5) for at in range(layers)))


def nested(layers):
    """One long kernel under `layers` short ones, and as many buckets under one long one."""
    step = annotation(1, 0, 20 * layers)
    spans = [kernel(at, 1, stream=8) for at in range(layers)]
    spans += [comm(at, 1, stream=21) for at in range(layers)]
    return trace(step, kernel(0, 10 * layers), comm(5 * layers, 10 * layers), *spans)


def predicted(params, bytes_per_el, t_compute_per_sample, batch, world, profile, bucket_bytes):
    """The same model event by event in exact fractions: compute, comm, exposed, total."""
    compute = Fraction(t_compute_per_sample) * batch
    size = params * bytes_per_el
    rate = size / (compute * Fraction(2, 3))  # gradient bytes per second of the backward pass
    left, made, waiting = size, 0, []
    while left:
        part = min(left, bucket_bytes)
        left, made = left - part, made + part
        waiting.append((compute / 3 + made / rate, part))
    free = comm = Fraction(0)
    for full, part in waiting if world > 1 else []:
        # world - 1 steps to reduce, as many to gather, of a world-th of the bucket each
        step = Fraction(part, world) / Fraction(profile.link_bandwidth)
        took = 2 * (world - 1) * (step + Fraction(profile.link_latency_s))
        free = max(free, full) + took
        comm += took
    total = max(compute, free)
    return {
        "compute": float(compute),
        "comm": float(comm),
        "exposed": float(total - compute),
        "idle": 0.0,
        "total": float(total),
    }
