"""Kata week07/tensor_parallel_mlp: matrices cut over ranks so that a block needs one all-reduce.

The first matrix is cut by its outputs, the second by its inputs. In between each rank has whole
channels (or heads) of its own, and a non-linearity needs no other rank.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from harness.meters.collectives import Collectives


def copy_to_tp(x: Float[Tensor, "*axes"], tp: Collectives) -> Float[Tensor, "*axes"]:
    """Begin a parallel region (Megatron's f): `x` itself; its gradient is summed over the ranks."""
    raise NotImplementedError  # TODO(kata): begin a parallel region (about 15 lines with helpers)


def reduce_from_tp(x: Float[Tensor, "*axes"], tp: Collectives) -> Float[Tensor, "*axes"]:
    """End a parallel region (Megatron's g): `x` summed over the ranks; its gradient as it is."""
    raise NotImplementedError  # TODO(kata): end a parallel region (about 8 lines with helpers)


class ColumnParallelLinear(nn.Module):
    """
    A linear layer whose outputs are cut over the ranks: `x` is whole, the result is this rank's.

    `weight` and `bias` are parameters: this rank's consecutive part of the outputs.
    """

    def __init__(
        self,
        weight: Float[Tensor, "d_out d_in"],
        bias: Float[Tensor, " d_out"] | None,
        tp: Collectives,
    ) -> None:
        """
        Keep a copy of this rank's part of a whole layer in the layout of `nn.Linear`.

        Raises:
            ValueError: the ranks do not divide the outputs of `weight`.
        """
        # TODO(kata): check, this rank's part (about 10 lines with helpers)
        raise NotImplementedError

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch part"]:
        """Return this rank's outputs."""
        raise NotImplementedError  # TODO(kata): one layer (1 line)


class RowParallelLinear(nn.Module):
    """
    A linear layer whose inputs are cut over the ranks: `x` is this rank's, the result is whole.

    `weight` and `bias` are parameters: this rank's consecutive part of the inputs, and the whole
    bias.
    """

    def __init__(
        self,
        weight: Float[Tensor, "d_out d_in"],
        bias: Float[Tensor, " d_out"] | None,
        tp: Collectives,
    ) -> None:
        """
        Keep a copy of this rank's part of a whole layer in the layout of `nn.Linear`.

        Raises:
            ValueError: the ranks do not divide the inputs of `weight`.
        """
        raise NotImplementedError  # TODO(kata): this rank's part (about 4 lines)

    def forward(self, x: Float[Tensor, "*batch part"]) -> Float[Tensor, "*batch d_out"]:
        """Return the whole outputs, the same on every rank."""
        raise NotImplementedError  # TODO(kata): (2 lines)


def parallel_swiglu_mlp(
    x: Float[Tensor, "*batch d"],
    wg: Float[Tensor, "part d"],
    wu: Float[Tensor, "part d"],
    wd: Float[Tensor, "d part"],
    tp: Collectives,
) -> Float[Tensor, "*batch d"]:
    """
    Return `wd @ (silu(wg @ x) * (wu @ x))`, whole, from this rank's parts of the three weights.

    One all-reduce of the size of `x` forward, and one backward.
    """
    # TODO(kata): begin a parallel region, compute the part, end a parallel region (3 lines)
    raise NotImplementedError


def parallel_attention(
    x: Float[Tensor, "b q dim"],
    wq: Float[Tensor, "q_part dim"],
    wk: Float[Tensor, "kv_part dim"],
    wv: Float[Tensor, "kv_part dim"],
    wo: Float[Tensor, "dim q_part"],
    heads: int,
    kv_heads: int,
    tp: Collectives,
) -> Float[Tensor, "b q dim"]:
    """
    Return causal self-attention, whole, from this rank's parts of the four weights.

    `heads` and `kv_heads` count those of all ranks; each rank has consecutive ones, and query
    head h attends with key and value head h // (heads // kv_heads). One all-reduce of the size of
    `x` forward, and one backward.

    Raises:
        ValueError: the ranks do not divide `heads`, or `kv_heads`. Nothing has been sent then.
    """
    # TODO(kata): check, begin a parallel region, compute the part, end a parallel region (about 10
    # lines)
    raise NotImplementedError
