"""What is right: losses pair by pair in float64; a utility to be found, and a model to find it."""

import torch
from torch import nn

STRUCTURED = ("labels",)  # probabilities


def _rewards(n, dtype, device, generator):
    return (torch.randn(n, generator=generator) * 2).to(dtype).to(device)


def _working(x):
    return torch.promote_types(x.dtype, torch.float32)


def _log_sigmoid(x):
    return -torch.logaddexp(torch.zeros_like(x), -x)


# ---- pairs -------------------------------------------------------------------------------------


def make_inputs(*, b, dtype, device, seed, margin=False, center_coef=0.0):
    generator = torch.Generator().manual_seed(seed)
    r_chosen, r_rejected = (_rewards(b, dtype, device, generator) for _ in range(2))
    r_rejected[::5] = r_chosen[::5]  # ties
    given = {"r_chosen": r_chosen, "r_rejected": r_rejected, "center_coef": center_coef}
    if margin:
        given["margin"] = torch.rand(b, generator=generator).to(dtype).to(device)
    return given


def _pairs(r_chosen, r_rejected, margin, center_coef, dtype):
    chosen, rejected = r_chosen.to(dtype), r_rejected.to(dtype)
    gap = chosen - rejected - (0 if margin is None else margin.to(dtype))
    loss = -_log_sigmoid(gap).mean() + center_coef * (chosen + rejected).pow(2).mean()
    wins = sum(
        1.0 if won > lost else 0.5 if won == lost else 0.0
        for won, lost in zip(r_chosen.tolist(), r_rejected.tolist(), strict=True)
    )
    return loss, torch.tensor(wins / len(chosen), dtype=dtype, device=chosen.device)


def reference(*, r_chosen, r_rejected, margin=None, center_coef=0.0):
    return _pairs(r_chosen, r_rejected, margin, center_coef, torch.float64)


def same_precision(*, r_chosen, r_rejected, margin=None, center_coef=0.0):
    return _pairs(r_chosen, r_rejected, margin, center_coef, _working(r_chosen))


# ---- rankings ----------------------------------------------------------------------------------


def make_inputs_kwise_loss(*, prompts, k, dtype, device, seed, ties=False):
    """Completions of all prompts mixed; ids and ranks far from 0."""
    generator = torch.Generator().manual_seed(seed)
    prompt_id = torch.arange(prompts).repeat_interleave(k) * 3 - 2**53
    ranks = torch.rand(prompts, k, generator=generator).argsort(1).flatten() - 1
    if ties:
        ranks = ranks // 2
    order = torch.randperm(prompts * k, generator=generator)
    return {
        "rewards": _rewards(prompts * k, dtype, device, generator),
        "ranks": ranks[order].to(device),
        "prompt_id": prompt_id[order].to(device),
    }


def kwise(rewards, ranks, prompt_id, dtype=torch.float64):
    """Go through every two completions."""
    scores = rewards.to(dtype)
    ranks, prompts = ranks.tolist(), prompt_id.tolist()
    losses = {}
    for i, prompt in enumerate(prompts):
        for j, other in enumerate(prompts):
            if prompt == other and ranks[i] < ranks[j]:
                losses.setdefault(prompt, []).append(-_log_sigmoid(scores[i] - scores[j]))
    return torch.stack([torch.stack(of_prompt).mean() for of_prompt in losses.values()]).mean()


def reference_kwise_loss(*, rewards, ranks, prompt_id):
    return kwise(rewards, ranks, prompt_id)


def same_precision_kwise_loss(*, rewards, ranks, prompt_id):
    return kwise(rewards, ranks, prompt_id, _working(rewards))


# ---- the last token ----------------------------------------------------------------------------


def masks(b, t, side, generator):
    """Draw rows with one token or more, padded on the right, on the left, or anywhere."""
    lengths = torch.randint(1, t + 1, (b,), generator=generator)
    lengths[:1] = t
    mask = torch.arange(t) < lengths[:, None]
    if side == "left":
        return mask.flip(1)
    if side == "holes":
        return mask & (torch.rand(b, t, generator=generator) < 0.5) | (torch.arange(t) == 0)
    return mask


