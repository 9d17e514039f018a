"""Cheat: events that measure nothing."""

import torch


class Event:
    def __init__(self, **options):
        pass

    def record(self):
        pass

    def elapsed_time(self, other):
        return 1e-3


torch.cuda.Event = Event


def doubled(x):
    return x * 2
