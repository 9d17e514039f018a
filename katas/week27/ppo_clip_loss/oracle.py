"""What is right, token by token in float64, and small policies to train."""

import math

import torch
from torch import nn

WORDS, LENGTH, END, LIKED = 16, 8, 0, 3


def draw(b, t, seed, dtype=torch.float64):
    """Draw arguments of the loss: ratios on both sides of the clip, and padding."""
    generator = torch.Generator().manual_seed(seed)

    def normal(scale):
        return (torch.randn(b, t, generator=generator) * scale).to(dtype)

    old_logp, old_values = normal(1) - 2, normal(1)
    mask = torch.rand(b, t, generator=generator) < 0.7
    mask[0, 0] = True
    return {
        "logp": old_logp + normal(0.4), "old_logp": old_logp, "adv": normal(1),
        "values": old_values + normal(0.4), "old_values": old_values,
        "returns": old_values + normal(1), "mask": mask,
    }  # fmt: skip


def losses(given, clip=0.2, vclip=0.2):
    """
    Go from token to token.

    Returns the losses of policy and value, their gradients in each token, and the diagnostics.
    """
    names = ("logp", "old_logp", "adv", "values", "old_values", "returns")
    shape = given["mask"].shape
    rows = [given[name].flatten().tolist() for name in names]
    counts = given["mask"].flatten().tolist()
    n = sum(counts)
    found = {"policy_loss": 0.0, "value_loss": 0.0, "ratio": 0.0, "clip_fraction": 0.0,
             "approx_kl": 0.0}  # fmt: skip
    d_logp, d_values = [0.0] * len(counts), [0.0] * len(counts)
    for at, (new, old, adv, value, old_value, target) in enumerate(zip(*rows, strict=True)):
        if not counts[at]:
            continue
        log_ratio = max(-20.0, min(20.0, new - old))
        ratio = math.exp(log_ratio)
        cut = ratio > 1 + clip if adv > 0 else adv < 0 and ratio < 1 - clip
        bound = 1 + clip if adv > 0 else 1 - clip
        found["policy_loss"] -= adv * (bound if cut else ratio) / n
        d_logp[at] = 0.0 if cut or log_ratio != new - old else -adv * ratio / n
        found["ratio"] += ratio / n
        found["clip_fraction"] += cut / n
        found["approx_kl"] += (ratio - 1 - log_ratio) / n
        moved = value - old_value
        near = value if abs(moved) <= vclip else old_value + math.copysign(vclip, moved)
        if (near - target) ** 2 > (value - target) ** 2:
            found["value_loss"] += (near - target) ** 2 / 2 / n
        else:
            found["value_loss"] += (value - target) ** 2 / 2 / n
            d_values[at] = (value - target) / n
    exact = [torch.tensor(d, dtype=torch.float64).view(shape) for d in (d_logp, d_values)]
    return found, *exact


def share_of_liked(tokens, mask):
    """Score sequences: how many of the LENGTH tokens are the liked one."""
    return ((tokens == LIKED) & mask).sum(1) / LENGTH


class Counted(nn.Module):
    """Keeps what passes have seen, and counts sequences."""

    def __init__(self):
        super().__init__()
        self.sequences = 0
        self.seen = []

    def forward(self, tokens):
        self.seen.append(tokens)
        logits, values = self.think(tokens)
        return logits.log_softmax(-1).gather(2, tokens[:, :, None])[:, :, 0], values


class Stateless(Counted):
    """Every token has the same distribution, whatever came before; sequences have full length."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(WORDS))
        self.value = nn.Parameter(torch.zeros(LENGTH))

    def think(self, tokens):
        b, t = tokens.shape
        return self.logits.expand(b, t, WORDS), self.value[:t].repeat(b, 1)

    def sample(self, n, generator):
        self.sequences += n
        p = self.logits.detach().softmax(0).expand(n, WORDS)
        tokens = torch.multinomial(p, LENGTH, replacement=True, generator=generator)
        return tokens, torch.ones(n, LENGTH, dtype=torch.bool)


class Bigram(Counted):
    """Each token by the one before it and its position; END ends a sequence."""

    def __init__(self, dropout=0.0, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.before = nn.Embedding(WORDS + 1, 24)
        self.place = nn.Embedding(LENGTH, 24)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(24, WORDS + 1)
        for weight in self.parameters():
            weight.data.copy_(torch.randn(weight.shape, generator=generator) * 0.3)

    def think(self, tokens):
        first = torch.full_like(tokens[:, :1], WORDS)
        before = torch.cat([first, tokens[:, :-1]], dim=1)
        states = self.before(before) + self.place.weight[: tokens.shape[1]]
        out = self.head(self.dropout(states.tanh()))
        return out[:, :, :WORDS], out[:, :, WORDS]

    @torch.no_grad()
    def sample(self, n, generator):
        self.sequences += n
        tokens = torch.zeros(n, LENGTH, dtype=torch.int64)
        mask = torch.ones(n, LENGTH, dtype=torch.bool)
        for at in range(LENGTH):
            logits, _ = self.think(tokens[:, : at + 1])
            p = logits[:, at].softmax(1)
            tokens[:, at] = torch.multinomial(p, 1, generator=generator)[:, 0]
            if at:
                mask[:, at] = mask[:, at - 1] & (tokens[:, at - 1] != END)
        return tokens * mask, mask
