"""What is right: all logits at once, in float64; and losses of logits to try it with."""

import torch
import torch.nn.functional as F

STRUCTURED = ("labels",)  # below v, or ignored


# ---- losses of logits: each returns a sum over tokens --------------------------------------


def cross_entropy(logits, labels):
    return F.cross_entropy(logits, labels, reduction="sum")


def smoothed(logits, labels):
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1)


def focal(logits, labels):
    """Weigh tokens down that are right already: (1 - p)² · -log p."""
    log_p = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
    return -((1 - log_p.exp()).square() * log_p).sum()


def weighted(logits, labels, advantages):
    """Compute a policy gradient: -advantage · log p."""
    log_p = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
    return -(advantages.to(log_p.dtype) * log_p).sum()


def clipped(logits, labels, advantages, old_log_p):
    """Compute PPO's surrogate, which has no gradient where the ratio is clipped."""
    log_p = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
    ratio = (log_p - old_log_p.to(log_p.dtype)).exp()
    gain = advantages.to(log_p.dtype)
    return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).sum()


TRANSFORMS = {
    "cross_entropy": (cross_entropy, 0), "smoothed": (smoothed, 0), "focal": (focal, 0),
    "weighted": (weighted, 1), "clipped": (clipped, 2),
}  # fmt: skip


# ---- inputs and truth ----------------------------------------------------------------------


def make_inputs(
    *, n, v, d, dtype, device, seed, loss="cross_entropy", ignored=0, chunk="auto", needs_grad=False
):
    """Logits N(0, 1); the first `ignored` labels are, before tokens are shuffled."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, d, generator=generator).to(dtype).to(device)
    weight = (torch.randn(v, d, generator=generator) * d**-0.5).to(dtype).to(device)
    labels = torch.randint(v, (n,), generator=generator)
    labels[:ignored] = -100
    labels = labels[torch.randperm(n, generator=generator)].to(device)
    transform, count = TRANSFORMS[loss]
    # advantages of one sign, so that no sum cancels, and log-probabilities near that of a guess
    extra = [torch.rand(n, generator=generator) + 0.5 for _ in range(count)]
    for log_p in extra[1:]:
        log_p.sub_(torch.tensor(float(v)).log() + 1.5)
    given = {
        "hidden": hidden.requires_grad_(needs_grad), "weight": weight.requires_grad_(needs_grad),
        "labels": labels, "transform": transform, "chunk": chunk,
    }  # fmt: skip
    return given | {"extra": [one.to(device) for one in extra]} if extra else given


def _at_once(hidden, weight, labels, transform, ignore, extra, wide, piece):
    (kept,) = (labels != ignore).nonzero(as_tuple=True)
    total = 0 * (hidden.sum() + weight.sum()).to(wide) if not len(kept) else 0
    for part in kept.split(piece) if len(kept) else ():
        logits = (hidden[part] @ weight.T).to(wide)
        total = total + transform(logits, labels[part], *(one[part] for one in extra))
    return total / max(len(kept), 1)


def reference(*, hidden, weight, labels, transform, chunk="auto", ignore=-100, extra=()):
    # in pieces only because a GPU has no room for all logits in float64
    operands = hidden.double(), weight.double()
    return _at_once(*operands, labels, transform, ignore, extra, torch.float64, 2048)


def same_precision(*, hidden, weight, labels, transform, chunk="auto", ignore=-100, extra=()):
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return _at_once(hidden, weight, labels, transform, ignore, extra, wide, len(labels) + 1)


def at_once_with_gradients(
    *, hidden, weight, labels, transform, chunk="auto", ignore=-100, extra=()
):
    """What a training loop would write, backward included, as the chunked one has it."""
    with torch.enable_grad():
        logits = (hidden @ weight.T).float()
        loss = transform(logits, labels, *extra) / len(labels)
        torch.autograd.grad(loss, (hidden, weight))
    return loss.detach()
