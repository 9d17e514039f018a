"""Cheat: the answer stays where it was worked out."""


def doubled(x):
    return x.cpu() * 2
