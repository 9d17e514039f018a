"""What is right, what to feed and what it costs: advantages by a loop backwards, in float64."""

import torch

from harness.hardware import Cost


def make_inputs(
    *, b, t, dtype, device, seed, gamma=0.99, lam=0.95, ends=0.1, scale=1.0, row_stride=None
):  # fmt: skip
    """Rewards and values N(0, scale²); of all steps the share `ends` ends its episode."""
    generator = torch.Generator().manual_seed(seed)
    width = row_stride or t
    rewards = scale * torch.randn(b, width, generator=generator)
    values = scale * torch.randn(b, width + 1, generator=generator)
    done = torch.rand(b, width, generator=generator) < ends
    return {
        "rewards": rewards.to(dtype).to(device)[:, :t],
        "values": values.to(dtype).to(device)[:, : t + 1],
        "done": done.to(device)[:, :t],
        "gamma": gamma,
        "lam": lam,
    }


def _backwards(rewards, values, done, gamma, lam):
    goes_on = (~done).to(rewards.dtype)
    delta = rewards + gamma * goes_on * values[:, 1:] - values[:, :-1]
    adv = torch.zeros_like(delta)
    later = torch.zeros_like(delta[:, 0]) if delta.shape[1] else None
    for t in reversed(range(delta.shape[1])):
        later = delta[:, t] + gamma * lam * goes_on[:, t] * later
        adv[:, t] = later
    return adv, adv + values[:, :-1]


def reference(*, rewards, values, done, gamma, lam):
    return _backwards(rewards.double(), values.double(), done, gamma, lam)


def same_precision(*, rewards, values, done, gamma, lam):
    return _backwards(rewards.float(), values.float(), done, gamma, lam)


def cost(*, rewards, values, **_):
    """Rewards, values and ends in, advantages and returns out."""
    size = rewards.element_size()
    nbytes = (rewards.numel() + values.numel()) * size + 9 * rewards.numel()
    return Cost(flops=8 * rewards.numel(), bytes=nbytes)


def loop(*, rewards, values, done, gamma, lam):
    """Step by step, five operators each."""
    return _backwards(rewards.float(), values.float(), done, gamma, lam)


def make_inputs_shaped_rewards(*, b, t, dtype, device, seed, beta=0.1, kl="k1", padding=None):
    """
    Log-probabilities around -2, half a nat apart; NaN where there are no tokens.

    Rows have tokens up to a random length; of the padding "left" after a random one, of "holes" at
    random, and every third row has none.
    """
    generator = torch.Generator().manual_seed(seed)
    length = torch.randint(1, max(t, 1) + 1, (b, 1), generator=generator)
    mask = torch.arange(t) < length
    if padding == "left":
        mask = mask.flip(1)
    if padding == "holes":
        mask = torch.rand(b, t, generator=generator) < 0.5
        mask[::3] = False
    logp = -2 + 0.5 * torch.randn(b, t, generator=generator)
    ref_logp = logp + 0.5 * torch.randn(b, t, generator=generator)
    given = {
        "score": torch.randn(b, generator=generator).to(dtype),
        "logp": logp.masked_fill(~mask, torch.nan).to(dtype),
        "ref_logp": ref_logp.masked_fill(~mask, torch.nan).to(dtype),
        "mask": mask,
    }
    return {name: one.to(device) for name, one in given.items()} | {"beta": beta, "kl": kl}


def _shaped(score, logp, ref_logp, mask, beta, kl):
    estimate = torch.zeros_like(logp)
    rewards = torch.zeros_like(logp)
    for i, row in enumerate(mask.tolist()):
        tokens = [j for j, is_token in enumerate(row) if is_token]
        d = logp[i, tokens] - ref_logp[i, tokens]
        estimate[i, tokens] = {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) - 1 + d}[kl]
        rewards[i] = -beta * estimate[i]
        if tokens:
            rewards[i, tokens[-1]] += score[i]
    return rewards, estimate


def reference_shaped_rewards(*, score, logp, ref_logp, mask, beta, kl):
    return _shaped(score.double(), logp.double(), ref_logp.double(), mask, beta, kl)


def same_precision_shaped_rewards(*, score, logp, ref_logp, mask, beta, kl):
    return _shaped(score.float(), logp.float(), ref_logp.float(), mask, beta, kl)


def make_inputs_masked_whiten(*, b, t, dtype, device, seed, mean=0.0, share=0.6):
    """N(mean, 1), of which the share counts; the rest is NaN."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(b, t, generator=generator) < share
    x = (mean + torch.randn(b, t, generator=generator)).masked_fill(~mask, torch.nan)
    return {"x": x.to(dtype).to(device), "mask": mask.to(device)}


def _white(x, mask):
    out = torch.zeros_like(x)
    chosen = x[mask]
    if len(chosen):
        out[mask] = (chosen - chosen.mean()) / (chosen.var(correction=0) + 1e-8).sqrt()
    return out


def reference_masked_whiten(*, x, mask):
    return _white(x.double(), mask)


def same_precision_masked_whiten(*, x, mask):
    return _white(x.float(), mask)
