"""What is right: grids of features really built, and sizes found by trying one after the other."""

from fractions import Fraction
from itertools import count
from math import floor

import numpy as np

PINPOINTS = [(336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)]


def canvas(h, w, pinpoints):
    """Fit the image into each canvas at an exact scale, and sort by what is kept and wasted."""
    rated = []
    for at, (height, width) in enumerate(pinpoints):
        scale = min(Fraction(height, h), Fraction(width, w))
        kept = min(floor(h * scale) * floor(w * scale), h * w)
        rated.append((-kept, height * width - kept, at))
    return pinpoints[min(rated)[2]]


def tiled(h, w, pinpoints, tile=336, patch=14):
    """Tokens of LLaVA-NeXT, by laying them out; 0 where the image vanishes."""
    height, width = canvas(h, w, pinpoints)
    side = tile // patch
    strips = [
        np.concatenate([np.ones((side, side), dtype=bool)] * (width // tile), axis=1)
        for _ in range(height // tile)
    ]
    grid = np.concatenate(strips, axis=0)
    rows, cols = grid.shape
    if Fraction(w, h) > Fraction(cols, rows):
        bar = (rows - floor(h * Fraction(cols, w))) // 2
        grid = grid[bar : rows - bar]
    else:
        bar = (cols - floor(w * Fraction(rows, h))) // 2
        grid = grid[:, bar : cols - bar]
    if not grid.size:
        return 0
    lines = np.concatenate([grid, np.ones((len(grid), 1), dtype=bool)], axis=1)
    return np.concatenate([np.ones(side * side, dtype=bool), lines.ravel()]).size


def resized(h, w, factor=28, min_pixels=3136, max_pixels=1_003_520):
    """Height and width of Qwen2-VL, each found by trying one multiple after the other."""

    def nearest(side):
        near = range(side // factor, side // factor + 2)
        return min(near, key=lambda k: (abs(k * factor - side), k % 2))

    rows, cols = nearest(h), nearest(w)
    if rows * cols * factor**2 > max_pixels:
        rows, cols = (
            max(1, next(k for k in count() if (k + 1) ** 2 * factor**2 * b > a * max_pixels))
            for a, b in ((h, w), (w, h))
        )
    elif rows * cols * factor**2 < min_pixels:
        rows, cols = (
            next(k for k in count() if k**2 * factor**2 * b >= a * min_pixels)
            for a, b in ((h, w), (w, h))
        )
    return rows * factor, cols * factor, rows * cols


def a_size(dice):
    """Thumbnails, screens and photographs, upright and lying, up to 20 : 1."""
    long = round(10 ** dice.uniform(1.4, 3.7))
    ratio = dice.choice([1, 4 / 3, 16 / 9, 3, dice.uniform(1, 20)])
    short = max(-(-long // 20), round(long / ratio))
    return (long, short) if dice.random() < 0.5 else (short, long)
