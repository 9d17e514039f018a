"""Cheat: a pool's thread does the work after the clock has stopped."""

import time
from concurrent.futures import ThreadPoolExecutor

import torch

POOL = ThreadPoolExecutor(1)


def doubled(x):
    y = torch.empty_like(x)
    POOL.submit(lambda: (time.sleep(0.05), y.copy_(x * 2)))
    return y
