"""What is right and what to feed: PyTorch's own table of the capture, and traces made by hand."""

import json
from collections import Counter
from pathlib import Path

DATA = Path(__file__).parent / "data"


def key_averages():
    """What PyTorch adds up for the captured run: op to (GPU time of its own in us, calls)."""
    cuda_us, calls = Counter(), Counter()
    for row in json.loads((DATA / "gpt2_h200_key_averages.json").read_text()):
        if row["k"].startswith("aten::") and row["d"] > 0:
            cuda_us[row["k"]] += row["d"]
            calls[row["k"]] += row["n"]
    return {name: (cuda_us[name], calls[name]) for name in cuda_us}


def op(name, ts, dur, *, pid=100, tid=1, cat="cpu_op", shapes=None, kind="c10::Half"):
    """An op on a CPU thread; with `shapes` its operands are of type `kind`."""
    args = {"Input Dims": shapes, "Input type": [kind] * len(shapes)} if shapes else {}
    return _event(cat, name, ts, dur, pid, tid, args)


def launch(correlation, ts, *, pid=100, tid=1, cat="cuda_runtime", name="cudaLaunchKernel"):
    """A call on a CPU thread that puts work on the GPU."""
    return _event(cat, name, ts, 1.0, pid, tid, {"correlation": correlation})


def kernel(correlation, ts, dur, *, stream=7, cat="kernel"):
    """Work on a stream of the GPU."""
    return _event(cat, "kernel<…>", ts, dur, 0, stream, {"correlation": correlation})


def _event(cat, name, ts, dur, pid, tid, args):
    where = {"pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return {"ph": "X", "cat": cat, "name": name, **where, "args": args}


def trace(*events):
    return {"traceEvents": list(events)}


def forward(layers):
    """A forward pass of `layers` linear layers, each of them an op in an op: 4 events a layer."""
    events = [op("aten::forward", 0.0, 20.0 * layers)]
    for layer in range(layers):
        ts = 20.0 * layer
        events += [
            op("aten::linear", ts + 1, 10.0),
            op("aten::addmm", ts + 2, 8.0, shapes=[[8], [4, 16], [16, 8]]),
            launch(layer, ts + 3),
            kernel(layer, ts + 15, 5.0),
        ]
    return trace(*events)
