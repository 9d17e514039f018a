"""What is right and what to feed: the two losses token by token, on one process, in float64."""

import math

import torch


def batch(t, e, k, seed, *, spread=1.0):
    """Draw logits, and k different experts for each token."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(t, e, generator=generator) * spread
    # half of the tokens draw their experts from the front, so that loads differ
    liking = (
        torch.rand(t, e, generator=generator) + torch.arange(e) / e * (torch.arange(t) % 2)[:, None]
    )
    return logits, liking.argsort(dim=1)[:, :k].contiguous()


def some(t, seed):
    """Draw which tokens count: about two of three, the first in any case."""
    mask = torch.rand(t, generator=torch.Generator().manual_seed(seed)) < 0.67
    mask[:1] = True
    return mask


def balance(logits, idx):
    """Compute E · Σ fᵢ Pᵢ, counted one by one."""
    t, e = logits.shape
    loads, probabilities = [0] * e, [0.0] * e
    for row, chosen in zip(logits.double().tolist(), idx.tolist(), strict=True):
        for expert in chosen:
            loads[expert] += 1
        top = max(row)
        weights = [math.exp(value - top) for value in row]
        for expert, weight in enumerate(weights):
            probabilities[expert] += weight / sum(weights)
    pairs = zip(loads, probabilities, strict=True)
    return e * sum(load / idx.numel() * sums / t for load, sums in pairs)


def balance_gradient(logits, idx, dtype=torch.float64, *, scaled_first=False):
    """Compute E / T · p ⊙ (f - ⟨f, p⟩), row by row, or with E / T multiplied into f."""
    t, e = logits.shape
    p = torch.softmax(logits.to(dtype), dim=1)
    f = torch.bincount(idx.flatten(), minlength=e).to(dtype) / idx.numel()
    first, last = (e / t, 1) if scaled_first else (1, e / t)
    return last * p * (first * f - (p @ (first * f))[:, None])


def z_gradient(logits, dtype=torch.float64):
    """Compute 2 / T · logsumexp ⊙ p, row by row."""
    rows = logits.to(dtype)
    return 2 / len(rows) * torch.logsumexp(rows, 1)[:, None] * torch.softmax(rows, 1)


def rounded(formula, truth, logits, *idx):
    """Compute it in float32 in several ways, which round elsewhere; return the least exact."""
    last = logits.shape[1] - 1
    turned = logits.flip(1), *(last - one for one in idx)  # experts in the other order
    ways = ({}, {"scaled_first": True}) if formula is balance_gradient else ({},)
    answers = [formula(logits, *idx, dtype=torch.float32, **way) for way in ways]
    answers += [formula(*turned, dtype=torch.float32, **way).flip(1) for way in ways]
    return max(answers, key=lambda one: (one - truth).abs().max().item())


def z_loss(logits):
    """Average the squared logarithm of the sum of exponentials."""
    total = 0.0
    for row in logits.double().tolist():
        top = max(row)
        total += (top + math.log(sum(math.exp(value - top) for value in row))) ** 2
    return total / len(logits)
