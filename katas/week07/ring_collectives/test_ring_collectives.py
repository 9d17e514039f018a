"""What is special about a ring: who owns what, who talks to whom, and what is still in flight."""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from harness.judge import assert_matches
from harness.meters.communication import CountingP2P, comm_meter
from harness.simulators.ranks import own

LIMIT_S = 3.0  # a ring of this size takes a tenth of a second, a deadlock for ever
# nothing, fewer than ranks, not divisible and twice in a row, divisible
SIZES = (0, 1, 7, 7, 4000)


def integers(oracle, world, seed, sizes=SIZES):
    """For each size, one vector a rank; no two alike."""
    return [
        oracle.vectors(world=world, size=size, dtype=torch.int32, seed=seed + at)
        for at, size in enumerate(sizes)
    ]


@contextmanager
def network(rank, kind=CountingP2P):
    """Yield a p2p for one call, which must send everything through it and wait for all of it."""
    with kind() as p2p, comm_meter() as meter:
        yield p2p
    # a receive sends nothing, so the meter knows no bytes of it
    logged = Counter(
        (op.removeprefix("i"), peer, size if op.endswith("send") else 0)
        for op, peer, size in p2p.log
        if not op.startswith("wait_")
    )
    made = Counter(map(tuple, meter.log))
    around = ", ".join({op for op, *_ in made - logged})
    assert not around, f"rank {rank}: expected all transfers through p2p, found {around} beside it"
    assert not logged - made, f"rank {rank}: p2p lists transfers that were never made"


def test_each_rank_owns_the_sum_of_its_own_chunk(kata, oracle, ranks, seed):
    world = ranks.world(5)
    cases = integers(oracle, world, seed)

    def reduce_scatter(rank, world):
        mine = [own(vectors[rank]) for vectors in cases]
        chunks = []
        for x in mine:
            with network(rank) as p2p:
                chunks.append(kata.ring_reduce_scatter(x, rank, world, p2p))
        for x, vectors in zip(mine, cases, strict=True):
            assert torch.equal(x.cpu(), vectors[rank]), "x was written to: expected it unchanged"
        for chunk in chunks:
            held = chunk.untyped_storage().nbytes()
            assert held == chunk.nbytes, (
                f"expected {chunk.nbytes} bytes in memory for a chunk of as many, found {held}: "
                "a view keeps all of the vector it is part of"
            )
        return chunks

    for rank, chunks in enumerate(ranks(world, reduce_scatter, timeout_s=LIMIT_S)):
        for found, vectors in zip(chunks, cases, strict=True):
            want = oracle.chunk(oracle.total(vectors), rank, world).to(torch.int32)
            assert_matches(found, want, name=f"rank {rank}'s chunk of {vectors[0].numel()}")


def test_chunks_are_gathered_bit_for_bit_in_the_order_of_the_ranks(kata, oracle, ranks, seed):
    world = ranks.world(5)
    cases = integers(oracle, world, seed, sizes=(0, 1, 7, 7))
    cases += [
        oracle.vectors(world=world, size=7, dtype=dtype, seed=seed)
        for dtype in (torch.float64, torch.float32)
    ]

    def all_gather(rank, world):
        gathered = []
        for chunks in cases:
            with network(rank) as p2p:
                gathered.append(kata.ring_all_gather(own(chunks[rank]), rank, world, p2p))
        return gathered

    for rank, gathered in enumerate(ranks(world, all_gather, timeout_s=LIMIT_S)):
        for found, chunks in zip(gathered, cases, strict=True):
            want = torch.cat(chunks)
            assert found.dtype == want.dtype, f"expected {want.dtype}, found {found.dtype}"
            assert found.tolist() == want.tolist(), f"rank {rank} gathered something else"


def test_all_reduce_leaves_the_sum_in_place(kata, oracle, ranks, seed):
    world = ranks.world(5)
    cases = integers(oracle, world, seed)

    def all_reduce(rank, world):
        sums = []
        for vectors in cases:
            wide = torch.nn.functional.pad(own(vectors[rank]), (1, 2), value=-7)
            x = wide[1:-2]
            with network(rank) as p2p:
                returned = kata.ring_all_reduce(x, rank, world, p2p)
            assert returned is None, (
                f"ring_all_reduce: expected it to return None, found {type(returned).__name__}. "
                "The sum belongs in x."
            )
            sums.append(wide)
        return sums

    for rank, sums in enumerate(ranks(world, all_reduce, timeout_s=LIMIT_S)):
        for wide, vectors in zip(sums, cases, strict=True):
            want = oracle.total(vectors).to(torch.int32)
            name = f"rank {rank}'s sum of {want.numel()}, in the memory of x"
            assert_matches(wide[1:-2], want, name=name)
            assert wide[[0, -2, -1]].tolist() == [-7] * 3, "what lies beside x was written to"


