"""One cycle and no shorter one, a walk along it, ladders with known knees, and real clocks."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda, njit

# one thread is the point here
pytestmark = pytest.mark.filterwarnings("ignore:Grid size")

EIGHT = np.array([5, 3, 7, 6, 1, 2, 0, 4], dtype=np.int32)  # the cycle drawn in the README
PROFILE = [(18.0, 6), (115.0, 9), (305.0, 4)]  # 33, 210 and 560 cycles at 1.83 GHz


# ---- the cycle -----------------------------------------------------------------------------


# a slot that points to itself, one pair, two possible cycles, and a size that hides short cycles
@pytest.mark.parametrize("n", [1, 2, 3, 2**16])
def test_one_lap_visits_every_slot(kata, oracle, n):
    nxt = kata.one_cycle(n, seed=3)
    assert (nxt.dtype, nxt.shape) == (np.int32, (n,))
    visited, end = oracle.laps(nxt)
    assert (len(visited), end) == (n, 0)


@given(n=st.integers(1, 40), seed=st.integers(0, 2**32 - 1))
def test_it_is_one_cycle_whatever_the_seed(kata, oracle, n, seed):
    visited, end = oracle.laps(kata.one_cycle(n, seed))
    assert (sorted(visited), end) == (list(range(n)), 0)


def test_all_cycles_are_alike(kata):
    """Six cycles through four slots: each 100 of 600 times, give or take 9."""
    drawn = Counter(tuple(kata.one_cycle(4, seed).tolist()) for seed in range(600))
    assert len(drawn) == 6
    assert min(drawn.values()) > 50


def test_next_slot_may_be_anywhere(kata):
    """Two random slots of n are n / 3 apart on the average; of a million, to within 0.1 %."""
    n = 2**20
    apart = np.abs(kata.one_cycle(n, seed=8) - np.arange(n)).mean()
    assert math.isclose(apart, n / 3, rel_tol=0.01)


def test_seed_decides(kata):
    first, again, other = (kata.one_cycle(100, seed).tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_cycle_without_slots_is_refused(kata):
    for n in (0, -1):
        with pytest.raises(ValueError, match=r"\bn\b"):
            kata.one_cycle(n, 0)


# ---- the walk ------------------------------------------------------------------------------


def test_chase_compiles_and_follows_the_cycle(kata):
    walk = njit(kata.chase)
    assert [walk(EIGHT, 0, steps) for steps in range(9)] == [0, 5, 2, 7, 4, 1, 3, 6, 0]
    assert walk(EIGHT, 7, 8 * 10**6 + 3) == 3
    leads_in = np.array([1, 2, 3, 4, 2], dtype=np.int32)  # two slots, then a cycle of three
    assert walk(leads_in, 0, 5000) == 2


def test_chase_on_the_device(kata, oracle):
    out = cuda.to_device(np.zeros(1, dtype=np.int32))
    oracle.walker(kata.chase)[1, 1](cuda.to_device(EIGHT), 5, 3, out)
    assert out.copy_to_host().tolist() == [4]


def test_one_load_a_step(kata, oracle, simt, cost):
    out = np.zeros(1, dtype=np.int32)
    with simt() as counted:
        oracle.walker(kata.chase)[1, 1](EIGHT, 5, 1000, out)
    assert out.tolist() == [5], "125 laps end where they began"
    cost.check("accesses", counted.of(EIGHT).load.elements)


def test_no_prefetcher_follows(kata, oracle, cost):
    chased_ns, streamed_ns = oracle.cpu_ns_per_line(kata.chase, kata.one_cycle(2**20, seed=5))
    cost.check("latency_over_stream", chased_ns / streamed_ns)


def test_ladder_of_a_gpu(kata, oracle, device):
    if device == "cpu":
        pytest.skip("the ladder of a GPU needs one")
    l1, l2, hbm = (
        oracle.gpu_ns_per_load(kata.chase, kata.one_cycle(size // 128, seed=5))
        for size in (64 * 2**10, 16 * 2**20, 2**30)
    )
    assert l2 >= 3 * l1, f"64 KiB: {l1:.0f} ns, 16 MiB: {l2:.0f} ns"
    assert hbm >= 1.4 * l2, f"16 MiB: {l2:.0f} ns, 1 GiB: {hbm:.0f} ns"


# ---- the knees -----------------------------------------------------------------------------


def test_knees_by_hand(kata):
    sizes = [16, 32, 64, 128, 256, 512, 1024]
    assert kata.knees(sizes, [5.0, 5.1, 5.2, 20.0, 20.5, 90.0, 91.0]) == [64, 256]
    # 128 lies on a step, and 32 was disturbed
    assert kata.knees(sizes, [5.0, 8.0, 5.2, 20.0, 90.0, 90.5, 91.0]) == [64]
    # 1024 alone is no level, so that nothing ends the one before
    assert kata.knees(sizes, [5.0, 5.1, 5.2, 20.0, 20.5, 20.2, 90.0]) == [64]
    # nor is 16, with nothing else as fast
    assert kata.knees(sizes, [5.0, 20.5, 20.2, 20.0, 90.0, 90.5, 91.0]) == [128]
    # at the limits: 5 % either way of 20, half as much again, and 256 on a step of 29 % and 27 %
    assert kata.knees(sizes, [19.0, 21.0, 31.0, 31.0, 40.0, 51.0, 51.0]) == [32, 128]


# a disturbed size at the start, before the last of a level, in the last level, and seven together
@pytest.mark.parametrize(
    "disturbed", [(), (0,), (4,), (13,), (17,), tuple(range(7, 14)), (0, 8, 17)]
)
@pytest.mark.parametrize("steps", [(), (0,), (0, 1)])
def test_knees_of_a_profile(kata, oracle, seed, steps, disturbed):
    sizes, ns, knees = oracle.ladder(
        PROFILE, noise=0.05, steps=steps, disturbed=disturbed, seed=seed
    )
    assert kata.knees(sizes, ns) == knees


@given(
    first=st.floats(1, 50),
    levels=st.lists(st.tuples(st.floats(1.5, 8), st.integers(2, 6)), min_size=1, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_knees_of_any_ladder(kata, oracle, first, levels, seed):
    latencies = first * np.cumprod([rise for rise, _ in levels])
    counted = [(ns, count) for ns, (_, count) in zip(latencies, levels, strict=True)]
    sizes, ns, knees = oracle.ladder(counted, noise=0.05, seed=seed)
    assert kata.knees(sizes, ns) == knees


def test_flat_memory_has_no_knee(kata):
    assert kata.knees([16, 32, 64, 128], [5.0, 5.2, 4.9, 5.1]) == []
    assert kata.knees([], []) == []


@pytest.mark.parametrize("sizes", [[16, 16, 32], [16, 64, 32]])
def test_sizes_must_ascend(kata, sizes):
    with pytest.raises(ValueError, match="sizes_bytes"):
        kata.knees(sizes, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("ns", [[1.0], [1.0, 2.0, 3.0]])
def test_every_size_has_a_latency(kata, ns):
    with pytest.raises(ValueError, match="ns_per_load"):
        kata.knees([16, 32], ns)


# ---- Little's law --------------------------------------------------------------------------


def test_bytes_in_flight(kata):
    in_flight = kata.bytes_in_flight(600e-9, 3.35e12)  # an H100: 2.01 MB
    assert math.isclose(in_flight, 2.01e6, rel_tol=1e-12)
    assert math.isclose(in_flight / 132, 15.2e3, rel_tol=0.005)  # for each of its SMs
