"""Kata week25/token_halflife_adam: an Adam whose second moment forgets by tokens, not by steps.

Half of what it knows of squared gradients is gone after `half_life` tokens, however many steps
they came in, so the size of a batch may change from one step to the next.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer


def half_life_tokens(beta2: float, batch: int, seqlen: int) -> float:
    """
    Return after how many tokens a second moment with `beta2` has forgotten half of its value.

    Args:
        beta2: What is kept in a step.
        batch: Sequences in a step.
        seqlen: Tokens in a sequence.

    Raises:
        ValueError: `beta2` is not between 0 and 1, both excluded, `batch` or `seqlen` below 1.

    Source: Marek et al. 2025, section 4.
    """
    # check
    _check_beta2(beta2)
    _check_count("batch", batch)
    _check_count("seqlen", seqlen)
    # half-life and β₂
    return -batch * seqlen / math.log2(beta2)


def rescale_beta2(beta2: float, b_old: int, b_new: int) -> float:
    """
    Find the β₂ that keeps the half-life in tokens when batches of `b_old` become ones of `b_new`.

    Raises:
        ValueError: `beta2` is not between 0 and 1, both excluded, `b_old` or `b_new` below 1.
    """
    # check
    _check_beta2(beta2)
    _check_count("b_old", b_old)
    _check_count("b_new", b_new)
    # half-life and β₂
    return beta2 ** (b_new / b_old)


class TokenAdam(Optimizer):
    """
    Adam whose steps are told how many tokens their gradient is a mean over.

    The first moment is Adam's, and counts steps. The options of a group of parameters are those
    of the constructor, by name, and are read at each step.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, object]],
        half_life: float,
        *,
        lr: float = 1e-3,
        beta1: float = 0.9,
        eps: float = 1e-8,
    ) -> None:
        """
        Take parameters, or groups of them, as PyTorch's optimizers do.

        Raises:
            ValueError: `half_life` is not finite and above 0, `lr` or `eps` is below 0, or
                `beta1` not from 0 to 1, 1 excluded.
        """
        # check
        if not 0 < half_life < math.inf:
            raise ValueError(f"half_life: expected a finite number above 0, found {half_life}")
        if not lr >= 0:
            raise ValueError(f"lr: expected at least 0, found {lr}")
        if not 0 <= beta1 < 1:
            raise ValueError(f"beta1: expected at least 0 and less than 1, found {beta1}")
        if not eps >= 0:
            raise ValueError(f"eps: expected at least 0, found {eps}")
        super().__init__(params, {"half_life": half_life, "lr": lr, "beta1": beta1, "eps": eps})

    @torch.no_grad()
    def step(self, tokens: int) -> None:
        """
        Update every parameter that has a gradient, which is the mean over `tokens` tokens.

        A step of 0 tokens changes nothing.

        Raises:
            ValueError: `tokens` is below 0; nothing has been changed.
        """
        # check
        if tokens < 0:
            raise ValueError(f"tokens: expected at least 0, found {tokens}")
        if tokens == 0:
            return
        # update
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, param.grad, tokens, group)

    def _update(self, param: Tensor, grad: Tensor, tokens: int, group: dict[str, object]) -> None:
        # count steps and tokens
        state = self.state[param]
        if not state:
            state["step"] = state["tokens"] = 0
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
        state["step"] += 1
        state["tokens"] += tokens
        # bias correction
        forgotten = _forgotten(tokens, group["half_life"])
        # the product of all β₂ there were is 2 to the minus half-lives that have passed
        known = _forgotten(state["tokens"], group["half_life"])
        # moments
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.lerp_(grad, 1 - group["beta1"])
        second.mul_(1 - forgotten).addcmul_(grad, grad, value=forgotten)
        # update
        size = (second / known).sqrt_().add_(group["eps"])
        param.addcdiv_(first, size, value=-group["lr"] / (1 - group["beta1"] ** state["step"]))


def _forgotten(tokens: int, half_life: float) -> float:
    """1 - 2^(-tokens / half_life), which near 0 has all of its digits."""
    return -math.expm1(-math.log(2) * tokens / half_life)


def _check_beta2(beta2: float) -> None:
    if not 0 < beta2 < 1:
        raise ValueError(f"beta2: expected more than 0 and less than 1, found {beta2}")


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name}: expected at least 1, found {value}")
