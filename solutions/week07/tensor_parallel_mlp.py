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
    return _CopyToTP.apply(x, tp)


def reduce_from_tp(x: Float[Tensor, "*axes"], tp: Collectives) -> Float[Tensor, "*axes"]:
    """End a parallel region (Megatron's g): `x` summed over the ranks; its gradient as it is."""
    return _ReduceFromTP.apply(x, tp)


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
        super().__init__()
        self.tp = tp
        # this rank's part
        self.weight = nn.Parameter(_part("weight", weight, 0, tp))
        self.bias = None if bias is None else nn.Parameter(_part("bias", bias, 0, tp))

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch part"]:
        """Return this rank's outputs."""
        return F.linear(copy_to_tp(x, self.tp), self.weight, self.bias)


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
        super().__init__()
        self.tp = tp
        # this rank's part
        self.weight = nn.Parameter(_part("weight", weight, 1, tp))
        self.bias = None if bias is None else nn.Parameter(bias.clone())

    def forward(self, x: Float[Tensor, "*batch part"]) -> Float[Tensor, "*batch d_out"]:
        """Return the whole outputs, the same on every rank."""
        y = reduce_from_tp(F.linear(x, self.weight), self.tp)
        return y if self.bias is None else y + self.bias


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
    # begin a parallel region
    x = copy_to_tp(x, tp)
    # compute the part
    hidden = F.silu(F.linear(x, wg)) * F.linear(x, wu)
    # end a parallel region
    return reduce_from_tp(F.linear(hidden, wd), tp)


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
    # check
    _assert_divides("heads", heads, tp)
    _assert_divides("kv_heads", kv_heads, tp)
    # begin a parallel region
    x = copy_to_tp(x, tp)
    # compute the part
    counts = (heads // tp.world, kv_heads // tp.world, kv_heads // tp.world)
    q, k, v = (
        F.linear(x, weight).unflatten(-1, (count, -1)).transpose(1, 2)  # [b, h, q, d]
        for weight, count in zip((wq, wk, wv), counts, strict=True)
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    # end a parallel region
    return reduce_from_tp(F.linear(y.transpose(1, 2).flatten(2), wo), tp)


class _CopyToTP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, tp: Collectives) -> Tensor:
        # begin a parallel region
        ctx.tp = tp
        return x

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        # begin a parallel region
        return _summed(grad, ctx.tp), None


class _ReduceFromTP(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x: Tensor, tp: Collectives) -> Tensor:
        # end a parallel region
        return _summed(x, tp)

    @staticmethod
    def backward(_ctx, grad: Tensor) -> tuple[Tensor, None]:
        # end a parallel region
        return grad, None


def _summed(x: Tensor, tp: Collectives) -> Tensor:
    """Sum over the ranks in new memory: a gradient may belong to others, too."""
    total = x.clone(memory_format=torch.contiguous_format)
    tp.all_reduce(total).wait()
    return total


def _part(name: str, whole: Tensor, axis: int, tp: Collectives) -> Tensor:
    """Copy this rank's part, so that the rest of the memory can go."""
    _assert_divides(name, whole.shape[axis], tp)
    part = whole.chunk(tp.world, dim=axis)[tp.rank]
    return part.clone()


def _assert_divides(name: str, size: int, tp: Collectives) -> None:
    # check
    if size % tp.world:
        raise ValueError(f"{name}: expected a multiple of {tp.world} ranks, found {size}.")
