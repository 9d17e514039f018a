"""What is right, what to feed and what it costs: log-softmax written out, in float64."""

import torch

from harness.hardware import Cost

SCALES = (4.0, 1 / 128)  # times 16 some probabilities leave float32
STRUCTURED = ("labels",)


def make_inputs(
    *, n, v, dtype, device, seed, spread=2.0, padding=0, ignored=False, masked=False, **rest
):  # fmt: skip
    """
    Logits N(0, spread²); with `padding` rows end with as many columns of NaN, left out.

    With `ignored` every third row is, and holds NaN; with `masked` the first half of the columns
    is -inf, and labels are of the other.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.full((n, v + padding), torch.nan)
    x[:, :v] = spread * torch.randn(n, v, generator=generator)
    labels = torch.randint(v // 2 if masked else 0, v, (n,), generator=generator)
    if masked:
        x[:, : v // 2] = -torch.inf
    if ignored:
        labels[::3] = -100
        x[::3] = torch.nan
    return {"logits": x.to(dtype).to(device)[:, :v], "labels": labels.to(device)} | rest


def _logprob(logits, labels, temperature, ignore):
    counts = labels != ignore
    logp, lse = logits.new_zeros(2, len(labels))
    x = logits[counts] / temperature
    lse[counts] = x.logsumexp(1)
    logp[counts] = x.log_softmax(1).gather(1, labels[counts, None])[:, 0]
    return logp, lse


def reference(*, logits, labels, temperature=1.0, ignore=-100, debug=False):
    return _logprob(logits.double(), labels, temperature, ignore)


def same_precision(*, logits, labels, temperature=1.0, ignore=-100, debug=False):
    return _logprob(logits.float(), labels, temperature, ignore)


def cost(*, logits, labels, **_):
    """Every logit once, and the label's again; a label, logp and lse for each row."""
    size = logits.element_size()
    n, v = logits.shape
    return Cost(flops=4 * n * v, bytes=n * v * size + n * (16 + size), special=n * v)


def eager(*, logits, labels, temperature=1.0, **_):
    """A log-softmax of all logits in float32, of which one number a row is kept."""
    x = logits.float() / temperature
    return x.log_softmax(1).gather(1, labels.clamp(min=0)[:, None])[:, 0], x.logsumexp(1)


def make_inputs_token_logprob_bwd(*, n, v, dtype, device, seed, **rest):
    given = make_inputs(n=n, v=v, dtype=dtype, device=device, seed=seed, **rest)
    at = {name: given[name] for name in ("temperature", "ignore") if name in given}
    lse = _logprob(given["logits"].double(), given["labels"], *_both(**at))[1].float()
    dlogp = torch.randn(n, generator=torch.Generator().manual_seed(seed + 1)).to(device)
    return {"dlogp": dlogp} | given | {"lse": lse}


def _both(temperature=1.0, ignore=-100):
    return temperature, ignore


def _gradient(dlogp, logits, labels, lse, temperature, ignore):
    counts = labels != ignore
    dx = torch.zeros(logits.shape, dtype=logits.dtype, device=logits.device)
    p = (logits[counts] / temperature - lse[counts, None]).exp()
    hot = torch.zeros_like(p).scatter_(1, labels[counts, None], 1.0)
    dx[counts] = (hot - p) * (dlogp[counts, None] / temperature)
    return dx


def reference_token_logprob_bwd(*, dlogp, logits, labels, lse, inplace=False, **rest):
    return _gradient(dlogp.double(), logits.double(), labels, lse.double(), *_both(**rest))


def same_precision_token_logprob_bwd(*, dlogp, logits, labels, lse, inplace=False, **rest):
    return _gradient(dlogp, logits.float(), labels, lse, *_both(**rest)).to(logits.dtype)


def cost_token_logprob_bwd(*, logits, **_):
    """Every logit in, its gradient out."""
    n, v = logits.shape
    return Cost(flops=4 * n * v, bytes=2 * n * v * logits.element_size() + 16 * n, special=n * v)
