"""What is right and what to feed: the others one by one, and a bandit whose gradient is exact."""

from itertools import product

import torch


def make_inputs(*, groups, k, dtype, device, seed, interleaved=False):
    """Draw rewards, as whole 64ths."""
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(-128, 128, (groups * k,), generator=generator) / 64
    return {"rewards": rewards.to(dtype).to(device), "k": k, "interleaved": interleaved}


def _others(rewards, k, interleaved):
    """Compare each reward with every other one of its prompt."""
    prompts, found = len(rewards) // k, []
    for at, reward in enumerate(rewards):
        total = 0 * reward
        for other, theirs in enumerate(rewards):
            together = at % prompts == other % prompts if interleaved else at // k == other // k
            if together and other != at:
                total = total + theirs
        found.append(reward - total / (k - 1))
    return torch.stack(found) if found else rewards.new_zeros(0)


def reference(*, rewards, k, interleaved):
    """Loop over pairs in float64."""
    return _others(rewards.double(), k, interleaved)


def same_precision(*, rewards, k, interleaved):
    """Loop over pairs in the dtype of the rewards."""
    return _others(rewards, k, interleaved)


def make_inputs_rloo_loss(*, groups, k, dtype, device, seed, beta=0.1, interleaved=False):
    """Draw answers that are likelier the better they are: if all cancels no digits are left."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(3, groups, k, generator=generator) / 10
    rewards = noise[0] + torch.linspace(-1, 1, k)  # apart from each other in each group
    rewards = rewards.gather(1, torch.rand(groups, k, generator=generator).argsort(1))
    given = {"seq_logp": 10 * (rewards - 1) + noise[1], "rewards": rewards, "kl_seq": noise[2] + 1}
    given = {name: (one.T if interleaved else one).flatten() for name, one in given.items()}
    given = {name: one.to(dtype).to(device) for name, one in given.items()}
    return given | {"beta": beta, "k": k, "interleaved": interleaved}


def reference_rloo_loss(*, seq_logp, rewards, kl_seq, beta, k, interleaved):
    """Compute it in float64."""
    adv = _others(rewards.double() - beta * kl_seq.double(), k, interleaved)
    return -(adv * seq_logp.double()).sum() / len(adv)


def same_precision_rloo_loss(*, seq_logp, rewards, kl_seq, beta, k, interleaved):
    """Compute it in the dtype of the inputs."""
    adv = _others(rewards - beta * kl_seq, k, interleaved)
    return -(adv * seq_logp).sum() / len(adv)


class Bandit:
    """Four actions; counts the rewards that were asked for."""

    logits = torch.tensor([0.4, -0.3, 0.1, -0.9], dtype=torch.float64)
    values = torch.tensor([1.5, 3.0, 0.5, 2.0], dtype=torch.float64)

    def __init__(self, offset=0.0, device="cpu"):
        self.logits, self.values = self.logits.to(device), (self.values + offset).to(device)
        self.samples = 0

    def __call__(self, actions):
        """Look up the reward of each action."""
        self.samples += actions.numel()
        return self.values[actions]

    def gradient(self):
        """Derive the expected reward: p ⊙ (r - ⟨p, r⟩)."""
        p = self.logits.softmax(0)
        return p * (self.values - p @ self.values)

    def moments(self, k, estimator):
        """Mean and variance of a group's estimate, over all that can be drawn."""
        p = self.logits.cpu().softmax(0)
        weights, estimates = [], []
        for group in product(range(len(p)), repeat=k):
            drawn = torch.tensor(group)
            r = self.values.cpu()[drawn]
            if estimator == "loo":
                adv = _others(r, k, False)
            elif estimator == "none":
                adv = r
            else:
                adv = r - r.sum() / k
                spread = (adv.square().sum() / (k - 1)).sqrt() + 1e-4
                adv = adv / spread if estimator == "std" else adv
            score = torch.eye(len(p), dtype=p.dtype)[drawn] - p
            estimates.append((adv[:, None] * score).sum(0) / k)
            weights.append(p[drawn].prod())
        weights, estimates = torch.stack(weights), torch.stack(estimates)
        mean = weights @ estimates
        variances = weights @ (estimates - mean).square()
        return mean, variances
