"""Kata week12/capstone_serving_stack: one optimization at a time, and a log that proves each."""

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import profiler

from harness.hardware import Profile
from harness.simulators.serving import ModelSpec, StepModel, llama2_7b

STAGES = ("static float16", "int4 weights", "continuous batching", "speculation")
WEIGHT_BYTES = (2.0, 0.5625, 0.5625, 0.5625)  # of a stage's weights: 4 bits, a scale for each 32
DRAFT = ModelSpec(params=1_100_048_384, layers=22, heads=32, kv_heads=4, head_dim=64, d_model=2048)
EOS = 0


class Model(Protocol):
    """A causal language model, an `nn.Module`: row i of what it returns is for token i + 1."""

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the logits `[n, vocab]` of `tokens` `[n]`, int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request: its answer ends with EOS, or after `max_new` tokens."""

    id: int
    arrival_s: float
    prompt: tuple[int, ...]
    max_new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    The bounds of an engine.

    `kv_tokens` fit into the cache, in blocks of `block_size` from stage 2 on; `room` is what
    static batching sets aside for each request, and the longest that prompt and answer may be.
    """

    max_batch: int = 48
    kv_tokens: int = 768
    block_size: int = 8
    room: int = 128
    k_max: int = 4


LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A line of an engine's log: `drafted` tokens for each that decodes, `emitted` by id."""

    start_s: float
    end_s: float
    prefill: tuple[int, ...] = ()
    decode: tuple[int, ...] = ()
    preempt: tuple[int, ...] = ()
    drafted: int = 0
    emitted: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one or more passes through models do, and how long they take."""

    flops: float = 0.0
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        """Add up two after each other."""
        return Work(**{name: value + getattr(other, name) for name, value in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a log comes to; `drafted` counts proposed tokens, `kept` those of them emitted."""

    tokens: int
    steps: int
    drafted: int
    kept: int
    work: Work


def pass_work(
    profile: Profile, spec: ModelSpec, w_bytes: float, chunks: Sequence[tuple[int, int]]
) -> Work:
    """Count one pass over `chunks`: tokens put through now, and those cached before."""
    model = StepModel(profile, spec, w_bytes=w_bytes)
    tokens = sum(new for new, _ in chunks)
    pairs = sum(new * (past + (new + 1) / 2) for new, past in chunks)
    return Work(
        flops=2 * spec.params * tokens + 4 * spec.layers * spec.heads * spec.head_dim * pairs,
        weight_bytes=w_bytes * spec.params * (tokens > 0),
        cache_bytes=model.kv_bytes_per_token() * sum(new + past for new, past in chunks),
        seconds=model.time(prefill=chunks),
    )


def step_work(
    stage: int, profile: Profile, prefill: Sequence[int], decode: Sequence[int], drafted: int = 0
) -> Work:
    """
    Count a step of LLaMA-2-7B: `prefill` tokens of each prompt, then what each decode has cached.

    With `drafted` tokens, as many steps of the draft come first; then the target looks at
    `drafted` + 1 tokens of each request that decodes.
    """
    chunks = [(tokens, 0) for tokens in prefill] + [(drafted + 1, past) for past in decode]
    work = pass_work(profile, llama2_7b, WEIGHT_BYTES[stage], chunks)
    for more in range(drafted):
        chunks = [(1, past + more) for past in decode]
        work += pass_work(profile, DRAFT, WEIGHT_BYTES[stage], chunks)
    return work


