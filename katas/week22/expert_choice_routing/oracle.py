"""What is right: one expert after another, one token after another, in float64."""

import torch
from torch import Tensor

SCALES = (2.0,)
STRUCTURED = ("idx",)
GAP = 1e-4  # relative, between two probabilities of an expert: so it is clear which is larger


def make_inputs(*, tokens, experts, capacity_factor, dtype, device, seed):
    draw = torch.Generator().manual_seed(seed)
    while True:
        logits = torch.randn(tokens, experts, generator=draw, dtype=torch.float64).to(dtype)
        if all(_told_apart(scale * logits.double()) for scale in (1.0, *SCALES)):
            return {"logits": logits.to(device), "capacity_factor": capacity_factor}


def _told_apart(logits):
    scores = torch.softmax(logits, 1).sort(0).values
    return bool((scores[1:] / scores[:-1] > 1 + GAP).all())


def reference(*, logits, capacity_factor):
    return same_precision(logits=logits.double(), capacity_factor=capacity_factor)


def same_precision(*, logits, capacity_factor):
    tokens, experts = logits.shape
    capacity = int(capacity_factor * tokens / experts)
    gates, idx = [], []
    for expert in range(experts):
        scores = [torch.softmax(row, 0)[expert] for row in logits]
        best = sorted(range(tokens), key=lambda token, p=scores: (-float(p[token]), token))
        idx.append(best[:capacity])
        gates.append(torch.stack([scores[token] for token in best[:capacity]]))
    return torch.stack(gates), torch.tensor(idx)


def make_inputs_expert_choice_ffn(*, tokens, experts, capacity, d, f, dtype, device, seed):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).to(device)

    taken = [torch.randperm(tokens, generator=draw)[:capacity] for _ in range(experts)]
    return {
        "x": normal(tokens, d),
        "gates": normal(experts, capacity).sigmoid(),
        "idx": torch.stack(taken).to(device),
        "w1": normal(experts, d, f) / d**0.5,
        "w2": normal(experts, f, d) / f**0.5,
    }


def reference_expert_choice_ffn(**inputs):
    exact = {name: x if name == "idx" else x.double() for name, x in inputs.items()}
    return same_precision_expert_choice_ffn(**exact)


def same_precision_expert_choice_ffn(*, x, gates, idx, w1, w2):
    rows = [torch.zeros_like(row) for row in x]
    for expert, taken in enumerate(idx.tolist()):
        for at, token in enumerate(taken):
            before = x[token] @ w1[expert]
            hidden = before * torch.sigmoid(before)
            rows[token] = rows[token] + gates[expert, at] * (hidden @ w2[expert])
    return torch.stack(rows)


def layer(kata, x: Tensor, router: Tensor, w1: Tensor, w2: Tensor, capacity_factor: float):
    """Route and compute, by the functions of `kata` or of this file."""
    gates, idx = kata.expert_choice(logits=x @ router, capacity_factor=capacity_factor)
    return kata.expert_choice_ffn(x=x, gates=gates, idx=idx, w1=w1, w2=w2)


class Loops:
    """The two functions as loops, in the precision of their arguments."""

    expert_choice = staticmethod(same_precision)
    expert_choice_ffn = staticmethod(same_precision_expert_choice_ffn)
