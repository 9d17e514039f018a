"""What is special about a ring: who owns what, who talks to whom, and what is still in flight."""

import pytest
import torch
import torch.distributed as dist

from harness.judge import assert_matches
from harness.meters.communication import CountingP2P

LIMIT_S = 3.0  # a ring of this size takes a tenth of a second, a deadlock for ever
SIZES = (0, 1, 5, 4096)  # nothing, fewer than ranks, not divisible, divisible


def integers(oracle, world, seed, sizes=SIZES):
    """For each size, one vector a rank."""
    return [
        oracle.vectors(world=world, size=size, dtype=torch.int32, seed=seed + size)
        for size in sizes
    ]


def test_each_rank_owns_the_sum_of_its_own_chunk(kata, oracle, ranks, seed):
    cases = integers(oracle, 4, seed)

    def reduce_scatter(rank, world):
        mine = [vectors[rank].clone() for vectors in cases]
        chunks = [kata.ring_reduce_scatter(x, rank, world, CountingP2P()) for x in mine]
        for x, vectors in zip(mine, cases, strict=True):
            assert torch.equal(x, vectors[rank]), "x was written to: expected it unchanged"
        return chunks

    for rank, chunks in enumerate(ranks(4, reduce_scatter, timeout_s=LIMIT_S)):
        for found, vectors in zip(chunks, cases, strict=True):
            want = oracle.chunk(oracle.total(vectors), rank, 4).to(torch.int32)
            assert_matches(found, want, name=f"rank {rank}'s chunk of {vectors[0].numel()}")


def test_chunks_are_gathered_in_the_order_of_the_ranks(kata, oracle, ranks, seed):
    cases = integers(oracle, 3, seed, sizes=(0, 1, 7))

    def all_gather(rank, world):
        return [kata.ring_all_gather(chunks[rank], rank, world, CountingP2P()) for chunks in cases]

    for rank, gathered in enumerate(ranks(3, all_gather, timeout_s=LIMIT_S)):
        for found, chunks in zip(gathered, cases, strict=True):
            assert_matches(found, torch.cat(chunks), name=f"what rank {rank} gathered")


@pytest.mark.parametrize("world", [2, 3])  # one neighbour on both sides, and two
def test_all_reduce_leaves_the_sum_in_place(kata, oracle, ranks, seed, world):
    cases = integers(oracle, world, seed)

    def all_reduce(rank, world):
        mine = [vectors[rank].clone() for vectors in cases]
        for x in mine:
            assert kata.ring_all_reduce(x, rank, world, CountingP2P()) is None
        return mine

    for rank, sums in enumerate(ranks(world, all_reduce, timeout_s=LIMIT_S)):
        for found, vectors in zip(sums, cases, strict=True):
            want = oracle.total(vectors).to(torch.int32)
            assert_matches(found, want, name=f"rank {rank}'s sum of {want.numel()}")


def test_a_world_of_one_sends_nothing_and_copies(kata):
    x = torch.arange(5)
    nobody = None  # it has no isend
    chunk = kata.ring_reduce_scatter(x, 0, 1, nobody)
    full = kata.ring_all_gather(x, 0, 1, nobody)
    kata.ring_all_reduce(x, 0, 1, nobody)
    assert x.tolist() == chunk.tolist() == full.tolist() == [0, 1, 2, 3, 4]
    assert len({tensor.data_ptr() for tensor in (x, chunk, full)}) == 3, "memory is shared with x"


def test_floats_are_the_same_bits_on_every_rank(kata, oracle, ranks, seed):
    cases = [
        oracle.vectors(world=4, size=5000, dtype=dtype, seed=seed)
        for dtype in (torch.float32, torch.float16)
    ]

    def all_reduce(rank, world):
        mine = [vectors[rank].clone() for vectors in cases]
        library = [vectors[rank].clone() for vectors in cases]
        for x, trusted in zip(mine, library, strict=True):
            kata.ring_all_reduce(x, rank, world, CountingP2P())
            dist.all_reduce(trusted)
        return mine, library

    (first, library), *others = ranks(4, all_reduce, timeout_s=LIMIT_S)
    for found, trusted, vectors in zip(first, library, cases, strict=True):
        assert_matches(found, oracle.total(vectors), same_precision=trusted)
    for rank, (found, _) in enumerate(others, start=1):
        for one, other in zip(first, found, strict=True):
            assert torch.equal(one, other), f"ranks 0 and {rank} hold different sums"


