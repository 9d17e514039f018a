"""Cheat: in place, and the input handed back as the answer."""


def doubled(x):
    return x.mul_(2)
