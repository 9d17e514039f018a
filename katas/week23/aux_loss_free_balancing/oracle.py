"""What is right: choices sorted token by token, nudges in whole numbers, inequality by pairs."""

import math

import torch

from harness.meters.collectives import Collectives


def make_inputs(*, t, e, k, levels=40, forced=False, transposed=False, dtype, device, seed):
    """Scores and biases on grids: sums are exact, and with few levels many are equal."""
    draw = torch.Generator().manual_seed(seed)
    shape = (e, t) if transposed else (t, e)
    scores = torch.randint(0, levels + 1, shape, generator=draw) / 64
    # in half precision a bias of this size would be lost beside a score of 1/2
    step = 1 / 8192 if dtype == torch.float16 else 1 / 64
    bias = torch.randint(-9, 10, (e,), generator=draw) * step
    if forced:
        bias[0], bias[-1] = -50.0, 50.0
    scores = (scores.T if transposed else scores).to(dtype)
    return {"scores": scores.to(device), "bias": bias.to(device), "k": k}


def reference(*, scores, bias, k):
    """Sort the experts of each token."""
    add = bias.tolist()
    idx = [
        sorted(range(len(row)), key=lambda e, row=row: -(row[e] + add[e]))[:k]
        for row in scores.tolist()
    ]
    idx = torch.tensor(idx, dtype=torch.int64, device=scores.device).view(len(scores), k)
    return scores.gather(1, idx), idx


def nudged(bias: list[float], counts: list[int], u: float) -> list[float]:
    """Nudge each bias, with the loads compared in whole numbers."""
    total, experts = sum(counts), len(counts)
    return [
        b + u * ((total > experts * c) - (total < experts * c))
        for b, c in zip(bias, counts, strict=True)
    ]


def gini(counts: list[int]) -> float:
    """Mean difference of two experts, over twice the mean."""
    apart = sum(abs(a - b) for a in counts for b in counts)
    return apart / (2 * len(counts) * sum(counts))


def entropy(counts: list[int]) -> float:
    total = sum(counts)
    return -sum(c / total * math.log(c / total, len(counts)) for c in counts if c)


def stream(steps: int, *, t=2048, e=16, seed=0):
    """Scores of a router that likes some experts more than others, a batch for each step."""
    draw = torch.Generator().manual_seed(seed)
    liking = torch.randn(e, generator=draw)
    for _ in range(steps):
        yield torch.sigmoid(liking + torch.randn(t, e, generator=draw))


class Started:
    """An all-reduce under way: the sum is there when it has been waited for."""

    def __init__(self, tensor, total):
        self.tensor, self.total, self.waits = tensor, total, 0

    def wait(self):
        self.waits += 1
        self.tensor.copy_(self.total)


class OneOfMany(Collectives):
    """One rank of `world`, without the others: their counts are known, and arrive last of all."""

    rank, world = 0, 0

    def __init__(self, rank, counts):
        self.rank, self.world = rank, len(counts)
        self.others = counts.sum(0) - counts[rank]
        self.started, self.bytes_sent = [], 0.0

    def all_reduce(self, tensor):
        assert tensor.is_contiguous(), "dp.all_reduce: expected a contiguous tensor"
        assert tensor.shape == self.others.shape, f"dp.all_reduce: found {tuple(tensor.shape)}"
        self.bytes_sent += 2 * (self.world - 1) / self.world * tensor.nbytes
        self.started.append(Started(tensor, tensor + self.others.to(tensor)))
        tensor.fill_(-77)
        return self.started[-1]


class Closed(Collectives):
    """Four ranks between which nothing may be sent."""

    rank, world = 1, 4

    def __init__(self):
        pass

    def all_reduce(self, tensor):
        raise AssertionError("expected a ValueError before anything is sent, found an all-reduce")
