"""What is right: every expert on every token, with zeros as gates; a toy task and a dense rival."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, silu

REGIMES = 8
GAP = 1e-3  # between the last expert chosen and the first that is not


def dense(moe: nn.Module, x: Tensor, dtype: torch.dtype):
    """Result, balancing loss and gates [t, e], from copies of the parameters, which come last."""
    weights = {
        name: one.detach().to(dtype).requires_grad_() for name, one in moe.named_parameters()
    }
    x = x.detach().to(dtype).requires_grad_()
    scores = torch.softmax(x @ weights["router"].T, 1)
    order = sorted_experts(scores)[:, : moe.k]
    mask = torch.zeros_like(scores).scatter(1, order, 1.0)
    gates = scores * mask
    if moe.renormalize:
        gates = gates / gates.sum(1, keepdim=True)
    hidden = torch.einsum("td,edf->tef", x, weights["w_gate"])
    hidden = silu(hidden) * torch.einsum("td,edf->tef", x, weights["w_up"])
    y = torch.einsum("te,tef,efd->td", gates, hidden, weights["w_down"])
    tokens = max(len(x), 1)
    balance = scores.shape[1] * (mask.sum(0) / (tokens * moe.k) * scores.sum(0) / tokens).sum()
    return y, balance, mask.sum(0).long(), {"x": x, **weights}


def sorted_experts(scores: Tensor) -> Tensor:
    rows = scores.tolist()
    order = [sorted(range(len(row)), key=lambda e, row=row: -row[e]) for row in rows]
    return torch.tensor(order, dtype=torch.int64, device=scores.device).view(scores.shape)


def tokens(moe: nn.Module, many: int, generator: torch.Generator) -> Tensor:
    """Tokens of which it is clear which experts they ask."""
    experts, d = moe.router.shape
    while True:
        x = torch.randn(many, d, generator=generator)
        scores = torch.softmax(x.double() @ moe.router.detach().cpu().double().T, 1)
        if moe.k == experts or not many:
            return x
        best = scores.sort(1, descending=True).values
        if (best[:, moe.k - 1] > best[:, moe.k] * (1 + GAP)).all():
            return x


class Dense(nn.Module):
    """One SwiGLU network, as wide as the experts that a token asks; with the same interface."""

    def __init__(self, d: int, f: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Parameter(torch.randn(d, f) / d**0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(f, d) / f**0.5)

    def forward(self, x: Tensor):
        y = (silu(x @ self.gate) * (x @ self.up)) @ self.down
        return y, {"lb_loss": y.new_zeros(()), "counts": torch.ones(1, dtype=torch.int64)}


def toy_batches(many: int, d: int, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens of eight regimes, each with a linear map of its own; channel 0 is always 1."""
    draw = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(REGIMES, d, generator=draw)
    maps = torch.randn(REGIMES, d, d, generator=draw) / d**0.5
    for _ in range(steps):
        regime = torch.randint(REGIMES, (many,), generator=draw)
        x = centres[regime] + torch.randn(many, d, generator=draw)
        x[:, 0] = 1
        noise = 0.05 * torch.randn(many, d, generator=draw)
        yield x, torch.bmm(x[:, None], maps[regime])[:, 0] + noise


def entropy(counts: Tensor) -> float:
    """Of a load, over that of an even one."""
    shares = [count / sum(counts.tolist()) for count in counts.tolist() if count]
    return -sum(share * math.log(share) for share in shares) / max(math.log(len(counts)), 1)


def train(moe: nn.Module, batches, aux_coef: float, lr: float) -> tuple[list[float], list[float]]:
    """The same training, of which the errors and the entropies are kept."""
    optimizer = torch.optim.Adam(moe.parameters(), lr)
    errors, entropies = [], []
    for x, target in batches:
        y, aux = moe(x)
        error = mse_loss(y, target)
        optimizer.zero_grad()
        (error + aux_coef * aux["lb_loss"]).backward()
        optimizer.step()
        errors.append(float(error.detach()))
        entropies.append(entropy(aux["counts"]))
    return errors, entropies