def test_a_world_of_one_sends_nothing_and_copies(kata):
    x = torch.arange(5)
    nobody = None  # it has no isend
    chunk = kata.ring_reduce_scatter(x, 0, 1, nobody)
    full = kata.ring_all_gather(x, 0, 1, nobody)
    kata.ring_all_reduce(x, 0, 1, nobody)
    assert x.tolist() == [0, 1, 2, 3, 4]
    for name, found in {"ring_reduce_scatter": chunk, "ring_all_gather": full}.items():
        assert found.tolist() == [0, 1, 2, 3, 4], name
        shared = found.data_ptr() == x.data_ptr()
        assert not shared, f"{name}: expected a result in new memory, found that of its input"


def test_floats_are_the_same_bits_on_every_rank(kata, oracle, ranks, seed):
    world = ranks.world(3)
    cases = [
        oracle.vectors(world=world, size=5000, dtype=dtype, seed=seed)
        for dtype in (torch.float64, torch.float32, torch.float16)
    ]

    def all_reduce(rank, world):
        mine = [own(vectors[rank]) for vectors in cases]
        library = [own(vectors[rank]) for vectors in cases]
        for x, trusted in zip(mine, library, strict=True):
            with network(rank) as p2p:
                kata.ring_all_reduce(x, rank, world, p2p)
            dist.all_reduce(trusted)
        return mine, library

    (first, library), *others = ranks(world, all_reduce, timeout_s=LIMIT_S)
    for found, trusted, vectors in zip(first, library, cases, strict=True):
        assert_matches(found, oracle.total(vectors), same_precision=trusted)
    for rank, (found, _) in enumerate(others, start=1):
        for one, other in zip(first, found, strict=True):
            assert torch.equal(one, other), f"ranks 0 and {rank} hold different sums"


def test_large_integers_are_summed_exactly(kata, oracle, ranks, seed):
    world = ranks.world(3)
    # an int32 vector of the same size goes before: whoever keeps a buffer has the wrong one now
    small, narrow = integers(oracle, world, seed, sizes=(7, 7))
    wide = [vector.long() + 2**59 + rank for rank, vector in enumerate(narrow)]  # past 2**53

    def all_reduce(rank, world):
        sums = []
        for vectors in (small, wide):
            x = own(vectors[rank])
            with network(rank) as p2p:
                kata.ring_all_reduce(x, rank, world, p2p)
            sums.append(x.tolist())
        return sums

    want = [torch.stack(vectors).long().sum(dim=0).tolist() for vectors in (small, wide)]
    for rank, sums in enumerate(ranks(world, all_reduce, timeout_s=LIMIT_S)):
        for dtype, found, exact in zip(("int32", "int64"), sums, want, strict=True):
            assert found == exact, f"rank {rank}, {dtype}: expected the sum {exact}, found {found}"


def test_the_sum_of_negative_zeros_is_one(kata, ranks):
    def all_reduce(rank, world):
        x = own(torch.full((5,), -0.0))
        with network(rank) as p2p:
            kata.ring_all_reduce(x, rank, world, p2p)
        return torch.signbit(x).tolist()

    for rank, signs in enumerate(ranks(ranks.world(3), all_reduce, timeout_s=LIMIT_S)):
        assert signs == [True] * 5, (
            f"rank {rank}: expected -0.0, the sum of -0.0 and -0.0, found sign bits {signs}. "
            "Was something added to +0.0?"
        )


def test_strided_vectors_are_reduced_where_they_are(kata, oracle, ranks, seed):
    (wide,) = integers(oracle, 2, seed, sizes=(14,))
    total = oracle.total([x[::2] for x in wide]).to(torch.int32)

    def every_collective(rank, world):
        x = own(wide[rank])
        with network(rank) as p2p:
            chunk = kata.ring_reduce_scatter(x[::2], rank, world, p2p)
        with network(rank) as p2p:
            full = kata.ring_all_gather(x[::2], rank, world, p2p)
        with network(rank) as p2p:
            kata.ring_all_reduce(x[::2], rank, world, p2p)
        return chunk, full, x

    for rank, (chunk, full, x) in enumerate(ranks(2, every_collective, timeout_s=LIMIT_S)):
        assert_matches(chunk, oracle.chunk(total, rank, 2))
        assert_matches(full, torch.cat([x[::2] for x in wide]))
        assert_matches(x[::2], total)
        assert torch.equal(x[1::2], wide[rank][1::2]), "the gaps were written to"


