"""Kata week20/hierarchical_all_reduce: an all-reduce on a fast fabric and a slow one.

Scatter on the fast one, reduce shards on the slow one, gather on the fast one.
"""

import torch.distributed as dist
from jaxtyping import Num
from torch import Tensor

from harness.meters.collectives import Collectives

# eight GPUs with four links each: two squares with their diagonals, and an edge between the squares
CUBE_MESH = (
    *((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)),
    *((4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7)),
    *((0, 4), (1, 5), (2, 6), (3, 7)),
)


def hierarchical_all_reduce(
    x: Num[Tensor, "*shape"], intra: Collectives, inter: Collectives
) -> None:
    """
    Replace `x`, on every rank of the job, by the sum over all of them: the same bits everywhere.

    `intra` joins the ranks of this rank's node, `inter` those that have its place in their nodes.

    Raises:
        ValueError: intra: the groups do not span the job; inter: they share more than this rank.
            Nothing has been sent then.
    """
    # TODO(kata): check, scatter inside, reduce shards between nodes, gather inside (about 20 lines)
    raise NotImplementedError


def nvlink_bandwidth(gen: int) -> float:
    """
    Return the bytes a second of all NVLinks of a GPU together, both directions.

    Raises:
        ValueError: gen is none of 1 (P100) to 5 (B200).
    """
    raise NotImplementedError  # TODO(kata): (about 5 lines)


def nvswitch_all_to_all_s(nbytes: float, n: int, gpu_bw: float) -> float:
    """
    Return the seconds in which each of `n` GPUs sends 1 / n of its `nbytes` to each, by a switch.

    Raises:
        ValueError: nbytes below 0, n below 1, gpu_bw not above 0.
    """
    raise NotImplementedError  # TODO(kata): check, busiest link (about 10 lines with helpers)


def cube_mesh_all_to_all_s(nbytes: float, gpu_bw: float) -> float:
    """
    Return the seconds of the same on `CUBE_MESH`, whose links have a fourth of `gpu_bw` each.

    Raises:
        ValueError: nbytes below 0, gpu_bw not above 0.
    """
    raise NotImplementedError  # TODO(kata): check, busiest link (3 lines)


def predict(
    nbytes: float,
    nodes: int,
    g: int,
    intra_bw: float,
    nic_bw: float,
    intra_alpha: float,
    nic_alpha: float,
) -> dict[str, float]:
    """
    Return the seconds of two all-reduces of `nbytes`, "flat_ring" and "hierarchical".

    `nodes` have `g` GPUs each, with a NIC for each GPU. A message takes its alpha and its bytes
    over its bandwidth, which is that of one direction.

    Raises:
        ValueError: nbytes or an alpha below 0, nodes or g below 1, a bandwidth not above 0.
    """
    raise NotImplementedError  # TODO(kata): check, steps of the rings (about 15 lines)
