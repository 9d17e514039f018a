"""What is right and what to feed: logarithms in sixty digits, losses in float64, a policy."""

import math
from decimal import Context, Decimal

import torch
from torch import nn

DIGITS = Context(prec=60)


def make_inputs(*, pairs, cols, dtype, device, seed, more=0, lam=0.5, sure=3.0, turned=False):
    """Draw log-probabilities down to about -`sure`, and responses of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    given = {"lam": lam}
    # apart from each other: a difference that cancels has few digits
    likely, unlikely = (0.05, 0.5), (1.0, 2.0)
    ranges = (unlikely, likely) if turned else (likely, unlikely)
    for which, width, (low, high) in zip("wl", (cols, cols + more), ranges, strict=True):
        share = low + (high - low) * torch.rand(pairs, width, generator=generator).double()
        logp = -sure * share
        mask = torch.rand(pairs, width, generator=generator) < 0.7
        mask[torch.arange(pairs), torch.randint(width, (pairs,), generator=generator)] = True
        given["logp_" + which] = logp.to(dtype).to(device)
        given["mask_" + which] = mask.to(device)
    return given


def _losses(chosen, rejected, lam):
    """The odds p / (1 - p) are 1 / (exp(-x) - 1); their logarithm is taken piece by piece."""
    log_odds = [x + torch.log(-torch.expm1(-x)) for x in (-rejected, -chosen)]
    apart = log_odds[0] - log_odds[1]
    loss = lam * torch.logaddexp(torch.zeros_like(apart), -apart) - chosen
    return loss.sum() / len(loss), -chosen.sum() / len(loss), apart


def _means(logp, mask, dtype):
    return torch.where(mask, logp, 0).to(dtype).sum(1) / mask.sum(1)


def reference(*, logp_w, mask_w, logp_l, mask_l, lam):
    """Compute them in float64."""
    means = (_means(*one, torch.float64) for one in ((logp_w, mask_w), (logp_l, mask_l)))
    return _losses(*means, lam)


def same_precision(*, logp_w, mask_w, logp_l, mask_l, lam):
    """Compute them in float32, or wider."""
    wide = torch.promote_types(logp_w.dtype, torch.float32)
    means = (_means(*one, wide) for one in ((logp_w, mask_w), (logp_l, mask_l)))
    return _losses(*means, lam)


def gradients(*, logp_w, mask_w, logp_l, mask_l, lam):
    """Derive the loss by hand in float64, for each log-probability."""
    chosen = _means(logp_w, mask_w, torch.float64)
    rejected = _means(logp_l, mask_l, torch.float64)
    *_, apart = _losses(chosen, rejected, lam)
    doubt = lam * torch.sigmoid(-apart) / len(apart)
    slope_w = -1 / len(apart) + doubt / torch.expm1(chosen)
    slope_l = -doubt / torch.expm1(rejected)
    return tuple(
        torch.where(mask, (slope / mask.sum(1))[:, None], 0)
        for slope, mask in ((slope_w, mask_w), (slope_l, mask_l))
    )


def make_inputs_log1mexp(*, n, low, dtype, device, seed):
    """Draw numbers from -700 to -10^`low`, evenly by their logarithm."""
    generator = torch.Generator().manual_seed(seed)
    powers = torch.rand(n, generator=generator, dtype=torch.float64) * (math.log10(700) - low) + low
    return {"x": (-(10**powers)).to(dtype).to(device)}


def exactly(x):
    """Compute log(1 - exp(x)) in sixty digits."""
    if x == 0:
        return Decimal("-Infinity")
    x = Decimal(x)
    if x > Decimal("-1e-20"):  # 1 - exp(x) = -x · (1 + x / 2 + …)
        return DIGITS.add(DIGITS.ln(-x), x / 2)
    if x < -60:  # = -exp(x) · (1 + exp(x) / 2 + …)
        return -DIGITS.exp(x)
    return DIGITS.ln(DIGITS.subtract(Decimal(1), DIGITS.exp(x)))


def reference_log1mexp(*, x):
    """Number by number."""
    values = [float(exactly(one)) for one in x.double().tolist()]
    return torch.tensor(values, dtype=torch.float64, device=x.device)


def same_precision_log1mexp(*, x):
    """The truth, rounded."""
    return reference_log1mexp(x=x).to(x.dtype)


class Policy(nn.Module):
    """Log-probabilities of tokens, each given the one before; counts what it is run on."""

    def __init__(self, seed, *, vocab=12, width=8):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.words = nn.Parameter(torch.randn(vocab + 1, width, generator=generator))
        self.inner = nn.Parameter(torch.randn(width, 4 * width, generator=generator) / width**0.5)
        self.outer = nn.Parameter(torch.randn(4 * width, vocab, generator=generator) / width**0.5)
        self.calls = 0

    def forward(self, tokens):
        """Map tokens [n, t] to their log-probabilities [n, t]."""
        self.calls += 1
        start = torch.full_like(tokens[:, :1], len(self.words) - 1)
        before = torch.cat([start, tokens[:, :-1]], dim=1)
        logits = torch.tanh(self.words[before] @ self.inner) @ self.outer
        return logits.log_softmax(2).gather(2, tokens[:, :, None])[:, :, 0]


def batch(pairs, cols, seed, *, vocab=12, device="cpu"):
    """Draw chosen responses of high tokens, then rejected ones; the first token is a prompt."""
    generator = torch.Generator().manual_seed(seed)
    half = vocab // 2
    tokens = torch.randint(half, (2 * pairs, cols), generator=generator)
    tokens[:pairs] += half
    tokens[:, 0] = torch.randint(vocab, (pairs,), generator=generator).repeat(2)
    lengths = torch.randint(2, cols + 1, (2 * pairs, 1), generator=generator)
    at = torch.arange(cols)
    mask = (at >= 1) & (at < lengths)
    return tokens.to(device), mask.to(device)


def dpo_step(policy, reference, tokens, mask, beta):
    """A step of DPO that runs its reference too."""

    def sums(logp):
        return logp.masked_fill(~mask, 0).sum(1).chunk(2)

    with torch.no_grad():
        rw, rl = sums(reference(tokens))
    pw, pl = sums(policy(tokens))
    return -nn.functional.logsigmoid(beta * ((pw - rw) - (pl - rl))).mean()
