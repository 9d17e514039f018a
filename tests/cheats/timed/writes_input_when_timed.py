"""Cheat: the input is overwritten while nobody compares it."""

from torch.utils._python_dispatch import _get_current_dispatch_mode


def doubled(x):
    y = x * 2
    if not _get_current_dispatch_mode():
        x.zero_()
    return y
