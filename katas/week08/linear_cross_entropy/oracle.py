"""What is right: all logits at once, in float64; and the same in the working precision."""

import torch
import torch.nn.functional as F

STRUCTURED = ("target",)  # below v, or ignored


def make_inputs(
    *, t, v, d, dtype, device, seed, ignored=0, reduction="mean", chunk=None, needs_grad=False
):
    """Logits N(0, 1); the first `ignored` targets are; `chunk` is in tokens."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(t, d, generator=generator).to(dtype).to(device)
    w = (torch.randn(v, d, generator=generator) * d**-0.5).to(dtype).to(device)
    target = torch.randint(v, (t,), generator=generator)
    target[:ignored] = -100
    target = target[torch.randperm(t, generator=generator)].to(device)
    return {
        "x": x.requires_grad_(needs_grad), "w": w.requires_grad_(needs_grad), "target": target,
        "reduction": reduction,
        "chunk_bytes": None if chunk is None else chunk * v * 4,
    }  # fmt: skip


def reference(*, x, w, target, ignore_index=-100, reduction="mean", chunk_bytes=None):
    logits = x.double() @ w.double().T
    return F.cross_entropy(logits, target, ignore_index=ignore_index, reduction=reduction)


def same_precision(*, x, w, target, ignore_index=-100, reduction="mean", chunk_bytes=None):
    """All logits at once, in the dtype of the inputs; of these the loss in float32."""
    logits = (x @ w.T).float()
    loss = F.cross_entropy(logits, target, ignore_index=ignore_index, reduction=reduction)
    return loss.to(x.dtype)


def plain_with_gradients(*, x, w, target, ignore_index=-100, reduction="mean", chunk_bytes=None):
    """What a training loop would write, backward included, as the chunked one has it."""
    with torch.enable_grad():
        loss = F.cross_entropy(x @ w.T, target, ignore_index=ignore_index, reduction=reduction)
        torch.autograd.grad(loss, (x, w))
    return loss.detach()
