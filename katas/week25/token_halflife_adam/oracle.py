"""What is right: moments as weighted means in float64, and a task whose best loss is known."""

import math
from decimal import Decimal, localcontext

import torch

LETTERS = 64
BUDGET = 32_768  # pairs of letters to learn from
SEQLEN = 8
BATCH, BETA2, RATE = 64, 0.95, 0.1  # tuned for large batches
SMALL_RATE = 0.01  # and, of its own, for batches of one sequence


def decimal_half_life(beta2, tokens):
    """Count the tokens until half is forgotten, to 40 digits."""
    with localcontext() as context:
        context.prec = 40
        return float(tokens * Decimal("0.5").ln() / Decimal(beta2).ln())


def trajectory(start, grads, tokens, *, half_life, lr, beta1, eps):
    """
    List the values of a parameter after each step, in float64.

    `grads` may hold None. Both moments are weighted means of what there was, the weights of which
    add up to 1: that is what correcting the bias is for.
    """
    param = start.double()
    seen, values = [], []
    for grad, count in zip(grads, tokens, strict=True):
        if grad is not None and count:
            seen = [(one * beta1, two * 2 ** (-count / half_life), g) for one, two, g in seen]
            seen.append((1 - beta1, -math.expm1(-math.log(2) * count / half_life), grad.double()))
            first = sum(one * g for one, _, g in seen) / sum(one for one, *_ in seen)
            second = sum(two * g * g for _, two, g in seen) / sum(two for _, two, _ in seen)
            param = param - lr * first / (second.sqrt() + eps)
        values.append(param)
    return values


class Letters:
    """
    A text in which each letter depends on the one before: a 64 x 64 table, Zipf times noise.

    `x` and `y` are the letters before and after, drawn from it.
    """

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(LETTERS, LETTERS, generator=generator, dtype=torch.float64)
        ranks = torch.arange(1, LETTERS + 1, dtype=torch.float64)
        self.table = torch.softmax(noise - ranks.log(), dim=1)
        self.share = torch.full((LETTERS,), 1 / LETTERS, dtype=torch.float64)
        for _ in range(100):
            self.share = self.share @ self.table
        self.x = torch.multinomial(self.share, BUDGET, replacement=True, generator=generator)
        self.y = torch.multinomial(self.table[self.x], 1, generator=generator)[:, 0]

    def excess(self, logits):
        """Return by how many nats a letter's loss is above the entropy."""
        off = self.table.log() - torch.log_softmax(logits.double(), dim=1)
        return float((self.share[:, None] * self.table * off).sum())

    def learn(self, optimizer, logits, batch):
        """Read all of the text once, `batch` sequences a step, at a rate that falls to 0."""
        count = batch * SEQLEN
        steps, rate = len(self.x) // count, optimizer.param_groups[0]["lr"]
        for step in range(steps):
            part = slice(step * count, (step + 1) * count)
            x, y = self.x[part], self.y[part]
            error = torch.softmax(logits[x], dim=1)
            error[torch.arange(count), y] -= 1
            logits.grad = torch.zeros_like(logits).index_add_(0, x, error, alpha=1 / count)
            optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
            optimizer.step(count)
        return self.excess(logits)
