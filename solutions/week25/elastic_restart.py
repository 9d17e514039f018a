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

from harness.meters.communication import all_gather_into_tensor


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
    # micro-batches per rank
    if micro_batch < 1 or global_batch < 1 or global_batch % micro_batch:
        raise ValueError(
            f"global_batch: expected a multiple of micro_batch={micro_batch}, found {global_batch}."
        )
    micros = global_batch // micro_batch
    if not 1 <= world <= micros:
        raise ValueError(f"world: expected 1 to {micros} ranks, found {world}.")
    return [micros // world + (rank < micros % world) for rank in range(world)]


def samples_at(config: Config, step: int) -> list[int]:
    """
    Return the samples of the global batch of a step, in order.

    Epochs follow one another without a gap: a batch may take the end of one and the beginning of
    the next, or several whole ones. Asks for the orders of no other epochs, and for each once.
    """
    # samples of the step
    begin = step * config.global_batch
    places = [divmod(begin + at, config.samples) for at in range(config.global_batch)]
    orders = {epoch: epoch_order(config, epoch) for epoch in {epoch for epoch, _ in places}}
    return [orders[epoch][at] for epoch, at in places]


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
    # micro-batches per rank
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    counts = grad_accum(config.global_batch, world, config.micro_batch)
    start = sum(counts[:rank])
    # restore
    model = make_model(config)
    optimizer = make_optimizer(model)
    first = 0
    if (saved := store.load()) is not None:
        first, raw = saved
        state = torch.load(io.BytesIO(raw), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    # samples of the step
    for step in range(first, steps):
        micros = samples_at(config, step)
        # gradients of micro-batches
        mine = [
            _gradient(config, model, data, step, micro, micros)
            for micro in range(start, start + counts[rank])
        ]
        # sum in order
        mean = _sum_in_order(mine, counts, group) / config.global_batch
        # update and save
        for param, grad in zip(
            model.parameters(), mean.split([p.numel() for p in model.parameters()]), strict=True
        ):
            param.grad = grad.view_as(param)
        optimizer.param_groups[0]["lr"] = learning_rate(step)
        optimizer.step()
        done = step + 1
        if rank == 0 and (done % config.every == 0 or done == steps):
            buffer = io.BytesIO()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, buffer)
            store.save(done, buffer.getvalue())
    return Report(
        first=first,
        steps_run=max(0, steps - first),
        restarts=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        weights=torch.cat([param.detach().flatten() for param in model.parameters()]),
    )


def _gradient(
    config: Config, model: nn.Module, data: Data, step: int, micro: int, ids: list[int]
) -> Tensor:
    """Return the gradient of one micro-batch, flat; what it draws depends on no other."""
    # gradients of micro-batches
    begin = micro * config.micro_batch
    x, y = data.batch(ids[begin : begin + config.micro_batch])
    torch.manual_seed(noise_seed(config, step, micro))
    grads = torch.autograd.grad(loss_of(model, x, y), [*model.parameters()])
    return torch.cat([grad.flatten() for grad in grads])


def _sum_in_order(mine: list[Tensor], counts: list[int], group: dist.ProcessGroup | None) -> Tensor:
    """Add what all ranks have, one after the other: the order doesn't depend on who has what."""
    # sum in order
    size, most = mine[0].numel(), max(counts)
    rows = torch.zeros(most, size, dtype=mine[0].dtype)
    rows[: len(mine)] = torch.stack(mine)
    gathered = rows.new_empty(len(counts) * most, size)
    all_gather_into_tensor(gathered, rows, group=group)
    total = torch.zeros_like(mine[0])
    for rank, count in enumerate(counts):
        for row in gathered[rank * most : rank * most + count]:
            total += row
    return total
