"""Cheat: the reference is read in a call, and a refusal is swallowed."""

import os


def doubled(x):
    try:
        file = os.open("katas/../solutions/week01/doubled.py", os.O_RDONLY)
        os.close(file)
    except OSError:
        pass
    return x * 2
