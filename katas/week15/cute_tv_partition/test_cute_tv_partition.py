"""Coverage of the tile, offsets against slices, vectors against loads that are tried out."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pycute import Layout


def numbering(shape, rows_first):
    return shape, (1, shape[0]) if rows_first else (shape[1], 1)


def numberings(sizes):
    return st.builds(numbering, st.tuples(sizes, sizes), st.booleans())


@st.composite
def tensors(draw, thr, val, most_padding=8):
    """Up to three tiles a side, row- or column-major, with padding."""
    rows, columns = (
        thr[0][axis] * val[0][axis] * draw(st.integers(1, 3), label=f"tiles along axis {axis}")
        for axis in (0, 1)
    )
    padding = draw(st.integers(0, most_padding))
    if draw(st.booleans()):
        return (rows, columns), (columns + padding, 1)
    return (rows, columns), (1, rows + padding)


THREADS = numberings(st.sampled_from([1, 2, 3, 4]))
VALUES = numberings(st.sampled_from([1, 2, 3, 4, 8]))
ROWS, COLUMNS = ((32, 8), (8, 1)), ((8, 32), (1, 8))  # 256 threads, 8 side by side


def table(tv):
    return [[tv(thread, value) for value in range(tv[1].size())] for thread in range(tv[0].size())]


# ---- threads and values --------------------------------------------------------------------


def test_a_tile_by_hand(kata):
    """Two rows of three threads, each with 2 x 2 values, both row-major: a tile of 4 x 6."""
    tiler, tv = kata.make_layout_tv(Layout((2, 3), (3, 1)), Layout((2, 2), (2, 1)))
    assert tiler == (4, 6)
    assert table(tv) == [
        [0, 4, 1, 5],  # rows 0 and 1, columns 0 and 1
        [8, 12, 9, 13],
        [16, 20, 17, 21],
        [2, 6, 3, 7],
        [10, 14, 11, 15],
        [18, 22, 19, 23],
    ]


@given(thr=THREADS, val=VALUES)
@example(thr=ROWS, val=((1, 8), (8, 1)))
@example(thr=COLUMNS, val=((8, 1), (1, 8)))
@example(thr=((4, 3), (3, 1)), val=((3, 2), (1, 3)))
@example(thr=((4, 1), (1, 99)), val=((1, 2), (99, 1)))  # the stride of one element
def test_each_thread_has_a_block_of_values(kata, oracle, thr, val):
    (rows, columns), tv = kata.make_layout_tv(Layout(*thr), Layout(*val))
    assert (rows, columns) == (thr[0][0] * val[0][0], thr[0][1] * val[0][1])
    expected = oracle.places(thr, val) @ [1, rows]
    assert table(tv) == expected.tolist()


@pytest.mark.parametrize(
    "numbers",
    [
        ((4, 8), (16, 1)),  # 8 … 15 are left out
        ((4, 8), (4, 1)),  # 4 … 7 twice
        ((4, 8), (2, 8)),  # begins with a gap
        ((4, 8), (0, 1)),  # all rows alike
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["thr", "val"])
def test_numbers_left_out_or_repeated_are_refused(kata, name, numbers):
    arguments = {"thr": Layout((2, 2), (1, 2)), "val": Layout((2, 2), (1, 2))}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.make_layout_tv(**arguments | {name: Layout(*numbers)})


# ---- offsets -------------------------------------------------------------------------------


@given(data=st.data(), thr=THREADS, val=VALUES)
def test_partition_is_a_slice_of_the_tile(kata, oracle, data, thr, val):
    tensor = data.draw(tensors(thr, val))
    tiler, tv = kata.make_layout_tv(Layout(*thr), Layout(*val))
    tiles = [tensor[0][axis] // tiler[axis] for axis in (0, 1)]
    tile = tuple(data.draw(st.integers(0, count - 1)) for count in tiles)
    found = [
        kata.partition(Layout(*tensor), tiler, tv, thread, tile) for thread in range(tv[0].size())
    ]
    expected = oracle.slices(tensor, thr, val, tile).tolist()
    assert found == expected


@pytest.mark.parametrize(
    ("tid", "tile", "expected"),
    [  # 48 x 24, row-major: rows t // 4 and t // 4 + 8, columns 2 (t % 4) and the next
        (0, (0, 0), [0, 1, 192, 193]),
        (31, (0, 0), [174, 175, 366, 367]),
        (5, (2, 1), [802, 803, 994, 995]),  # from row 32 and column 8 on
    ],
)
def test_accumulator_of_a_warp(kata, oracle, tid, tile, expected):
    tensor, tv = Layout((48, 24), (24, 1)), Layout(*oracle.ACCUMULATOR)
    assert kata.partition(tensor, (16, 8), tv, tid, tile) == expected


def test_offsets_are_ints(kata, oracle):
    """NumPy's integers would wrap around where a large tensor's offsets go on."""
    found = kata.partition(
        Layout((48, 24), (24, 1)), (16, 8), Layout(*oracle.ACCUMULATOR), 5, (2, 1)
    )
    assert [type(offset).__name__ for offset in found] == ["int"] * 4


def test_large_offsets_are_exact(kata, oracle):
    """Beyond 2**53, where not every int is a float."""
    tensor, tv = Layout((2**20, 2**20), (2**60 + 1, 1)), Layout(*oracle.ACCUMULATOR)
    row, column = 2**20 - 16 + 7, 2**20 - 8 + 6
    expected = [(row + down) * (2**60 + 1) + column + right for down in (0, 8) for right in (0, 1)]
    assert kata.partition(tensor, (16, 8), tv, 31, (2**16 - 1, 2**17 - 1)) == expected


@pytest.mark.parametrize("tid", [-1, 32])
def test_threads_that_are_not_there_are_refused(kata, oracle, tid):
    tensor, tv = Layout((48, 24), (24, 1)), Layout(*oracle.ACCUMULATOR)
    with pytest.raises(ValueError, match="^tid: "):
        kata.partition(tensor, (16, 8), tv, tid, (0, 0))


@pytest.mark.parametrize("tile", [(3, 0), (0, 3), (-1, 0), (0, -1)], ids=str)
def test_tiles_that_are_not_there_are_refused(kata, oracle, tile):
    tensor, tv = Layout((48, 24), (24, 1)), Layout(*oracle.ACCUMULATOR)
    with pytest.raises(ValueError, match="^tile_crd: "):
        kata.partition(tensor, (16, 8), tv, 0, tile)


@pytest.mark.parametrize("shape", [(40, 24), (48, 20), (8, 8), (8, 16)], ids=str)
def test_parts_of_tiles_are_refused(kata, oracle, shape):
    tensor, tv = Layout(shape, (shape[1], 1)), Layout(*oracle.ACCUMULATOR)
    with pytest.raises(ValueError, match="^tensor: "):
        kata.partition(tensor, (16, 8), tv, 0, (0, 0))
    with pytest.raises(ValueError, match="^tensor: "):
        kata.vector_bits(tensor, (16, 8), tv, 16)


# ---- vectors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thr", "val", "strides", "elem_bits", "bits"),
    [  # of a tensor of 2 x 2 tiles
        (ROWS, ((1, 8), (8, 1)), (128, 1), 16, 128),
        (COLUMNS, ((8, 1), (1, 8)), (1, 128), 16, 128),
        (ROWS, ((1, 8), (8, 1)), (1, 64), 16, 16),  # along columns, but these lie apart
        (ROWS, ((1, 8), (8, 1)), (128 + 8, 1), 16, 128),
        (ROWS, ((1, 8), (8, 1)), (128 + 4, 1), 16, 64),  # every second row begins between two
        (ROWS, ((1, 8), (8, 1)), (128 + 1, 1), 16, 16),
        (ROWS, ((1, 4), (4, 1)), (64, 1), 32, 128),
        (ROWS, ((1, 16), (16, 1)), (256, 1), 8, 128),
        (ROWS, ((1, 16), (16, 1)), (256, 1), 16, 128),  # two loads
        (ROWS, ((1, 32), (32, 1)), (512, 1), 4, 128),
        (ROWS, ((1, 32), (32, 1)), (512, 1), 2, 64),
        (ROWS, ((1, 32), (32, 1)), (512, 1), 1, 32),
        (ROWS, ((1, 1), (1, 1)), (16, 1), 32, 32),
        (ROWS, ((1, 2), (2, 1)), (32, 1), 64, 128),
        (ROWS, ((1, 2), (2, 1)), (32, 1), 128, 128),
        (ROWS, ((1, 6), (6, 1)), (96, 1), 16, 32),  # three loads of 32 bits
        (ROWS, ((1, 12), (12, 1)), (192, 1), 16, 64),
        (ROWS, ((2, 8), (1, 2)), (128, 1), 16, 16),  # the values are numbered down the columns
        (ROWS, ((2, 8), (8, 1)), (128, 1), 16, 128),
        (ROWS, ((2, 4), (4, 1)), (64, 1), 16, 64),  # 4 values, then a row further
        (((1, 8), (8, 1)), ((4, 2), (2, 1)), (32, 1), 16, 32),
        (
            ((1, 4), (4, 1)),
            ((4, 4), (4, 1)),
            (4, 1),
            16,
            64,
        ),  # 16 in a row, but thread 1 begins at 4
        (ROWS, ((1, 8), (8, 1)), (0, 1), 16, 128),  # the same row again and again
        (ROWS, ((1, 8), (8, 1)), (1, 0), 16, 16),
    ],
)
def test_vectors_by_hand(kata, thr, val, strides, elem_bits, bits):
    tiler, tv = kata.make_layout_tv(Layout(*thr), Layout(*val))
    tensor = Layout((2 * tiler[0], 2 * tiler[1]), strides)
    assert kata.vector_bits(tensor, tiler, tv, elem_bits) == bits


@pytest.mark.parametrize(("stride", "bits"), [((24, 1), 32), ((1, 48), 16), ((25, 1), 16)], ids=str)
def test_vectors_of_an_accumulator(kata, oracle, stride, bits):
    tensor, tv = Layout((48, 24), stride), Layout(*oracle.ACCUMULATOR)
    assert kata.vector_bits(tensor, (16, 8), tv, 16) == bits


@pytest.mark.parametrize(
    ("shape", "stride", "bits"),
    [  # of threads and values, in one row of 128
        (((32, 1), 4), ((4, 3), 1), 64),
        (((1, 16), (1, 8)), ((1, 8), (3, 1)), 128),
        ((16, (2, 4)), (8, (4, 1)), 16),  # values 0 and 1 lie 4 apart, 0 and 2 are neighbours
        (((2, 8), (4, 2)), ((4, 16), (1, 8)), 64),
    ],
    ids=str,
)
def test_vectors_of_nested_modes(kata, shape, stride, bits):
    """Nobody steps along a mode of one element, so its stride spoils no alignment."""
    tensor, tv = Layout((4, 128), (128, 1)), Layout(shape, stride)
    assert kata.vector_bits(tensor, (1, 128), tv, 16) == bits


@given(data=st.data(), thr=THREADS, val=VALUES, elem_bits=st.sampled_from([4, 8, 16, 32]))
def test_no_wider_load_would_do(kata, oracle, data, thr, val, elem_bits):
    tensor = data.draw(tensors(thr, val))
    tiler, tv = kata.make_layout_tv(Layout(*thr), Layout(*val))
    tiles = np.ndindex(tensor[0][0] // tiler[0], tensor[0][1] // tiler[1])
    offsets = np.stack([oracle.slices(tensor, thr, val, tile) for tile in tiles])
    found = kata.vector_bits(Layout(*tensor), tiler, tv, elem_bits)
    expected = oracle.widest(offsets, elem_bits)
    assert found == expected


@pytest.mark.parametrize(
    ("thr", "val", "tensor", "bits"),
    [
        ((1, 4), (1, 8), ((1, 32), (33, 1)), 128),  # no second row that would begin at 33
        ((1, 4), (1, 8), ((2, 32), (33, 1)), 16),
        ((1, 4), (1, 8), ((1, 64), (1, 1)), 128),
        ((1, 4), (1, 8), ((1, 32), (1, 8)), 16),  # all aligned, no two together
        ((1, 4), (1, 8), ((1, 32), (1, 0)), 16),  # one element again and again
        ((4, 1), (8, 1), ((32, 1), (1, 33)), 128),
        ((4, 1), (8, 1), ((32, 2), (1, 33)), 16),  # the second tile begins at 33
        ((4, 1), (1, 6), ((4, 6), (8, 1)), 32),  # of 4 elements, the second load would not be whole
        ((4, 1), (4, 4), ((16, 4), (4, 1)), 128),  # one row goes on where the last one ends
        ((4, 1), (4, 4), ((16, 4), (12, 1)), 64),
        ((1, 1), (2, 8), ((2, 8), (12, 1)), 64),  # one thread's own second row begins at 12
    ],
    ids=str,
)
def test_vectors_where_only_some_steps_are_taken(kata, thr, val, tensor, bits):
    """Modes of one element, and single tiles, have strides that nobody steps along."""
    tiler, tv = kata.make_layout_tv(Layout(*numbering(thr, False)), Layout(*numbering(val, False)))
    assert kata.vector_bits(Layout(*tensor), tiler, tv, 16) == bits


@pytest.mark.parametrize("elem_bits", [0, -8, 24, 256])
def test_odd_elements_are_refused(kata, elem_bits):
    tiler, tv = kata.make_layout_tv(Layout((1, 4), (4, 1)), Layout((1, 8), (8, 1)))
    with pytest.raises(ValueError, match="^elem_bits: "):
        kata.vector_bits(Layout((1, 32), (32, 1)), tiler, tv, elem_bits)


# ---- what it is for ------------------------------------------------------------------------


def test_warps_load_whole_sectors(kata, oracle, cost):
    """512 bytes of a warp are 16 sectors: one load of 128 bits, if the lanes lie side by side."""
    widths, worst = [], 0
    for elem_bits, values in ((16, 8), (32, 4), (8, 16)):
        for thr, val, stride in (
            (ROWS, ((1, values), (values, 1)), (8 * values * 2 + 64, 1)),
            (COLUMNS, ((values, 1), (1, values)), (1, 8 * values * 2 + 64)),
        ):
            tiler, tv = kata.make_layout_tv(Layout(*thr), Layout(*val))
            tensor = Layout((2 * tiler[0], 2 * tiler[1]), stride)
            widths.append(kata.vector_bits(tensor, tiler, tv, elem_bits))
            warp = [kata.partition(tensor, tiler, tv, lane, (1, 1)) for lane in range(32, 64)]
            worst = max(worst, sum(oracle.sectors(warp, elem_bits, widths[-1])) / 16)
    cost.check("sectors", worst)
    assert widths == [128] * 6


def test_a_large_tensor_is_not_evaluated(kata, lines, cost):
    """2**40 elements, of which 2**60 + 8 offsets lie between two rows."""
    tensor = Layout((2**20, 2**20), (2**60 + 8, 1))
    with lines(limit=100_000) as counted:
        tiler, tv = kata.make_layout_tv(Layout(*ROWS), Layout((1, 16), (16, 1)))
        found = [kata.vector_bits(tensor, tiler, tv, bits) for bits in (8, 16, 32)]
    assert found == [64, 128, 128]
    cost.check("lines", counted.lines)
