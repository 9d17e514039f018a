"""Kata week08/activation_checkpoint: keep a segment's arguments, and run it again for backward.

What else a second run depends on, random numbers and autocast, is put back as it was.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def checkpoint(fn: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401
    """
    `fn(*args)`, which keeps for backward nothing but the tensors among `args`.

    Backward runs `fn` once more, with the random state and the autocast of the first run, and
    leaves the random state of its own surroundings as it finds it. Arguments are tensors or
    anything else; `fn` returns a tensor, or a tuple with at least one, and does not change its
    arguments. Where gradients are off, `fn` just runs.

    Raises:
        ValueError: `fn` returned no tensor; the message begins with "fn".

    Source: Chen et al. 2016.
    """
    # TODO(kata): check, keep the arguments, remember the surroundings, run again, pass on the
    # gradients (about 55 lines with helpers)
    raise NotImplementedError


def checkpoint_sequential(
    layers: Sequence[Callable[[Tensor], Tensor]], x: Tensor, segments: int
) -> Tensor:
    """
    Run the layers one after the other, in checkpointed segments whose lengths differ by 1 at most.

    Raises:
        ValueError: `segments` is below 1, or above the number of layers; the message begins with
            "segments".
    """
    raise NotImplementedError  # TODO(kata): check, cut into segments (about 10 lines with helpers)


def best_segments(layer_bytes: Sequence[int], input_bytes: Sequence[int]) -> list[int]:
    """
    Where to begin new segments, in ascending order, for the lowest peak.

    Layer i keeps `layer_bytes[i]`, its input takes `input_bytes[i]`. While a segment runs
    backward, the layers in it keep theirs, and alive besides are the inputs of its first layer
    and of the first layers of all segments before it. The first segment begins at layer 0, which
    is not listed. No layers, no segments.

    Raises:
        ValueError: the two are not of one length; the message begins with "input_bytes".
    """
    raise NotImplementedError  # TODO(kata): check, cut into segments (about 15 lines)
