"""Kata week28/rlhf_pipeline: from instructions to preferences, on one model in 4 bits.

Policies are adapters. The reference is the adapter of an earlier stage, and every stage can be
killed and resumed.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

STAGES = ("sft", "dpo", "grpo", "eval")


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of a run."""

    sft: int = 40  # steps of each stage
    dpo: int = 20
    grpo: int = 20
    every: int = 6  # steps from one checkpoint to the next
    lr: float = 0.02
    beta: float = 0.2  # of DPO
    kl: float = 0.02  # what the divergence weighs in GRPO
    group: int = 8  # answers to a prompt
    row: int = 24  # tokens in a packed row
    seed: int = 0


@dataclass(slots=True)
class Stage:
    """What the steps of a stage have taken."""

    steps: int = 0
    tokens: int = 0  # prompts included, padding not
    seconds: float = 0.0
    peak_bytes: int = 0  # of the step that had most

    @property
    def tokens_per_s(self) -> float:
        """Tokens in a second."""
        return self.tokens / self.seconds


@dataclass(slots=True)
class Report:
    """What each step of each stage gave, what the stages took, and who won in the end."""

    losses: dict[str, list[float]] = field(default_factory=dict)
    margins: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    stages: dict[str, Stage] = field(default_factory=dict)
    win_rates: dict[str, float] = field(default_factory=dict)


class Model(Protocol):
    """A frozen base in 4 bits, and adapters by name, of which one or none is active."""

    active: str | None

    def __call__(
        self, tokens: Int64[Tensor, "n t"], documents: Int64[Tensor, "n t"] | None = None
    ) -> Float[Tensor, "n t"]:
        """
        Return the log-probability of each token, with the active adapter.

        A row is one document, or those that `documents` numbers: of its row a token sees the
        earlier ones with the same number, and counts its place from the first of them.
        """

    def add(self, slot: str, like: str | None = None) -> None:
        """Make an adapter that changes nothing, or a copy of another; it does not become active."""

    def adapter(self, slot: str) -> list[nn.Parameter]:
        """List the parameters of an adapter, active or not."""

    def use(self, slot: str | None) -> None:
        """Compute with this adapter from now on, or with the base alone."""

    def sample(
        self, prompts: Int64[Tensor, "n p"], generator: torch.Generator
    ) -> Int64[Tensor, "n t"]:
        """Answer prompts with the active adapter, without a graph; return prompts and answers."""


class Data(Protocol):
    """What there is to learn from: the batch of each step, the same whenever it is asked for."""

    def sft(self, step: int) -> list[tuple[Int64[Tensor, " t"], Bool[Tensor, " t"]]]:
        """Return examples of any lengths: a prompt with its answer, and a mask of the answer."""

    def pairs(self, step: int) -> tuple[Int64[Tensor, "n t"], Bool[Tensor, "n t"]]:
        """Return n / 2 chosen answers, then the n / 2 rejected ones, and a mask of the answers."""

    def prompts(self, step: int) -> Int64[Tensor, "n p"]:
        """Return prompts to be answered."""

    def held_out(self) -> Int64[Tensor, "n p"]:
        """Return prompts that no step has."""

    def utility(self, tokens: Int64[Tensor, "n t"]) -> Float[Tensor, " n"]:
        """Say what answers are worth, given with their prompts."""


class Write(Protocol):
    """A checkpoint that is being written."""

    def wait(self) -> None:
        """Return when it is written; to be called once."""


class Store(Protocol):
    """Checkpoints; the latest that was committed is what remains of a process that is killed."""

    def write(self, name: str, state: dict[str, Any]) -> Write:
        """Start to write: tensors, numbers, strings, and lists, tuples and dicts of them."""

    def commit(self, name: str) -> None:
        """Let a checkpoint that has been written be the latest."""

    def latest(self) -> dict[str, Any] | None:
        """Return a copy of the latest, or None."""


class Meter(Protocol):
    """The clock and the memory of a device."""

    def seconds(self) -> float:
        """Return the time."""

    def reset_peak(self) -> None:
        """Forget the peak, and count from here on."""

    def peak_bytes(self) -> int:
        """Return the most bytes that were alive at once since then."""


