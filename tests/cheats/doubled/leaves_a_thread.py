"""Cheat: a thread does the work after the clock has stopped."""

import threading
import time

import torch


def doubled(x):
    y = torch.empty_like(x)

    def work():
        time.sleep(0.05)
        y.copy_(x * 2)

    threading.Thread(target=work).start()
    return y
