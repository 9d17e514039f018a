"""A clock that ticks, what a schedule must be, and stages that run one and learn from it."""

from collections import deque

import numpy as np
import torch

from harness.simulators.ranks import rank_device

CHANNELS = 4
RATE = 0.125


class Deadlock(AssertionError):
    """Every stage waits for another."""


def needs(op, stage, p, v):
    """Yield (kind, depth) of what an op waits for; chunk c of stage s lies at depth c * p + s."""
    depth = op.chunk * p + stage
    if op.kind == "B":
        yield "F", depth
        if depth < p * v - 1:
            yield "B", depth + 1
    elif depth > 0:
        yield "F", depth - 1


def chunks_of(schedule):
    return 1 + max(op.chunk for ops in schedule for op in ops)


def tick(schedule, t_f, t_b, t_comm):
    """
    Play a schedule tick by tick, in whole ticks: its makespan, and the share that stages idle.

    At each tick whoever is free looks whether all that its next op needs has arrived.
    """
    p, v = len(schedule), chunks_of(schedule)
    left = [deque(ops) for ops in schedule]
    free_at, arrivals, idle, now = [0] * p, {}, 0, 0
    while any(left) or max(free_at) > now:
        for stage, ops in enumerate(left):
            if free_at[stage] > now:
                continue
            there = ops and all(
                arrivals.get((kind, ops[0].micro, depth, stage), now + 1) <= now
                for kind, depth in needs(ops[0], stage, p, v)
            )
            if not there:
                idle += 1
                continue
            op = ops.popleft()
            free_at[stage] = now + (t_f if op.kind == "F" else t_b)
            for reader in range(p):
                at = free_at[stage] + (0 if reader == stage else t_comm)
                arrivals[op.kind, op.micro, op.chunk * p + stage, reader] = at
        now += 1
        if any(left) and now > max([*free_at, *arrivals.values()]) + 1:
            waiting = [f"stage {stage} for {ops[0]}" for stage, ops in enumerate(left) if ops]
            raise Deadlock(f"the schedule stands still: {', '.join(waiting)} cannot begin")
    return now, idle / (p * now)


def peak_live(ops):
    """Count the forwards whose backward has not been, at the worst moment."""
    live = [sum(1 if op.kind == "F" else -1 for op in ops[:at]) for at in range(len(ops) + 1)]
    return max(live)


def audit(schedule, *, p, m, v=1):
    """Assert that each stage has all its ops, once, each kind and chunk in the order of `micro`."""
    assert len(schedule) == p, f"expected {p} stages, found {len(schedule)}"
    for stage, ops in enumerate(schedule):
        want = {(kind, micro, chunk) for kind in "FB" for micro in range(m) for chunk in range(v)}
        odd = sorted(want.symmetric_difference(map(tuple, ops)))
        assert not odd, f"stage {stage}: ops missing, or not of this pipeline: {odd[:4]}"
        assert len(ops) == len(want), f"stage {stage}: expected each op once, found some twice"
        for kind, chunk in sorted({(op.kind, op.chunk) for op in ops}):
            micros = [op.micro for op in ops if (op.kind, op.chunk) == (kind, chunk)]
            assert micros == [*range(m)], (
                f"stage {stage}: expected {kind} of chunk {chunk} for micro-batches in order, "
                f"found {micros}"
            )


def live_bound(*, p, m, v=1):
    """Return the most passes that each stage may hold activations of."""
    if v == 1:
        return [min(m, p - stage) for stage in range(p)]
    return [min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1) for stage in range(p)]


def any_order(make_op, rng, *, p, m, v):
    """Draw a schedule that ends: at each turn, any op that could begin."""
    waiting = [
        [make_op(kind, micro, chunk) for kind in "FB" for micro in range(m) for chunk in range(v)]
        for _ in range(p)
    ]
    schedule, done = [[] for _ in range(p)], set()
    while any(waiting):
        stage, op = rng.choice(
            [
                (stage, op)
                for stage, ops in enumerate(waiting)
                for op in ops
                if all((kind, op.micro, depth) in done for kind, depth in needs(op, stage, p, v))
            ]
        )
        waiting[stage].remove(op)
        schedule[stage].append(op)
        done.add((op.kind, op.micro, op.chunk * p + stage))
    return schedule


# ---- a small network, trained by one process and by stages ---------------------------------


