"""Cheat: computed in half precision."""


def doubled(x):
    return (x.half() * 2).float()
