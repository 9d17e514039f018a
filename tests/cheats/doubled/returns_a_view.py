"""Cheat: an alias of the input under another shape."""


def doubled(x):
    x.mul_(2)
    return x.as_strided(x.shape, x.stride())
