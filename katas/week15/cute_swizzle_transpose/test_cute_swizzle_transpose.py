"""Swizzles bit by bit, their conflicts by brute force, and the transpose that one of them makes."""

import random

import numpy as np
import pytest
from numba import cuda

# numba advises against launches that leave most of a GPU idle: small matrices are no harder
pytestmark = pytest.mark.filterwarnings("ignore:Grid size")

BLOCK = (32, 8)
SENTINEL = -99.0


def numbered(rows, cols):
    """Every element is different, and is exact in float32."""
    return np.arange(rows * cols, dtype=np.float32).reshape(rows, cols)


def all_swizzles(most=5):
    return [(b, m, s) for b in range(most + 1) for m in range(most + 1) for s in range(b, most + 1)]


# ---- swizzle -------------------------------------------------------------------------------


def test_the_rows_of_cutes_128_byte_swizzle(kata):
    place = kata.swizzle(3, 4, 3)  # rows of (8, 64):(64, 1)
    found = [place(64 * row) for row in range(8)]
    assert found == [0, 64, 144, 208, 288, 352, 432, 496]


def test_bits_are_xored_into_lower_ones(kata, oracle, seed):
    draw = random.Random(seed)
    for b, m, s in [*all_swizzles(), (3, 40, 30), (70, 2, 75)]:
        place = kata.swizzle(b, m, s)
        for offset in (0, 1, 2**60 + 2**5, 2**80 - 1, draw.getrandbits(12), draw.getrandbits(80)):
            expected = oracle.swizzled(b, m, s, offset)
            assert place(offset) == expected, (
                f"swizzle({b}, {m}, {s})({offset}): yours {place(offset)}, expected {expected}"
            )


def test_twice_is_the_identity(kata):
    for b, m, s in all_swizzles(4):
        place = kata.swizzle(b, m, s)
        found = [place(offset) for offset in range(256)]
        assert len(set(found)) == 256, f"swizzle({b}, {m}, {s}) is no permutation"
        assert [place(offset) for offset in found] == list(range(256)), f"swizzle({b}, {m}, {s})"


@pytest.mark.parametrize(
    ("name", "asked"),
    [("b", (-1, 0, 3)), ("m", (2, -1, 3)), ("s", (3, 0, 2)), ("s", (0, 0, -1))],
    ids=["b", "m", "s below b", "s below 0"],
)
def test_impossible_swizzles_are_refused(kata, name, asked):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.swizzle(*asked)
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.conflict_free(*asked, 4, (32, 32))


# ---- conflicts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elem_bytes", "tile"),
    [
        (4, (32, 32)),  # one swizzle of 126
        (4, (64, 32)),
        (4, (32, 64)),  # rows begin at bit 6
        (2, (32, 64)),  # two lanes share a word
        (2, (32, 32)),  # and no swizzle will do
        (1, (32, 128)),
        (8, (32, 32)),  # half a warp at a time
        (16, (32, 32)),
        (16, (64, 32)),
    ],
    ids=lambda value: str(value),
)
def test_all_swizzles_by_brute_force(kata, oracle, elem_bytes, tile):
    for b, m, s in all_swizzles():
        found = kata.conflict_free(b, m, s, elem_bytes, tile)
        expected = oracle.conflict_free(b, m, s, elem_bytes, tile)
        assert found is expected, (
            f"conflict_free({b}, {m}, {s}, {elem_bytes}, {tile}): yours {found}, "
            f"expected {expected}"
        )


def test_wide_rows_need_a_longer_shift(kata):
    assert kata.conflict_free(5, 0, 8, 4, (32, 256)) is True
    assert kata.conflict_free(5, 0, 7, 4, (32, 256)) is False


@pytest.mark.parametrize(
    ("name", "elem_bytes", "tile"),
    [
        ("elem_bytes", 3, (32, 32)),
        ("elem_bytes", 32, (32, 32)),
        ("tile", 4, (16, 32)),
        ("tile", 4, (32, 16)),
        ("tile", 4, (32, 48)),
        ("tile", 4, (96, 32)),
    ],
    ids=["3 bytes", "32 bytes", "16 rows", "16 columns", "48 columns", "96 rows"],
)
def test_other_tiles_are_refused(kata, name, elem_bytes, tile):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.conflict_free(5, 0, 5, elem_bytes, tile)


