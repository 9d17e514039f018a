"""Kata week28/rlhf_pipeline: from instructions to preferences, on one model in 4 bits.

Policies are adapters. The reference is the adapter of an earlier stage, and every stage can be
killed and gone on with.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

STAGES = ("sft", "dpo", "grpo")


@dataclass(frozen=True, slots=True)
class Config:
    """What a run is made with."""

    sft: int = 50  # steps of each stage
    dpo: int = 20
    grpo: int = 20
    every: int = 6  # steps from one checkpoint to the next
    lr: float = 0.02
    beta: float = 0.2  # of DPO
    kl: float = 0.02  # what the divergence weighs in GRPO
    group: int = 8  # answers to a prompt
    seed: int = 0


@dataclass(slots=True)
class Report:
    """What each step of each stage gave."""

    losses: dict[str, list[float]] = field(default_factory=dict)
    margins: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)


class Model(Protocol):
    """A frozen base in 4 bits, and adapters by name, of which one or none is active."""

    active: str | None

    def __call__(self, tokens: Int64[Tensor, "n t"]) -> Float[Tensor, "n t"]:
        """Return the log-probability of each token, with the active adapter."""

    def add(self, slot: str, like: str | None = None) -> None:
        """Make an adapter that changes nothing, or is a copy of another; it does not get active."""

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

    def sft(self, step: int) -> tuple[Int64[Tensor, "n t"], Bool[Tensor, "n t"]]:
        """Return prompts with answers, and a mask of the answers."""

    def pairs(self, step: int) -> tuple[Int64[Tensor, "n t"], Bool[Tensor, "n t"]]:
        """Return n / 2 chosen answers, then the n / 2 rejected ones, and a mask of the answers."""

    def prompts(self, step: int) -> Int64[Tensor, "n p"]:
        """Return prompts to be answered."""

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
    model: Model, data: Data, cfg: Config, store: Store, stages: Sequence[str] = STAGES
) -> Report:
    """
    Train one adapter for each stage, "sft" from nothing, the others each from a copy of "sft".

    Raises:
        ValueError: `stages` do not begin with "sft", are out of order, unknown, or repeated.
            Nothing has been run or written then.
    """
    if list(stages) != [one for one in STAGES if one in stages] or "sft" not in stages:
        raise ValueError(f"stages: expected sft, then dpo or grpo or both, found {stages}")
    state = {"stages": stages, "at": 0, "step": 0, "optimizer": None, "adapters": {}}
    return _work(model, data, cfg, store, state, Report())


def resume(model: Model, data: Data, cfg: Config, store: Store) -> Report:
    """
    Go on from the latest checkpoint, as if nothing had happened.

    Args:
        model: The base, without adapters.
        data: As in the run that was killed.
        cfg: Also.
        store: With its checkpoints.

    Raises:
        ValueError: there is no checkpoint in `store`, or it was made with another `cfg`. Nothing
            has been run or written then.
    """
    state = store.latest()
    if state is None:
        raise ValueError("store: expected a checkpoint, found none")
    if state["cfg"] != asdict(cfg):
        raise ValueError(f"cfg: expected that of the checkpoint, {state['cfg']}, found {cfg}")
    for slot, values in state["adapters"].items():
        model.add(slot)
        with torch.no_grad():
            for parameter, value in zip(model.adapter(slot), values, strict=True):
                parameter.copy_(value)
    return _work(model, data, cfg, store, state, Report(**state["report"]))


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
    model: Model, data: Data, cfg: Config, store: Store, state: dict[str, Any], report: Report
) -> Report:
    """Run the stages from where `state` is."""
    stages, done = state["stages"], [*state["adapters"]]
    step, memory = state["step"], state["optimizer"]
    pending = None
    for at in range(state["at"], len(stages)):
        stage = stages[at]
        if stage not in done:
            model.add(stage, like=None if stage == "sft" else "sft")
            done.append(stage)
        model.use(stage)
        optimizer = torch.optim.Adam(model.adapter(stage), lr=cfg.lr)
        if memory is not None:
            optimizer.load_state_dict(memory)
        steps = getattr(cfg, stage)
        for now in range(step, steps):
            loss = LOSSES[stage](model, data, cfg, now, report)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            report.losses.setdefault(stage, []).append(loss.item())
            if (now + 1) % cfg.every and now + 1 < steps:
                continue
            _commit(store, pending)
            # a copy: training goes on while it is written
            snapshot = deepcopy(
                {
                    "cfg": asdict(cfg), "stages": stages, "at": at, "step": now + 1,
                    "adapters": {one: model.adapter(one) for one in done},
                    "optimizer": optimizer.state_dict(), "report": asdict(report),
                }
            )  # fmt: skip
            name = f"{stage}-{now + 1}"
            pending = name, store.write(name, snapshot)
        _commit(store, pending)
        pending, step, memory = None, 0, None
    return report


def _commit(store: Store, pending: tuple[str, Write] | None) -> None:
    if pending is not None:
        name, write = pending
        write.wait()
        store.commit(name)


def _sft_loss(model: Model, data: Data, cfg: Config, step: int, report: Report) -> Tensor:
    """Average over the tokens of answers."""
    tokens, mask = data.sft(step)
    return -model(tokens)[mask].mean()


def _dpo_loss(model: Model, data: Data, cfg: Config, step: int, report: Report) -> Tensor:
    tokens, mask = data.pairs(step)
    before = reference_logps(model, tokens, mask)
    gain = cfg.beta * ((model(tokens) - before) * mask).sum(1)
    chosen, rejected = gain.chunk(2)
    report.margins.append((chosen - rejected).mean().item())
    return -F.logsigmoid(chosen - rejected).mean()


def _grpo_loss(model: Model, data: Data, cfg: Config, step: int, report: Report) -> Tensor:
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
    return (cfg.kl * divergence - ratio * adv).mean()


LOSSES = {"sft": _sft_loss, "dpo": _dpo_loss, "grpo": _grpo_loss}
