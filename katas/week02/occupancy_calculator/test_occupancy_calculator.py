"""Resident blocks by hand, by the profiler and by placing warps; and the best block size."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

ARCHITECTURES = st.sampled_from(["sm_75", "sm_80", "sm_89", "sm_90"])
KIB = 1024


@pytest.mark.parametrize(
    ("threads", "regs", "smem", "blocks", "warps", "limiter"),
    [  # sm_90
        (256, 32, 0, 8, 64, "warps"),  # registers allow 8 blocks as well
        (256, 40, 0, 6, 48, "registers"),  # 1280 a warp, 12 in a partition
        (128, 33, 0, 12, 48, "registers"),  # 33 cost as much as 40
        (1024, 33, 0, 1, 32, "registers"),  # one register more, half the warps
        (512, 64, 0, 2, 32, "registers"),  # the example of the CUDA guide
        (512, 65, 0, 1, 16, "registers"),  # and what it warns of
        (128, 255, 0, 2, 8, "registers"),  # 8192 a warp, 2 in a partition
        (96, 40, 0, 16, 48, "registers"),  # the four remainders of 1024 do not make a warp
        (32, 16, 0, 32, 32, "blocks"),
        (64, 16, 0, 32, 64, "warps"),  # blocks would do as well
        (256, 32, 100 * KIB, 2, 16, "smem"),
        (256, 32, 227 * KIB, 1, 8, "smem"),
        (512, 64, 112 * KIB, 2, 32, "registers"),  # shared memory allows 2 as well
    ],
)
def test_hand_numbers(kata, threads, regs, smem, blocks, warps, limiter):
    found = kata.occupancy(threads, regs, smem, kata.LIMITS["sm_90"])
    expected = kata.Occupancy(blocks=blocks, warps=warps, fraction=warps / 64, limiter=limiter)
    assert found == expected


@pytest.mark.parametrize(("arch", "warps"), [("sm_75", 32), ("sm_80", 64), ("sm_89", 48)])
def test_places_for_warps(kata, arch, warps):
    """256 threads of 32 registers fill any SM."""
    found = kata.occupancy(256, 32, 0, kata.LIMITS[arch])
    assert (found.warps, found.fraction, found.limiter) == (warps, 1.0, "warps")


@pytest.mark.parametrize(
    ("changes", "kernel", "blocks", "limiter"),
    [  # an sm_90 in which these numbers are others
        ({"partitions": 1}, (96, 40, 0), 17, "registers"),  # 51 warps of 1280, not 4 * 12
        ({"register_unit": 512}, (128, 33, 0), 10, "registers"),  # 1536 a warp, 10 in a partition
        ({"registers": 32 * KIB}, (256, 32, 0), 4, "registers"),
        ({"smem_reserved": 8 * KIB}, (32, 16, 0), 28, "smem"),  # 228 // 8, and nothing asked for
        (  # 10,000 + 100 in portions are 10,240; in portions first, 10,340
            {"smem_bytes": 60 * KIB, "smem_unit": 256, "smem_reserved": 100},
            (128, 32, 10_000), 6, "smem",
        ),
        ({"smem_bytes": 227 * KIB}, (128, 32, 227 * KIB), 0, "smem"),  # no room for the reserve
    ],
)  # fmt: skip
def test_numbers_are_those_of_the_architecture(kata, changes, kernel, blocks, limiter):
    found = kata.occupancy(*kernel, replace(kata.LIMITS["sm_90"], **changes))
    assert (found.blocks, found.limiter) == (blocks, limiter)


def test_part_of_a_warp_is_a_warp(kata):
    found = kata.occupancy(33, 16, 0, kata.LIMITS["sm_90"])
    assert (found.blocks, found.warps, found.fraction) == (32, 64, 1.0)


def test_block_that_does_not_fit(kata):
    """1024 threads of 65 registers may be asked for, but 28 warps fit where 32 must."""
    found = kata.occupancy(1024, 65, 0, kata.LIMITS["sm_90"])
    assert found == kata.Occupancy(blocks=0, warps=0, fraction=0.0, limiter="registers")


@pytest.mark.parametrize(
    ("arch", "most", "blocks"),
    [  # the shared memory with which every place for blocks is still taken
        ("sm_75", 4096, 16),  # 65536 / 16
        ("sm_80", 4224, 32),  # 167936 / 32 = 5248 = 41 * 128, of which 1024 are reserved
        ("sm_89", 3200, 24),  # 102400 / 24 = 4266, in portions 4224 = 33 * 128
        ("sm_90", 6272, 32),  # 233472 / 32 = 7296 = 57 * 128
    ],
)
def test_one_byte_more_is_one_block_less(kata, arch, most, blocks):
    limits = kata.LIMITS[arch]
    found = [kata.occupancy(32, 16, smem, limits).blocks for smem in (most, most + 1)]
    assert found == [blocks, blocks - 1]


def test_agrees_with_the_profiler(kata, oracle):
    limits = kata.LIMITS["sm_90"]
    found = {kernel: 100 * kata.occupancy(*kernel, limits).fraction for kernel in oracle.PROFILED}
    assert found == oracle.PROFILED


def test_agrees_with_the_driver(kata, oracle):
    limits = kata.LIMITS["sm_90"]
    assert {smem: kata.occupancy(128, 16, smem, limits).blocks for smem in oracle.DRIVER} == (
        oracle.DRIVER
    )


@given(
    arch=ARCHITECTURES,
    threads=st.integers(1, 1024),
    regs=st.integers(1, 255),
    smem=st.integers(0, 64 * KIB),
)
def test_agrees_with_placing_warps(kata, oracle, arch, threads, regs, smem):
    limits = kata.LIMITS[arch]
    blocks = oracle.resident_blocks(threads, regs, smem, limits)
    found = kata.occupancy(threads, regs, smem, limits)
    warps = blocks * -(-threads // 32)
    assert (found.blocks, found.warps, found.fraction) == (blocks, warps, warps / limits.warps)


# ---- the best block size -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("regs", "best"),
    [
        (32, 1024),  # many sizes fill the SM
        (40, 768),  # 48 warps are two blocks of 24; 1024 threads would leave 16 of them out
        (72, 896),  # 28 warps: one block
    ],
)
def test_largest_of_the_best_sizes(kata, regs, best):
    assert kata.best_block_size(regs, lambda threads: 0, kata.LIMITS["sm_90"]) == best


def test_no_size_does_better(kata, oracle):
    """With shared memory that does not depend on the size, broken warps gain nothing."""
    for arch, regs, smem in (("sm_75", 48, 5000), ("sm_89", 33, 12_000), ("sm_90", 80, 30_000)):
        limits = kata.LIMITS[arch]
        smem_fn = dict.fromkeys(range(1, 1025), smem).__getitem__
        warps = oracle.warps_by_size(kata.occupancy, range(1, 1025), regs, smem_fn, limits)
        best = kata.best_block_size(regs, smem_fn, limits)
        assert warps[best] == max(warps.values())


@given(arch=ARCHITECTURES, regs=st.integers(1, 255), smem=st.lists(st.integers(0, 12), max_size=15))
@example(arch="sm_90", regs=32, smem=[])
@example(arch="sm_90", regs=32, smem=[0, 5, 5])  # full at 128 threads, not at 160, and at 1024
def test_shared_memory_of_any_shape(kata, oracle, arch, regs, smem):
    limits = kata.LIMITS[arch]
    ninths = [*smem, 9]  # of what a block may have: 10 are too many, 9 are not

    def smem_fn(threads):
        return limits.smem_block_bytes * ninths[threads // 32 % len(ninths)] // 9

    sizes = range(32, 1025, 32)
    warps = oracle.warps_by_size(kata.occupancy, sizes, regs, smem_fn, limits)
    best = max(warps, key=lambda threads: (warps[threads], threads))
    assert kata.best_block_size(regs, smem_fn, limits) == best


def test_sizes_with_too_much_shared_memory_are_passed_over(kata):
    """512 bytes a thread: 454 threads may have the 227 KiB, and 448 of them are whole warps."""
    assert kata.best_block_size(32, lambda threads: 512 * threads, kata.LIMITS["sm_90"]) == 448


def test_best_block_size_asks_seldom(kata, cost):
    asked = []

    def smem_fn(threads):
        asked.append(threads)
        return 40 * threads

    assert kata.best_block_size(32, smem_fn, kata.LIMITS["sm_90"]) == 1024
    cost.check("evaluations", len(asked))


def test_what_smem_fn_raises_goes_through(kata):
    def smem_fn(threads):
        if threads == 96:
            raise ValueError("three warps have no tile")
        return 0

    with pytest.raises(ValueError, match="three warps"):
        kata.best_block_size(32, smem_fn, kata.LIMITS["sm_90"])


@pytest.mark.parametrize("at_1024", [227 * KIB + 1, 0], ids=["no_memory", "no_registers"])
def test_no_size_can_be_launched(kata, at_1024):
    """Below 1024 threads always too much shared memory; at 1024 too, or 65 registers are."""
    with pytest.raises(ValueError, match="smem_fn"):
        kata.best_block_size(
            65, lambda threads: at_1024 if threads == 1024 else 300_000, kata.LIMITS["sm_90"]
        )


# ---- launches that would fail --------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, -32, 1025])
def test_threads_of_a_block(kata, threads):
    with pytest.raises(ValueError, match="threads"):
        kata.occupancy(threads, 32, 0, kata.LIMITS["sm_90"])


@pytest.mark.parametrize("regs", [0, -1, 256])
def test_registers_of_a_thread(kata, regs):
    with pytest.raises(ValueError, match="regs_per_thread"):
        kata.occupancy(128, regs, 0, kata.LIMITS["sm_90"])
    with pytest.raises(ValueError, match="regs_per_thread"):
        kata.best_block_size(regs, lambda threads: 0, kata.LIMITS["sm_90"])


# more than a block may have, though the SM has it: 100 KiB, of which 99 are for one block
@pytest.mark.parametrize(("arch", "smem"), [("sm_90", -1), ("sm_89", 99 * KIB + 1)])
def test_shared_memory_of_a_block(kata, arch, smem):
    with pytest.raises(ValueError, match="smem_bytes"):
        kata.occupancy(128, 32, smem, kata.LIMITS[arch])
