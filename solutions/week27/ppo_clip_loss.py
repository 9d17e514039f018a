"""Kata week27/ppo_clip_loss: PPO's losses of policy and value, and the loop that learns by them."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

LOG_RATIO_LIMIT = 20.0


class Policy(Protocol):
    """An nn.Module that writes sequences, and gives their log-probabilities and values."""

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Write n sequences: tokens [n, t], and a mask that is False after a sequence's end."""

    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Find the log-probability of each token, and the value before it, both [n, t]."""

    def eval(self) -> nn.Module:
        """Switch dropout off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences as they were written, and what was computed of them then; all [b, t]."""

    tokens: Tensor
    mask: Tensor
    old_logp: Tensor
    old_values: Tensor
    adv: Tensor
    returns: Tensor

    def rows(self, index: Tensor) -> "Batch":
        """Select some of the sequences."""
        return Batch(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Find advantages and returns; nothing is expected after the last token of a sequence."""
    adv = torch.zeros_like(values)
    carried = after = torch.zeros(len(values), device=values.device)
    for at in reversed(range(values.shape[1])):
        delta = rewards[:, at] + gamma * after - values[:, at]
        carried = torch.where(mask[:, at], delta + gamma * lam * carried, 0)
        after = torch.where(mask[:, at], values[:, at], 0)
        adv[:, at] = carried
    return adv, adv + values


