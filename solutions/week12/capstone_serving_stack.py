"""Kata week12/capstone_serving_stack: one optimization at a time, and a log that proves each."""

import copy
import json
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import profiler
from torch.nn import functional

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
        # check
        if stage not in range(len(STAGES)):
            raise ValueError(f"stage: expected 0 to {len(STAGES) - 1}, found {stage}")
        self._stage = stage
        self._model = int4(model) if stage >= 1 else model
        self._draft = draft
        self._profile = profile
        self._limits = limits

    def run(self, requests: Sequence[Request]) -> list[Step]:
        """
        Serve all of `requests`, in order of arrival; those that arrive together in the order given.

        Raises:
            ValueError: prompt and answer of a request may be longer than `limits.room`.
        """
        # check
        for request in requests:
            if len(request.prompt) + request.max_new > self._limits.room:
                raise ValueError(
                    f"requests: expected at most {self._limits.room} tokens, prompt and answer, "
                    f"found {len(request.prompt)} + {request.max_new} in request {request.id}"
                )
        arrived = sorted(requests, key=lambda request: request.arrival_s)
        waiting = deque(_Sequence(request=request, tokens=[*request.prompt]) for request in arrived)
        running: list[_Sequence] = []
        acceptance = _Acceptance()
        log: list[Step] = []
        now_s = 0.0
        while waiting or running:
            if not running:
                now_s = max(now_s, waiting[0].request.arrival_s)
            # make room
            preempt = self._make_room(running, waiting)
            decode = [*running]
            # admit
            prefill = self._admit(running, waiting, now_s)
            # draft and verify
            drafted = self._draft_length(prefill, decode, acceptance.rate)
            work = self._work(prefill, decode, drafted)
            emitted = {sequence.id: self._next(sequence, 0) for sequence in prefill}
            for sequence in decode:
                emitted[sequence.id] = self._next(sequence, drafted, acceptance)
            log.append(
                Step(
                    start_s=now_s,
                    end_s=now_s + work.seconds,
                    prefill=tuple(sequence.id for sequence in prefill),
                    decode=tuple(sequence.id for sequence in decode),
                    preempt=tuple(sequence.id for sequence in preempt),
                    drafted=drafted,
                    emitted=emitted,
                )
            )
            now_s = log[-1].end_s
            running = [sequence for sequence in running if not sequence.finished]
        return log

    def _claim(self, sequences: Sequence["_Sequence"], drafted: int = 0) -> int:
        """Tokens of the cache that `sequences` take in the next step."""
        if self._stage < 2:
            return self._limits.room * len(sequences)
        size = self._limits.block_size
        return sum(size * -(-(len(one.tokens) + drafted) // size) for one in sequences)

    def _make_room(
        self, running: list["_Sequence"], waiting: deque["_Sequence"]
    ) -> list["_Sequence"]:
        """Put the newest back to the front of the queue, until the others can go on."""
        # make room
        preempted = []
        while self._claim(running) > self._limits.kv_tokens:
            preempted.append(running.pop())
            waiting.appendleft(preempted[-1])
        return preempted

    def _admit(
        self, running: list["_Sequence"], waiting: deque["_Sequence"], now_s: float
    ) -> list["_Sequence"]:
        """Let in those that have arrived, up to the first that does not fit."""
        # admit
        if self._stage < 2 and running:
            return []
        admitted: list[_Sequence] = []
        while waiting and waiting[0].request.arrival_s <= now_s:
            claim = self._claim([*running, waiting[0]])
            if claim > self._limits.kv_tokens or len(running) == self._limits.max_batch:
                break
            admitted.append(waiting.popleft())
            running.append(admitted[-1])
        return admitted

    def _work(
        self, prefill: Sequence["_Sequence"], decode: Sequence["_Sequence"], drafted: int
    ) -> Work:
        prompts = [len(sequence.tokens) for sequence in prefill]
        cached = [len(sequence.tokens) - 1 for sequence in decode]
        return step_work(self._stage, self._profile, prompts, cached, drafted)

    def _draft_length(
        self, prefill: Sequence["_Sequence"], decode: Sequence["_Sequence"], rate: float
    ) -> int:
        """Choose what yields the most tokens a second in this step, of what fits."""
        # draft and verify
        if self._stage < 3:
            return 0

        def tokens_per_s(drafted: int) -> float:
            yielded = sum(rate**accepted for accepted in range(drafted + 1))
            tokens = len(prefill) + len(decode) * yielded
            return tokens / self._work(prefill, decode, drafted).seconds

        others = self._limits.kv_tokens - self._claim(prefill)
        lengths = range(self._limits.k_max + 1)
        fitting = [drafted for drafted in lengths if self._claim(decode, drafted) <= others]
        return max(fitting, key=tokens_per_s)

    def _next(
        self, sequence: "_Sequence", drafted: int, acceptance: "_Acceptance | None" = None
    ) -> tuple[int, ...]:
        """Emit what the target says: of the drafted tokens those it agrees with, and one more."""
        # draft and verify
        proposed = [*sequence.tokens]
        for _ in range(drafted):
            proposed.append(_greedy(self._draft, proposed)[-1])
        said = _greedy(self._model, proposed)[len(sequence.tokens) - 1 :]
        guesses = proposed[len(sequence.tokens) :]
        agreed = [guess == token for guess, token in zip(guesses, said, strict=False)]
        accepted = (*agreed, False).index(False)
        if acceptance:
            acceptance.observe(drafted, accepted)
        emitted = said[: accepted + 1][: sequence.left]
        if EOS in emitted:
            emitted = emitted[: emitted.index(EOS) + 1]
        sequence.tokens += emitted
        return tuple(emitted)


@dataclass(slots=True, kw_only=True, eq=False)
class _Sequence:
    """A request that has not finished, with its prompt and what it has emitted."""

    request: Request
    tokens: list[int]

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def left(self) -> int:
        return self.request.max_new - (len(self.tokens) - len(self.request.prompt))

    @property
    def finished(self) -> bool:
        return self.left == 0 or self.tokens[-1] == EOS


@dataclass(slots=True)
class _Acceptance:
    """How likely a drafted token is accepted; at first, two in three."""

    accepted: int = 2
    looked_at: int = 3

    @property
    def rate(self) -> float:
        return self.accepted / self.looked_at

    def observe(self, drafted: int, accepted: int) -> None:
        self.accepted += accepted
        self.looked_at += min(accepted + 1, drafted)


def _greedy(model: Model, tokens: Sequence[int]) -> list[int]:
    """Return the likeliest token after each of `tokens`."""
    with torch.no_grad():
        return model(torch.tensor(tokens)).argmax(dim=1).tolist()


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
    # replay and refuse
    auditor = _Auditor(stage, requests, profile, limits)
    works = []
    for number, step in enumerate(log):
        try:
            works.append(auditor.advance(step))
        except ValueError as error:
            raise ValueError(f"step {number}: {error}") from None
    if auditor.unfinished:
        raise ValueError(f"log: expected everyone to finish, not so: {sorted(auditor.unfinished)}")
    return Totals(
        tokens=sum(len(tokens) for step in log for tokens in step.emitted.values()),
        steps=len(log),
        drafted=sum(step.drafted * len(step.decode) for step in log),
        kept=sum(len(step.emitted[req_id]) - 1 for step in log for req_id in step.decode),
        work=sum(works, Work()),
    )


class _Auditor:
    """Keeps what is known of each request while a log is replayed."""

    def __init__(
        self, stage: int, requests: Sequence[Request], profile: Profile, limits: Limits
    ) -> None:
        self._stage, self._profile, self._limits = stage, profile, limits
        self.unfinished = {request.id: request for request in requests}
        self._length = {request.id: len(request.prompt) for request in requests}
        self._holding: set[int] = set()
        self._now_s = 0.0

    def advance(self, step: Step) -> Work:
        """Check a step, and count what it did."""
        # replay and refuse
        self._check_start(step.start_s)
        mentioned = [*step.prefill, *step.decode, *step.preempt]
        _demand("each request once", len(set(mentioned)) == len(mentioned), mentioned)
        for req_id in mentioned:
            _demand("requests that want more", req_id in self.unfinished, req_id)
            arrived = self.unfinished[req_id].arrival_s <= step.start_s
            _demand("requests that have arrived", arrived, req_id)
        self._check_cache(step)
        work = step_work(
            self._stage,
            self._profile,
            [self._length[req_id] for req_id in step.prefill],
            [self._length[req_id] - 1 for req_id in step.decode],
            step.drafted,
        )
        took_s = step.end_s - step.start_s
        on_time = math.isclose(took_s, work.seconds, rel_tol=1e-9, abs_tol=1e-12 * step.end_s)
        _demand(f"{work.seconds} s by the cost model", on_time, took_s)
        self._emit(step)
        self._now_s = step.end_s
        return work

    def _check_start(self, start_s: float) -> None:
        """A step follows the last one, or else the arrival that the engine was waiting for."""
        first_s = min((request.arrival_s for request in self.unfinished.values()), default=0.0)
        due_s = max(self._now_s, first_s)
        _demand(f"a start at {due_s} s", math.isclose(start_s, due_s, rel_tol=1e-9), start_s)

    def _check_cache(self, step: Step) -> None:
        # replay and refuse
        limits, paged = self._limits, self._stage >= 2
        _demand("preemption from stage 2 on", paged or not step.preempt, step.preempt)
        _demand("cache of the preempted", self._holding.issuperset(step.preempt), step.preempt)
        self._holding.difference_update(step.preempt)
        _demand("decodes after a prefill", self._holding.issuperset(step.decode), step.decode)
        _demand("one prefill", self._holding.isdisjoint(step.prefill), step.prefill)
        closed = not paged and self._holding and step.prefill
        _demand("a static batch to stay closed", not closed, step.prefill)
        most = limits.k_max if self._stage == 3 else 0
        _demand(f"0 to {most} drafted tokens", 0 <= step.drafted <= most, step.drafted)
        self._holding.update(step.prefill)
        batch = len(self._holding)
        _demand(f"a batch of at most {limits.max_batch}", batch <= limits.max_batch, batch)
        claim = self._claim(step) if paged else limits.room * batch
        _demand(f"at most {limits.kv_tokens} tokens cached", claim <= limits.kv_tokens, claim)

    def _claim(self, step: Step) -> int:
        """Slots in the blocks of all that hold some, before rejected tokens are dropped."""
        # replay and refuse
        cached = {req_id: self._length[req_id] - 1 for req_id in self._holding}
        cached |= {req_id: self._length[req_id] for req_id in step.prefill}
        cached |= {req_id: self._length[req_id] + step.drafted for req_id in step.decode}
        size = self._limits.block_size
        return sum(size * -(-tokens // size) for tokens in cached.values())

    def _emit(self, step: Step) -> None:
        # replay and refuse
        served = {*step.prefill, *step.decode}
        _demand(f"tokens of {served}", step.emitted.keys() == served, step.emitted)
        for req_id, tokens in step.emitted.items():
            request = self.unfinished[req_id]
            left = len(request.prompt) + request.max_new - self._length[req_id]
            most = min(left, 1 + step.drafted * (req_id in step.decode))
            _demand(f"1 to {most} tokens of request {req_id}", 1 <= len(tokens) <= most, tokens)
            _demand("nothing after EOS", EOS not in tokens[:-1], tokens)
            self._length[req_id] += len(tokens)
            if len(tokens) == left or tokens[-1] == EOS:
                del self.unfinished[req_id]
                self._holding.remove(req_id)


def _demand(what: str, holds: bool, found: object) -> None:
    if not holds:
        raise ValueError(f"expected {what}, found {found}")


def divergence(model: Model, other: Model, tokens: Tensor) -> float:
    """Return KL(model || other) in nats, the mean over what both say after each of `tokens`."""
    with torch.no_grad():
        log_p = functional.log_softmax(model(tokens), dim=1)
        log_q = functional.log_softmax(other(tokens), dim=1)
    return float((log_p.exp() * (log_p - log_q)).sum(dim=1).mean())


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
    # evidence
    outdir.mkdir(parents=True, exist_ok=True)
    engines = [Engine(stage, model, draft, profile) for stage in range(len(STAGES))]
    rows = {
        name: [_row(outdir, name, stage, engines[stage], requests, profile) for stage in range(4)]
        for name, requests in workloads.items()
    }
    for stages in rows.values():
        stages[0]["gain"] = 1.0
        for before, after in pairwise(stages):
            after["gain"] = after["tokens_per_s"] / before["tokens_per_s"]
    results = {
        "profile": profile.id,
        "kl": divergence(model, int4(model), heldout),
        "baseline_us": _trace(outdir / "baseline_profile.json", engines[0], workloads["lone"]),
        "next": _bottleneck(rows["burst"][3], profile),
        "workloads": rows,
    }
    write_report(outdir, profile, results)


def _row(
    outdir: Path,
    name: str,
    stage: int,
    engine: Engine,
    requests: Sequence[Request],
    profile: Profile,
) -> dict[str, object]:
    # evidence
    log = engine.run(requests)
    save_log(outdir / f"{name}-{stage}.jsonl", log)
    totals = replay(stage, log, requests, profile)
    work = totals.work
    intensity = work.flops / (work.weight_bytes + work.cache_bytes)
    ridge = profile.peak_of("float16") / profile.bandwidth
    return {
        "stage": stage,
        "tokens": totals.tokens,
        "steps": totals.steps,
        "drafted": totals.drafted,
        "kept": totals.kept,
        "busy_s": work.seconds,
        "tokens_per_s": totals.tokens / work.seconds,
        "flops": work.flops,
        "weight_bytes": work.weight_bytes,
        "cache_bytes": work.cache_bytes,
        "intensity": intensity,
        "regime": "compute" if intensity >= ridge else "memory",
    }


def _trace(path: Path, engine: Engine, requests: Sequence[Request]) -> float:
    """Profile a run, and return its microseconds."""
    with traced(path, "stage 0"):
        engine.run(requests)
    events = json.loads(path.read_text())["traceEvents"]
    return next(event["dur"] for event in events if event["name"] == "stage 0")


def _bottleneck(row: Mapping[str, float], profile: Profile) -> str:
    seconds = {
        "weights": row["weight_bytes"] / profile.bandwidth,
        "cache": row["cache_bytes"] / profile.bandwidth,
        "arithmetic": row["flops"] / profile.peak_of("float16"),
    }
    return max(seconds, key=seconds.__getitem__)
