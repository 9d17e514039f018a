"""What is right and what to feed: the same job in one process, never interrupted."""

import os
import pickle
from itertools import chain
from pathlib import Path

import torch

from harness.simulators.deaths import point


def config(kata, seed, **changes):
    """6 micro-batches of 2; 17 samples, so that epochs end within batches."""
    values = {"samples": 17, "global_batch": 12, "micro_batch": 2, "every": 3}
    return kata.Config(seed=seed % 1000, **{**values, **changes})


def stream(kata, job, epochs):
    """All samples of the first epochs in one list."""
    return [*chain.from_iterable(kata.epoch_order(job, epoch) for epoch in range(epochs))]


def batches(kata, job, steps):
    """The samples of each step, cut out of the stream."""
    size = job.global_batch
    whole = stream(kata, job, steps * size // job.samples + 1)
    return [whole[step * size : (step + 1) * size] for step in range(steps)]


def samples(ids):
    """Inputs and targets: each sample is a function of its number."""
    inputs, targets = [], []
    for number in ids:
        draw = torch.Generator().manual_seed(number)
        inputs.append(torch.randn(6, generator=draw, dtype=torch.float64))
        targets.append(torch.randn(2, generator=draw, dtype=torch.float64))
    return torch.stack(inputs), torch.stack(targets)


def weights_after(kata, job, steps):
    """The weights of one process: each micro-batch by itself, their gradients added in order."""
    model = kata.make_model(job)
    optimizer = kata.make_optimizer(model)
    for step, ids in enumerate(batches(kata, job, steps)):
        totals = [torch.zeros_like(param) for param in model.parameters()]
        for micro in range(job.global_batch // job.micro_batch):
            x, y = samples(ids[micro * job.micro_batch : (micro + 1) * job.micro_batch])
            model.zero_grad()
            torch.manual_seed(kata.noise_seed(job, step, micro))
            kata.loss_of(model, x, y).backward()
            for total, param in zip(totals, model.parameters(), strict=True):
                total += param.grad
        for total, param in zip(totals, model.parameters(), strict=True):
            param.grad = total / job.global_batch
        for group in optimizer.param_groups:
            group["lr"] = kata.learning_rate(step)
        optimizer.step()
    return torch.cat([param.detach().reshape(-1) for param in model.parameters()])


class Data:
    """
    Samples, with a log of what each rank has read; a rank can die before it reads a batch.

    Reading draws random numbers, as an augmentation would: what is seeded too early is seen.
    """

    def __init__(self, log, start, rank):
        self.log, self.who = os.open(log, os.O_APPEND | os.O_WRONLY | os.O_CREAT), (start, rank)

    def batch(self, ids):
        point("batch")
        raw = pickle.dumps((self.who, list(ids)))
        os.write(self.log, len(raw).to_bytes(4, "little") + raw)
        torch.rand(len(ids))
        return samples(ids)


def read_log(log):
    """{(start, rank): the batches that were read, in order}."""
    raw, found = Path(log).read_bytes(), {}
    while raw:
        n = int.from_bytes(raw[:4], "little")
        who, ids = pickle.loads(raw[4 : 4 + n])
        found.setdefault(who, []).append(ids)
        raw = raw[4 + n :]
    return found


class Store:
    """Checkpoints in a folder, each renamed when it is written; a rank can die anywhere in it."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.saved = []

    def save(self, step, raw):
        point("save")
        half = self.folder / "half"
        half.write_bytes(raw[: len(raw) // 2])
        point("half")
        half.write_bytes(raw)
        half.rename(self.folder / f"{step:06d}")
        self.saved.append(step)
        point("saved")

    def load(self):
        steps = self.steps()
        return (steps[-1], (self.folder / f"{steps[-1]:06d}").read_bytes()) if steps else None

    def steps(self):
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name != "half")
