"""Kata week11/vlm_token_count: three published rules from pixels to tokens, in whole numbers."""

from collections.abc import Sequence

MODELS = ("llava-1.5", "llava-next", "qwen2-vl")
PINPOINTS = [(336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)]


def vlm_token_count(model: str, images: Sequence[tuple[int, int]]) -> int:
    """
    Tokens that images of these (height, width) add to a prompt, with each model's own settings.

    Raises:
        ValueError: `model` is not one of MODELS (the message names it), or what the functions
            below refuse.
    """
    raise NotImplementedError  # TODO(kata): check, count the tokens (about 15 lines with helpers)


def llava15_tokens(image: int = 336, patch: int = 14) -> int:
    """
    Patches of a square encoder input; the class token and pixels beyond the grid are dropped.

    Raises:
        ValueError: `patch` is below 1, or `image` below `patch`; the message begins with the name.
    """
    raise NotImplementedError  # TODO(kata): check, count the tokens (about 4 lines)


def select_best_resolution(h: int, w: int, pinpoints: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """
    The canvas (height, width) on which most of the image's pixels survive.

    Among equals the one that wastes least, then the first in the list.

    Raises:
        ValueError: `h` or `w` is below 1, or there are no `pinpoints`; the message begins with
            the name.
    """
    raise NotImplementedError  # TODO(kata): check, best canvas (about 10 lines)


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
    # TODO(kata): check, best canvas, grid without padding, count the tokens (about 15 lines)
    raise NotImplementedError


def qwen2_vl_tokens(
    h: int, w: int, factor: int = 28, min_pixels: int = 3136, max_pixels: int = 1_003_520
) -> tuple[int, int, int]:
    """
    Height and width after the resize, and the tokens: one for each `factor` x `factor` pixels.

    Raises:
        ValueError: `h` or `w` is below 1 (the message begins with the name), or one is more than
            200 times the other ("aspect").
    """
    # TODO(kata): check, resize within limits, count the tokens (about 15 lines with helpers)
    raise NotImplementedError
