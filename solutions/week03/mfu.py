"""Kata week03/mfu: observed tokens per second over those that the peak would allow."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """
    The sizes that the metric needs.

    `d` is the width of the residual stream; in some models heads · d_head is another number.
    `active_params` are those that one token meets, in a mixture of experts; None means all.
    """

    params: float
    layers: int
    d: int
    heads: int
    d_head: int
    active_params: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """
    One accelerator as its datasheet prints it.

    `printed_flops_per_s` is the peak of the training dtype. Where the footnote reads "with
    sparsity" (`with_sparsity`), half of each weight matrix is taken to be zeros and skipped, in a
    fixed 2 : 4 pattern, and the skipped half is counted.
    """

    name: str
    printed_flops_per_s: float
    with_sparsity: bool = False


TPU_V4 = Chip(name="TPU v4", printed_flops_per_s=275e12)
A100 = Chip(name="A100", printed_flops_per_s=312e12)
H100 = Chip(name="H100 SXM", printed_flops_per_s=1978.9e12, with_sparsity=True)

RECOMPUTE = ("none", "selective", "full")


def dense_peak(chip: Chip) -> float:
    """
    FLOP/s that dense matrix products can reach on `chip`.

    Raises:
        ValueError: `printed_flops_per_s` is not above 0; the message names it.
    """
    # check
    if chip.printed_flops_per_s <= 0:
        raise ValueError(f"printed_flops_per_s: expected above 0, found {chip.printed_flops_per_s}")
    # dense peak
    return chip.printed_flops_per_s / (2 if chip.with_sparsity else 1)


def mfu(
    cfg: ModelConfig,
    tokens_per_s: float,
    n_chips: int,
    chip: Chip,
    seq: int,
    attention: bool = True,
) -> float:
    """
    Model FLOPs utilisation of a training run, 0 to 1.

    Args:
        cfg: The model.
        tokens_per_s: Throughput of the whole run.
        n_chips: Chips that it runs on.
        chip: What each can do.
        seq: Tokens of a sequence.
        attention: Count the products of queries, keys and values as well as those of the weights.

    Raises:
        ValueError: the result is above 1, `n_chips` is below 1, `tokens_per_s` is negative, or
            what `dense_peak` refuses.
    """
    # FLOPs per token
    per_token = 3 * (_weights_forward(cfg) + (_attention_forward(cfg, seq) if attention else 0))
    return _utilisation(per_token, tokens_per_s, n_chips, chip)


def hfu(
    cfg: ModelConfig,
    tokens_per_s: float,
    n_chips: int,
    chip: Chip,
    seq: int,
    recompute: str,
) -> float:
    """
    Hardware FLOPs utilisation: what is computed twice counts twice; attention is counted.

    Args:
        cfg: The model.
        tokens_per_s: Throughput of the whole run.
        n_chips: Chips that it runs on.
        chip: What each can do.
        seq: Tokens of a sequence.
        recompute: What the backward pass computes again: "none", "selective" (the forward
            products of queries, keys and values with each other) or "full" (the forward pass).

    Raises:
        ValueError: unknown `recompute` (the message names it), or what `mfu` refuses.
    """
    # FLOPs per token
    weights, pairs = _weights_forward(cfg), _attention_forward(cfg, seq)
    # what is recomputed
    again = {"none": 0.0, "selective": pairs, "full": weights + pairs}
    if recompute not in again:
        raise ValueError(f"recompute: expected one of {', '.join(RECOMPUTE)}, found {recompute!r}")
    per_token = 3 * (weights + pairs) + again[recompute]
    return _utilisation(per_token, tokens_per_s, n_chips, chip)


def mfu_from_steps(
    cfg: ModelConfig,
    step_times_s: Sequence[float],
    tokens_per_step: int,
    n_chips: int,
    chip: Chip,
    seq: int,
    warmup: int = 5,
) -> float:
    """
    MFU of the median step, attention counted, the first `warmup` steps left out.

    Raises:
        ValueError: no step is left or `warmup` is negative (the message names `warmup`), a step
            that is left does not take above 0 seconds (`step_times_s`), or what `mfu` refuses.
    """
    # steady steps
    steady = step_times_s[warmup:]
    if warmup < 0 or not steady:
        raise ValueError(f"warmup: expected 0 to {len(step_times_s) - 1} steps, found {warmup}")
    if min(steady) <= 0:
        raise ValueError(f"step_times_s: expected above 0 s, found {min(steady)}")
    return mfu(cfg, tokens_per_step / median(steady), n_chips, chip, seq)


def _weights_forward(cfg: ModelConfig) -> float:
    """FLOPs of one token in the products with weights."""
    return 2 * (cfg.params if cfg.active_params is None else cfg.active_params)


def _attention_forward(cfg: ModelConfig, seq: int) -> float:
    """FLOPs of one token against `seq` keys and values."""
    return 4 * cfg.layers * cfg.heads * cfg.d_head * seq


def _utilisation(flops_per_token: float, tokens_per_s: float, n_chips: int, chip: Chip) -> float:
    # check
    if n_chips < 1:
        raise ValueError(f"n_chips: expected 1 or more, found {n_chips}")
    if tokens_per_s < 0:
        raise ValueError(f"tokens_per_s: expected 0 or more, found {tokens_per_s}")
    # share of the peak
    share = flops_per_token * tokens_per_s / (n_chips * dense_peak(chip))
    if share > 1:
        raise ValueError(f"peak or throughput wrong: expected at most 1, found {share:.2f}")
    return share
