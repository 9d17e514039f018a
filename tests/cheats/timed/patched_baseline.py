"""Cheat: what it is held against takes its time."""

import sys
import time

import torch

cat = torch.cat


def slow_for_the_oracle(*args, **options):
    if sys._getframe(1).f_code.co_name == "slow":
        time.sleep(0.01)
    return cat(*args, **options)


torch.cat = slow_for_the_oracle


def doubled(x):
    time.sleep(0.001)
    return x * 2
