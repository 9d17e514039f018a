"""Kata week03/mfu: what share of the peak a training run puts to use.

MFU and HFU with their conventions fixed, so that two runs can be compared.
"""

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
    raise NotImplementedError  # TODO(kata): check, dense peak (3 lines)


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
    # TODO(kata): check, FLOPs per token, share of the peak (about 15 lines with helpers)
    raise NotImplementedError


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
    raise NotImplementedError  # TODO(kata): FLOPs per token, what is recomputed (about 6 lines)


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
    raise NotImplementedError  # TODO(kata): steady steps (about 6 lines)
