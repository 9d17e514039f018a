"""Kata week12/capstone_parallelism_audit: one model under DDP, ZeRO-2 and ZeRO-3, and its bill."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import profiler

from harness.hardware import Profile
from harness.meters.collectives import Collectives

Mode = Literal["ddp", "zero2", "zero3"]
MODES: tuple[Mode, ...] = ("ddp", "zero2", "zero3")
COMPUTE_SHARE = 0.5  # of the peak, which the matrix products of a step reach
ITEMSIZE = 2  # of weights and gradients where a step is projected: float16

# Llama 3.2 1B: 16 layers, then the head
ONE_B = (*[60_821_504] * 16, 262_668_288)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins the GPUs of a node, per direction."""

    bandwidth: float
    latency_s: float


LINKS = {
    "nvlink": Link(bandwidth=300e9, latency_s=2e-6),
    "pcie": Link(bandwidth=25e9, latency_s=5e-6),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes per parameter: its weight, its gradient, and what else the optimizer keeps."""

    weight: int
    gradient: int
    states: int


FP32 = Precision(weight=4, gradient=4, states=8)  # two moments
MIXED = Precision(weight=2, gradient=2, states=12)  # and a master copy of the weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A layer as a pure function: `call(parameters, x)`, with tensors shaped like `parameters`."""

    parameters: tuple[Tensor, ...]
    call: Callable[[Sequence[Tensor], Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A collective of one unit, and the bytes that this rank sends for it in a ring."""

    op: Literal["all_reduce", "reduce_scatter", "all_gather"]
    unit: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """What one rank saw of a run: its own loss before each update, and what it sent, in order."""

    losses: tuple[float, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a stream of a GPU does for a while: "forward", "backward", or a collective."""

    stream: Literal["compute", "comm"]
    op: str
    unit: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where the time of a step goes; `comm_s` and `exposed_s` by collective."""

    step_s: float
    compute_s: float
    comm_s: Mapping[str, float]
    exposed_s: Mapping[str, float]
    idle_s: float
    bottleneck: str


def flat_parameters(unit: Unit, size: int) -> Tensor:
    """Return the parameters of `unit` as one vector in new memory, zeros up to `size`."""
    parts = [parameter.reshape(-1) for parameter in unit.parameters]
    flat = parts[0].new_zeros(size)
    flat[: sum(part.numel() for part in parts)] = torch.cat(parts)
    return flat


def call_unit(unit: Unit, flat: Tensor, x: Tensor) -> Tensor:
    """Call `unit` with parts of `flat` for its parameters."""
    shapes = [parameter.shape for parameter in unit.parameters]
    sizes = [shape.numel() for shape in shapes]
    parts = flat.split([*sizes, flat.numel() - sum(sizes)])
    return unit.call([part.view(shape) for part, shape in zip(parts, shapes, strict=False)], x)


class Adam:
    """Adam on one vector, which it changes in place; the moments are as large as that."""

    def __init__(self, weights: Tensor, lr: float) -> None:
        """Begin with moments of zero."""
        self.weights, self.lr, self.steps = weights, lr, 0
        self.mean, self.square = torch.zeros_like(weights), torch.zeros_like(weights)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """Update the weights; `gradient` holds nothing useful afterwards."""
        self.steps += 1
        self.mean.mul_(0.9).add_(gradient, alpha=0.1)
        self.square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        # 1e-3 is large, so that a gradient of nearly zero does not decide the sign of its update
        torch.div(self.square, 1 - 0.99**self.steps, out=gradient).sqrt_().add_(1e-3)
        self.weights.addcdiv_(self.mean, gradient, value=-self.lr / (1 - 0.9**self.steps))


@contextmanager
def traced(path: Path, name: str) -> Iterator[None]:
    """Profile a block as the range `name`, and write a trace of it that Perfetto opens."""
    # torch.profiler records the same, but imports the compiler first, which takes seconds
    with profiler.profile() as trace, profiler.record_function(name):
        yield
    trace.export_chrome_trace(str(path))


def write_report(
    outdir: Path, results: Mapping[str, Any], timelines: Mapping[str, Sequence[Span]]
) -> None:
    """Write `results` to audit.json, timelines by mode to timeline.json, and REPORT.md."""
    (outdir / "audit.json").write_text(json.dumps(results, indent=1))
    events = [
        {
            "ph": "X",
            "pid": mode,
            "tid": span.stream,
            "name": span.op,
            "args": {"unit": span.unit},
            "ts": span.start_s * 1e6,
            "dur": (span.end_s - span.start_s) * 1e6,
        }
        for mode, spans in timelines.items()
        for span in spans
    ]
    (outdir / "timeline.json").write_text(json.dumps({"traceEvents": events}))
    runs = ["| mode | last loss | bytes sent |", "|---|---|---|"]
    runs += [
        f"| {mode} | {run['losses'][-1]:.6f} | {sum(run['bytes'].values())} |"
        for mode, run in results["runs"].items()
    ]
    steps = ["| link | mode | step ms | exposed ms | memory GB | bottleneck |", "|---" * 6 + "|"]
    for link, modes in results["projections"].items():
        for mode, one in modes.items():
            exposed_s, memory_gb = sum(one["exposed_s"].values()), one["memory_bytes"] / 1e9
            steps.append(
                f"| {link} | {mode} | {1e3 * one['step_s']:.2f} | {1e3 * exposed_s:.2f} "
                f"| {memory_gb:.2f} | {one['bottleneck']} |"
            )
    (outdir / "REPORT.md").write_text(
        "## Baseline profile\n\n"
        f"Under ddp the steps took {results['baseline_us']:.0f} µs of the host.\n\n"
        "## Same losses, other bytes\n\n" + "\n".join(runs) + "\n\n"
        "## A step of 1B parameters on four GPUs\n\n" + "\n".join(steps) + "\n\n"
        "## What next\n\nOver pcie, "
        + ", ".join(
            f"{mode} waits for {one['bottleneck']}"
            for mode, one in results["projections"]["pcie"].items()
        )
        + ".\n"
    )


def train(
    mode: Mode,
    units: Sequence[Unit],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    batches: Sequence[tuple[Tensor, Tensor]],
    comm: Collectives,
    lr: float = 0.01,
) -> RunLog:
    """
    Train copies of the `units`' parameters, a step for each of this rank's `batches`.

    Everything is sent through `comm`, unit by unit, in float32. The units stay as they are.

    Raises:
        ValueError: `mode` is none of MODES; or `comm` has one rank, and so nothing to shard.
    """
    # steps of training
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, found {mode}")
    if comm.world == 1:
        raise ValueError("comm: expected two ranks or more, found one: nothing to shard")
    trainer = _Trainer(mode, units, comm, lr)
    losses = tuple(trainer.step(x, loss_fn, target) for x, target in batches)
    return RunLog(losses=losses, events=tuple(trainer.events))


class _Trainer:
    """Holds what a rank holds: `weights` whole or not at all, `own` to update."""

    def __init__(self, mode: Mode, units: Sequence[Unit], comm: Collectives, lr: float) -> None:
        # steps of training
        self._mode, self._units, self._comm = mode, units, comm
        self._weights: list[Tensor] = []
        self._own: list[Tensor] = []
        self.events: list[Event] = []
        for unit in units:
            part = -(-unit_size(unit) // comm.world)
            whole = flat_parameters(unit, part * comm.world)
            own = whole if mode == "ddp" else whole.view(comm.world, part)[comm.rank]
            self._own.append(own.clone() if mode == "zero3" else own)
            if mode != "zero3":
                self._weights.append(whole)
        self._optimizers = [Adam(own, lr) for own in self._own]

    def step(self, x: Tensor, loss_fn: Callable[[Tensor, Tensor], Tensor], target: Tensor) -> float:
        """Run one step and return the loss."""
        # steps of training
        inputs = []
        with torch.no_grad():
            for at, unit in enumerate(self._units):
                inputs.append(x)
                x = call_unit(unit, self._whole(at), x)
        output = x.requires_grad_()
        loss = loss_fn(output, target)
        (upstream,) = torch.autograd.grad(loss, output)
        gradients = []
        for at in reversed(range(len(self._units))):
            whole, x = (one.detach().requires_grad_() for one in (self._whole(at), inputs.pop()))
            output = call_unit(self._units[at], whole, x)
            # a number to differentiate: for a tensor PyTorch imports its symbolic shapes, slowly
            gradient, upstream = torch.autograd.grad((output * upstream).sum(), (whole, x))
            del whole, output
            gradients.append(self._reduced(at, gradient))
            del gradient
        for optimizer in self._optimizers:
            optimizer.step(gradients.pop())
        if self._mode == "zero2":
            for at, whole in enumerate(self._weights):
                self._gather(at, whole)
        return loss.item()

    def _whole(self, at: int) -> Tensor:
        """Return the weights of a unit."""
        if self._mode != "zero3":
            return self._weights[at]
        return self._gather(at, self._own[at].new_empty(self._own[at].numel() * self._comm.world))

    def _gather(self, at: int, whole: Tensor) -> Tensor:
        """Collect the parts of all ranks in `whole`, of which this rank's may be a view."""
        self._comm.all_gather(whole, self._own[at]).wait()
        self._note("all_gather", at)
        return whole

    def _reduced(self, at: int, gradient: Tensor) -> Tensor:
        """Return the mean over the ranks of a gradient, or this rank's part of it."""
        # collectives of a unit
        if self._mode == "ddp":
            self._comm.all_reduce(gradient).wait()
            self._note("all_reduce", at)
            return gradient.div_(self._comm.world)
        part = torch.empty_like(self._own[at])
        self._comm.reduce_scatter(part, gradient).wait()
        self._note("reduce_scatter", at)
        return part.div_(self._comm.world)

    def _note(self, op: str, at: int) -> None:
        sent = ring_bytes(op, unit_size(self._units[at]), self._comm.world, 4)
        self.events.append(Event(op=op, unit=at, bytes=sent))


def unit_size(unit: Unit) -> int:
    """Count the parameters of a unit."""
    return sum(parameter.numel() for parameter in unit.parameters)


def ring_bytes(op: str, size: int, world: int, itemsize: int) -> int:
    """Count the bytes that one rank sends in a ring for `size` elements, padding included."""
    phases = 2 if op == "all_reduce" else 1
    return phases * (world - 1) * -(-size // world) * itemsize


def audit(
    mode: Mode, events: Sequence[Event], sizes: Sequence[int], world: int, steps: int
) -> dict[str, int]:
    """
    Check the log of a rank against what `mode` has to send in `steps`; bytes by collective.

    Raises:
        ValueError: a collective is missing, is one too many or has the wrong bytes; the message
            begins with "unit 2: ", the number of the unit, and names the collective.
    """
    due = {
        "ddp": {"all_reduce": 1},
        "zero2": {"reduce_scatter": 1, "all_gather": 1},
        "zero3": {"reduce_scatter": 1, "all_gather": 2},
    }[mode]
    expected = Counter(
        {
            Event(op=op, unit=unit, bytes=ring_bytes(op, size, world, 4)): times * steps
            for unit, size in enumerate(sizes)
            for op, times in due.items()
        }
    )
    found = Counter(events)
    for event in expected | found:
        if found[event] != expected[event]:
            raise ValueError(
                f"unit {event.unit}: expected {expected[event]} of {event.op} with {event.bytes} "
                f"bytes, found {found[event]}"
            )
    sent: dict[str, int] = dict.fromkeys(due, 0)
    for event in events:
        sent[event.op] += event.bytes
    return sent


def state_bytes(mode: Mode, sizes: Sequence[int], world: int, precision: Precision) -> int:
    """Predict the most bytes of weights, gradients and states that a rank holds in a step."""
    total, part = sum(sizes), sum(-(-size // world) for size in sizes)
    weight, gradient, states = precision.weight, precision.gradient, precision.states
    # autograd makes the gradients of a unit's parameters, and then one vector of them
    pieces = gradient * max(sizes)
    if mode == "ddp":
        return (weight + gradient + states) * total + pieces
    if mode == "zero2":
        return weight * total + (gradient + states) * part + gradient * max(sizes) + pieces
    return (weight + gradient + states) * part + (weight + gradient) * max(sizes) + pieces


def timeline(
    mode: Mode,
    sizes: Sequence[int],
    tokens: int,
    world: int,
    profile: Profile,
    link: Link,
    *,
    prefetch: bool = True,
) -> list[Span]:
    """Project a step in which each rank has `tokens` tokens, on two streams that run in order."""
    spans: list[Span] = []
    free_s = {"compute": 0.0, "comm": 0.0}

    def enqueue(stream: str, op: str, unit: int, ready_s: float) -> Span:
        start_s = max(free_s[stream], ready_s)
        if stream == "compute":
            flops = (2 if op == "forward" else 4) * sizes[unit] * tokens
            took_s = flops / (COMPUTE_SHARE * profile.peak_of("float16"))
        else:
            rounds = (2 if op == "all_reduce" else 1) * (world - 1)
            sent = ring_bytes(op, sizes[unit], world, ITEMSIZE)
            took_s = sent / link.bandwidth + rounds * link.latency_s
        free_s[stream] = start_s + took_s
        spans.append(Span(stream=stream, op=op, unit=unit, start_s=start_s, end_s=start_s + took_s))
        return spans[-1]

    units = range(len(sizes))
    visits = [("forward", unit) for unit in units]
    visits += [("backward", unit) for unit in reversed(units)]
    gathered_s = enqueue("comm", "all_gather", 0, 0.0).end_s if mode == "zero3" else 0.0
    for at, (op, unit) in enumerate(visits):
        span = enqueue("compute", op, unit, gathered_s)
        ahead = mode == "zero3" and at + 1 < len(visits)
        if ahead and prefetch:
            gathered_s = enqueue("comm", "all_gather", visits[at + 1][1], span.start_s).end_s
        if op == "backward":
            reduction = "all_reduce" if mode == "ddp" else "reduce_scatter"
            enqueue("comm", reduction, unit, span.end_s)
        if ahead and not prefetch:
            gathered_s = enqueue("comm", "all_gather", visits[at + 1][1], span.end_s).end_s
    if mode == "zero2":
        for unit in units:
            enqueue("comm", "all_gather", unit, free_s["compute"])
    return spans


def breakdown(spans: Sequence[Span]) -> Breakdown:
    """Split a step, from 0 to the end of its last span; see the brief for what is exposed."""
    compute = [span for span in spans if span.stream == "compute"]
    comm_s: Counter[str] = Counter()
    exposed_s: Counter[str] = Counter()
    for span in spans:
        if span.stream == "comm":
            hidden_s = sum(
                max(0.0, min(span.end_s, one.end_s) - max(span.start_s, one.start_s))
                for one in compute
            )
            comm_s[span.op] += span.end_s - span.start_s
            exposed_s[span.op] += span.end_s - span.start_s - hidden_s
    step_s = max(span.end_s for span in spans)
    compute_s = sum(span.end_s - span.start_s for span in compute)
    candidates = {"compute": compute_s, **exposed_s}
    return Breakdown(
        step_s=step_s,
        compute_s=compute_s,
        comm_s=dict(comm_s),
        exposed_s=dict(exposed_s),
        idle_s=step_s - compute_s - sum(exposed_s.values()),
        bottleneck=max(candidates, key=candidates.__getitem__),
    )


def report(
    outdir: Path,
    units: Sequence[Unit],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    batches: Sequence[tuple[Tensor, Tensor]],
    comm: Collectives,
    profile: Profile,
) -> None:
    """
    Train under each mode, project a step of ONE_B on four GPUs, and write both to `outdir`.

    Every rank calls it; rank 0 alone writes, into a folder that exists.
    """
    sizes = [unit_size(unit) for unit in units]
    runs = {}
    for mode in MODES:
        log = train(mode, units, loss_fn, batches, comm)
        sent = audit(mode, log.events, sizes, comm.world, len(batches))
        runs[mode] = {"losses": log.losses, "bytes": sent}
    trace = outdir / "baseline_profile.json"
    with traced(trace, "ddp") if comm.rank == 0 else nullcontext():
        train("ddp", units, loss_fn, batches, comm)
    if comm.rank != 0:
        return
    events = json.loads(trace.read_text())["traceEvents"]
    results = {
        "world": comm.world,
        "sizes": sizes,
        "baseline_us": next(event["dur"] for event in events if event["name"] == "ddp"),
        "runs": runs,
        "projections": {
            name: {mode: _projection(mode, profile, link) for mode in MODES}
            for name, link in LINKS.items()
        },
    }
    timelines = {mode: timeline(mode, ONE_B, 1024, 4, profile, LINKS["nvlink"]) for mode in MODES}
    write_report(outdir, results, timelines)


def _projection(mode: Mode, profile: Profile, link: Link) -> dict[str, object]:
    split = breakdown(timeline(mode, ONE_B, 1024, 4, profile, link))
    return asdict(split) | {"memory_bytes": state_bytes(mode, ONE_B, 4, MIXED)}
