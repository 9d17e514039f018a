"""What is right and what to feed: losses in float64, and policies small enough to train."""

from contextlib import contextmanager

import torch
from torch import nn

VOCAB = 12


def make_inputs(*, pairs, dtype, device, seed, beta=0.1, label_smoothing=0.0, kind="sigmoid"):
    """Draw log-probabilities of responses, and what moved since the reference."""
    generator = torch.Generator().manual_seed(seed)
    before = -60 * torch.rand(2, pairs, generator=generator, dtype=torch.float64)
    moved = 20 * torch.randn(2, pairs, generator=generator, dtype=torch.float64)
    (rw, rl), (pw, pl) = (both.to(dtype).to(device) for both in (before, before + moved))
    given = {"pw": pw, "pl": pl, "rw": rw, "rl": rl}
    return given | {"beta": beta, "label_smoothing": label_smoothing, "kind": kind}


def _losses(pw, pl, rw, rl, beta, label_smoothing, kind):
    margin = beta * ((pw - rw) - (pl - rl))
    if kind == "hinge":
        losses = torch.where(margin < 1, 1 - margin, 0)
    elif kind == "ipo":
        losses = (margin / beta - 0.5 / beta) ** 2
    else:
        nothing = torch.zeros_like(margin)
        losses = (1 - label_smoothing) * torch.logaddexp(nothing, -margin)
        losses = losses + label_smoothing * torch.logaddexp(nothing, margin)
    return losses.sum() / len(losses), beta * (pw - rw), beta * (pl - rl), margin


def reference(*, pw, pl, rw, rl, beta, label_smoothing, kind):
    """The losses as they are defined, in float64."""
    return _losses(pw.double(), pl.double(), rw.double(), rl.double(), beta, label_smoothing, kind)


def same_precision(*, pw, pl, rw, rl, beta, label_smoothing, kind):
    """The same in the dtype of the inputs."""
    return _losses(pw, pl, rw, rl, beta, label_smoothing, kind)


def gradients(*, pw, pl, rw, rl, beta, label_smoothing, kind):
    """Derive the loss by hand: what each of `pw` gets. Each of `pl` gets the opposite."""
    gap = (pw - rw) - (pl - rl)
    margin = beta * gap
    if kind == "hinge":
        slope = -beta * (margin < 1).double()
    elif kind == "ipo":
        slope = 2 * gap - 1 / beta
    else:
        wrong = torch.sigmoid(-margin)  # how little the label is believed
        slope = -beta * ((1 - label_smoothing) * wrong - label_smoothing * (1 - wrong))
    return slope / len(pw)


def make_inputs_sequence_logp(*, rows, cols, dtype, device, seed, average=False):
    """Draw log-probabilities and a mask; each row has at least one token in it."""
    generator = torch.Generator().manual_seed(seed)
    logp = -5 - 300 * torch.rand(rows, cols, generator=generator)
    mask = torch.rand(rows, cols, generator=generator) < 0.6
    mask[torch.arange(rows), torch.randint(cols, (rows,), generator=generator)] = True
    return {"logp": logp.to(dtype).to(device), "mask": mask.to(device), "average": average}


def reference_sequence_logp(*, logp, mask, average):
    """Row by row, in float64."""
    rows = [row[kept] for row, kept in zip(logp.double(), mask, strict=True)]
    found = [row.mean() if average else row.sum() for row in rows]
    return torch.stack(found) if found else logp.new_zeros(0, dtype=torch.float64)


def same_precision_sequence_logp(*, logp, mask, average):
    """The same in float32, or wider."""
    wide = torch.promote_types(logp.dtype, torch.float32)
    total = torch.where(mask, logp, 0).to(wide).cumsum(1)[:, -1]
    return total / mask.sum(1) if average else total


class Policy(nn.Module):
    """A causal model that knows the last token and the mean of those before, and counts its use."""

    def __init__(self, seed, *, width=8, vocab=VOCAB, dropout=0.0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.words = nn.Parameter(torch.randn(vocab, width, generator=generator))
        self.inner = nn.Linear(2 * width, 4 * width)
        self.outer = nn.Linear(4 * width, vocab)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            for weight in (self.inner.weight, self.outer.weight):
                weight.copy_(
                    torch.randn(weight.shape, generator=generator) / weight.shape[1] ** 0.5
                )
            for bias in (self.inner.bias, self.outer.bias):
                bias.zero_()
        self.calls, self.sequences, self.largest, self.graphs = 0, 0, 0, 0

    def forward(self, tokens):
        """Map tokens [b, t] to logits [b, t, vocab]; a position sees itself and those before."""
        self.calls += 1
        self.sequences += len(tokens)
        self.largest = max(self.largest, len(tokens))
        self.graphs += torch.is_grad_enabled()
        x = self.words[tokens]
        so_far = torch.arange(1, tokens.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]
        x = torch.cat([x, x.cumsum(1) / so_far], dim=2)
        return self.outer(self.dropout(torch.tanh(self.inner(x))))


class Adapted(nn.Module):
    """A frozen policy with an adapter, which `disable_adapter` takes out for a while."""

    def __init__(self, base, seed, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        vocab = base.outer.out_features
        self.down = nn.Parameter(torch.randn(vocab, rank, generator=generator))
        self.up = nn.Parameter(torch.randn(rank, vocab, generator=generator))
        self.enabled = True

    def forward(self, tokens):
        """Add to the base's logits what the adapter makes of the last token."""
        logits = self.base(tokens)
        return logits + (self.down @ self.up)[tokens] if self.enabled else logits

    @contextmanager
    def disable_adapter(self):
        """Compute as the base does."""
        self.enabled = False
        try:
            yield
        finally:
            self.enabled = True


def pairs_of(Pair, count, seed, *, vocab=VOCAB):
    """Draw pairs of different lengths; the chosen response is full of high tokens."""
    generator = torch.Generator().manual_seed(seed)

    def some(low, high, least, most):
        n = int(torch.randint(least, most + 1, (), generator=generator))
        return tuple(torch.randint(low, high, (n,), generator=generator).tolist())

    half = vocab // 2
    return [
        Pair(some(0, vocab, 1, 4), some(half, vocab, 1, 6), some(0, half, 1, 6))
        for _ in range(count)
    ]


@torch.no_grad()
def response_logp(model, prompt, response):
    """Add up, token by token, what the model gives a response, in float64."""
    text, total = [*prompt, *response], 0.0
    for at in range(len(prompt), len(text)):
        tokens = torch.tensor([text[:at]], device=next(model.parameters()).device)
        total += model(tokens)[0, -1].double().log_softmax(0)[text[at]].item()
    return total


def rested(model):
    """The model in eval mode, and a number of calls that begins at 0."""
    model.eval()
    model.calls = model.sequences = model.largest = model.graphs = 0
    return model