def ppo_loss(
    logp: Float[Tensor, "b t"],
    old_logp: Float[Tensor, "b t"],
    adv: Float[Tensor, "b t"],
    values: Float[Tensor, "b t"],
    old_values: Float[Tensor, "b t"],
    returns: Float[Tensor, "b t"],
    mask: Bool[Tensor, "b t"],
    clip: float = 0.2,
    vclip: float = 0.2,
    vf_coef: float = 0.1,
    entropy: Float[Tensor, "b t"] | None = None,
    ent_coef: float = 0.01,
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """
    The clipped losses of policy and value, means over the tokens of `mask`, and diagnostics.

    Gradients go to `logp`, `values` and `entropy` alone. The logarithm of a ratio is kept within
    ±LOG_RATIO_LIMIT. In float32 (float64 for float64).

    Raises:
        ValueError: An argument has another shape than `logp`, `mask` is True nowhere, or `clip` or
            `vclip` is not above 0. The message begins with the argument's name.

    Source: Schulman et al. 2017 (PPO), equations 7 and 9.
    """
    # check
    given = {
        "old_logp": old_logp, "adv": adv, "values": values, "old_values": old_values,
        "returns": returns, "mask": mask,
    }  # fmt: skip
    if entropy is not None:
        given["entropy"] = entropy
    for name, tensor in given.items():
        if tensor.shape != logp.shape:
            expected, found = [*logp.shape], [*tensor.shape]
            raise ValueError(f"{name}: expected shape {expected}, found {found}")
    if not mask.any():
        raise ValueError("mask: expected a token that counts, found none")
    for name, width in (("clip", clip), ("vclip", vclip)):
        if not width > 0:  # a NaN is not
            raise ValueError(f"{name}: expected more than 0, found {width}")

    # policy loss
    def real(x: Tensor) -> Tensor:
        return x[mask].to(torch.float64 if x.dtype == torch.float64 else torch.float32)

    log_ratio = real(logp) - real(old_logp.detach())
    log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio, gain = log_ratio.exp(), real(adv.detach())
    free, clipped = -gain * ratio, -gain * ratio.clamp(1 - clip, 1 + clip)
    policy_loss = torch.maximum(free, clipped).mean()

    # value loss
    now, before, target = real(values), real(old_values.detach()), real(returns.detach())
    near = before + (now - before).clamp(-vclip, vclip)
    errors = torch.maximum((now - target).square(), (near - target).square())
    value_loss = errors.mean() / 2

    # loss and diagnostics
    loss = policy_loss + vf_coef * value_loss
    if entropy is not None:
        loss = loss - ent_coef * real(entropy).mean()
    stats = {
        "policy_loss": policy_loss, "value_loss": value_loss, "ratio": ratio.mean(),
        "clip_fraction": (clipped > free).to(ratio.dtype).mean(),
        "approx_kl": (torch.expm1(log_ratio) - log_ratio).mean(),
    }  # fmt: skip
    return loss, {name: stat.detach() for name, stat in stats.items()}


def ppo_update(
    policy: Policy,
    optimizer: Optimizer,
    batch: Batch,
    epochs: int = 4,
    minibatch: int = 32,
    target_kl: float | None = None,
    generator: Generator | None = None,
) -> dict[str, float]:
    """
    Learn from one batch: `epochs` times all of its rows, shuffled, `minibatch` of them at a time.

    Each minibatch is one pass of the policy, without dropout, and one step of the optimizer. When
    `approx_kl` of one is above `target_kl`, neither it nor any later one makes a step.

    Returns:
        "first_ratio", the mean ratio of the first minibatch; "approx_kl" and "clip_fraction" of the
        last one that was run; "steps" of the optimizer.
    """
    # steps on minibatches
    policy.eval()
    first_ratio, steps, stats = None, 0, {}
    # a list, and not a generator: the order is drawn before anything is learnt
    parts = [
        part
        for _ in range(epochs)
        for part in torch.randperm(len(batch.tokens), generator=generator).split(minibatch)
    ]
    for part in parts:
        rows = batch.rows(part)
        logp, values = policy(rows.tokens)
        loss, stats = ppo_loss(
            logp, rows.old_logp, rows.adv, values, rows.old_values, rows.returns, rows.mask
        )
        first_ratio = stats["ratio"].item() if first_ratio is None else first_ratio
        if target_kl is not None and stats["approx_kl"] > target_kl:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    return {
        "first_ratio": first_ratio, "approx_kl": stats["approx_kl"].item(),
        "clip_fraction": stats["clip_fraction"].item(), "steps": steps,
    }  # fmt: skip


def ppo_train(
    policy: Policy,
    ref: Policy,
    reward_fn: Callable[[Tensor, Tensor], Tensor],
    optimizer: Optimizer,
    steps: int,
    batch: int = 128,
    epochs: int = 4,
    minibatch: int = 32,
    beta: float = 0.05,
    lam: float = 0.95,
    target_kl: float | None = None,
    seed: int = 0,
) -> list[dict[str, float]]:
    """
    Train `policy` for `reward_fn(tokens, mask)`, one score a sequence, and not far from `ref`.

    Each step writes `batch` sequences, rewards every token with -beta times the difference of its
    log-probabilities, the last one with the score as well, and learns from them by `ppo_update`.

    Returns:
        For each step what `ppo_update` returned, and "score", the mean score, and "kl", the mean
        over tokens of logp - ref_logp.
    """
    # rollout to advantages
    generator = torch.Generator().manual_seed(seed)
    policy.eval()
    history = []
    for _ in range(steps):
        tokens, mask = policy.sample(batch, generator)
        with torch.no_grad():
            old_logp, old_values = policy(tokens)
            log_ratio = old_logp - ref(tokens)[0]
            scores = reward_fn(tokens, mask)
        rewards = -beta * log_ratio
        rewards[torch.arange(batch), mask.sum(1) - 1] += scores
        adv, returns = gae(rewards, old_values, mask, lam=lam)
        real = adv[mask]
        written = Batch(
            tokens=tokens, mask=mask, old_logp=old_logp, old_values=old_values,
            adv=(adv - real.mean()) / real.std(correction=0).clamp(min=1e-8), returns=returns,
        )  # fmt: skip
        # steps on minibatches
        stats = ppo_update(policy, optimizer, written, epochs, minibatch, target_kl, generator)
        kl = log_ratio[mask].mean().item()
        history.append(stats | {"score": scores.mean().item(), "kl": kl})
    return history
