"""What is right: a loop over the assignments, in the order in which they may take a slot."""

import torch

STRUCTURED = ("idx",)
LEVELS = 5  # gates are of a few levels, so that many are equal


def make_inputs(*, tokens, k, experts, capacity, priority, skew, dtype, device, seed):
    """With `skew` most tokens want the first experts; with an infinite one all want expert 0."""
    draw = torch.Generator().manual_seed(seed)
    if skew == float("inf"):
        idx = torch.zeros(tokens, k, dtype=torch.int64)
    else:
        noise = -torch.empty(tokens, experts).exponential_(generator=draw).log()
        liked = noise - skew * torch.arange(experts) / experts
        idx = liked.argsort(1, descending=True)[:, :k]
    gates = torch.randint(1, LEVELS, (tokens, k), generator=draw) / LEVELS
    return {
        "idx": idx.contiguous().to(device),
        "gates": gates.to(dtype).to(device),
        "experts": experts,
        "capacity": capacity,
        "priority": priority,
    }


def reference(*, idx, gates, experts, capacity, priority):
    tokens, choices = range(len(idx)), idx.tolist()
    if priority == "gate":
        tokens = sorted(tokens, key=lambda token: -max(gates[token].tolist()))
    taken, slots = [0] * experts, [[-1] * idx.shape[1] for _ in choices]
    for choice in range(idx.shape[1]):
        for token in tokens:
            expert = choices[token][choice]
            if taken[expert] < capacity:
                slots[token][choice] = expert * capacity + taken[expert]
                taken[expert] += 1
    return torch.tensor(slots, dtype=torch.int64).view(idx.shape)
