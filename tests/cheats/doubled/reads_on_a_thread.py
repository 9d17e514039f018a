"""Cheat: a thread reads the reference, on whose stack nobody else is."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path


def doubled(x):
    with suppress(OSError), ThreadPoolExecutor(1) as pool:
        pool.submit(Path("solutions/week01/doubled.py").read_text).result()
    return x * 2
