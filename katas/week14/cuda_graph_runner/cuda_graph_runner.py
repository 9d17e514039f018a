"""Kata week14/cuda_graph_runner: decode steps replayed as CUDA graphs, one for each batch bucket.

A graph has its addresses: tokens come in and logits go out through buffers that never move.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

PAD = -1  # a token that is none: its row of the state stays as it is


@runtime_checkable
class State(Protocol):
    """What steps change in place, such as keys and values; row i belongs to sequence i."""

    runner: "GraphRunner | None"


Step = Callable[[Tensor, State], Tensor]


class Graph(Protocol):
    """What one capture recorded."""

    def replay(self) -> None:
        """Run it again: the same kernels on the same addresses, in one launch."""


@runtime_checkable
class Graphs(Protocol):
    """CUDA graphs, or what stands in for them; `device` is where their tensors are."""

    device: str

    def pool(self) -> Hashable:
        """A pool of memory for captures whose graphs never run at the same time."""

    def warm_up(self, fn: Callable[[], Tensor]) -> Tensor:
        """Run `fn` for real, on a stream at the side: libraries set up what a capture cannot."""

    def capture(self, fn: Callable[[], Tensor], pool: Hashable) -> tuple[Graph, Tensor]:
        """
        Record what `fn` launches, and run none of it.

        What `fn` allocates comes from the pool, and what it lets go of may be taken by a later
        capture from the same pool.

        Returns:
            The graph, and what `fn` returned: memory that each replay overwrites.

        Raises:
            RuntimeError: `fn` waits for a value, or does what it was never warmed up for.
        """


class GraphRunner:
    """
    Decode steps for any batch, by one graph for each bucket of batch sizes.

    Args:
        step: `step(tokens, state)`: logits of a batch, and the state one token further; a row
            whose token is PAD leaves the state as it is.
        state: Stays where it is; sequences of the batch are its first rows.
        buckets: Batch sizes to capture, in any order; one that is named twice counts once.
        graphs: Where graphs come from.

    Raises:
        ValueError: `buckets` is empty, or one of them is below 1.
    """

    def __init__(self, step: Step, state: State, buckets: Sequence[int], graphs: Graphs) -> None:
        raise NotImplementedError  # TODO(kata): check, static buffers (about 6 lines)

    def capture(self) -> None:
        """Capture all buckets, in one pool; the state stays as it is. Called once."""
        raise NotImplementedError  # TODO(kata): capture (about 7 lines)

    def __call__(self, tokens: Tensor) -> Tensor:
        """
        Logits of the next step, a row for each token; they stay what they are in later calls.

        A batch above the largest bucket is run without a graph.

        Raises:
            RuntimeError: `capture` has not been called.
            ValueError: There are no tokens.
        """
        # TODO(kata): check, choose a bucket, fill and replay (about 15 lines)
        raise NotImplementedError


def step_time_us(
    n: int, kernel_us: float, launch_us: float, graph: bool, node_gap_us: float = 0.0
) -> float:
    """
    Time from the first launch to the end of the last of n kernels, each behind the one before.

    Without a graph the host launches one kernel after the other, `launch_us` each, and a kernel
    starts when it has been launched. A graph is launched in 2.5 µs and 1 ns for each node; then
    the device spends `node_gap_us` before each.

    Raises:
        ValueError: `n` is below 1.

    Source: NVIDIA, Constant Time Launch for Straight-Line CUDA Graphs.
    """
    raise NotImplementedError  # TODO(kata): check, two timelines (about 5 lines)


def decode(
    step: Step, state: State, tokens: Tensor, buckets: Sequence[int], graphs: Graphs
) -> Tensor:
    """Take a step by the state's own runner, which is captured at its first one and kept."""
    if state.runner is None:
        state.runner = GraphRunner(step, state, buckets, graphs)
        state.runner.capture()
    return state.runner(tokens)
