"""Kata week20/hierarchical_all_reduce: an all-reduce on a fast fabric and a slow one.

Scatter on the fast one, reduce shards on the slow one, gather on the fast one.
"""

import torch.distributed as dist
from jaxtyping import Num
from torch import Tensor
from torch.nn.functional import pad

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
    # check
    if intra.world * inter.world != dist.get_world_size():
        raise ValueError(
            f"intra: expected {dist.get_world_size()} ranks in all, found {intra.world} in a node "
            f"and {inter.world} nodes."
        )
    members = [dist.get_process_group_ranks(comm.group) for comm in (intra, inter)]
    shared = {*members[0]} & {*members[1]}
    if shared != {dist.get_rank()}:
        raise ValueError(f"inter: expected no rank of intra but this one, found {sorted(shared)}.")
    # scatter inside
    whole = x.contiguous()
    flat = whole.view(-1)
    size = -(-flat.numel() // intra.world)
    missing = intra.world * size - flat.numel()
    padded = pad(flat, (0, missing)) if missing else flat
    shard = flat.new_empty(size)
    intra.reduce_scatter(shard, padded).wait()
    # reduce shards between nodes
    inter.all_reduce(shard).wait()
    # gather inside
    intra.all_gather(padded, shard).wait()
    if padded is not flat:
        flat.copy_(padded[: len(flat)])
    if whole is not x:
        x.copy_(whole)


def nvlink_bandwidth(gen: int) -> float:
    """
    Return the bytes a second of all NVLinks of a GPU together, both directions.

    Raises:
        ValueError: gen is none of 1 (P100) to 5 (B200).
    """
    links_and_rates = {1: (4, 20e9), 2: (6, 25e9), 3: (12, 25e9), 4: (18, 25e9), 5: (18, 50e9)}
    if gen not in links_and_rates:
        raise ValueError(f"gen: expected 1 to 5, found {gen}.")
    links, one_way = links_and_rates[gen]
    return links * one_way * 2


def nvswitch_all_to_all_s(nbytes: float, n: int, gpu_bw: float) -> float:
    """
    Return the seconds in which each of `n` GPUs sends 1 / n of its `nbytes` to each, by a switch.

    Raises:
        ValueError: nbytes below 0, n below 1, gpu_bw not above 0.
    """
    # check
    _at_least(0, nbytes=nbytes)
    _at_least(1, n=n)
    _positive(gpu_bw=gpu_bw)
    # busiest link
    return nbytes * (n - 1) / n / gpu_bw


def cube_mesh_all_to_all_s(nbytes: float, gpu_bw: float) -> float:
    """
    Return the seconds of the same on `CUBE_MESH`, whose links have a fourth of `gpu_bw` each.

    Raises:
        ValueError: nbytes below 0, gpu_bw not above 0.
    """
    # check
    _at_least(0, nbytes=nbytes)
    _positive(gpu_bw=gpu_bw)
    # busiest link
    # between the squares a link carries its own pair's message, and three that have no link
    return 4 * (nbytes / 8) / (gpu_bw / 4)


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
    # check
    _at_least(0, nbytes=nbytes)
    _at_least(1, nodes=nodes, g=g)
    _positive(intra_bw=intra_bw, nic_bw=nic_bw)
    _at_least(0, intra_alpha=intra_alpha, nic_alpha=nic_alpha)

    # steps of the rings
    def inside(size: float) -> float:
        return intra_alpha + size / intra_bw if g > 1 else 0.0

    def between(size: float) -> float:
        return nic_alpha + size / nic_bw if nodes > 1 else 0.0

    ranks = nodes * g
    step = max(inside(nbytes / ranks), between(nbytes / ranks))
    shard = nbytes / g
    return {
        "flat_ring": 2 * (ranks - 1) * step,
        "hierarchical": 2 * (g - 1) * inside(shard) + 2 * (nodes - 1) * between(shard / nodes),
    }


def _at_least(least: int, **arguments: float) -> None:
    for name, value in arguments.items():
        if not value >= least:
            raise ValueError(f"{name}: expected at least {least}, found {value}.")


def _positive(**arguments: float) -> None:
    for name, value in arguments.items():
        if not value > 0:
            raise ValueError(f"{name}: expected more than 0, found {value}.")
