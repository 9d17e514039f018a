"""Kata week26/peft_inject_merge: adapters around the linear layers of a model that stays unchanged.

LoRA adds two thin products to a layer, IA³ rescales its output or its input; either folds into
the weight afterwards.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
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


class _Adapted(nn.Module):
    """A frozen linear layer with adapters by name, all of one kind."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        # find and wrap
        self.base = base
        self.scales: dict[str, float] = {}
        self.drops: dict[str, float] = {}
        self.lora_A, self.lora_B, self.ia3_in, self.ia3_out = (nn.ParameterDict() for _ in range(4))
        self.merged = False
        self.train(base.training)

    def adapt(self, name: str, cfg: LoraCfg | Ia3Cfg, feedforward: bool) -> None:
        """Add an adapter that changes nothing yet."""
        # find and wrap
        weight = self.base.weight
        out, into = weight.shape if isinstance(self.base, nn.Linear) else weight.shape[::-1]
        if isinstance(cfg, Ia3Cfg):
            factors = self.ia3_in if feedforward else self.ia3_out
            factors[name] = weight.new_ones(into if feedforward else out)
            return
        self.scales[name] = cfg.alpha / (math.sqrt(cfg.r) if cfg.rslora else cfg.r)
        self.drops[name] = cfg.dropout
        bound = 1 / math.sqrt(into)
        self.lora_A[name] = weight.new_empty(cfg.r, into).uniform_(-bound, bound)
        self.lora_B[name] = weight.new_zeros(out, cfg.r)

    def forward(self, x: Tensor) -> Tensor:
        # run beside the layer
        if self.merged:
            return self.base(x)
        scaled = x
        for factor in self.ia3_in.values():
            scaled = scaled * factor
        y = self.base(scaled)
        for factor in self.ia3_out.values():
            y = y * factor
        for name, a in self.lora_A.items():
            dropped = F.dropout(x, self.drops[name], self.training)
            y = y + dropped @ a.t() @ self.lora_B[name].t() * self.scales[name]
        return y

    @torch.no_grad()
    def fold(self, *, merged: bool) -> None:
        """Bring the adapters into the weight, in place, or out of it."""
        # fold in or out
        stored, bias = self.base.weight, self.base.bias
        weight = stored.t() if isinstance(self.base, Conv1D) else stored  # [out, in]
        wide = torch.promote_types(weight.dtype, torch.float32)
        exact = weight.to(wide)
        sign = 1 if merged else -1
        for name, a in self.lora_A.items():
            update = self.lora_B[name].to(wide) @ a.to(wide)
            exact.add_(update, alpha=sign * self.scales[name])
        rescale = torch.Tensor.mul_ if merged else torch.Tensor.div_
        for factor in self.ia3_in.values():
            rescale(exact, factor)
        shift = None if bias is None else bias.to(wide)
        for factor in self.ia3_out.values():
            rescale(exact, factor[:, None])
            if shift is not None:
                rescale(shift, factor)
        weight.copy_(exact)
        if shift is not None:
            bias.copy_(shift)
        self.merged = merged


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
    # check
    lora = isinstance(adapter, LoraCfg)
    if lora and adapter.r < 1:
        raise ValueError(f"r: expected 1 or more, found {adapter.r}")
    if lora and not 0 <= adapter.dropout < 1:
        raise ValueError(f"dropout: expected 0 or more and less than 1, found {adapter.dropout}")
    if any(layer.merged for _, layer in _adapted(model)):
        raise ValueError("model: expected adapters beside the weights, found them merged")
    # find and wrap
    adapted = dict(_adapted(model))
    inner = {id(layer.base) for layer in adapted.values()}
    found = {
        path: layer
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear | Conv1D | _Adapted)
        and id(layer) not in inner
        and re.fullmatch(targets, path)
    }
    # check
    if not found:
        raise ValueError(f"targets: expected the name of a linear layer, found none in {targets!r}")
    for path in found.keys() & adapted.keys():
        layer = adapted[path]
        if any(name in kind for kind in (layer.lora_A, layer.ia3_in, layer.ia3_out)):
            raise ValueError(f"name: expected another one, found {name!r} at {path}")
    for path in found.keys() & adapted.keys():
        if lora != bool(adapted[path].lora_A):
            raise ValueError(f"adapter: expected the kind that {path} has, found {adapter}")
    # find and wrap
    if not adapted:
        model.requires_grad_(False)
    for path, layer in found.items():
        if not isinstance(layer, _Adapted):
            layer = _Adapted(layer)
            _place(model, path, layer)
        feedforward = not lora and re.fullmatch(adapter.feedforward, path) is not None
        layer.adapt(name, adapter, feedforward)
    return model


def merge(model: nn.Module) -> None:
    """
    Fold all adapters into the weights, in place; then only the layers themselves run.

    In float32 (float64 for float64), rounded once to the weight's dtype.

    Raises:
        ValueError: `model` has no adapters, or they are merged. The message begins with "model".
    """
    # fold in or out
    layers = _expect(model, merged=False)
    for layer in layers:
        layer.fold(merged=True)


def unmerge(model: nn.Module) -> None:
    """
    Take the adapters out of the weights again, in place, without a copy kept by `merge`.

    Raises:
        ValueError: `model` has no merged adapters. The message begins with "model".
    """
    # fold in or out
    for layer in _expect(model, merged=True):
        layer.fold(merged=False)


def merge_and_unload(model: nn.Module) -> nn.Module:
    """
    Merge what is not merged yet and put the layers themselves back in their places.

    Returns `model`, whose modules have the types and names that they had before `inject`.

    Raises:
        ValueError: `model` has no adapters. The message begins with "model".
    """
    # put the layers back
    adapted = dict(_adapted(model))
    if not any(layer.merged for layer in adapted.values()):
        merge(model)
    for path, layer in adapted.items():
        _place(model, path, layer.base)
    return model


def adapter_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """
    All adapters' tensors, detached, in the parameters' memory, and nothing else.

    By "path.lora_A.name" [r, in], "path.lora_B.name" [out, r], and "path.ia3.name" [in] or [out].
    """
    # adapters by name
    return {
        f"{path}.{kind}.{name}": param.detach()
        for path, layer in _adapted(model)
        for kind, held in (
            ("lora_A", layer.lora_A),
            ("lora_B", layer.lora_B),
            ("ia3", layer.ia3_in),
            ("ia3", layer.ia3_out),
        )
        for name, param in held.items()
    }


def trainable_report(model: nn.Module) -> tuple[int, int]:
    """Count the parameters that are trained, and all of them; each once, wherever it is used."""
    sizes = [(param.numel(), param.requires_grad) for param in model.parameters()]
    return sum(size for size, trained in sizes if trained), sum(size for size, _ in sizes)


def _adapted(model: nn.Module) -> Iterator[tuple[str, _Adapted]]:
    for path, layer in model.named_modules():
        if isinstance(layer, _Adapted):
            yield path, layer


def _expect(model: nn.Module, *, merged: bool) -> list[_Adapted]:
    layers = [layer for _, layer in _adapted(model)]
    if {layer.merged for layer in layers} != {merged}:
        raise ValueError(f"model: expected adapters that are {'' if merged else 'not '}merged")
    return layers


def _place(model: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, attribute = path.rpartition(".")
    setattr(model.get_submodule(parent), attribute, layer)
