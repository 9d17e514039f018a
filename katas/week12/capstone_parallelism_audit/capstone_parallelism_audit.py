"""Kata week12/capstone_parallelism_audit: one model under DDP, ZeRO-2 and ZeRO-3, and its bill."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    # TODO(kata): steps of training, collectives of a unit (about 70 lines with helpers)
    raise NotImplementedError


def audit(
    mode: Mode, events: Sequence[Event], sizes: Sequence[int], world: int, steps: int
) -> dict[str, int]:
    """
    Check the log of a rank against what `mode` has to send in `steps`; bytes by collective.

    Raises:
        ValueError: a collective is missing, is one too many or has the wrong bytes; the message
            begins with "unit 2: ", the number of the unit, and names the collective.
    """
    raise NotImplementedError  # TODO(kata): log and bytes (about 25 lines)


def state_bytes(mode: Mode, sizes: Sequence[int], world: int, precision: Precision) -> int:
    """Predict the most bytes of weights, gradients and states that a rank holds in a step."""
    raise NotImplementedError  # TODO(kata): memory of a rank (about 8 lines)


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
    raise NotImplementedError  # TODO(kata): time of a step (about 30 lines)


def breakdown(spans: Sequence[Span]) -> Breakdown:
    """Split a step, from 0 to the end of its last span; see the brief for what is exposed."""
    raise NotImplementedError  # TODO(kata): time of a step (about 20 lines)


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
    raise NotImplementedError  # TODO(kata): evidence (about 25 lines with helpers)
