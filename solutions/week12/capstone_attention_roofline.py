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
    # work of a shape
    if impl not in IMPLS:
        raise ValueError(f"impl: expected one of {', '.join(IMPLS)}, found {impl!r}")
    for name in ("batch", "heads", "n", "d", "itemsize"):
        if getattr(shape, name) < 1:
            raise ValueError(f"{name}: expected 1 or more, found {getattr(shape, name)}")
    heads = shape.batch * shape.heads
    matrix = heads * shape.n * shape.d * shape.itemsize
    flops = (2 if shape.causal else 4) * heads * shape.n**2 * shape.d
    if impl == "naive":
        scores = heads * shape.n**2 * shape.itemsize
        return Work(flops=flops, bytes=4 * matrix + 4 * scores, stored_bytes=2 * scores)
    statistics = heads * shape.n * STATISTIC_BYTES
    return Work(flops=flops, bytes=4 * matrix + statistics, stored_bytes=statistics)


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
    # agree before timing
    missing = [name for name in IMPLS if name not in impls]
    if missing:
        raise ValueError(f"impls: expected {', '.join(IMPLS)}, found no {', '.join(missing)}")
    rows = []
    for shape in shapes:
        inputs = bench.inputs(shape)
        results = {name: impls[name](inputs, shape.causal) for name in IMPLS}
        for name in IMPLS:
            if not bench.agree(results[name], results["naive"]):
                raise ValueError(f"{name}: another result than naive's at {shape}")
        # time and derive
        del results  # room for what is timed
        for name in IMPLS:
            samples = bench.seconds(
                partial(impls[name], inputs, shape.causal),
                repetitions=REPETITIONS,
                flush_bytes=2 * machine.l2_bytes,
            )
            rows.append(_row(name, shape, machine, samples))
    # audit the rows
    _check(rows, machine)
    return rows


def next_step(rows: Sequence[Row], machine: Machine) -> Step:
    """
    Choose the row of `flash` with the most seconds above its roof, the first among equals.

    Its gain is how many times faster it would be on the roof. A row is bound by "memory" where its
    intensity is below the ridge, by "compute" otherwise.
    """
    mine = [row for row in rows if row.impl == "flash"]
    worst = max(mine, key=lambda row: row.p50_s * (1 - row.fraction))
    return Step(
        n=worst.n, causal=worst.causal, bound=_bound(worst, machine), gain=1 / worst.fraction
    )


def artifacts(rows: Sequence[Row], machine: Machine) -> dict[str, str]:
    """
    Write what is to be handed in, as text by file name, each from `rows` alone.

    `bench.csv` has the fields of `Row` as header and a line per row. `roofline.json` has `machine`,
    `points` and `next_step`; a point has impl, n, causal, intensity, flops_per_s, roof (FLOP/s),
    fraction, bound and speedup (naive's median time over its own). `roofline.svg` shows the points.
    `REPORT.md` has them as tables, numbers with four digits (`.4g`).
    """
    # artifacts
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow([field.name for field in fields(Row)])
    writer.writerows(astuple(row) for row in rows)

    naive = {_shape(row): row.p50_s for row in rows if row.impl == "naive"}
    points = [
        {
            "impl": row.impl,
            "n": row.n,
            "causal": row.causal,
            "intensity": row.intensity,
            "flops_per_s": row.flops_per_s,
            "roof": _roof(row.intensity, machine),
            "fraction": row.fraction,
            "bound": _bound(row, machine),
            "speedup": naive[_shape(row)] / row.p50_s,
        }
        for row in rows
    ]
    step = next_step(rows, machine)
    results = {"machine": asdict(machine), "points": points, "next_step": asdict(step)}
    times, places = [], []
    for row, point in zip(rows, points, strict=True):
        start = f"| {row.n} | {row.causal} | {row.impl} |"
        times.append(f"{start} {row.p50_s * 1e3:.4g} | {point['speedup']:.4g} |")
        places.append(
            f"{start} {row.intensity:.4g} | {row.flops_per_s / 1e12:.4g} | "
            f"{point['roof'] / 1e12:.4g} | {row.fraction:.4g} | {point['bound']} |"
        )
    return {
        "bench.csv": table.getvalue(),
        "roofline.json": json.dumps(results, indent=1) + "\n",
        "roofline.svg": draw(points, machine),
        "REPORT.md": REPORT.format(
            machine=machine.name,
            times="\n".join(times),
            places="\n".join(places),
            step=f"flash at n = {step.n}, causal = {step.causal}: bound by {step.bound}, "
            f"at most {step.gain:.4g} times faster.",
        ),
    }


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
    # audit the rows
    # a table that is not text is reported as a value that cannot be read
    text = (folder / "bench.csv").read_bytes().decode(errors="replace")
    lines = list(csv.reader(io.StringIO(text, newline="")))
    names = [field.name for field in fields(Row)]
    if lines[:1] != [names]:
        raise ValueError(f"bench.csv:1: expected {','.join(names)}, found {lines[:1]}")
    rows = [_parsed(line, number) for number, line in enumerate(lines[1:], start=2)]
    _check(rows, machine)
    for name, text in artifacts(rows, machine).items():
        if name != "bench.csv" and (folder / name).read_bytes() != text.encode():
            raise ValueError(f"{name}: it is not what the rows of bench.csv make")
    return rows