# ---- the transpose -------------------------------------------------------------------------


def test_bits_of_a_nan_stay(kata):
    """A signalling one is quiet after any arithmetic; so 0x7F80_0001 becomes 0x7FC0_0001."""
    bits = np.array([[0x7F80_0001, 0xFFC1_2345], [0x8000_0000, 0x0000_0001]], dtype=np.uint32)
    found = kata.cute_swizzle_transpose(cuda.to_device(bits.view(np.float32))).copy_to_host()
    assert found.view(np.uint32).tolist() == bits.T.tolist()


def test_views_with_gaps_are_read_and_written_in_place(kata):
    whole = cuda.to_device(numbered(40, 70))
    frame = cuda.to_device(np.full((80, 50), SENTINEL, dtype=np.float32))
    out = frame[7:68, 9:43]
    kata.cute_swizzle_transpose(whole[3:37, 5:66], out=out)
    found, expected = frame.copy_to_host(), np.full((80, 50), SENTINEL, dtype=np.float32)
    expected[7:68, 9:43] = numbered(40, 70)[3:37, 5:66].T
    np.testing.assert_array_equal(found, expected)


def test_a_new_result_is_contiguous(kata):
    """A transposed view of a new array has the values, but its rows lie apart."""
    found = kata.cute_swizzle_transpose(cuda.to_device(numbered(2, 3)))
    assert found.strides == (8, 4)
    assert found.copy_to_host().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_out_is_returned(kata):
    out = cuda.to_device(np.zeros((3, 2), dtype=np.float32))
    assert kata.cute_swizzle_transpose(cuda.to_device(numbered(2, 3)), out=out) is out
    assert out.copy_to_host().tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_threads_may_run_in_any_order(kata, simt, order):
    x, out = numbered(32, 64), np.zeros((64, 32), dtype=np.float32)
    with simt(order=order):
        kata.transpose[(2, 1), BLOCK](x, out)
    np.testing.assert_array_equal(out, x.T, err_msg=f"with the threads in {order} order")


def test_both_global_sides_are_coalesced(kata, simt, cost):
    x, out = numbered(32, 64), np.zeros((64, 32), dtype=np.float32)
    with simt() as counted:
        kata.transpose[(2, 1), BLOCK](x, out)
    np.testing.assert_array_equal(out, x.T)
    cost.check("load_sectors", counted.global_load.sectors_per_request)
    cost.check("store_sectors", counted.global_store.sectors_per_request)


def test_the_tile_has_no_bank_conflicts(kata, simt, cost):
    x, out = numbered(32, 32), np.zeros((32, 32), dtype=np.float32)
    with simt() as counted:
        kata.transpose[(1, 1), BLOCK](x, out)
    np.testing.assert_array_equal(out, x.T)
    moved = (counted.shared_store.elements, counted.shared_load.elements)
    assert moved == (x.size, x.size), "each element goes into the tile once and out of it once"
    worst = max(counted.shared_load.max_wavefronts, counted.shared_store.max_wavefronts)
    cost.check("bank_conflicts", worst)


def test_the_tile_is_not_padded(kata, simt, cost):
    x, out = numbered(32, 32), np.zeros((32, 32), dtype=np.float32)
    with simt() as counted:
        kata.transpose[(1, 1), BLOCK](x, out)
    np.testing.assert_array_equal(out, x.T)
    cost.check("shared_bytes", counted.shared_bytes)


def test_one_barrier_for_each_tile(kata, simt, cost):
    x, out = numbered(32, 64), np.zeros((64, 32), dtype=np.float32)
    with simt() as counted:
        kata.transpose[(2, 1), BLOCK](x, out)
    np.testing.assert_array_equal(out, x.T)
    cost.check("barriers", counted.barriers_per_block)


def test_threads_beyond_the_edge_come_to_the_barrier(kata, simt):
    x, out = numbered(33, 31), np.zeros((31, 33), dtype=np.float32)
    with simt() as counted:
        kata.transpose[(1, 2), BLOCK](x, out)
    np.testing.assert_array_equal(out, x.T)
    assert counted.exited_before_barrier == 0
