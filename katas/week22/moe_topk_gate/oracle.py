"""What is right, what to feed and what it costs: a stable sort of the logits, a softmax."""

import torch

from harness.hardware import Cost


def make_inputs(*, t, e, k, renormalize, dtype, device, seed, spread=1.0, masked=False):
    """N(0, spread²) logits; `masked` puts -inf wherever not one of k + 1 experts stands."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(t, e, generator=generator) * spread
    if masked:
        kept = torch.rand(t, e, generator=generator).argsort(dim=1) <= k
        logits = logits.masked_fill(~kept, -float("inf"))
    return {"logits": logits.to(dtype).to(device), "k": k, "renormalize": renormalize}


def reference(*, logits, k, renormalize):
    x = logits.double()
    order = torch.sort(x, dim=1, descending=True, stable=True).indices[:, :k]
    chosen = x.gather(1, order)
    norm = torch.logsumexp(chosen if renormalize else x, dim=1, keepdim=True)
    return torch.exp(chosen - norm), order.int()


def same_precision(*, logits, k, renormalize):
    x = logits.float()
    order = torch.sort(x, dim=1, descending=True, stable=True).indices[:, :k]
    chosen = x.gather(1, order)
    if renormalize:
        return torch.softmax(chosen, dim=1), order.int()
    return torch.softmax(x, dim=1).gather(1, order), order.int()


def cost(*, logits, k, renormalize):
    """Each logit once, and for each choice a weight and an index of 4 bytes."""
    t, e = logits.shape
    return Cost(
        flops=(4 + k) * t * e, bytes=t * e * logits.element_size() + 8 * t * k, special=t * e
    )


def two_op(*, logits, k, renormalize):
    """Softmax to memory, top-k from there, one more kernel or two to renormalise."""
    weights, idx = torch.topk(torch.softmax(logits, dim=1, dtype=torch.float32), k, dim=1)
    if renormalize:
        weights = weights / weights.sum(dim=1, keepdim=True)
    return weights, idx.int()
