"""Kata week08/activation_checkpoint: keep a segment's arguments, and run it again for backward.

What else a second run depends on, random numbers and autocast, is put back as it was.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor


class _Checkpoint(torch.autograd.Function):
    """Forward without a graph; backward builds it, uses it and drops it."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        fn: Callable[..., Any],
        _anchor: Tensor,
        *args: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        # keep the arguments
        ctx.fn, ctx.surroundings = fn, _Surroundings(args)
        ctx.places = [at for at, arg in enumerate(args) if isinstance(arg, Tensor)]
        ctx.others = [None if isinstance(arg, Tensor) else arg for arg in args]
        # saved, not hung on ctx: freed after backward, and refused once written to
        ctx.save_for_backward(*(args[at] for at in ctx.places))
        ctx.set_materialize_grads(False)
        return fn(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        # run again
        args = list(ctx.others)
        for at, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            # leaves of their own: gradients stop here, and are handed on below
            args[at] = tensor.detach().requires_grad_(ctx.needs_input_grad[2 + at])
        with torch.enable_grad(), ctx.surroundings.restored():
            outputs = ctx.fn(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        # pass on the gradients
        reached = [
            (output, grad)
            for output, grad in zip(outputs, grads, strict=True)
            if grad is not None and output.requires_grad
        ]
        if reached:
            torch.autograd.backward(*zip(*reached, strict=True))
        return None, None, *(arg.grad if isinstance(arg, Tensor) else None for arg in args)


class _Surroundings:
    """Random state and autocast as they are now."""

    def __init__(self, args: Sequence[object]) -> None:
        # remember the surroundings
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        self.gpus = list({arg.device.index for arg in tensors if arg.is_cuda})
        self.random = torch.get_rng_state()
        self.random_of_gpus = [torch.cuda.get_rng_state(gpu) for gpu in self.gpus]
        self.autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in ("cpu", "cuda")
        ]

    def restored(self) -> ExitStack:
        """Put them back for a `with` block; the random numbers outside of it go on untouched."""
        # run again
        stack = ExitStack()
        stack.enter_context(torch.random.fork_rng(self.gpus))
        torch.set_rng_state(self.random)
        for gpu, state in zip(self.gpus, self.random_of_gpus, strict=True):
            torch.cuda.set_rng_state(state, gpu)
        for kind, dtype, enabled in self.autocast:
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
        return stack


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
    # keep the arguments
    # the arguments may need no gradient where the parameters inside `fn` do
    anchor = torch.empty(0, requires_grad=True)
    outputs = _Checkpoint.apply(fn, anchor, *args)
    # check
    found = outputs if isinstance(outputs, tuple) else (outputs,)
    if not any(isinstance(output, Tensor) for output in found):
        raise ValueError(f"fn: expected a tensor, or a tuple with one, found {outputs!r}")
    return outputs


def checkpoint_sequential(
    layers: Sequence[Callable[[Tensor], Tensor]], x: Tensor, segments: int
) -> Tensor:
    """
    Run the layers one after the other, in checkpointed segments whose lengths differ by 1 at most.

    Raises:
        ValueError: `segments` is below 1, or above the number of layers; the message begins with
            "segments".
    """
    # check
    if not 1 <= segments <= len(layers):
        raise ValueError(f"segments: expected 1 to {len(layers)}, found {segments}")
    # cut into segments
    for start, end in pairwise(at * len(layers) // segments for at in range(segments + 1)):
        x = checkpoint(_run(layers[start:end]), x)
    return x


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
    # check
    n = len(layer_bytes)
    if len(input_bytes) != n:
        raise ValueError(f"input_bytes: expected {n}, one a layer, found {len(input_bytes)}")
    # cut into segments
    peaks, ends = {n: 0}, {n: n}  # of the layers from here on
    for start in reversed(range(n)):
        kept = accumulate(layer_bytes[start:])
        candidates = [max(own, peaks[start + 1 + at]) for at, own in enumerate(kept)]
        lowest = min(candidates)
        peaks[start], ends[start] = (
            input_bytes[start] + lowest,
            start + 1 + candidates.index(lowest),
        )
    cuts, at = [], ends[0]
    while at < n:
        cuts.append(at)
        at = ends[at]
    return cuts


def _run(layers: Sequence[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    def segment(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    return segment
