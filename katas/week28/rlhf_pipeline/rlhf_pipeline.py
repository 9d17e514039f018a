"""Kata week28/rlhf_pipeline: from instructions to preferences, on one model in 4 bits.

Policies are adapters. The reference is the adapter of an earlier stage, and every stage can be
killed and resumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
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
    raise NotImplementedError  # TODO(kata): pack in rows (about 20 lines)


def reference_logps(
    model: Model, tokens: Int64[Tensor, "n t"], mask: Bool[Tensor, "n t"]
) -> Float[Tensor, "n t"]:
    """
    Return what the adapter "sft" gives each token, 0 where `mask` is False.

    No graph; afterwards the adapter that was active is active again.
    """
    raise NotImplementedError  # TODO(kata): pass of the reference (about 6 lines)


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
    # TODO(kata): adapter of the stage, loss and step, checkpoint beside training (about 115 lines
    # with helpers)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): adapter of the stage (about 15 lines)


def win_rate(
    model: Model, data: Data, prompts: Int64[Tensor, "n p"], slot: str, seed: int
) -> float:
    """
    Say how often the answers of `slot` are worth more than those of "sft"; a tie is half a win.

    Both answer the same prompts, each with a generator of its own with this seed. Afterwards the
    adapter that was active is active again.
    """
    raise NotImplementedError  # TODO(kata): answers against the reference (about 8 lines)
