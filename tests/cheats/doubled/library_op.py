"""Cheat: the one op that this kata forbids."""

import torch


def doubled(x):
    return torch.cat([x * 2])