def make_inputs_last_token_reward(*, b, t, d, side, dtype, device, seed):
    """Hidden states lean towards the head, so that no reward is what is left of a sum."""
    generator = torch.Generator().manual_seed(seed)
    head = torch.randn(d, generator=generator)
    hidden = torch.randn(b, t, d, generator=generator) + 2 * head.sign()
    return {
        "hidden": hidden.to(dtype).to(device),
        "head": head.to(dtype).to(device),
        "mask": masks(b, t, side, generator).to(device),
    }


def _last(hidden, head, mask, dtype):
    ends = [max(at for at, held in enumerate(row) if held) for row in mask.tolist()]
    rows = [of_row[end] for of_row, end in zip(hidden.to(dtype), ends, strict=True)]
    return torch.stack([row @ head.to(dtype) for row in rows])


def reference_last_token_reward(*, hidden, head, mask):
    return _last(hidden, head, mask, torch.float64)


def same_precision_last_token_reward(*, hidden, head, mask):
    return _last(hidden, head, mask, _working(hidden))


# ---- steps -------------------------------------------------------------------------------------


def make_inputs_prm_loss(*, b, t, dtype, device, seed, hard=False):
    """Labels away from what their logits say: a loss near 0 is the difference of larger numbers."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.rand(b, t, generator=generator, dtype=torch.float64) / 2 + 0.25
    logits = torch.randn(b, t, generator=generator) * 3
    return {
        "logits": logits.to(dtype).to(device),
        "step_mask": masks(b, t, "holes", generator).to(device),
        "labels": (logits < 0 if hard else labels.to(dtype)).to(device),
    }


def _steps(logits, step_mask, labels, dtype):
    x, y = logits.to(dtype), labels.to(dtype)
    losses = -y * _log_sigmoid(x) - (1 - y) * _log_sigmoid(-x)
    return losses[step_mask].mean()


def reference_prm_loss(*, logits, step_mask, labels):
    return _steps(logits, step_mask, labels, torch.float64)


def same_precision_prm_loss(*, logits, step_mask, labels):
    return _steps(logits, step_mask, labels, _working(logits))


def make_inputs_prm_score(*, b, t, how, dtype, device, seed):
    given = make_inputs_prm_loss(b=b, t=t, dtype=dtype, device=device, seed=seed)
    return {"logits": given["logits"], "step_mask": given["step_mask"], "how": how}


def _scores(logits, step_mask, how, dtype):
    scores = []
    for row, held in zip(_log_sigmoid(logits.to(dtype)), step_mask, strict=True):
        steps = row[held]
        scores.append({"min": steps.min(), "prod": steps.sum(), "last": steps[-1]}[how])
    return torch.stack(scores)


def reference_prm_score(*, logits, step_mask, how):
    return _scores(logits, step_mask, how, torch.float64)


def same_precision_prm_score(*, logits, step_mask, how):
    return _scores(logits, step_mask, how, _working(logits))


# ---- a model -----------------------------------------------------------------------------------


class Encoder(nn.Module):
    """A causal sum of embeddings; `rows` counts the completions that it has encoded."""

    def __init__(self, vocab=16, d=8, seed=0):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        draw = torch.Generator().manual_seed(seed)
        self.embed.weight.data.copy_(torch.randn(vocab, d, generator=draw) * 0.1)
        self.rows = 0

    def forward(self, tokens, mask):
        self.rows += len(tokens)
        return (self.embed(tokens) * mask[:, :, None]).cumsum(1)


def preferences(prompts, k, seed, *, vocab=16, t=6, side="right"):
    """Draw completions, and rank them by a sum of fixed values of their tokens."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(vocab, generator=torch.Generator().manual_seed(7))
    tokens = torch.randint(vocab, (prompts * k, t), generator=generator)
    mask = masks(prompts * k, t, side, generator)
    utility = (value[tokens] * mask).sum(1).view(prompts, k)
    ranks = (-utility).argsort(1).argsort(1).flatten()
    return tokens, mask, ranks, torch.arange(prompts).repeat_interleave(k)


def accuracy(rewards, ranks, prompt_id):
    """Compute the share of pairs that the rewards order as the ranks do."""
    pairs = (prompt_id[:, None] == prompt_id) & (ranks[:, None] < ranks)
    return (rewards[:, None] > rewards)[pairs].double().mean().item()