def network(*, depth, rows, seed):
    """Draw weights of `depth` layers, inputs and targets, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = [normal(CHANNELS, CHANNELS) / CHANNELS**0.5 for _ in range(depth)]
    return weights, normal(rows, CHANNELS), normal(rows, CHANNELS)


def trained_alone(weights, x, target, *, m, steps):
    """Train in one process, in NumPy: gradients written down, of `m` micro-batches added up."""
    weights = [weight.numpy().copy() for weight in weights]
    for _ in range(steps):
        gradients = [np.zeros_like(weight) for weight in weights]
        parts = zip(np.array_split(x.numpy(), m), np.array_split(target.numpy(), m), strict=True)
        for part, wanted in parts:
            hidden = [part]
            for weight in weights:
                hidden.append(np.tanh(hidden[-1] @ weight))
            gradient = 2 * (hidden[-1] - wanted) / len(x)
            for layer in reversed(range(len(weights))):
                gradient = gradient * (1 - hidden[layer + 1] ** 2)
                gradients[layer] += hidden[layer].T @ gradient
                gradient = gradient @ weights[layer].T
        for weight, gradient in zip(weights, gradients, strict=True):
            weight -= RATE * gradient
    return [torch.from_numpy(weight) for weight in weights]


def bytes_a_step(*, rank, p, v, rows):
    """What a rank sends: activations from all chunks but the last, gradients from all but 0."""
    passes = (v - (rank == p - 1)) + (v - (rank == 0))
    return passes * rows * CHANNELS * 8


class StageRunner:
    """
    One stage on a rank: runs its ops in order, waits for what it receives, not for what it sends.

    Messages bear no names, so whoever receives goes by the order in which the sender sends.
    """

    def __init__(self, schedule, rank, weights, x, target, m):
        self.schedule, self.rank, self.p = schedule, rank, len(schedule)
        self.v = chunks_of(schedule)
        device = rank_device()
        own = weights[rank :: self.p]
        self.weights = [weight.to(device, copy=True).requires_grad_() for weight in own]
        self.x, self.target = (batch.to(device).tensor_split(m) for batch in (x, target))
        self.rows = len(x)
        self.peak_live = 0

    def step(self, p2p):
        """Run all ops, wait for what was sent, then update the weights."""
        self.p2p, self.sends, self.received, self.saved = p2p, [], {}, {}
        self.due = {stage: deque(self._sent_here(stage)) for stage in range(self.p)}
        for op in self.schedule[self.rank]:
            (self._forward if op.kind == "F" else self._backward)(op)
            self.peak_live = max(self.peak_live, len(self.saved))
        for send in self.sends:
            send.wait()
        with torch.no_grad():
            for weight in self.weights:
                weight -= RATE * weight.grad
                weight.grad = None

    def _forward(self, op):
        depth = op.chunk * self.p + self.rank
        x = self._receive("F", op.micro, depth - 1) if depth > 0 else self.x[op.micro]
        x = x.detach().requires_grad_(depth > 0)
        y = torch.tanh(x @ self.weights[op.chunk])
        if depth == self.p * self.v - 1:
            y = (y - self.target[op.micro]).square().sum() / self.rows
        else:
            self._send(y.detach(), (depth + 1) % self.p)
        self.saved[op.micro, op.chunk] = x, y

    def _backward(self, op):
        depth = op.chunk * self.p + self.rank
        x, y = self.saved.pop((op.micro, op.chunk))
        last = depth == self.p * self.v - 1
        y.backward(None if last else self._receive("B", op.micro, depth + 1))
        if depth > 0:
            self._send(x.grad, (depth - 1) % self.p)

    def _sent_here(self, stage):
        """Yield what `stage` sends to this rank, in the order of its ops."""
        for op in self.schedule[stage]:
            depth = op.chunk * self.p + stage
            reader = depth + 1 if op.kind == "F" else depth - 1
            if 0 <= reader < self.p * self.v and reader % self.p == self.rank:
                yield op.kind, op.micro, depth

    def _send(self, tensor, dst):
        if tensor.numel():
            self.sends.append(self.p2p.isend(tensor.contiguous(), dst))

    def _receive(self, *key):
        src = key[2] % self.p
        while key not in self.received:
            arriving = self.due[src].popleft()
            tensor = torch.empty_like(self.x[arriving[1]])
            if tensor.numel():
                self.p2p.irecv(tensor, src).wait()
            self.received[arriving] = tensor
        return self.received.pop(key)
