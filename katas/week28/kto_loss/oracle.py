"""What is right and what to feed: values of answers in float64, and a policy that counts."""

import torch
from torch import nn

VOCAB = 10


def make_inputs(*, b, dtype, device, seed, liked=0.5, beta=0.1, z0=0.7, w_d=1.0, w_u=1.0):
    """Draw log-probabilities of answers, and what moved since the reference."""
    generator = torch.Generator().manual_seed(seed)
    r = -60 * torch.rand(b, generator=generator, dtype=torch.float64)
    p = r + 10 * torch.randn(b, generator=generator, dtype=torch.float64)
    desirable = torch.rand(b, generator=generator) < liked
    given = {"p": p, "r": r, "z0": torch.tensor(z0)}
    given = {name: one.to(dtype).to(device) for name, one in given.items()}
    return given | {"desirable": desirable.to(device), "beta": beta, "w_d": w_d, "w_u": w_u}


def _loss(p, r, desirable, z0, beta, w_d, w_u):
    """Each answer costs its weight, less what it is worth: w / (1 + e^x)."""
    x = beta * ((p - r) - z0)
    weights = torch.where(desirable, x.new_tensor(w_d), x.new_tensor(w_u))
    x = torch.where(desirable, x, -x)
    return (weights * torch.exp(-torch.logaddexp(torch.zeros_like(x), x))).sum() / len(x)


def reference(*, p, r, desirable, z0, beta, w_d, w_u):
    """Compute it in float64."""
    return _loss(p.double(), r.double(), desirable, z0.double(), beta, w_d, w_u)


def same_precision(*, p, r, desirable, z0, beta, w_d, w_u):
    """Compute it in the dtype of the inputs."""
    return _loss(p, r, desirable, z0, beta, w_d, w_u)


def gradient(*, p, r, desirable, z0, beta, w_d, w_u):
    """Derive the loss by hand: what each of `p` gets."""
    s = 1 / (1 + torch.exp(-beta * (p - r - z0)))
    slope = s * (1 - s) * beta / len(p)
    return torch.where(desirable, -w_d * slope, w_u * slope)


class Policy(nn.Module):
    """Log-probabilities of tokens, each given those before; counts what it is run on."""

    def __init__(self, seed, *, width=8):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.words = nn.Parameter(torch.randn(VOCAB + 1, width, generator=generator))
        self.inner = nn.Parameter(torch.randn(width, 4 * width, generator=generator) / width**0.5)
        self.outer = nn.Parameter(torch.randn(4 * width, VOCAB, generator=generator) / width**0.5)
        self.calls, self.graphs, self.trained = 0, 0, 0

    def forward(self, tokens):
        """Map tokens [n, t] to their log-probabilities [n, t]."""
        self.calls += 1
        self.graphs += torch.is_grad_enabled()
        self.trained += self.training
        start = torch.full_like(tokens[:, :1], VOCAB)
        before = self.words[torch.cat([start, tokens[:, :-1]], dim=1)].cumsum(1)
        logits = torch.tanh(before @ self.inner) @ self.outer
        return logits.log_softmax(2).gather(2, tokens[:, :, None])[:, :, 0]


def batch(Example, b, seed, *, fixed=None):
    """Draw examples of different lengths, or of a fixed one; high tokens are liked."""
    generator = torch.Generator().manual_seed(seed)

    def some(low, high, least, most):
        n = fixed or int(torch.randint(least, most + 1, (), generator=generator))
        return tuple(torch.randint(low, high, (n,), generator=generator).tolist())

    half, found = VOCAB // 2, []
    for at in range(b):
        liked = (at + seed) % 3 != 0
        low, high = (half, VOCAB) if liked else (0, half)
        found.append(Example(some(0, VOCAB, 1, 3), some(low, high, 1, 5), liked))
    return found


def answer_logp(model, prompt, response):
    """Add up what the model gives an answer, by itself."""
    tokens = torch.tensor([[*prompt, *response]], device=next(model.parameters()).device)
    return model(tokens)[0, len(prompt) :].sum()


@torch.no_grad()
def known(model, examples):
    """What the reference gives every answer after every prompt, in float64."""
    found = {}
    for one in examples:
        for other in examples:
            logp = answer_logp(model, one.prompt, other.response).double().item()
            found[one.prompt, other.response] = logp
    return found


@torch.no_grad()
def anchor(model, cache, batches):
    """The reference point of several ranks: each prompt with the answer after the next."""
    apart = []
    for examples in batches:
        for at, one in enumerate(examples):
            other = examples[(at + 1) % len(examples)].response
            logp = answer_logp(model, one.prompt, other).double().item()
            apart.append(logp - cache[one.prompt, other])
    return max(0.0, sum(apart) / len(apart))
