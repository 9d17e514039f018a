"""Noisy periodic sequences: what the tiny language model has learnt to continue."""

import torch
from jaxtyping import Int
from torch import Tensor

PERIODS = (12, 24)
NOISE = 0.08


def periodic_tokens(
    batch: int, length: int, seed: int, *, vocab: int = 32
) -> Int[Tensor, "batch length"]:
    """
    Draw sequences that repeat a pattern of their own, with noise; int64, on the CPU.

    Each has a random pattern of PERIODS[0] to PERIODS[1] tokens, both included; each token is
    then replaced by a random one with probability NOISE, on its own. A model has to look one
    period back, and in several periods to outvote the noise.
    """
    random = torch.Generator().manual_seed(seed)
    return draw_periodic(batch, length, random, vocab)


def draw_periodic(
    batch: int, length: int, random: torch.Generator, vocab: int
) -> Int[Tensor, "batch length"]:
    """Draw as `periodic_tokens` does, from a generator that goes on."""
    low, high = PERIODS
    patterns = torch.randint(vocab, (batch, high), generator=random)
    periods = torch.randint(low, high + 1, (batch, 1), generator=random)
    clean = patterns.gather(1, torch.arange(length) % periods)
    noise = torch.randint(vocab, (batch, length), generator=random)
    noisy = torch.rand(batch, length, generator=random) < NOISE
    return torch.where(noisy, noise, clean)