def assert_ring(log, name, rank, world):
    """Each step posts both its transfers, with the neighbours, before it waits for either."""
    sides = {"send": ("right", (rank + 1) % world), "recv": ("left", (rank - 1) % world)}
    done = Counter()
    for op, peer, _ in log:
        side, neighbour = sides[op[-4:]]
        assert peer == neighbour, (
            f"{name}, rank {rank} of {world}: {op}: expected its {side} neighbour {neighbour}, "
            f"found {peer}"
        )
        assert op not in sides, f"{name}: expected isend and irecv alone, found p2p.{op}"
        done[op] += 1
        waited = max(done["wait_isend"], done["wait_irecv"])
        assert waited <= min(done["isend"], done["irecv"]), (
            f"{name}, rank {rank} of {world}: expected the isend and the irecv of a step before "
            f"the first wait, found {op} before both. Its neighbours stand still meanwhile."
        )


# as many neighbours as there are, one on each side, and the ring of the thresholds
@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_rank_sends_chunks_to_its_right_and_no_more(kata, oracle, ranks, cost, seed, world):
    sizes = {torch.float32: 4099, torch.float16: 1001, torch.int32: 5}  # 2, 3, 4 divide none
    cases = [
        oracle.vectors(world=world, size=size, dtype=dtype, seed=seed)
        for dtype, size in sizes.items()
    ]
    phases = {"ring_all_reduce": 2, "ring_reduce_scatter": 1, "ring_all_gather": 1}

    def every_collective(rank, world):
        counted = {}
        for vectors in cases:
            for name in phases:
                with network(rank) as p2p:
                    getattr(kata, name)(own(vectors[rank]), rank, world, p2p)
                counted[name, vectors[0].dtype] = p2p.bytes_sent, p2p.messages, p2p.log
        return counted

    counted = ranks(world, every_collective, timeout_s=LIMIT_S)
    if world == 4:
        cost.check("comm_bytes", max(one["ring_all_reduce", torch.float32][0] for one in counted))
        cost.check("comm_steps", max(one["ring_all_reduce", torch.float32][1] for one in counted))
    for rank, by_call in enumerate(counted):
        for (name, dtype), (found_bytes, messages, log) in by_call.items():
            size = sizes[dtype]
            chunk = size if name == "ring_all_gather" else oracle.chunk_size(size, world)
            phase = oracle.bytes_a_phase(chunk=chunk, world=world, itemsize=dtype.itemsize)
            want = phases[name] * phase, phases[name] * (world - 1)
            assert (found_bytes, messages) == want, (
                f"{name} of {size} {dtype}, rank {rank} of {world}: expected {want[0]} bytes in "
                f"{want[1]} messages, found {found_bytes} in {messages}"
            )
            assert_ring(log, name, rank, world)


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
    world = ranks.world(4)
    # chunks of 1 MiB, too large to be on their way at once
    vectors = oracle.vectors(world=world, size=world * 2**18, dtype=torch.int32, seed=seed)
    want = oracle.total(vectors).to(torch.int32)

    def all_reduce(rank, world):
        x = own(vectors[rank])
        with network(rank, StrictP2P) as p2p:
            kata.ring_all_reduce(x, rank, world, p2p)
        assert_matches(x.cpu(), want, name=f"rank {rank}'s sum")

    ranks(world, all_reduce, timeout_s=LIMIT_S)


class ClosedP2P:
    """A network on which nothing may be sent."""

    def isend(self, tensor, dst):
        raise AssertionError("expected a ValueError before anything is sent, found an isend")

    def irecv(self, tensor, src):
        raise AssertionError("expected a ValueError before anything is sent, found an irecv")


@pytest.mark.parametrize(
    ("function", "argument"),
    [("ring_reduce_scatter", "x"), ("ring_all_gather", "chunk"), ("ring_all_reduce", "x")],
)
@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_only_vectors_are_taken(kata, function, argument, shape):
    with pytest.raises(ValueError, match=rf"\b{argument}\b"):
        getattr(kata, function)(torch.ones(shape), 0, 2, ClosedP2P())
