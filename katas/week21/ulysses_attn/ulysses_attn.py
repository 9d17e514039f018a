"""Kata week21/ulysses_attn: one all-to-all swaps the axis that is cut, rows for heads and back.

Between two of them each rank has the whole sequence, of some of the heads.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from harness.meters.collectives import Collectives


def seq_to_head(x: Float[Tensor, "b s h d"], comm: Collectives) -> Float[Tensor, "b rows part d"]:
    """
    Take this rank's rows of all heads, return all rows of its part of the heads.

    Raises:
        ValueError: x: the ranks do not divide its heads. Nothing has been sent then.
    """
    raise NotImplementedError  # TODO(kata): check, rows to heads (about 20 lines with helpers)


def head_to_seq(x: Float[Tensor, "b rows part d"], comm: Collectives) -> Float[Tensor, "b s h d"]:
    """
    Take all rows of this rank's part of the heads, return its rows of all heads.

    Raises:
        ValueError: x: the ranks do not divide its rows. Nothing has been sent then.
    """
    raise NotImplementedError  # TODO(kata): check, heads to rows (about 10 lines with helpers)


def ulysses_attn(
    q: Float[Tensor, "b s h d"],
    k: Float[Tensor, "b s kv d"],
    v: Float[Tensor, "b s kv d"],
    comm: Collectives,
    *,
    causal: bool,
) -> Float[Tensor, "b s h d"]:
    """
    Attend with this rank's rows to those of all ranks, scores divided by sqrt(d); autograd works.

    Raises:
        ValueError: q: its heads are no multiple of those of k, or of the ranks. k: its heads are
            neither a multiple of the ranks nor a divisor. Nothing has been sent then.

    Source: Jacobs et al., DeepSpeed Ulysses (arXiv 2309.14509), section 3.
    """
    # TODO(kata): check, repeat the key heads, rows to heads, attend, heads to rows (about 10 lines)
    raise NotImplementedError
