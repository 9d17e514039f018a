"""What to train and how it goes in one process; bytes, memory and time by other means."""

import math
from itertools import pairwise

import torch
from torch.nn import functional

WIDTH = 32


def block(parameters, x):
    """Call a layer, normalized and with a residual."""
    gain, up, down, spare = parameters
    hidden = functional.linear(functional.layer_norm(x, (WIDTH,), gain), up).relu()
    return (x + functional.linear(hidden, down)) * spare.mean()


def scale(parameters, x):
    """Multiply by the one parameter there is, so that most ranks own padding alone."""
    return parameters[0] * x


def model(seed, layers=4):
    """Make the units of a model, as (parameters, call): no world divides their sizes."""
    random = torch.Generator().manual_seed(seed)

    def draw(rows, cols):
        return torch.randn(rows, cols, generator=random) / cols**0.5

    def layer(spare):
        up, down = draw(4 * WIDTH, WIDTH), draw(WIDTH, 4 * WIDTH)
        return torch.ones(WIDTH), up, down, 0.5 + torch.rand(spare, generator=random)

    units = [(layer(spare=at + 1), block) for at in range(layers)]
    return [*units, ((torch.tensor(0.75),), scale)]


def sizes(units):
    return [sum(one.numel() for one in parameters) for parameters, _ in units]


def loss_fn(output, target):
    return (output - 2 * target).square().mean()


def batches(seed, world, steps, rows=6):
    """Draw what each rank learns from: by rank, (x, target) for each step."""
    random = torch.Generator().manual_seed(seed + 1)

    def draw():
        return torch.randn(rows, WIDTH, generator=random)

    return [[(draw(), draw()) for _ in range(steps)] for _ in range(world)]


def losses(units, by_rank, lr=0.01, dtype=torch.float64):
    """Train in one process on all batches, with Adam spelt out; the loss of each rank and step."""
    weights = [[one.to(dtype, copy=True).requires_grad_() for one in unit] for unit, _ in units]
    parameters = [one for unit in weights for one in unit]

    def module(x):
        for mine, (_, call) in zip(weights, units, strict=True):
            x = call(mine, x)
        return x

    moments = [[torch.zeros_like(one), torch.zeros_like(one)] for one in parameters]
    found = []
    for step in range(len(by_rank[0])):
        each = [
            loss_fn(module(x.to(dtype)), target.to(dtype))
            for x, target in (rank[step] for rank in by_rank)
        ]
        gradients = torch.autograd.grad(sum(each) / len(each), parameters)
        found.append([one.item() for one in each])
        with torch.no_grad():
            for parameter, gradient, (mean, square) in zip(
                parameters, gradients, moments, strict=True
            ):
                mean += (gradient - mean) / 10
                square += (gradient**2 - square) / 100
                unbiased = mean / (1 - 0.9 ** (step + 1))
                root = (square / (1 - 0.99 ** (step + 1))).sqrt()
                parameter -= lr * unbiased / (root + 1e-3)
    return [list(one) for one in zip(*found, strict=True)]


def sent(op, size, world, itemsize):
    """Count what rank 0 sends in a ring, hop by hop."""
    part = math.ceil(size / world) * itemsize
    hops = [part for _ in range(world - 1)]
    return sum(hops + hops) if op == "all_reduce" else sum(hops)


# each collective of a step, for every unit
DUE = {
    "ddp": ("all_reduce",),
    "zero2": ("reduce_scatter", "all_gather"),
    "zero3": ("all_gather", "all_gather", "reduce_scatter"),
}


def step_bytes(mode, sizes, world):
    """By collective, what a rank sends in a step of float32."""
    total = {}
    for op in DUE[mode]:
        total[op] = total.get(op, 0) + sum(sent(op, size, world, 4) for size in sizes)
    return total


def held(mode, sizes, world, weight, gradient, states):
    """Count the bytes of a rank at the moment of a step that needs the most, thing by thing."""
    shard = {unit: math.ceil(size / world) for unit, size in enumerate(sizes)}
    largest = max(sizes)
    things = [gradient * largest]  # as autograd makes it
    for unit, size in enumerate(sizes):
        things.append(weight * (shard[unit] if mode == "zero3" else size))
        things.append(gradient * (size if mode == "ddp" else shard[unit]))
        things.append(states * (size if mode == "ddp" else shard[unit]))
    if mode != "ddp":
        things.append(gradient * largest)  # flat, until it is scattered
    if mode == "zero3":
        things.append(weight * largest)  # gathered
    return sum(things)


def seconds(op, unit, sizes, tokens, world, profile, link):
    if op in ("forward", "backward"):
        factor = {"forward": 2, "backward": 4}[op]
        return factor * sizes[unit] * tokens / (0.5 * profile.peak["float16"])
    rounds = (world - 1) * (2 if op == "all_reduce" else 1)
    return sent(op, sizes[unit], world, 2) / link.bandwidth + rounds * link.latency_s


def queues(mode, layers, prefetch):
    """
    What each stream does, in order, and for each piece of work what it has to wait for.

    A piece is named (op, unit, nth); waiting is for ("start" or "end", piece).
    """
    compute = [("forward", at, 0) for at in range(layers)]
    compute += [("backward", at, 0) for at in reversed(range(layers))]
    comm, waits = [], {}
    gathers = [("all_gather", at, int(op == "backward")) for op, at, _ in compute]
    for turn, piece in enumerate(compute):
        ahead = turn + 1 < len(compute) and mode == "zero3"
        if mode == "zero3":
            waits[piece] = [("end", gathers[turn])]
            if turn == 0:
                comm.append(gathers[0])
                waits[gathers[0]] = []
        if ahead and prefetch:
            comm.append(gathers[turn + 1])
            waits[gathers[turn + 1]] = [("start", piece)]
        if piece[0] == "backward":
            reduction = ("all_reduce" if mode == "ddp" else "reduce_scatter", piece[1], 0)
            comm.append(reduction)
            waits[reduction] = [("end", piece)]
        if ahead and not prefetch:
            comm.append(gathers[turn + 1])
            waits[gathers[turn + 1]] = [("end", piece)]
    if mode == "zero2":
        for at in range(layers):
            comm.append(("all_gather", at, 0))
            waits["all_gather", at, 0] = [("end", compute[-1])]
    return {"compute": compute, "comm": comm}, waits


def schedule(mode, sizes, tokens, world, profile, link, prefetch=True):
    """Run both streams by events: by (op, unit, nth), when each piece starts and ends."""
    streams, waits = queues(mode, len(sizes), prefetch)
    times, free = {}, dict.fromkeys(streams, 0.0)
    while any(streams.values()):
        for name, queue in streams.items():
            due = waits.get(queue[0], []) if queue else None
            if due is None or any(piece not in times for _, piece in due):
                continue
            ready = [times[piece][edge == "end"] for edge, piece in due]
            piece = queue.pop(0)
            start = max([free[name], *ready])
            end = start + seconds(*piece[:2], sizes, tokens, world, profile, link)
            times[piece] = (start, end)
            free[name] = end
    return times


def split(times):
    """Split a schedule at every edge: step, compute and, by collective, exposed seconds."""
    edges = sorted({0.0, *(edge for span in times.values() for edge in span)})
    computed, exposed = 0.0, {piece[0]: 0.0 for piece in times if "_" in piece[0]}
    for start, end in pairwise(edges):
        running = [piece[0] for piece, span in times.items() if span[0] <= start < span[1]]
        if {"forward", "backward"} & set(running):
            computed += end - start
        elif running:
            exposed[running[0]] += end - start
    return edges[-1], computed, exposed