def int4(model: nn.Module) -> nn.Module:
    """Copy `model`, the weight of each `nn.Linear` rounded to 4 bits and a scale for each 32."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            groups = layer.weight.data.unflatten(1, (-1, 32))
            scale = groups.abs().amax(dim=2, keepdim=True) / 7
            layer.weight.data = ((groups / scale).round() * scale).flatten(1)
    return model


def save_log(path: Path, log: Sequence[Step]) -> None:
    """Write a log, one step per line."""
    lines = (asdict(step) | {"emitted": [*step.emitted.items()]} for step in log)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def load_log(path: Path) -> list[Step]:
    """Read what `save_log` wrote."""
    log = []
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        for name in ("prefill", "decode", "preempt"):
            fields[name] = tuple(fields[name])
        fields["emitted"] = {req_id: tuple(tokens) for req_id, tokens in fields["emitted"]}
        log.append(Step(**fields))
    return log


@contextmanager
def traced(path: Path, name: str) -> Iterator[None]:
    """Profile a block as the range `name`, and write a trace of it that Perfetto opens."""
    # torch.profiler records the same, but imports the compiler first, which takes seconds
    with profiler.profile() as trace, profiler.record_function(name):
        yield
    trace.export_chrome_trace(str(path))


def draw_roofline(path: Path, profile: Profile, points: Sequence[tuple[str, float, float]]) -> None:
    """Draw (label, FLOP per byte, FLOP per second) below the roofline, on logarithmic axes."""
    peak, ridge = profile.peak_of("float16"), profile.peak_of("float16") / profile.bandwidth

    def at(intensity: float, rate: float) -> tuple[float, float]:
        return 120 * math.log10(intensity * 10), 20 + 100 * math.log10(peak / rate)

    (x0, y0), (x1, y1), (x2, y2) = at(0.1, profile.bandwidth / 10), at(ridge, peak), at(1e4, peak)
    marks = []
    for label, intensity, rate in points:
        x, y = at(intensity, rate)
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" data-label="{label}"')
        marks.append(f' data-x="{intensity!r}" data-y="{rate!r}"><title>{label}</title></circle>')
    path.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 480" data-scale="log-log">'
        f'<polyline points="{x0:.1f},{y0:.1f} {x1:.1f},{y1:.1f} {x2:.1f},{y2:.1f}"'
        f' data-ridge="{ridge!r}" fill="none" stroke="black"/>{"".join(marks)}</svg>\n'
    )


def write_report(outdir: Path, profile: Profile, results: Mapping[str, Any]) -> None:
    """Write `results` to results.json, and roofline.svg and REPORT.md from them."""
    (outdir / "results.json").write_text(json.dumps(results, indent=1))
    rows = [(name, row) for name, stages in results["workloads"].items() for row in stages]
    points = [
        (f"{name} {row['stage']}", row["intensity"], row["flops"] / row["busy_s"])
        for name, row in rows
    ]
    draw_roofline(outdir / "roofline.svg", profile, points)
    table = ["| workload | stage | | tokens/s | gain | FLOP/byte | regime |", "|---" * 7 + "|"]
    table += [
        f"| {name} | {row['stage']} | {STAGES[row['stage']]} | {row['tokens_per_s']:.2f} "
        f"| {row['gain']:.3f} | {row['intensity']:.2f} | {row['regime']} |"
        for name, row in rows
    ]
    (outdir / "REPORT.md").write_text(
        "## Baseline profile\n\n"
        f"Stage 0 took {results['baseline_us']:.0f} µs of the host on the workload lone.\n\n"
        "## Before and after\n\n" + "\n".join(table) + "\n\n"
        f"Four bits a weight cost {results['kl']:.4f} nats a token.\n\n"
        "## Roofline\n\n![FLOP per second over FLOP per byte](roofline.svg)\n\n"
        f"## What next\n\nIn stage 3 most of a burst is {results['next']}.\n"
    )


class Engine:
    """
    Serves requests with the optimizations of stages 0 to `stage`, and logs each step.

    `model` writes the answers, rounded by `int4` from stage 1 on; `draft` proposes in stage 3.
    The clock is that of `step_work`.

    Raises:
        ValueError: `stage` is none of the four.
    """

    def __init__(
        self,
        stage: Literal[0, 1, 2, 3],
        model: Model,
        draft: Model,
        profile: Profile,
        limits: Limits = LIMITS,
    ) -> None:
        raise NotImplementedError  # TODO(kata): check (about 7 lines)

    def run(self, requests: Sequence[Request]) -> list[Step]:
        """
        Serve all of `requests`, in order of arrival; those that arrive together in the order given.

        Raises:
            ValueError: prompt and answer of a request may be longer than `limits.room`.
        """
        # TODO(kata): check, make room, admit, draft and verify (about 125 lines with helpers)
        raise NotImplementedError


def replay(
    stage: Literal[0, 1, 2, 3],
    log: Sequence[Step],
    requests: Sequence[Request],
    profile: Profile,
    limits: Limits = LIMITS,
) -> Totals:
    """
    Go through any log, believe nothing that can be recomputed, and sum it up.

    Raises:
        ValueError: no engine of this stage can have written it; the message begins with
            "step 7: " and the number of the first step that is wrong, from 0, or with "log: "
            where a request is not finished at the end.
    """
    raise NotImplementedError  # TODO(kata): replay and refuse (about 90 lines with helpers)


def divergence(model: Model, other: Model, tokens: Tensor) -> float:
    """Return KL(model || other) in nats, the mean over what both say after each of `tokens`."""
    raise NotImplementedError  # TODO(kata): evidence (about 4 lines)


def report(
    outdir: Path,
    model: Model,
    draft: Model,
    profile: Profile,
    workloads: Mapping[str, Sequence[Request]],
    heldout: Tensor,
) -> None:
    """
    Serve each of `workloads` in all four stages, and write what proves it to `outdir`.

    `workloads` has "lone" and "burst", `heldout` is tokens `[n]`. The folder is created if needed.
    """
    raise NotImplementedError  # TODO(kata): evidence (about 60 lines with helpers)