def capstone_attention_roofline(
    impls: Mapping[str, Attention],
    shapes: Iterable[Shape],
    machine: Machine,
    bench: Bench,
    folder: Path,
) -> Step:
    """Measure, write the artifacts into a folder that exists, and say what to do next."""
    rows = measure(impls, shapes, machine, bench)
    # artifacts
    for name, text in artifacts(rows, machine).items():
        (folder / name).write_bytes(text.encode())
    return next_step(rows, machine)


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


def _roof(intensity: float, machine: Machine) -> float:
    """FLOP/s that a machine allows at an intensity."""
    return min(machine.peak, intensity * machine.bandwidth)


def _bound(row: Row, machine: Machine) -> str:
    return "memory" if row.intensity < machine.peak / machine.bandwidth else "compute"


def _shape(row: Row) -> Shape:
    return Shape(**{field.name: getattr(row, field.name) for field in fields(Shape)})


def _row(impl: str, shape: Shape, machine: Machine, samples: Sequence[float]) -> Row:
    # time and derive
    p20, p50, p80 = (_percentile(samples, percent) for percent in (20, 50, 80))
    done = work(impl, shape)
    return Row(
        impl=impl, **asdict(shape), repetitions=len(samples), p20_s=p20, p50_s=p50, p80_s=p80,
        **asdict(done), **_derived(done, p50, machine),
    )  # fmt: skip


def _derived(done: Work, p50_s: float, machine: Machine) -> dict[str, float]:
    """Compute the columns that follow from what was done and how long it took."""
    intensity = done.flops / done.bytes
    flops_per_s = done.flops / p50_s if p50_s else math.inf  # which `_check` refuses
    fraction = flops_per_s / _roof(intensity, machine)
    return {"intensity": intensity, "flops_per_s": flops_per_s, "fraction": fraction}


def _percentile(samples: Sequence[float], percent: int) -> float:
    """Take the smallest sample that so many percent of them do not exceed."""
    return sorted(samples)[-(-percent * len(samples) // 100) - 1]


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


def _check(rows: Sequence[Row], machine: Machine) -> None:
    """Refuse rows that do not hang together; line 1 is the header."""
    # audit the rows
    for number, row in enumerate(rows, start=2):
        try:
            _check_row(row, machine)
        except ValueError as wrong:
            raise ValueError(f"bench.csv:{number}: {wrong}") from None
    if not rows:
        raise ValueError("bench.csv: expected rows, found none")
    seen: dict[Shape, list[str]] = {}
    for row in rows:
        seen.setdefault(_shape(row), []).append(row.impl)
    for shape, impls in seen.items():
        if sorted(impls) != sorted(IMPLS):
            raise ValueError(f"bench.csv: n = {shape.n}: expected {IMPLS}, found {impls}")


def _check_row(row: Row, machine: Machine) -> None:
    # audit the rows
    done = work(row.impl, _shape(row))
    if row.repetitions < LEAST_REPETITIONS:
        raise ValueError(
            f"repetitions: expected {LEAST_REPETITIONS} or more, found {row.repetitions}"
        )
    earlier = 0.0
    for name in ("p20_s", "p50_s", "p80_s"):
        seconds = getattr(row, name)
        if not earlier <= seconds < math.inf or seconds == 0:
            raise ValueError(f"{name}: expected a time of {earlier} or more, found {seconds}")
        earlier = seconds
    for name, expected in asdict(done).items():
        if getattr(row, name) != expected:
            raise ValueError(f"{name}: expected {expected}, found {getattr(row, name)}")
    for name, expected in _derived(done, row.p50_s, machine).items():
        # by default within 1e-9, as the brief has it
        if not math.isclose(getattr(row, name), expected):
            raise ValueError(f"{name}: expected {expected}, found {getattr(row, name)}")
    if row.fraction > SLACK:
        raise ValueError(
            f"flops_per_s: expected at most {SLACK} times the roof, found {row.fraction:.4g} times"
        )
