"""Cheat: the library adds, and no kernel runs at all."""


def scaled(x):
    return x + x + x
