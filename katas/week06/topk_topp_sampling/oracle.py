"""What is right, what to feed and what it costs: a sort in float64; and torch's, to beat."""

import numpy as np

from harness.hardware import Cost

# no draw and no nucleus is decided by less than this share of the mass: float32 has the digits
MARGIN = 1e-6
SCALES = (1.0,)  # other logits have other boundaries: cases with other spreads stand in

# temperature, top_k (below 0: so many less than there are tokens) and top_p, row after row
MIXES = {
    "mixed": [
        *((0.8, -2, 0.9), (0.8, 20, 0.9), (0.7, 0, 0.9), (0.0, 3, 0.5), (1.0, -1, 1.0)),
        *((1.3, 10**9, 0.6), (1.0, 1, 1.0), (1.1, 0, 0.05)),
    ],
    "chat": [(0.8, 50, 0.9)],
    "open": [(0.8, 0, 0.9)],
}


def make_inputs(
    *, rows, vocab, dtype, device, seed, mix="mixed", spread=3.0, block=None, into=False
):
    """Normal logits and a mix of parameters, every row decided by more than rounding."""
    generator = np.random.default_rng(seed)
    logits = (spread * generator.standard_normal((rows, vocab))).astype(dtype)
    logits[:, ::5] = np.round(logits[:, ::5], 1)  # ties
    kinds = [MIXES[mix][row % len(MIXES[mix])] for row in range(rows)]
    temperature, top_k, top_p = np.array(kinds, dtype=np.float64).reshape(-1, 3).T
    inputs = {
        "logits": logits,
        "temperature": temperature.astype(np.float32),
        "top_k": np.where(top_k < 0, np.maximum(vocab + top_k, 1), top_k).astype(np.int32),
        "top_p": top_p.astype(np.float32),
        "u": np.zeros(rows, np.float32),
    }
    for row in range(rows):
        _decide(inputs, row, generator)
    if block is not None:
        inputs["block"] = block
    if into:
        inputs["out"] = np.full(rows, -7, np.int32)
    return inputs


def _decide(inputs, row, generator):
    """Draw u, and move top_p, until neither lies next to where the answer changes."""
    _, survivors = law(*(inputs[name][row] for name in ("logits", "temperature", "top_k")), 1.0)
    upto, p = np.cumsum(survivors), inputs["top_p"][row]
    while p < 1 and np.abs(upto - p).min() < MARGIN:
        p = np.float32(inputs["top_p"][row] * generator.uniform(0.97, 1.0))
    inputs["top_p"][row] = p
    upto = np.cumsum(_nucleus(survivors, p))
    u = np.float32(generator.random())
    while u >= 1 or np.abs(upto[:-1] - u).min(initial=1.0) < MARGIN:
        u = np.float32(generator.random())
    inputs["u"][row] = u


def law(logits, temperature, top_k, top_p):
    """Tokens in the order of rank, and the probabilities of the first of them, in float64."""
    x = np.asarray(logits, np.float64)
    tokens = np.argsort(-x, kind="stable")
    kept = x[tokens[: (top_k or len(x)) if temperature else 1]]
    if temperature:
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.exp((kept - kept[0]) / np.float64(temperature))
        weights[kept == kept[0]] = 1
    else:
        weights = np.ones(1)
    return tokens, _nucleus(weights / weights.sum(), top_p)


def _nucleus(probabilities, top_p):
    if top_p < 1:
        enough = np.searchsorted(np.cumsum(probabilities), np.float64(top_p))
        probabilities = probabilities[: enough + 1]
    return probabilities / probabilities.sum()


def sensible(logits, temperature, top_k, top_p, u):
    """Whether there is something to draw from, and parameters to do it by."""
    valid = 0 <= temperature < np.inf and top_k >= 0 and 0 < top_p <= 1 and 0 <= u < 1
    return bool(valid and not np.isnan(logits).any() and logits.max() > -np.inf)


def reference(*, logits, temperature, top_k, top_p, u, out=None, block=None):
    drawn = np.full(len(logits), -1, np.int32)
    for row, given in enumerate(zip(logits, temperature, top_k, top_p, u, strict=True)):
        if sensible(*given):
            tokens, probabilities = law(*given[:-1])
            place = np.searchsorted(np.cumsum(probabilities[:-1]), np.float64(u[row]), "right")
            drawn[row] = tokens[place]
    return drawn


def cost(*, logits, temperature, top_k, top_p, u, out=None, block=None):
    """Every logit has to be read once."""
    return Cost(flops=logits.size, bytes=logits.nbytes + 5 * 4 * len(logits))


def torch_sort(*, logits, temperature, top_k, top_p, u, out=None, block=None):
    """What frameworks do without a kernel for it: sort each row, then mask and sum."""
    import torch

    device = "cuda" if hasattr(logits, "__cuda_array_interface__") else "cpu"
    x, heat, k, p, at = (
        torch.as_tensor(one, device=device) for one in (logits, temperature, top_k, top_p, u)
    )
    x, tokens = torch.sort(x / heat[:, None], dim=1, descending=True, stable=True)
    places = torch.arange(x.shape[1], device=device)
    x = x.masked_fill((places >= k[:, None]) & (k[:, None] > 0), float("-inf"))
    share = torch.softmax(x, dim=1)
    before = share.cumsum(dim=1) - share
    share = share.masked_fill(before >= p[:, None], 0)
    upto = share.cumsum(dim=1)
    place = torch.searchsorted(upto, at[:, None] * upto[:, -1:], right=True)
    return tokens.gather(1, place).squeeze(1).to(torch.int32)
