"""Kata week28/dpo_loss: preferences learned without a reward model, and at the price of one model.

The reward of a response is how much likelier it became since the reference; the reference is run
once for the whole dataset.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

KINDS = ("sigmoid", "hinge", "ipo")
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt, the response that was preferred, and the other one."""

    prompt: Tokens
    chosen: Tokens
    rejected: Tokens


def dpo_loss(
    pw: Float[Tensor, " b"],
    pl: Float[Tensor, " b"],
    rw: Float[Tensor, " b"],
    rl: Float[Tensor, " b"],
    beta: float,
    label_smoothing: float = 0.0,
    kind: str = "sigmoid",
) -> tuple[Float[Tensor, ""], Float[Tensor, " b"], Float[Tensor, " b"], Float[Tensor, " b"]]:
    """
    Average the loss of preferences over pairs.

    Args:
        pw: Log-probabilities of the chosen responses under the policy.
        pl: Those of the rejected ones.
        rw: Of the chosen under the reference. It has no gradient, and neither has `rl`.
        rl: Of the rejected under the reference.
        beta: What a difference of log-probabilities is multiplied by to be a reward.
        label_smoothing: How probable it is that a label is wrong; of "sigmoid" alone.
        kind: "sigmoid" (DPO), "hinge" (SLiC) or "ipo".

    Returns:
        The loss, and without gradients the rewards of the chosen, of the rejected, and their
        differences.

    Raises:
        ValueError: `beta` is not above 0 and finite, `kind` is unknown, `label_smoothing` is not
            from 0 to below 0.5, or not 0 for another kind, or there are no pairs (`pw`).

    Source: Rafailov et al. (arXiv 2305.18290), equation 7.
    """
    # check
    _check_beta(beta)
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, found {kind!r}")
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing: expected 0 to below 0.5, found {label_smoothing}")
    if label_smoothing and kind != "sigmoid":
        raise ValueError(f"label_smoothing: expected 0 with {kind}, found {label_smoothing}")
    if len(pw) == 0:
        raise ValueError("pw: expected at least one pair, found none")
    # rewards and margin
    chosen, rejected = pw - rw.detach(), pl - rl.detach()
    gap = chosen - rejected
    margin = beta * gap
    # one of three losses
    if kind == "sigmoid":
        right, wrong = -F.logsigmoid(margin), -F.logsigmoid(-margin)
        losses = (1 - label_smoothing) * right + label_smoothing * wrong
    elif kind == "hinge":
        losses = F.relu(1 - margin)
    else:
        losses = (gap - 1 / (2 * beta)).square()
    return losses.mean(), beta * chosen.detach(), beta * rejected.detach(), margin.detach()


def sequence_logp(
    logp: Float[Tensor, "b t"], mask: Bool[Tensor, "b t"], average: bool = False
) -> Float[Tensor, " b"]:
    """
    Sum each row's log-probabilities where `mask` is True, or average them.

    What stands elsewhere does not matter, and has a gradient of 0. Half precision is added up and
    returned in float32.

    Raises:
        ValueError: `mask` has a row with nothing in it.
    """
    # check
    count = mask.sum(dim=1)
    if (count == 0).any():
        raise ValueError("mask: expected at least one token in each row, found none")
    # sum what the mask has
    total = logp.masked_fill(~mask, 0).sum(dim=1, dtype=_wide(logp.dtype))
    return total / count if average else total


class RefCache:
    """The reference's log-probability of each response, found by prompt and response."""

    def __init__(self) -> None:
        self._known: dict[tuple[Tokens, Tokens], float] = {}

    def precompute(self, reference: nn.Module, dataset: Iterable[Pair], rows: int = 8) -> None:
        """
        Run the reference over all responses of `dataset`, `rows` of them at a time.

        Each different response of a prompt is run once a call; what was known of it is replaced.
        Runs without gradients, in eval mode, and without adapters where there are any; afterwards
        every module has its own mode again.

        Raises:
            ValueError: `dataset` has a pair with an empty prompt or response. Nothing has been run
                then, and nothing is noted.
        """
        # check
        pairs = list(dataset)
        for pair in pairs:
            if not (pair.prompt and pair.chosen and pair.rejected):
                raise ValueError(f"dataset: expected a prompt and two responses, found {pair}")
        # run the reference once
        wanted = list(dict.fromkeys(_both(pairs)))
        modes = [(module, module.training) for module in reference.modules()]
        base = getattr(reference, "disable_adapter", nullcontext)
        reference.eval()
        try:
            with torch.no_grad(), base():
                for at in range(0, len(wanted), rows):
                    some = wanted[at : at + rows]
                    self._known.update(zip(some, _logps(reference, some).tolist(), strict=True))
        finally:
            for module, training in modes:
                module.training = training

    def get(self, pairs: Sequence[Pair]) -> tuple[Float64[Tensor, " b"], Float64[Tensor, " b"]]:
        """
        Return the reference's log-probabilities of the chosen and of the rejected, on the CPU.

        Raises:
            ValueError: `pairs` has a response that has not been precomputed.
        """
        wanted = _both(pairs)
        if not self._known.keys() >= set(wanted):
            raise ValueError("pairs: expected responses that were precomputed, found another")
        known = torch.tensor([self._known[one] for one in wanted], dtype=torch.float64)
        return known[: len(pairs)], known[len(pairs) :]


def dpo_step(
    policy: nn.Module, pairs: Sequence[Pair], cache: RefCache, beta: float
) -> tuple[Float[Tensor, ""], Float[Tensor, " b"], Float[Tensor, " b"], Float[Tensor, " b"]]:
    """
    Run the policy once over both responses of all pairs, and return their `dpo_loss`.

    Raises:
        ValueError: there are no `pairs`, or one has an empty prompt or response, or one that
            the cache does not know.
    """
    # check
    _check_beta(beta)
    if not pairs:
        raise ValueError("pairs: expected at least one, found none")
    # look up what is known
    known = cache.get(pairs)  # what has no tokens is never known
    # one of three losses
    pw, pl = _logps(policy, _both(pairs)).chunk(2)
    rw, rl = (one.to(pw) for one in known)
    return dpo_loss(pw, pl, rw, rl, beta)


def _check_beta(beta: float) -> None:
    if not 0 < beta < math.inf:
        raise ValueError(f"beta: expected a finite number above 0, found {beta}")


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _both(pairs: Sequence[Pair]) -> list[tuple[Tokens, Tokens]]:
    """List prompt and response of all chosen ones, then of all rejected ones."""
    chosen = [(pair.prompt, pair.chosen) for pair in pairs]
    return chosen + [(pair.prompt, pair.rejected) for pair in pairs]


def _logps(model: nn.Module, texts: Sequence[tuple[Tokens, Tokens]]) -> Tensor:
    """Compute the log-probability of each response after its prompt, in one forward pass."""
    device = next(model.parameters()).device
    longest = max(len(prompt) + len(response) for prompt, response in texts)
    rows = [[*prompt, *response] for prompt, response in texts]
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
    starts = torch.tensor([[len(prompt)] for prompt, _ in texts], device=device)
    ends = torch.tensor([[len(row)] for row in rows], device=device)
    at = torch.arange(1, longest, device=device)

    logits = model(tokens)[:, :-1]  # the last one predicts what is not there
    logp = logits.log_softmax(dim=2, dtype=_wide(logits.dtype))
    logp = logp.gather(2, tokens[:, 1:, None]).squeeze(2)
    return sequence_logp(logp, (at >= starts) & (at < ends))
