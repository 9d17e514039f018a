"""What is right and what to feed: the loss token by token in float64, and a policy that counts."""

import math

import torch
from torch import nn


def make_inputs(
    *, rows, cols, dtype, device, seed,
    clip_low=0.2, clip_high=0.2, beta=0.0, agg="grpo", max_len=None, divisor=None,
):  # fmt: skip
    """Draw log-probabilities, advantages of both signs, and answers of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(rows, cols, generator=generator, dtype=torch.float64)
    moved = 0.3 * torch.randn(2, rows, cols, generator=generator, dtype=torch.float64)
    # one in four is negative and small: losses that cancel have few digits
    adv = torch.rand(rows, generator=generator, dtype=torch.float64) + 0.5
    adv[3::4] *= -0.5
    starts = torch.randint(0, cols // 3 + 1, (rows, 1), generator=generator)
    ends = torch.randint(cols // 2, cols + 1, (rows, 1), generator=generator)
    at = torch.arange(cols)
    mask = (at >= starts) & (at < ends)
    mask[0, -1] = True
    give = {"logp": old + moved[0], "old_logp": old, "ref_logp": old + moved[1], "adv": adv}
    give = {name: one.to(dtype).to(device) for name, one in give.items()}
    if not beta:
        give["ref_logp"] = None
    give |= {"mask": mask.to(device), "clip_low": clip_low, "clip_high": clip_high, "beta": beta}
    return give | {"agg": agg, "max_len": max_len, "divisor": divisor}


def _weights(mask, agg, max_len, divisor):
    """What each token weighs in the loss."""
    lengths = mask.sum(1).tolist()
    if agg == "grpo":
        rows = [1 / (max(length, 1) * (divisor or len(mask))) for length in lengths]
    elif agg == "dapo":
        rows = [1 / (divisor or sum(lengths))] * len(mask)
    else:
        rows = [1 / (divisor or len(mask) * max_len)] * len(mask)
    return rows


def scalar(
    *, logp, old_logp, ref_logp, adv, mask, clip_low, clip_high, beta, agg, max_len, divisor
):
    """Add up the loss token by token in float64, and derive it by hand for each of `logp`."""
    loss, gradient = 0.0, torch.zeros(logp.shape, dtype=torch.float64)
    for i, weight in enumerate(_weights(mask, agg, max_len, divisor)):
        a = adv[i].item()
        for t in mask[i].nonzero()[:, 0].tolist():
            ratio = math.exp(logp[i, t].item() - old_logp[i, t].item())
            clipped = min(max(ratio, 1 - clip_low), 1 + clip_high)
            loss -= weight * min(ratio * a, clipped * a)
            # where the clipped one counts, and is clipped, it is flat
            steep = ratio * a <= clipped * a
            gradient[i, t] -= weight * a * ratio * steep
            if beta:
                apart = ref_logp[i, t].item() - logp[i, t].item()
                loss += weight * beta * (math.exp(apart) - apart - 1)
                gradient[i, t] += weight * beta * (1 - math.exp(apart))
    return loss, gradient


def reference(**given):
    """The loss alone."""
    return torch.tensor(scalar(**given)[0], dtype=torch.float64)


def same_precision(
    *, logp, old_logp, ref_logp, adv, mask, clip_low, clip_high, beta, agg, max_len, divisor
):
    """The same with tensors, in the dtype of the inputs."""
    a = adv[:, None]
    ratio = torch.exp(logp - old_logp)
    clipped = torch.where(a > 0, ratio.clamp(max=1 + clip_high), ratio.clamp(min=1 - clip_low))
    losses = -clipped * a
    if beta:
        losses = losses + beta * (torch.exp(ref_logp - logp) - (ref_logp - logp) - 1)
    weights = torch.tensor(_weights(mask, agg, max_len, divisor), dtype=logp.dtype)
    losses = torch.where(mask, losses, 0) * weights.to(logp.device)[:, None]
    return losses.T.flatten().sum()


def make_inputs_group_advantages(*, groups, group, dtype, device, seed, binary=False, scale="std"):
    """Draw rewards; binary ones have groups that know nothing and groups that know all."""
    generator = torch.Generator().manual_seed(seed)
    # whole 64ths: sums are exact, and rewards that differ do so by many roundings
    rewards = torch.randint(64, (groups, group), generator=generator).double() / 64 + 2
    if binary:
        rewards = (rewards > 2 + torch.linspace(0, 1, groups)[:, None]).double()
        rewards[1::3] = 0.1  # the mean of which is another number
        rewards[2::3] = torch.arange(group) == 1
    return {"rewards": rewards.flatten().to(dtype).to(device), "group": group, "scale": scale}


def _advantages(rewards, group, scale):
    """Group by group; deviations with n - 1."""
    found = [rewards.new_zeros(0)]
    for some in rewards.view(-1, group):
        mean = some.sum() / group
        spread = ((some - mean).square().sum() / (group - 1)).sqrt() + 1e-4
        alike = (some == some[0]).all()
        found.append(0 * some if alike else (some - mean) / (spread if scale == "std" else 1))
    return torch.cat(found)


def reference_group_advantages(*, rewards, group, scale):
    """Compute them in float64."""
    return _advantages(rewards.double(), group, scale)


def same_precision_group_advantages(*, rewards, group, scale):
    """Compute them in the dtype of the rewards."""
    return _advantages(rewards, group, scale)


def make_inputs_informative_groups(*, groups, group, dtype, device, seed, binary=False):
    """Draw the same rewards."""
    given = make_inputs_group_advantages(
        groups=groups, group=group, dtype=dtype, device=device, seed=seed, binary=binary
    )
    return {"rewards": given["rewards"], "group": group}


def reference_informative_groups(*, rewards, group):
    """Count different rewards."""
    values = [len(set(some.tolist())) > 1 for some in rewards.view(-1, group)]
    return torch.tensor(values, device=rewards.device)


class Policy(nn.Module):
    """Log-probabilities of tokens, each given the one before; counts what it is run on."""

    def __init__(self, seed, *, vocab=8, width=16):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.words = nn.Parameter(torch.randn(vocab + 1, width, generator=generator))
        self.inner = nn.Parameter(torch.randn(width, 4 * width, generator=generator) / width**0.5)
        self.outer = nn.Parameter(torch.randn(4 * width, vocab, generator=generator) / width**0.5)
        self.calls, self.sequences, self.largest = 0, 0, 0

    def scores(self, before):
        """Map the tokens before, of which `vocab` is the beginning, to logits."""
        return torch.tanh(self.words[before] @ self.inner) @ self.outer

    def forward(self, tokens):
        """Map tokens [n, t] to their log-probabilities [n, t]."""
        self.calls += 1
        self.sequences += len(tokens)
        self.largest = max(self.largest, len(tokens))
        start = torch.full_like(tokens[:, :1], len(self.words) - 1)
        before = torch.cat([start, tokens[:, :-1]], dim=1)
        logp = self.scores(before).log_softmax(2)
        return logp.gather(2, tokens[:, :, None])[:, :, 0]


def rollout_of(Rollout, seed, *, rewards, cols=9, vocab=8, device="cpu", **known):
    """Draw answers of different lengths for these rewards."""
    generator = torch.Generator().manual_seed(seed)
    n = len(rewards)
    tokens = torch.randint(vocab, (n, cols), generator=generator)
    lengths = torch.randint(2, cols + 1, (n, 1), generator=generator)
    at = torch.arange(cols)
    mask = (at >= 1) & (at < lengths)
    rewards = torch.tensor(rewards, dtype=torch.float32)
    known = {name: one.to(device) for name, one in known.items()}
    return Rollout(tokens.to(device), mask.to(device), rewards.to(device), **known)


def ppo_step(policy, critic, values, rollout):
    """A step of PPO whose critic is as large as the policy: both are trained on all sequences."""
    old, logp = rollout.old_logp, policy(rollout.tokens)
    value = critic(rollout.tokens) * values
    adv = (rollout.rewards[:, None] - value).detach()
    ratio = (logp - old).exp()
    surrogate = torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
    losses = (value - rollout.rewards[:, None]).square() - surrogate
    loss = losses[rollout.mask].mean()
    loss.backward()
    return loss.detach()
