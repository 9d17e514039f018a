"""A stream and a rendezvous between two simulated NICs, in any order; what they cost; times."""

import math
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

TRIALS = 6  # random schedules, besides those that keep somebody back


def orders(oracle, seed, trials=TRIALS):
    return oracle.orders(random.Random(seed), 2, trials)


def stream(kata, oracle, blocks, size=2, staging=8, ring=8, depth=8, more=0, choose=None):
    """Staging and ring of so many blocks, and `more` elements."""
    works = [
        lambda end: kata.stream_send(end, blocks, size),
        lambda end: kata.stream_recv(end, blocks, size),
    ]
    buffers = [
        {"staging": np.full(staging * size + more, np.nan)},
        {"ring": np.full(ring * size + more, np.nan)},
    ]
    values = [np.arange(size) + 10.0 * index + 1 for index in range(blocks)]
    net = oracle.Net(works, buffers, depth=depth, blocks=values)
    net.run(choose)
    found, expected = net.agents[1]._delivered, [one.tolist() for one in values]
    assert found == expected, (
        f"{blocks} blocks, staging for {staging}, ring for {ring}, depth {depth}: "
        f"delivered {found}, expected {expected}"
    )
    return net


def rendezvous(kata, oracle, size, room=None, depth=4, max_read=16, choose=None):
    room = size if room is None else room
    data = np.arange(size) + 1.0
    buffers = [
        {"header": np.zeros(2, np.int64), "data": data, "bounce": np.zeros(size)},
        {"header": np.zeros(2, np.int64), "inbox": np.zeros(room), "bounce": np.zeros(room)},
    ]
    works = [kata.rendezvous_send, kata.rendezvous_recv]
    net = oracle.Net(works, buffers, ("data", "inbox"), depth=depth, max_read=max_read)
    net.run(choose)
    found = net.agents[1]._memory.buffers["inbox"]
    expected = np.pad(data, (0, room - size))
    assert (found == expected).all(), f"{size} elements: inbox {found}, expected {expected}"
    return net


# ---- stream --------------------------------------------------------------------------------