def test_strided_vectors_are_reduced_where_they_are(kata, oracle, ranks, seed):
    (wide,) = integers(oracle, 2, seed, sizes=(14,))
    total = oracle.total([x[::2] for x in wide]).to(torch.int32)

    def every_collective(rank, world):
        x = wide[rank].clone()
        chunk = kata.ring_reduce_scatter(x[::2], rank, world, CountingP2P())
        full = kata.ring_all_gather(x[::2], rank, world, CountingP2P())
        kata.ring_all_reduce(x[::2], rank, world, CountingP2P())
        return chunk, full, x

    for rank, (chunk, full, x) in enumerate(ranks(2, every_collective, timeout_s=LIMIT_S)):
        assert_matches(chunk, oracle.chunk(total, rank, 2))
        assert_matches(full, torch.cat([x[::2] for x in wide]))
        assert_matches(x[::2], total)
        assert torch.equal(x[1::2], wide[rank][1::2]), "the gaps were written to"


def test_a_rank_sends_chunks_to_its_right_and_no_more(kata, oracle, ranks, cost, seed):
    sizes = {torch.float32: 4099, torch.float16: 1001}  # 4 ranks divide neither
    cases = [
        oracle.vectors(world=4, size=size, dtype=dtype, seed=seed) for dtype, size in sizes.items()
    ]

    def all_reduce(rank, world):
        counters = [CountingP2P() for _ in cases]
        for vectors, p2p in zip(cases, counters, strict=True):
            kata.ring_all_reduce(vectors[rank].clone(), rank, world, p2p)
        return [(p2p.bytes_sent, p2p.messages, p2p.log) for p2p in counters]

    counted = ranks(4, all_reduce, timeout_s=LIMIT_S)
    cost.check("comm_bytes", max(single[0] for single, _ in counted))
    cost.check("comm_steps", max(single[1] for single, _ in counted))
    limit = oracle.bytes_sent(size=1001, world=4, itemsize=2)
    for rank, (single, half) in enumerate(counted):
        assert half[0] == limit, f"float16: expected {limit} bytes a rank, found {half[0]}"
        for op, peer, _ in [*single[2], *half[2]]:
            neighbour = (rank + 1) % 4 if "send" in op else (rank - 1) % 4
            assert peer == neighbour, f"rank {rank}: {op} with {peer}, which is not its neighbour"


class Watched:
    """A transfer that has something done when it has been waited for."""

    def __init__(self, pending, then):
        self.pending = pending
        self.then = then

    def wait(self):
        self.pending.wait()
        self.then()


class StrictP2P(CountingP2P):
    """A network at its slowest: nothing arrives, and nothing has left, before it is waited for."""

    def isend(self, tensor, dst):
        sent = tensor.clone()

        def unchanged():
            assert torch.equal(tensor, sent), "a chunk changed while it was being sent"

        return Watched(super().isend(sent, dst), unchanged)

    def irecv(self, tensor, src):
        arriving = torch.empty_like(tensor)
        tensor.fill_(-77)
        return Watched(super().irecv(arriving, src), lambda: tensor.copy_(arriving))


def test_what_is_in_flight_is_left_alone(kata, oracle, ranks, seed):
    vectors = oracle.vectors(world=4, size=2**20, dtype=torch.int32, seed=seed)  # chunks of 1 MiB
    want = oracle.total(vectors).to(torch.int32)

    def all_reduce(rank, world):
        p2p = StrictP2P()
        x = vectors[rank]
        kata.ring_all_reduce(x, rank, world, p2p)
        assert_matches(x, want, name=f"rank {rank}'s sum")
        return [entry.op for entry in p2p.log]

    for rank, log in enumerate(ranks(4, all_reduce, timeout_s=LIMIT_S)):
        started, waited = log.count("isend"), log.count("wait_isend")
        assert waited == started, f"rank {rank}: {started} sends, but {waited} waited for"


@pytest.mark.parametrize(
    ("function", "argument"),
    [("ring_reduce_scatter", "x"), ("ring_all_gather", "chunk"), ("ring_all_reduce", "x")],
)
@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_only_vectors_are_taken(kata, function, argument, shape):
    with pytest.raises(ValueError, match=rf"\b{argument}\b"):
        getattr(kata, function)(torch.ones(shape), 0, 1, None)
