"""What is right: groups and experts sorted token by token; every expert on every token, float64."""

from itertools import combinations

import torch
from torch import Tensor

GAP = 1e-3  # between what is chosen and what is not, where a matrix product decides


def make_inputs(
    *, t, n_group, size, topk_group, k, levels=40, shift=0, transposed=False, dtype, device, seed
):
    """Scores on a grid: sums of two are exact, and with few levels many are equal."""
    draw = torch.Generator().manual_seed(seed)
    shape = (n_group * size, t) if transposed else (t, n_group * size)
    scores = (torch.randint(-levels, levels + 1, shape, generator=draw) / 64 + shift).to(dtype)
    return {
        "scores": (scores.T if transposed else scores).to(device),
        "n_group": n_group,
        "topk_group": topk_group,
        "k": k,
    }


def reference(*, scores, n_group, topk_group, k):
    """Sort the groups, then what is in the best of them, token by token."""
    idx = [choice(row, n_group, topk_group, k) for row in scores.tolist()]
    idx = torch.tensor(idx, dtype=torch.int64, device=scores.device).view(len(scores), k)
    return scores.gather(1, idx), idx


def choice(row: list[float], n_group: int, topk_group: int, k: int) -> list[int]:
    size = len(row) // n_group

    def of_group(g: int) -> float:
        return sum(sorted(row[g * size : (g + 1) * size])[-2:])

    best = sorted(range(n_group), key=lambda g: -of_group(g))[:topk_group]
    inside = sorted(e for e in range(len(row)) if e // size in best)
    return sorted(inside, key=lambda e: -row[e])[:k]


def is_clear(row: list[float], n_group: int, topk_group: int, k: int) -> bool:
    """Whether no small error changes who is chosen."""
    size = len(row) // n_group
    sums = [sum(sorted(row[g * size : (g + 1) * size])[-2:]) for g in range(n_group)]
    by_sum = sorted(range(n_group), key=lambda g: -sums[g])
    inside = sorted(row[e] for g in by_sum[:topk_group] for e in range(g * size, (g + 1) * size))
    sums.sort()
    groups = topk_group == n_group or sums[-topk_group] - sums[-topk_group - 1] > GAP
    return groups and (k == len(inside) or inside[-k] - inside[-k - 1] > GAP)


def weights(experts: int, d: int, f: int, draw: torch.Generator) -> list[Tensor]:
    return [
        torch.randn(experts, *shape, generator=draw) / shape[0] ** 0.5
        for shape in ((d, f), (d, f), (f, d))
    ]


def layer(t, d, f, shared, experts, k, n_group, topk_group, seed):
    """Draw tokens that it is clear for whom they ask, both kinds of experts and a router."""
    draw = torch.Generator().manual_seed(seed)
    router_w = torch.randn(experts, d, generator=draw) / d**0.5
    rows = []
    while len(rows) < t:
        x = torch.randn(d, generator=draw)
        scores = torch.sigmoid(router_w.double() @ x.double())
        if is_clear(scores.tolist(), n_group, topk_group, k):
            rows.append(x)
    x = torch.stack(rows) if rows else torch.zeros(0, d)
    return x, weights(shared, d, f, draw), weights(experts, d, f, draw), router_w


def dense(x, shared, routed, router_w, k, n_group, topk_group, scale=1.0):
    """Compute all experts for all tokens, with zeros as gates, in the dtype of `x`."""
    affinity = torch.sigmoid(x @ router_w.T)
    rows = affinity.tolist()
    idx = [choice(row, n_group, topk_group, k) for row in rows]
    idx = torch.tensor(idx, dtype=torch.int64, device=x.device).view(len(x), k)
    chosen = affinity * torch.zeros_like(affinity).scatter(1, idx, 1.0)
    gates = scale * chosen / chosen.sum(1, keepdim=True)
    everybody = x.new_ones(len(x), len(shared[0]))
    return mixture(x, gates, *routed) + mixture(x, everybody, *shared)


def mixture(x, gates, w_gate, w_up, w_down):
    gate = torch.einsum("td,edf->tef", x, w_gate)
    hidden = gate * torch.sigmoid(gate) * torch.einsum("td,edf->tef", x, w_up)
    return torch.einsum("te,tef,efd->td", gates, hidden, w_down)


def count_sets(experts: int, k: int, n_group: int, topk_group: int) -> int:
    """Try all sets."""
    size = experts // n_group
    sets = combinations(range(experts), k)
    return sum(len({e // size for e in one}) <= topk_group for one in sets)
