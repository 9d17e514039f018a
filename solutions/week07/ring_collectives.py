"""Kata week07/ring_collectives: reduce-scatter, all-gather and all-reduce from send and receive.

Per rank and phase: world - 1 messages of one chunk, always to the right-hand neighbour.
"""

import torch
from jaxtyping import Num
from torch import Tensor

from harness.meters.communication import CountingP2P


def padded_chunks(x: Num[Tensor, " s"], world: int) -> Num[Tensor, "world chunk"]:
    """Return a copy of `x` as `world` chunks of ceil(s / world) elements, zeros at the end."""
    size = -(-x.numel() // world)
    chunks = x.new_zeros(world * size)
    chunks[: x.numel()] = x
    return chunks.view(world, size)


def reduce_through_root(x: Num[Tensor, " s"], rank: int, world: int, p2p: CountingP2P) -> None:
    """
    All-reduce as most write it first: everything to rank 0, the sum back from there. In place.

    Right, but rank 0 sends and receives (world - 1) times the data while the others wait.
    """
    if rank != 0:
        whole = x.contiguous()
        p2p.isend(whole, 0).wait()
        p2p.irecv(whole, 0).wait()
        x.copy_(whole)
        return
    arriving = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for src in range(1, world):
        p2p.irecv(arriving, src).wait()
        x += arriving
    whole = x.contiguous()
    for work in [p2p.isend(whole, dst) for dst in range(1, world)]:
        work.wait()


def ring_reduce_scatter(
    x: Num[Tensor, " s"], rank: int, world: int, p2p: CountingP2P
) -> Num[Tensor, " chunk"]:
    """
    Return chunk `rank` of the sum over all ranks of `x`, which is left as it is.

    Chunks are those of `padded_chunks`; sums are formed in the dtype of `x`.

    Raises:
        ValueError: `x` is not 1-D. Nothing has been sent then.
    """
    # check
    if x.dim() != 1:
        raise ValueError(f"x: expected 1 axis, found {x.dim()}.")
    # pad and cut
    chunks = padded_chunks(x, world)
    arriving = torch.empty_like(chunks[0])
    # pass and add
    # the sum of chunk c starts at rank c + 1 and is complete after it has gone round to rank c
    for step in range(1, world):
        _pass_right(chunks[(rank - step) % world], arriving, rank, world, p2p)
        chunks[(rank - step - 1) % world] += arriving
    return chunks[rank].clone()


def ring_all_gather(
    chunk: Num[Tensor, " chunk"], rank: int, world: int, p2p: CountingP2P
) -> Num[Tensor, " full"]:
    """
    Return the chunks of all ranks, in the order of the ranks.

    Every rank's chunk has the same size.

    Raises:
        ValueError: `chunk` is not 1-D. Nothing has been sent then.
    """
    # check
    if chunk.dim() != 1:
        raise ValueError(f"chunk: expected 1 axis, found {chunk.dim()}.")
    # gather
    chunks = chunk.new_empty(world, chunk.numel())
    chunks[rank] = chunk
    # what arrived in one step is what the right-hand neighbour lacks in the next
    for step in range(world - 1):
        outgoing, incoming = chunks[(rank - step) % world], chunks[(rank - step - 1) % world]
        _pass_right(outgoing, incoming, rank, world, p2p)
    return chunks.flatten()


def ring_all_reduce(x: Num[Tensor, " s"], rank: int, world: int, p2p: CountingP2P) -> None:
    """
    Replace `x`, on every rank, by the sum over all ranks: the same bits everywhere.

    Raises:
        ValueError: `x` is not 1-D. Nothing has been sent then.
    """
    chunk = ring_reduce_scatter(x, rank, world, p2p)
    x.copy_(ring_all_gather(chunk, rank, world, p2p)[: x.numel()])


def _pass_right(
    outgoing: Tensor, incoming: Tensor, rank: int, world: int, p2p: CountingP2P
) -> None:
    """Send to the right while receiving from the left; both are done on return."""
    receiving = p2p.irecv(incoming, (rank - 1) % world)
    sending = p2p.isend(outgoing, (rank + 1) % world)
    receiving.wait()
    sending.wait()
