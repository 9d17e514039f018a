"""Kata week12/capstone_attention_roofline: three attentions timed, placed, reported, audited.

Work is computed from shapes, never guessed from times; the report is written from the table of
results, and any reader can compute it again.
"""

import csv
import io
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

IMPLS = ("naive", "sdpa", "flash")  # stored scores, PyTorch's attention, your kernel
REPETITIONS = 20
LEAST_REPETITIONS = 5
SLACK = 1.02  # a clock's error: a point further above the roof is wrong
STATISTIC_BYTES = 4  # log-sum-exps are float32
REPORT = """\
# Attention on {machine}

## Before and after

| n | causal | impl | ms | speedup |
|---|---|---|---|---|
{times}

## Roofline

| n | causal | impl | FLOP/byte | TFLOP/s | roof | fraction | bound |
|---|---|---|---|---|---|---|---|
{places}

## Next step

{step}
"""

Inputs = Any
Attention = Callable[[Inputs, bool], object]  # of inputs, causal or not


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A GPU: dense FLOP/s in the dtype of the inputs, bytes/s of its memory, bytes of its L2."""

    name: str
    peak: float
    bandwidth: float
    l2_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Queries, keys, values and output are [batch, heads, n, d]; causal sees no later key."""

    batch: int
    heads: int
    n: int
    d: int
    itemsize: int
    causal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """FLOPs, bytes moved, and bytes of what is stored between inputs and output."""

    flops: int
    bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One implementation at one shape; from `flops` on everything follows from what is before."""

    impl: str
    batch: int
    heads: int
    n: int
    d: int
    itemsize: int
    causal: bool
    repetitions: int
    p20_s: float
    p50_s: float
    p80_s: float
    flops: int
    bytes: int
    stored_bytes: int
    intensity: float
    flops_per_s: float
    fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Where `flash` loses most, what bounds it there, and how many times faster the roof is."""

    n: int
    causal: bool
    bound: str
    gain: float


class Bench(Protocol):
    """What can run attentions and tell their time."""

    def inputs(self, shape: Shape) -> Inputs:
        """New queries, keys and values."""
        ...

    def agree(self, found: object, expected: object) -> bool:
        """Whether two results are equal up to rounding."""
        ...

    def seconds(
        self, launch: Callable[[], object], *, repetitions: int, flush_bytes: int
    ) -> list[float]:
        """Time launches one by one, after `flush_bytes` bytes have been written before each."""
        ...


def work(impl: str, shape: Shape) -> Work:
    """
    Say what an implementation does at a shape.

    FLOPs are those of both products, half of them where causal; bytes know no mask. `naive` moves
    q and k in, scores out, scores in, probabilities out, probabilities and v in, o out, and stores
    scores and probabilities. The others move q, k and v in, o and one log-sum-exp per row out, and
    store the latter.

    Raises:
        ValueError: `impl` is none of `IMPLS`, or a size of `shape` is below 1; the message begins
            with the name and a colon.
    """
    raise NotImplementedError  # TODO(kata): work of a shape (about 15 lines)


def measure(
    impls: Mapping[str, Attention], shapes: Iterable[Shape], machine: Machine, bench: Bench
) -> list[Row]:
    """
    Time each of `IMPLS` at each shape, in this order, on the same inputs and with a cold cache.

    At each shape all implementations run once, and must agree with `naive`, before any is timed.

    Raises:
        ValueError: `impls` lacks one of `IMPLS` ("impls: …"), one disagrees (its name and a colon),
            or `load` would refuse the rows, with the same message.
    """
    # TODO(kata): agree before timing, time and derive, audit the rows (about 75 lines with helpers)
    raise NotImplementedError


def next_step(rows: Sequence[Row], machine: Machine) -> Step:
    """
    Choose the row of `flash` with the most seconds above its roof, the first among equals.

    Its gain is how many times faster it would be on the roof. A row is bound by "memory" where its
    intensity is below the ridge, by "compute" otherwise.
    """
    raise NotImplementedError  # TODO(kata): next step (about 7 lines with helpers)


def artifacts(rows: Sequence[Row], machine: Machine) -> dict[str, str]:
    """
    Write what is to be handed in, as text by file name, each from `rows` alone.

    `bench.csv` has the fields of `Row` as header and a line per row. `roofline.json` has `machine`,
    `points` and `next_step`; a point has impl, n, causal, intensity, flops_per_s, roof (FLOP/s),
    fraction, bound and speedup (naive's median time over its own). `roofline.svg` shows the points.
    `REPORT.md` has them as tables, numbers with four digits (`.4g`).
    """
    raise NotImplementedError  # TODO(kata): artifacts (about 40 lines)


