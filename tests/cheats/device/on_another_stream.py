"""Cheat: the work is done on a stream that nobody waits for."""

import torch


def doubled(x):
    y = torch.empty_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # cycles: some 50 ms
        torch.mul(x, 2, out=y)
    return y