def pack(
    examples: Sequence[tuple[Int64[Tensor, " t"], Bool[Tensor, " t"]]], row: int
) -> tuple[Int64[Tensor, "n row"], Bool[Tensor, "n row"], Int64[Tensor, "n row"]]:
    """
    Lay examples one after the other in rows; return tokens, mask and documents.

    Each goes, in the order given, into the first row that has room for all of it. A document has
    the number of its example, padding -1; its tokens are 0, its mask is False.

    Raises:
        ValueError: row: an example is longer.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for at, (tokens, _) in enumerate(examples):
        if len(tokens) > row:
            raise ValueError(f"row: expected at least {len(tokens)}, found {row}")
        to = next((to for to, left in enumerate(room) if left >= len(tokens)), len(rows))
        if to == len(rows):
            rows.append([])
            room.append(row)
        rows[to].append(at)
        room[to] -= len(tokens)
    parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for members, left in zip(rows, room, strict=True):
        tokens = [examples[at][0] for at in members]
        numbers = [torch.full_like(one, at) for one, at in zip(tokens, members, strict=True)]
        columns = tokens, [examples[at][1] for at in members], numbers
        for part, column, padding in zip(parts, columns, (0, False, -1), strict=True):
            part.append(F.pad(torch.cat(column), (0, left), value=padding))
    tokens, mask, documents = (torch.stack(part) for part in parts)
    return tokens, mask, documents


def reference_logps(
    model: Model, tokens: Int64[Tensor, "n t"], mask: Bool[Tensor, "n t"]
) -> Float[Tensor, "n t"]:
    """
    Return what the adapter "sft" gives each token, 0 where `mask` is False.

    No graph; afterwards the adapter that was active is active again.
    """
    active = model.active
    model.use("sft")
    with torch.no_grad():
        logp = model(tokens)
    model.use(active)
    return logp.masked_fill(~mask, 0)


def run(
    model: Model,
    data: Data,
    cfg: Config,
    store: Store,
    meter: Meter,
    stages: Sequence[str] = STAGES,
) -> Report:
    """
    Train one adapter for each stage, "sft" from nothing, the others each from a copy of "sft".

    "eval" lets each of the others answer against "sft".

    Raises:
        ValueError: `stages` do not begin with "sft", are out of order, unknown, or repeated.
            Nothing has been run or written then.
    """
    if list(stages) != [one for one in STAGES if one in stages] or "sft" not in stages:
        raise ValueError(f"stages: expected sft, then any of {STAGES[1:]} so, found {stages}")
    # adapter of the stage
    state = {"stages": stages, "at": 0, "step": 0, "optimizer": None, "adapters": {}}
    return _work(model, data, cfg, store, meter, state, Report())


def resume(model: Model, data: Data, cfg: Config, store: Store, meter: Meter) -> Report:
    """
    Go on from the latest checkpoint, as if nothing had happened.

    Args:
        model: The base, without adapters.
        data: That of the run that was killed.
        cfg: Likewise.
        store: Has its checkpoints.
        meter: That of this process.

    Raises:
        ValueError: there is no checkpoint in `store`, or it was made with another `cfg`. Nothing
            has been run or written then.
    """
    state = store.latest()
    if state is None:
        raise ValueError("store: expected a checkpoint, found none")
    if state["cfg"] != asdict(cfg):
        raise ValueError(f"cfg: expected that of the checkpoint, {state['cfg']}, found {cfg}")
    # adapter of the stage
    for slot, values in state["adapters"].items():
        model.add(slot)
        with torch.no_grad():
            for parameter, value in zip(model.adapter(slot), values, strict=True):
                parameter.copy_(value)
    report = Report(**state["report"])
    report.stages = {name: Stage(**taken) for name, taken in state["report"]["stages"].items()}
    return _work(model, data, cfg, store, meter, state, report)


def win_rate(
    model: Model, data: Data, prompts: Int64[Tensor, "n p"], slot: str, seed: int
) -> float:
    """
    Say how often the answers of `slot` are worth more than those of "sft"; a tie is half a win.

    Both answer the same prompts, each with a generator of its own with this seed. Afterwards the
    adapter that was active is active again.
    """
    active, worth = model.active, []
    for one in (slot, "sft"):
        model.use(one)
        tokens = model.sample(prompts, torch.Generator().manual_seed(seed))
        worth.append(data.utility(tokens))
    model.use(active)
    wins, ties = (worth[0] > worth[1]).sum().item(), (worth[0] == worth[1]).sum().item()
    return (wins + ties / 2) / len(prompts)


def _work(
    model: Model,
    data: Data,
    cfg: Config,
    store: Store,
    meter: Meter,
    state: dict[str, Any],
    report: Report,
) -> Report:
    """Run the stages from where `state` is."""
    # adapter of the stage
    stages, done = state["stages"], [*state["adapters"]]
    first, memory = state["step"], state["optimizer"]
    pending = None
    for at in range(state["at"], len(stages)):
        stage = stages[at]
        if stage == "eval":
            steps, optimizer = 1, None
        else:
            if stage not in done:
                model.add(stage, like=None if stage == "sft" else "sft")
                done.append(stage)
            model.use(stage)
            steps, optimizer = getattr(cfg, stage), torch.optim.Adam(model.adapter(stage), cfg.lr)
            if memory is not None:
                optimizer.load_state_dict(memory)
        # loss and step
        for step in range(first, steps):
            if optimizer is None:
                _evaluate(model, data, cfg, done, report)
            else:
                _step(model, data, cfg, meter, stage, step, optimizer, report)
            if (step + 1) % cfg.every and step + 1 < steps:
                continue
            # checkpoint beside training
            _commit(store, pending)
            # a copy: training goes on while it is written
            snapshot = deepcopy(
                {
                    "cfg": asdict(cfg), "stages": stages, "at": at, "step": step + 1,
                    "adapters": {one: model.adapter(one) for one in done},
                    "optimizer": optimizer and optimizer.state_dict(), "report": asdict(report),
                }
            )  # fmt: skip
            name = f"{stage}-{step + 1}"
            pending = name, store.write(name, snapshot)
        _commit(store, pending)
        pending, first, memory = None, 0, None
    return report


def _step(
    model: Model,
    data: Data,
    cfg: Config,
    meter: Meter,
    stage: str,
    step: int,
    optimizer: torch.optim.Optimizer,
    report: Report,
) -> None:
    # loss and step
    begun = meter.seconds()
    meter.reset_peak()
    loss, tokens = LOSSES[stage](model, data, cfg, step, report)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report.losses.setdefault(stage, []).append(loss.item())
    taken = report.stages.setdefault(stage, Stage())
    taken.steps += 1
    taken.tokens += tokens
    taken.seconds += meter.seconds() - begun
    taken.peak_bytes = max(taken.peak_bytes, meter.peak_bytes())


def _evaluate(model: Model, data: Data, cfg: Config, done: list[str], report: Report) -> None:
    prompts = data.held_out()
    for slot in done:
        if slot != "sft":
            report.win_rates[slot] = win_rate(model, data, prompts, slot, cfg.seed)


def _commit(store: Store, pending: tuple[str, Write] | None) -> None:
    if pending is not None:
        name, write = pending
        write.wait()
        store.commit(name)


def _sft_loss(
    model: Model, data: Data, cfg: Config, step: int, report: Report
) -> tuple[Tensor, int]:
    """Average over the tokens of answers."""
    tokens, mask, documents = pack(data.sft(step), cfg.row)
    return -model(tokens, documents)[mask].mean(), int((documents >= 0).sum())


def _dpo_loss(
    model: Model, data: Data, cfg: Config, step: int, report: Report
) -> tuple[Tensor, int]:
    # loss and step
    tokens, mask = data.pairs(step)
    before = reference_logps(model, tokens, mask)
    gain = cfg.beta * ((model(tokens) - before) * mask).sum(1)
    chosen, rejected = gain.chunk(2)
    report.margins.append((chosen - rejected).mean().item())
    report.accuracies.append((chosen > rejected).double().mean().item())
    return -F.logsigmoid(chosen - rejected).mean(), tokens.numel()


def _grpo_loss(
    model: Model, data: Data, cfg: Config, step: int, report: Report
) -> tuple[Tensor, int]:
    # loss and step
    prompts = data.prompts(step)
    generator = torch.Generator().manual_seed(cfg.seed + step)
    tokens = model.sample(prompts.repeat_interleave(cfg.group, 0), generator)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, : prompts.shape[1]] = False
    rewards = data.utility(tokens)
    rows = rewards.view(-1, cfg.group)
    adv = (rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-4)
    before = reference_logps(model, tokens, mask)[mask]
    logp = model(tokens)[mask]
    ratio = (logp - logp.detach()).exp()  # 1, with a gradient
    divergence = torch.expm1(before - logp) - (before - logp)
    report.rewards.append(rewards.mean().item())
    report.divergences.append(divergence.mean().item())
    adv = adv.view(-1, 1).expand(mask.shape)[mask]
    return (cfg.kl * divergence - ratio * adv).mean(), tokens.numel()


LOSSES = {"sft": _sft_loss, "dpo": _dpo_loss, "grpo": _grpo_loss}