def load(folder: Path, machine: Machine) -> list[Row]:
    """
    Read the results of a folder, and refuse what is inconsistent.

    Raises:
        ValueError: the message begins with the file's name; in `bench.csv` the line (the header is
            line 1) and the column follow, as in "bench.csv:3: fraction: …". Refused are another
            header, what is not a value of its column, an unknown `impl`, sizes below 1, fewer
            than 5 repetitions, times that are not above 0, finite and in order (p20 ≤ p50 ≤ p80),
            a derived column that is not what follows (floats within 1e-9), `flops_per_s` more than
            2 % above the roof; no rows; a shape without each of `IMPLS` exactly once (the message
            has no line, and names the shape's n); and any other file that is not, to the letter,
            what `artifacts` makes of the rows.
    """
    raise NotImplementedError  # TODO(kata): audit the rows (about 10 lines)


def capstone_attention_roofline(
    impls: Mapping[str, Attention],
    shapes: Iterable[Shape],
    machine: Machine,
    bench: Bench,
    folder: Path,
) -> Step:
    """Measure, write the artifacts into a folder that exists, and say what to do next."""
    raise NotImplementedError  # TODO(kata): artifacts (about 4 lines)


def draw(points: Sequence[Mapping[str, Any]], machine: Machine) -> str:
    """Draw points and roof as SVG with logarithmic axes; data-x and data-y are their values."""
    ridge = machine.peak / machine.bandwidth
    xs = [ridge, *(point["intensity"] for point in points)]
    left, right = min(xs) / 4, max(xs) * 4
    roof = [(x, min(machine.peak, x * machine.bandwidth)) for x in (left, ridge, right)]
    ys = [y for _, y in roof] + [point["flops_per_s"] for point in points]
    low, high = min(ys) / 2, max(ys) * 2

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / left) / math.log(right / left)
        up = math.log(y / low) / math.log(high / low)
        return round(40 + 560 * across, 2), round(360 - 320 * up, 2)

    corners = " ".join(f"{x},{y}" for x, y in (place(*corner) for corner in roof))
    dots = []
    for point in points:
        x, y = point["intensity"], point["flops_per_s"]
        cx, cy = place(x, y)
        label = f"{point['impl']} n={point['n']}" + (" causal" if point["causal"] else "")
        dots.append(
            f'<circle cx="{cx}" cy="{cy}" r="4" data-impl="{point["impl"]}" data-x="{x!r}" '
            f'data-y="{y!r}"><title>{label}</title></circle>'
        )
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 400">',
            f"<title>{machine.name}: FLOP/s over FLOP/byte, both logarithmic</title>",
            f'<polyline points="{corners}" fill="none" stroke="black"/>',
            *dots,
            "</svg>\n",
        ]
    )


class TorchBench:
    """A `Bench` of PyTorch's device "cpu" or "cuda"; inputs are q, k, v, N(0, 1)."""

    def __init__(self, device: str, seed: int = 0) -> None:
        import torch

        self.device = device
        self.generator = torch.Generator().manual_seed(seed)

    def inputs(self, shape: Shape) -> Inputs:
        """Queries, keys and values: float16 or float32, by `itemsize`."""
        import torch

        dtype = {2: torch.float16, 4: torch.float32}[shape.itemsize]
        size = (3, shape.batch, shape.heads, shape.n, shape.d)
        return torch.randn(size, generator=self.generator).to(self.device, dtype).unbind()

    def agree(self, found: Any, expected: Any) -> bool:  # noqa: ANN401 -- tensors
        """Within a hundredth, which rounding to float16 stays below."""
        return bool((found.float() - expected.float()).abs().max() < 1e-2)

    def seconds(
        self, launch: Callable[[], object], *, repetitions: int, flush_bytes: int
    ) -> list[float]:
        """By the GPU's events, or the host's clock."""
        import torch

        flush = torch.empty(flush_bytes, dtype=torch.uint8, device=self.device)
        if self.device == "cpu":
            return [self._host_seconds(launch, flush) for _ in range(repetitions)]
        events = [[torch.cuda.Event(enable_timing=True) for _ in "ab"] for _ in range(repetitions)]
        for start, stop in events:
            flush.zero_()
            start.record()
            launch()
            stop.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) / 1e3 for start, stop in events]

    def _host_seconds(self, launch: Callable[[], object], flush: Any) -> float:  # noqa: ANN401
        flush.zero_()
        start = time.perf_counter()
        launch()
        return time.perf_counter() - start


def _parsed(line: Sequence[str], number: int) -> Row:
    """Read one line of bench.csv."""
    values = {}
    if len(line) != len(fields(Row)):
        raise ValueError(f"bench.csv:{number}: expected {len(fields(Row))} values, found {line}")
    for field, text in zip(fields(Row), line, strict=True):
        try:
            values[field.name] = _PARSERS[field.type](text)
        except (ValueError, KeyError):
            raise ValueError(f"bench.csv:{number}: {field.name}: found {text!r}") from None
    return Row(**values)


_PARSERS: dict[Any, Callable[[str], Any]] = {
    str: str, int: int, float: float, bool: {"True": True, "False": False}.__getitem__,
}  # fmt: skip
