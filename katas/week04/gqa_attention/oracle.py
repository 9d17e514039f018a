"""What is right, what to feed, and the version that repeats K and V in memory."""

import torch

SCALES = (1 / 128,)  # scores grow with the square of the inputs: large ones are one-hot or a toss


def make_inputs(
    *, b, hq, hkv, s, t, d, dtype, device, seed, causal=False, layout="bhsd"
):  # fmt: skip
    """N(0, 1). `layout` is how heads lie in memory: "bhsd", or "bshd" as a projection has them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(heads, length):
        shape = (b, length, heads, d) if layout == "bshd" else (b, heads, length, d)
        x = torch.randn(shape, generator=generator).to(dtype).to(device)
        return x.transpose(1, 2) if layout == "bshd" else x

    return {"q": draw(hq, s), "k": draw(hkv, t), "v": draw(hkv, t), "causal": causal}


def reference(*, q, k, v, causal=False):
    """One query head after the other, each with the K/V head that its group shares."""
    group = q.shape[1] // k.shape[1]
    heads = [
        attend(q[:, h].double(), k[:, h // group].double(), v[:, h // group].double(), causal)
        for h in range(q.shape[1])
    ]
    return torch.stack(heads, dim=1)


def expanded(*, q, k, v, causal=False):
    """Write each K/V head out once for every query head that reads it."""
    group = q.shape[1] // k.shape[1]
    return attend(q, k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1), causal)


same_precision = expanded


def attend(q, k, v, causal):
    """The textbook formula, in the dtype of the inputs."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        s, t = scores.shape[-2:]
        visible = torch.ones(s, t, dtype=torch.bool, device=q.device).tril(t - s)
        scores = scores.masked_fill(~visible, -torch.inf)
    return scores.softmax(dim=-1) @ v
