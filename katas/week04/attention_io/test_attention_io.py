"""Byte counts against the algorithms executed, hand numbers, and tiles against trying them all."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

KIB = 1024


@pytest.mark.parametrize(("n", "d", "itemsize"), [(1, 1, 2), (8, 2, 1), (9, 4, 4)])
def test_standard_attention_moves_its_scores_four_times(kata, oracle, n, d, itemsize):
    assert kata.standard_bytes(n, d, itemsize) == oracle.traffic(oracle.standard, n, d, itemsize)


@pytest.mark.parametrize("algorithm", ["flash1", "flash2"])
@settings(max_examples=15)
@example(n=1, d=1, br=1, bc=1, itemsize=2)
@example(n=9, d=2, br=4, bc=4, itemsize=2)  # one row past a tile
@example(n=11, d=3, br=3, bc=5, itemsize=4)  # both last tiles ragged, by different amounts
@example(n=6, d=4, br=16, bc=16, itemsize=2)  # tiles longer than the sequence
@example(n=7, d=2, br=1, bc=7, itemsize=2)  # one query at a time, all keys at once
@given(
    n=st.integers(1, 20),
    d=st.integers(1, 4),
    br=st.integers(3, 24),
    bc=st.integers(3, 24),
    itemsize=st.sampled_from([1, 2, 4]),
)
def test_flash_attention_moves_what_its_algorithm_moves(
    kata, oracle, algorithm, n, d, br, bc, itemsize
):
    expected = oracle.traffic(getattr(oracle, algorithm), n, d, itemsize, br, bc)
    assert getattr(kata, f"{algorithm}_bytes")(n, d, br, bc, itemsize) == expected


def test_bytes_of_a_real_head_by_hand(kata):
    # n = 4096, d = 64, fp16: a matrix of 512 KiB, scores of 32 MiB, statistics of 16 KiB
    assert kata.standard_bytes(4096, 64, 2) == (4 * 512 + 4 * 32 * KIB) * KIB
    # 32 passes of 3 matrices and 4 statistics; 3 matrices and 2 statistics outside of them
    assert kata.flash1_bytes(4096, 64, 64, 128, 2) == (32 * (1536 + 64) + 1536 + 32) * KIB
    # 32 passes of 2 matrices; 2 matrices and a statistic outside
    assert kata.flash2_bytes(4096, 64, 128, 64, 2) == (32 * 1024 + 1024 + 16) * KIB


def test_counts_past_the_digits_of_a_float_are_exact(kata, lines):
    # tiles of 2^54 rows, and one row more: as floats they are equal. With d = 1 in fp16 a matrix
    # is 2n bytes, a statistic 4n
    tile, n = 2**54, 2**54 + 1
    assert kata.standard_bytes(n, 1, 2) == 8 * n * (n + 1)
    # 2 passes, and what moves outside of them: 3 matrices and 2 statistics, or 2 and 1
    assert kata.flash1_bytes(n, 1, tile, tile, 2) == (2 * (3 * 2 + 4 * 4) + 3 * 2 + 2 * 4) * n
    assert kata.flash2_bytes(n, 1, tile, tile, 2) == (2 * (2 * 2) + 2 * 2 + 4) * n
    assert kata.fa1_tiles(4 * tile + 1, 1) == (1, n)
    assert kata.score_matrix_bytes(1, 1, n, 2) == 2 * n * n
    assert kata.smem_bytes(n, 1, 1, 1) == n + 2
    # two passes of this many rows, beside which 2 x 16 fit and not one row more
    rows = 2**57 + 48
    with lines(limit=10_000):  # whoever tries them all would never be done
        found = kata.best_tiles(2 * rows, 1, 1, rows + 32)
    assert found == (rows, 16)


def test_tiles_of_flash1_follow_the_paper(kata):
    assert kata.fa1_tiles(49_152, 64) == (64, 192)  # 192 KiB of float32
    assert kata.fa1_tiles(8_192, 128) == (16, 16)
    assert kata.fa1_tiles(1_000, 64) == (4, 4)  # 3.9, rounded up


def test_twice_the_sram_halves_the_passes_of_flash1(kata):
    n, d = 8192, 64
    outside = 3 * n * d * 2 + 2 * n * 4  # k, v, and the first o, l and m

    def passes_bytes(sram_elements):
        return kata.flash1_bytes(n, d, *kata.fa1_tiles(sram_elements, d), 2) - outside

    assert passes_bytes(32_768) == 2 * passes_bytes(65_536)


def test_milestone_score_matrix_of_64_heads(kata):
    assert kata.score_matrix_bytes(1, 64, 8192, 2) == 8 * KIB**3
    assert kata.score_matrix_bytes(3, 2, 10, 4) == 2400


def test_milestone_shared_memory_of_a_tile(kata):
    used = kata.smem_bytes(128, 128, 128, 2)
    assert used == 96 * KIB
    assert [gpu for gpu, limit in kata.SRAM_BYTES.items() if used <= limit] == ["A100", "H100"]
    # a second stage is a second tile of K and of V, not of Q
    assert kata.smem_bytes(128, 128, 128, 2, stages=2) == 160 * KIB
    assert kata.smem_bytes(64, 32, 128, 2, stages=3) == 64 * KIB


def test_best_tiles_by_hand(kata):
    # H100: 908 rows of 256 bytes. Beside 2 x 16 of them q has 864: 10 passes, which 832 make too;
    # 76 are left, 38 each for k and v. T4: 256 rows, 224 for q, 37 passes, as many as it needs
    assert kata.best_tiles(8192, 128, 2, kata.SRAM_BYTES["H100"]) == (832, 32)
    assert kata.best_tiles(8192, 128, 2, kata.SRAM_BYTES["T4"]) == (224, 16)


@settings(max_examples=15)
@example(n=1, d=64, itemsize=2, stages=1, spare=50_000)  # one tile covers all
@example(n=100, d=64, itemsize=2, stages=1, spare=59_392)  # all of q fits, and k and v up to n
@example(n=512, d=64, itemsize=2, stages=1, spare=0)  # the smallest tiles fit exactly
@example(n=777, d=32, itemsize=4, stages=3, spare=35_664)  # an odd limit, and three stages
@given(
    n=st.integers(1, 400),
    d=st.integers(1, 64),
    itemsize=st.sampled_from([1, 2, 4]),
    stages=st.integers(1, 3),
    spare=st.integers(0, 60_000),
)
def test_best_tiles_are_those_of_an_exhaustive_search(kata, oracle, n, d, itemsize, stages, spare):
    sram_bytes = (16 + 2 * stages * 16) * d * itemsize + spare
    expected = oracle.best_tiles(n, d, itemsize, sram_bytes, stages)
    assert kata.best_tiles(n, d, itemsize, sram_bytes, stages) == expected


def test_best_tiles_without_trying_them_all(kata, lines, cost):
    # 1816 rows of 128 bytes: beside 2 x 16 of them q may have 1776, which makes 5 passes, as 1648
    # do, the smallest multiple of 16; 168 are left, 80 each for k and v
    with lines(limit=10_000) as counted:
        found = kata.best_tiles(8192, 64, 2, kata.SRAM_BYTES["H100"])
    assert found == (1648, 80)
    cost.check("lines", counted.lines)


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("standard_bytes", {"n": 8, "d": 8, "itemsize": 2}),
        ("flash1_bytes", {"n": 8, "d": 8, "br": 4, "bc": 4, "itemsize": 2}),
        ("flash2_bytes", {"n": 8, "d": 8, "br": 4, "bc": 4, "itemsize": 2}),
        ("fa1_tiles", {"sram_elements": 4096, "d": 8}),
        ("smem_bytes", {"br": 4, "bc": 4, "d": 8, "itemsize": 2, "stages": 1}),
        ("best_tiles", {"n": 8, "d": 8, "itemsize": 2, "sram_bytes": 65_536, "stages": 1}),
        ("score_matrix_bytes", {"batch": 1, "heads": 1, "n": 8, "itemsize": 2}),
    ],
)
def test_sizes_below_one_are_refused(kata, function, arguments, size):
    for name in arguments:
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            getattr(kata, function)(**arguments | {name: size})


def test_tiles_that_fit_nowhere_are_refused(kata):
    with pytest.raises(ValueError, match="sram_bytes"):
        kata.best_tiles(4096, 64, 2, 48 * 128 - 1)
