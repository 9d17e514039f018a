"""Kata week11/vlm_token_count: three published rules from pixels to tokens, in whole numbers."""

from collections.abc import Sequence
from math import isqrt

MODELS = ("llava-1.5", "llava-next", "qwen2-vl")
PINPOINTS = [(336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)]


def vlm_token_count(model: str, images: Sequence[tuple[int, int]]) -> int:
    """
    Tokens that images of these (height, width) add to a prompt, with each model's own settings.

    Raises:
        ValueError: `model` is not one of MODELS (the message names it), or what the functions
            below refuse.
    """
    # check
    if model not in MODELS:
        raise ValueError(f"model: expected one of {', '.join(MODELS)}, found {model!r}")
    # count the tokens
    tokens = 0
    for h, w in images:
        _check_positive(h=h, w=w)
        if model == "llava-1.5":
            tokens += llava15_tokens()  # the image is resized, whatever its size
        elif model == "llava-next":
            tokens += llava_next_tokens(h, w, PINPOINTS)
        else:
            tokens += qwen2_vl_tokens(h, w)[2]
    return tokens


def llava15_tokens(image: int = 336, patch: int = 14) -> int:
    """
    Patches of a square encoder input; the class token and pixels beyond the grid are dropped.

    Raises:
        ValueError: `patch` is below 1, or `image` below `patch`; the message begins with the name.
    """
    # check
    _check_positive(patch=patch)
    if image < patch:
        raise ValueError(f"image: expected {patch} or more, one patch, found {image}")
    # count the tokens
    return (image // patch) ** 2


def select_best_resolution(h: int, w: int, pinpoints: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """
    The canvas (height, width) on which most of the image's pixels survive.

    Among equals the one that wastes least, then the first in the list.

    Raises:
        ValueError: `h` or `w` is below 1, or there are no `pinpoints`; the message begins with
            the name.
    """
    # check
    _check_positive(h=h, w=w)
    if not pinpoints:
        raise ValueError("pinpoints: expected at least one canvas, found none")

    # best canvas
    def merit(canvas: tuple[int, int]) -> tuple[int, int]:
        height, width = canvas
        # the side that limits the scale fills the canvas
        upright = height * w <= width * h
        fitted = height * (w * height // h) if upright else width * (h * width // w)
        effective = min(fitted, h * w)
        return effective, effective - height * width

    height, width = max(pinpoints, key=merit)  # max keeps the first of equals
    return height, width


def llava_next_tokens(
    h: int, w: int, pinpoints: Sequence[tuple[int, int]], tile: int = 336, patch: int = 14
) -> int:
    """
    Base view, unpadded tiles and a newline token at the end of each row of them.

    Raises:
        ValueError: what `select_best_resolution` refuses; a canvas that is not whole tiles
            (begins with "pinpoints"); an image so thin that no row or no column of patches is
            left ("h" or "w", whichever side is the short one).
    """
    # check
    if any(height % tile or width % tile for height, width in pinpoints):
        raise ValueError(f"pinpoints: expected multiples of the tile {tile}, found {pinpoints}")
    # best canvas
    height, width = select_best_resolution(h, w, pinpoints)
    # grid without padding
    side = tile // patch
    rows, cols = height // tile * side, width // tile * side
    if w * rows > h * cols:  # wider than the canvas: bars above and below
        rows -= 2 * ((rows - h * cols // w) // 2)
    else:
        cols -= 2 * ((cols - w * rows // h) // 2)
    if not rows or not cols:
        thin = "w" if rows else "h"
        raise ValueError(f"{thin}: the image {h} x {w} is too thin, unpadding leaves nothing of it")
    # count the tokens
    return side * side + rows * (cols + 1)


def qwen2_vl_tokens(
    h: int, w: int, factor: int = 28, min_pixels: int = 3136, max_pixels: int = 1_003_520
) -> tuple[int, int, int]:
    """
    Height and width after the resize, and the tokens: one for each `factor` x `factor` pixels.

    Raises:
        ValueError: `h` or `w` is below 1 (the message begins with the name), or one is more than
            200 times the other ("aspect").
    """
    # check
    _check_positive(h=h, w=w)
    if max(h, w) > 200 * min(h, w):
        raise ValueError(f"aspect ratio: expected at most 200, found {h} x {w}")
    # resize within limits
    rows, cols = _nearest(h, factor), _nearest(w, factor)
    area = factor * factor
    if rows * cols * area > max_pixels:
        rows = max(1, isqrt(h * max_pixels // (w * area)))
        cols = max(1, isqrt(w * max_pixels // (h * area)))
    elif rows * cols * area < min_pixels:
        rows = _ceil_sqrt(h * min_pixels, w * area)
        cols = _ceil_sqrt(w * min_pixels, h * area)
    # count the tokens
    return rows * factor, cols * factor, rows * cols


def _nearest(side: int, factor: int) -> int:
    """Multiples of `factor` in `side`, rounded half to even."""
    whole, rest = divmod(side, factor)
    return whole + (2 * rest > factor or (2 * rest == factor and whole % 2))


def _ceil_sqrt(above: int, below: int) -> int:
    """The least whole number whose square is at least above / below."""
    return isqrt(-(-above // below) - 1) + 1


def _check_positive(**sides: int) -> None:
    for name, value in sides.items():
        if value < 1:
            raise ValueError(f"{name}: expected 1 or more, found {value}")
