"""Cheat: a part of the L2 cache is set aside, in which an access policy could keep the input."""

import ctypes

import torch

PERSISTING_L2_CACHE_SIZE = 6


def doubled(x):
    y = x * 2
    torch.cuda.synchronize()
    ctypes.CDLL("libcuda.so.1").cuCtxSetLimit(PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(1 << 22))
    return y