SHAPES = [
    # blocks, staging, ring, depth, more
    (0, 2, 2, 4, 0),
    (1, 3, 3, 4, 0),
    (5, 1, 1, 1, 0),
    (7, 3, 2, 8, 1),  # room for a part of a block
    (9, 2, 5, 8, 1),
    (12, 5, 4, 3, 0),  # queues shorter than both
    (17, 5, 7, 16, 0),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_arrive_in_any_order_of_events(kata, oracle, shape, seed):
    blocks, staging, ring, depth, more = shape
    for choose in orders(oracle, seed):
        stream(kata, oracle, blocks, 2, staging, ring, depth, more, choose)


def test_one_completion_frees_many_places(kata, oracle, cost):
    sender, receiver = stream(kata, oracle, 64).agents
    cost.check("completions", sender._counts["completions"] / 64)
    cost.check("credits", receiver._counts["requests"] / 64)


def test_the_sender_runs_ahead(kata, oracle, cost):
    late = next(oracle.orders(random.Random(0), 2, 0))  # messages arrive when nobody can go on
    cost.check("ahead", stream(kata, oracle, 32, choose=late).agents[0]._ahead)
    # the shortest counts: staging, ring, queues, nothing
    for staging, ring, depth in ((3, 9, 8), (9, 4, 8), (9, 8, 5), (16, 16, 16)):
        net = stream(kata, oracle, 40, 2, staging, ring, depth, choose=late)
        found, expected = net.agents[0]._ahead, min(staging, ring, depth)
        assert found == expected, (
            f"staging for {staging}, ring for {ring}, depth {depth}: {found} blocks under way, "
            f"expected {expected}"
        )


# ---- rendezvous ----------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 8])
@pytest.mark.parametrize("size", [0, 1, 16, 17, 70])
def test_data_is_read_in_any_order_of_events(kata, oracle, size, depth, seed):
    for choose in orders(oracle, seed, 3):
        rendezvous(kata, oracle, size, size + 3, depth, choose=choose)


def test_data_go_from_gpu_to_gpu(kata, oracle, cost):
    net = rendezvous(kata, oracle, 4096, depth=16, max_read=256)
    touched = sum(end._counts["host_bytes"] for end in net.agents)
    cost.check("host_bytes", touched / (4096 * 8))


def test_the_other_side_reads_by_itself(kata, oracle, cost):
    counts = rendezvous(kata, oracle, 160).agents[0]._counts
    cost.check("sender_requests", counts["requests"] + counts["receives"])


# ---- both ----------------------------------------------------------------------------------


def test_nothing_more_is_exposed_than_is_needed(kata, oracle):
    for net, allowed in (
        (stream(kata, oracle, 5), [set(), {("ring", "REMOTE_WRITE")}]),
        (rendezvous(kata, oracle, 20), [{("data", "REMOTE_READ")}, set()]),
    ):
        for end, expected in zip(net.agents, allowed, strict=True):
            found = {
                (mr.name, right)
                for mr in end._registered
                for right in mr.access
                if right.startswith("REMOTE")
            }
            assert found == expected, f"{end}: remote rights {found}, expected {expected}"


def test_a_buffer_is_registered_once(kata, oracle):
    for net in (stream(kata, oracle, 40), rendezvous(kata, oracle, 100)):
        for end in net.agents:
            names = [mr.name for mr in end._registered]
            assert len(names) == len(set(names)), f"{end} registered {names}, each once expected"


def test_each_side_uses_one_queue_pair(kata, oracle):
    for net in (stream(kata, oracle, 5), rendezvous(kata, oracle, 20)):
        made = sorted(str(qp) for qp in net.qps.values())
        assert len(made) == 2, f"queue pairs made: {made}, expected one on each side"


# ---- times ---------------------------------------------------------------------------------


def test_a_mebibyte_over_pcie_5_and_ndr(kata):
    # 64 GB/s, 50 GB/s, and host memory that is fast enough
    whole = kata.bounce_time(2**20, 2**20, 64e9, 50e9, 1e12)
    assert whole == pytest.approx(53.7395e-6, rel=1e-5), f"found {whole}, expected 53.74 us"
    # four chunks: 4.096 + 4 * 5.24288 + 4.096 us
    chunked = kata.bounce_time(2**20, 2**18, 64e9, 50e9, 1e12)
    assert chunked == pytest.approx(29.16352e-6, rel=1e-5), f"found {chunked}, expected 29.16 us"
    direct = kata.gpudirect_time(2**20, 64e9, 50e9)
    assert direct == pytest.approx(20.97152e-6, rel=1e-5), f"found {direct}, expected 20.97 us"
    # host memory of 60 GB/s, written and read at once: 30 GB/s for all three
    slow = kata.bounce_time(3000, 1000, 64e9, 50e9, 60e9)
    assert slow == pytest.approx(5000 / 30e9), f"found {slow}, expected {5000 / 30e9}"


RATE = st.floats(1, 100)


@given(st.integers(0, 40), st.integers(1, 45), RATE, RATE, RATE)
@example(nbytes=0, chunk=1, pcie=1.0, nic=1.0, dram=1.0)
@example(nbytes=9, chunk=4, pcie=3.0, nic=1.0, dram=100.0)  # the short chunk waits for the wire
@example(nbytes=9, chunk=4, pcie=1.0, nic=3.0, dram=100.0)
def test_a_bounce_takes_as_long_as_its_chunks(kata, oracle, nbytes, chunk, pcie, nic, dram):
    found = kata.bounce_time(nbytes, chunk, pcie, nic, dram)
    host = min(pcie, dram / 2)
    expected = oracle.chunked(nbytes, chunk, host, min(nic, dram / 2), host)
    given_ = f"bounce_time({nbytes}, {chunk}, {pcie}, {nic}, {dram})"
    assert found == pytest.approx(expected, rel=1e-9), f"{given_}: {found}, expected {expected}"
    direct = kata.gpudirect_time(nbytes, pcie, nic)
    expected = max(nbytes / pcie, nbytes / nic)
    assert direct == pytest.approx(expected, rel=1e-9), f"{given_}: direct {direct}, {expected}"


@pytest.mark.parametrize(
    ("function", "args", "named"),
    [
        ("bounce_time", (-1, 4, 1.0, 1.0, 1.0), "nbytes"),
        ("bounce_time", (9, 0, 1.0, 1.0, 1.0), "chunk"),
        ("bounce_time", (9, 4, 0.0, 1.0, 1.0), "pcie"),
        ("bounce_time", (9, 4, 1.0, -1.0, 1.0), "nic"),
        ("bounce_time", (9, 4, 1.0, 1.0, 0.0), "dram"),
        ("bounce_time", (9, 4, 1.0, 1.0, math.nan), "dram"),
        ("bounce_time", (-1, 0, 0.0, 0.0, 0.0), "nbytes"),
        ("bounce_time", (9, 0, 0.0, 0.0, 0.0), "chunk"),
        ("bounce_time", (9, 4, math.nan, 0.0, 0.0), "pcie"),
        ("bounce_time", (9, 4, 1.0, 0.0, 0.0), "nic"),
        ("gpudirect_time", (-1, 0.0, 0.0), "nbytes"),
        ("gpudirect_time", (9, 0.0, 0.0), "pcie"),
        ("gpudirect_time", (9, 1.0, 0.0), "nic"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_arguments_are_refused(kata, function, args, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        getattr(kata, function)(*args)
