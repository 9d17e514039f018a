"""Blocks that wait for each other: whoever is first, late or not there yet, and what is exact."""

import pytest
import torch

from harness.judge import assert_matches
from harness.meters.dispatch import alive_bytes

INF, NAN = float("inf"), float("nan")


@pytest.fixture
def scan(kata, oracle, seed):
    """The kata's function, its programs taking turns by a plan of this test's seed."""

    def planned(x, block, **plan):
        with oracle.planned(seed=plan.pop("seed", seed), **plan):
            return kata.lookback_scan(x, block)

    return planned


def numbers(n, seed, device="cpu"):
    """Whole numbers whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-99, 100, (n,), generator=generator).float().to(device)


def assert_exact(got, x, told):
    want = x.double().cumsum(0).to(x.dtype)
    wrong = (got != want).nonzero().flatten().tolist()
    first = wrong[0] if wrong else None
    assert first is None, (
        f"{told}: {len(wrong)} sums off, the first at {first}: found {got[first]}, "
        f"expected {want[first]}"
    )


def test_nothing_is_kept_for_the_next_call(scan, device, seed):
    # the first call of as many blocks: whatever a shorter one has left does not do
    x = numbers(40, seed, device)
    before = alive_bytes()
    y = scan(x, 1, residents=1)
    kept = alive_bytes() - before - y.nbytes
    assert kept == 0, f"40 blocks: {kept} bytes are held once the call has returned"


# ---- turns ---------------------------------------------------------------------------------


@pytest.mark.parametrize("residents", [1, 2, 13])
def test_programs_start_in_any_order_and_some_are_slow(scan, device, seed, residents):
    x = numbers(51, seed, device)
    for at in range(2):
        y = scan(x, 4, seed=seed + at, residents=residents)
        assert_exact(y, x, f"13 blocks, {residents} programs at once, plan {seed + at}")


def test_a_block_publishes_its_sum_before_it_waits(scan, device, seed):
    if device != "cpu":
        pytest.skip("turns are given in Triton's interpreter: pytest --device cpu")
    found = []
    x = numbers(32, seed)

    def held_up(others):
        found.extend(one.changes for one in others)

    y = scan(x, 4, residents=8, stalled=0, after=1, held_up=held_up)
    assert min(found) >= 2, (
        f"8 blocks, the first of which stands still with its ticket: expected of each of the "
        f"others a ticket and a sum, found changes of memory: {found}"
    )
    assert_exact(y, x, "8 blocks, the first of which was late")


@pytest.mark.parametrize("stalled", [0, 1], ids=["first", "second"])
def test_a_block_that_has_only_its_own_sum_holds_nobody_up(scan, device, seed, stalled):
    if device != "cpu":
        pytest.skip("turns are given in Triton's interpreter: pytest --device cpu")
    found = []
    x = numbers(32, seed)
    x[:8] = 0  # whatever is taken for a sum before the first block shows

    def held_up(others):
        found.extend(one.ended for one in others)

    y = scan(x, 4, residents=8, stalled=stalled, after=2, held_up=held_up)
    assert all(found), (
        f"8 blocks, of which block {stalled} stands still once it has published its sum: expected "
        f"the 7 others to end, found {found.count(True)}"
    )
    assert_exact(y, x, f"8 blocks, of which block {stalled} was late")


def test_a_block_publishes_its_prefix(scan, device, seed):
    if device != "cpu":
        pytest.skip("turns are given in Triton's interpreter: pytest --device cpu")
    found = []

    def held_up(others):
        found.extend(one.changes for one in others)

    scan(numbers(32, seed), 4, residents=8, stalled=1, after=2, held_up=held_up)
    # the first block may publish once, and for the last one nobody waits
    told = [changes for changes in found if changes >= 4]
    assert len(told) >= 5, (
        f"8 blocks: expected a ticket, a sum, a prefix and a result of all but the first, the last "
        f"and the one that stands still, found changes of memory: {found}"
    )


def test_looking_back_over_many_sums(scan, device, seed):
    # all publish their sums before anybody looks back, over more words than 8 warps have threads
    x = numbers(260, seed, device)
    assert_exact(scan(x, 1, residents=260, even=True), x, "260 blocks of one element")


# ---- sums ----------------------------------------------------------------------------------


def test_sums_are_float32(scan, device):
    # float16 has no odd numbers above 2048: neither the 2557 of the first block nor what follows
    x = torch.full((2600,), 5.0, dtype=torch.float16, device=device)
    x[0] = 2
    assert_exact(scan(x, 512), x, "2 and 2599 times 5")


def test_whole_numbers_up_to_24_bits_are_exact(scan, device):
    # sums of up to 2²⁴ - 1: every bit of a float32 counts when it is handed on
    x = torch.full((65,), 2.0**18 - 1, device=device)
    x[64] = 63.0
    assert_exact(scan(x, 8), x, "64 times 2¹⁸ - 1, and 63")


@pytest.mark.parametrize("value", [NAN, INF])
def test_nan_and_infinity_reach_nothing_before_them(scan, device, seed, value):
    x = numbers(64, seed, device)
    want = x.double().cumsum(0)
    x[21] = value
    want[21:] = value
    assert_matches(scan(x, 8), want, same_precision=want.float())


# ---- memory --------------------------------------------------------------------------------


def test_each_element_is_read_once(kata, oracle, seed, traffic):
    x = numbers(100, seed)
    with traffic() as moved, oracle.planned(seed=seed, residents=4):
        kata.lookback_scan(x, 16)
    loaded = moved.of(x).loaded_bytes
    assert loaded == x.nbytes, f"x: expected {x.nbytes} bytes, loaded {loaded}"


def test_little_is_allocated_beside_the_result(scan, device, seed, dispatch):
    x = numbers(1200, seed, device)[::3]
    with dispatch() as ops:
        y = scan(x, 8, residents=1)
    room = y.nbytes + 50 * 16 + 256  # 16 bytes for each block, and a little for counters
    assert ops.allocated_bytes <= room, (
        f"400 numbers with gaps between, 50 blocks: expected at most {room} bytes, allocated "
        f"{ops.allocated_bytes}"
    )
    assert y.is_contiguous()


# ---- errors --------------------------------------------------------------------------------


def test_bfloat16_on_the_cpu_is_refused(kata):
    with pytest.raises(ValueError, match="^x: "):
        kata.lookback_scan(torch.zeros(3, dtype=torch.bfloat16))
