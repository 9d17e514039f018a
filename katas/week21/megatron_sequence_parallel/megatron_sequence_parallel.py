"""Kata week21/megatron_sequence_parallel: what tensor parallelism leaves whole is cut by rows.

Each all-reduce becomes a reduce-scatter and an all-gather, with the normalisation in between.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from harness.meters.collectives import Collectives

EPS = 1e-5


def gathered_linear(
    x: Float[Tensor, "s b h"], w: Float[Tensor, "part h"], comm: Collectives
) -> Float[Tensor, "rows b part"]:
    """
    Gather the rows of all ranks, and multiply by this rank's outputs of a weight.

    Autograd works, and keeps `x`, not what was gathered: that is gathered again.

    Source: Korthikanti et al. (arXiv 2205.05198), section 4.2.2.
    """
    # TODO(kata): gather and multiply, backward with overlap (about 30 lines with helpers)
    raise NotImplementedError


def reduce_scatter_to_sp(x: Float[Tensor, "rows b h"], comm: Collectives) -> Float[Tensor, "s b h"]:
    """
    Sum `x` over the ranks, and return this rank's rows of the sum; autograd works.

    Raises:
        ValueError: x: the ranks do not divide its rows. Nothing has been sent then.
    """
    # TODO(kata): check, sum and split the rows (about 15 lines with helpers)
    raise NotImplementedError


def sp_mlp_block(
    x: Float[Tensor, "s b h"],
    ln_w: Float[Tensor, " h"],
    ln_b: Float[Tensor, " h"],
    w1: Float[Tensor, "part h"],
    w2: Float[Tensor, "h part"],
    comm: Collectives,
) -> Float[Tensor, "s b h"]:
    """Return `x` + w2 gelu(w1 layer_norm(x)) for this rank's rows, with its part of the weights."""
    raise NotImplementedError  # TODO(kata): MLP block (3 lines)


def finish_grads(params: Iterable[Tensor], comm: Collectives) -> None:
    """
    Replace the gradients of parameters that every rank has by their sums over the ranks.

    One all-reduce for all of them. Those without a gradient, on all ranks alike, stay without.
    """
    raise NotImplementedError  # TODO(kata): finish the gradients (about 7 lines)
