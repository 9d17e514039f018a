"""Cheat: a child process does the work, in memory that both share."""

import os
import time

import torch


def doubled(x):
    y = torch.empty_like(x).share_memory_()
    if os.fork() == 0:
        time.sleep(0.2)
        y.copy_(x * 2)
        os._exit(0)
    return y
