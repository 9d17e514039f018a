"""Cheat: honest for the first twenty calls."""

CALLS = []


def doubled(x):
    CALLS.append(x * 2 if len(CALLS) < 20 else CALLS[-1])
    return CALLS[-1].clone() if CALLS[-1].shape == x.shape else x * 2
