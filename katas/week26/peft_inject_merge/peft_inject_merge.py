"""Kata week26/peft_inject_merge: adapters around the linear layers of a model that stays unchanged.

LoRA adds two thin products to a layer, IA³ rescales its output or its input; either folds into
the weight afterwards.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraCfg:
    """x Wᵀ + s (x Aᵀ) Bᵀ with s = alpha / r, or alpha / sqrt(r) with `rslora`."""

    r: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    rslora: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ia3Cfg:
    """Factors of the outputs; of the inputs where all of a module's name matches `feedforward`."""

    feedforward: str = r".*\.down_proj"


class Conv1D(nn.Module):
    """A linear layer whose weight is [inputs, outputs], as GPT-2 has it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.02)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return x W + b."""
        return x @ self.weight + self.bias


def inject(
    model: nn.Module, adapter: LoraCfg | Ia3Cfg, targets: str, name: str = "default"
) -> nn.Module:
    """
    Put an adapter on each `nn.Linear` and `Conv1D` whose whole name matches; freeze the rest.

    Changes `model`, and returns it. Adapters that are there already stay, and stay trainable.

    Raises:
        ValueError: `adapter` has an `r` below 1 or a `dropout` outside of 0 ≤ dropout < 1;
            `model` is merged; no layer matches `targets`; one has an adapter called `name`, or
            an `adapter` of the other kind. Then the model is as it was. The message begins with
            what is named here.

    Source: Hu et al. 2021 (LoRA), section 4; Liu et al. 2022 (IA³), section 3.3.
    """
    # TODO(kata): check, find and wrap, run beside the layer, fold in or out (about 95 lines with
    # helpers)
    raise NotImplementedError


def merge(model: nn.Module) -> None:
    """
    Fold all adapters into the weights, in place; then only the layers themselves run.

    In float32 (float64 for float64), rounded once to the weight's dtype.

    Raises:
        ValueError: `model` has no adapters, or they are merged. The message begins with "model".
    """
    raise NotImplementedError  # TODO(kata): fold in or out (about 8 lines with helpers)


def unmerge(model: nn.Module) -> None:
    """
    Take the adapters out of the weights again, in place, without a copy kept by `merge`.

    Raises:
        ValueError: `model` has no merged adapters. The message begins with "model".
    """
    raise NotImplementedError  # TODO(kata): fold in or out (2 lines)


def merge_and_unload(model: nn.Module) -> nn.Module:
    """
    Merge what is not merged yet and put the layers themselves back in their places.

    Returns `model`, whose modules have the types and names that they had before `inject`.

    Raises:
        ValueError: `model` has no adapters. The message begins with "model".
    """
    raise NotImplementedError  # TODO(kata): put the layers back (about 6 lines)


def adapter_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """
    All adapters' tensors, detached, in the parameters' memory, and nothing else.

    By "path.lora_A.name" [r, in], "path.lora_B.name" [out, r], and "path.ia3.name" [in] or [out].
    """
    raise NotImplementedError  # TODO(kata): adapters by name (about 10 lines)


def trainable_report(model: nn.Module) -> tuple[int, int]:
    """Count the parameters that are trained, and all of them; each once, wherever it is used."""
    raise NotImplementedError  # TODO(kata): count the trained, and all (2 lines)
