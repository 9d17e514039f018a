"""Kata week25/elastic_restart: killed, started again on other ranks, and nothing shows.

What a step does follows from its number: who computes it, and how often, changes no bit.
"""

import io
import os
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a job is, however often and on however many ranks it is started."""

    seed: int
    samples: int
    global_batch: int
    micro_batch: int
    every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one start of the job has done on this rank: `weights` are all of the model, flat."""

    first: int
    steps_run: int
    restarts: int
    weights: Tensor


class Data(Protocol):
    """The samples, by their numbers from 0 on."""

    def batch(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """Return inputs [len(ids), 6] and targets [len(ids), 2], float64; may draw at random."""


class Store(Protocol):
    """Checkpoints that are published at once, or not at all."""

    def save(self, step: int, raw: bytes) -> None:
        """Publish what a job is after `step` steps."""

    def load(self) -> tuple[int, bytes] | None:
        """Return the newest checkpoint that is published, None if there is none."""


def make_model(config: Config) -> nn.Module:
    """Return the model as it is before the first step, the same every time."""
    torch.manual_seed(config.seed)
    layers = nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.25), nn.Linear(8, 2)
    return nn.Sequential(*layers).double()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of `model`; its learning rate is that of no step."""
    return torch.optim.AdamW(model.parameters(), lr=0.0, foreach=False)


def learning_rate(step: int) -> float:
    """Return the learning rate of step `step`, the first being 0: warm-up, then decay."""
    return 0.05 * min((step + 1) / 4, (4 / (step + 1)) ** 0.5)


def epoch_order(config: Config, epoch: int) -> list[int]:
    """Return the numbers of all samples in the order of an epoch."""
    draw = torch.Generator().manual_seed(1_000_003 * config.seed + epoch)
    return torch.randperm(config.samples, generator=draw).tolist()


def noise_seed(config: Config, step: int, micro: int) -> int:
    """Return the seed of what micro-batch `micro` of a step draws."""
    return (1_000_003 * config.seed + step) * 4099 + micro


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss, summed over the samples."""
    return (model(x) - y).square().sum()


def grad_accum(global_batch: int, world: int, micro_batch: int) -> list[int]:
    """
    Return how many micro-batches each rank computes: as even as possible, lower ranks more.

    Raises:
        ValueError: global_batch: not a multiple of `micro_batch`, both at least 1. world: below 1,
            or more than there are micro-batches.
    """
    raise NotImplementedError  # TODO(kata): micro-batches per rank (about 8 lines)


def samples_at(config: Config, step: int) -> list[int]:
    """
    Return the samples of the global batch of a step, in order.

    Epochs follow one another without a gap: a batch may take the end of one and the beginning of
    the next, or several whole ones. Asks for the orders of no other epochs, and for each once.
    """
    raise NotImplementedError  # TODO(kata): samples of the step (about 4 lines)


def train(
    config: Config, data: Data, store: Store, steps: int, group: dist.ProcessGroup | None = None
) -> Report:
    """
    Train until `steps` steps are done, from the newest checkpoint on, if there is one.

    The weights after a step are the same to the bit, whatever the number of ranks, and however
    often the job was killed and started again.

    Args:
        config: Of the job.
        data: Each rank reads the samples of its own micro-batches, once.
        store: Where rank 0 saves after each `config.every` steps, and after the last.
        steps: Of all starts together.
        group: The ranks, joined by gloo; None is all there are.

    Raises:
        ValueError: global_batch, world: as `grad_accum`, before anything is loaded or read.
    """
    # TODO(kata): micro-batches per rank, samples of the step, restore, gradients of micro-batches,
    # sum in order, update and save (about 55 lines with helpers)
    raise NotImplementedError
