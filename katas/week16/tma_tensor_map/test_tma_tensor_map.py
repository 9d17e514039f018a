"""Boxes at every place of a tensor, against NumPy; swizzles by hand; what costs what it has to."""

import random
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def tensor_map(kata):
    """A map of float32 rows of 20 with a gap of 16 bytes, but for what is given."""

    def make(**given):
        usual = {"base": 32, "dtype": "float32", "dims": [20, 9], "strides": [96], "box": [8, 4]}
        made = {**usual, **given}
        made.setdefault("elem_strides", [1] * len(made["dims"]))
        return kata.make_tensor_map(**made)

    return make


@pytest.fixture(scope="module")
def memory(oracle):
    """Memory that ends with the last element of the map's tensor, filled at random."""

    def make(tm, seed=0):
        nbytes = tm.base + tm.dims[0] * oracle.item_bytes(tm)
        nbytes += sum(
            (dim - 1) * stride for dim, stride in zip(tm.dims[1:], tm.strides, strict=True)
        )
        return oracle.Memory(random.Random(seed).randbytes(nbytes))

    return make


@pytest.fixture(scope="module")
def loads(kata, oracle, memory):
    """Load a box, and hold it against NumPy."""

    def check(tm, coords):
        gmem = memory(tm)
        wrong = oracle.difference(kata.tma_load(tm, gmem, coords), tm, gmem.data, coords)
        assert not wrong, wrong

    return check


@pytest.fixture(scope="module")
def stores(kata, oracle, memory):
    """Store a box, and hold all memory against NumPy."""

    def check(tm, coords):
        gmem = memory(tm)
        smem = random.Random(1).randbytes(kata.tx_bytes(tm))
        want = oracle.stored(tm, gmem.data, coords, smem)
        kata.tma_store(tm, gmem, coords, smem)
        got = bytes(gmem.data)
        at = next((at for at in range(len(want)) if got[at] != want[at]), None)
        assert at is None, (
            f"input: {tm}, coords = {coords} | byte {at} of memory: "
            f"yours: {got[at]}, expected: {want[at]}"
        )

    return check


@st.composite
def maps(draw):
    """What `tensor_map` takes, and coordinates in, across and outside every edge."""
    rank = draw(st.integers(1, 5))
    dtype, item = draw(
        st.sampled_from(
            [("uint8", 1), ("float16", 2), ("bfloat16", 2), ("float32", 4), ("int64", 8)]
        )
    )
    swizzle = draw(st.sampled_from([0, 32, 64, 128]))
    row = swizzle or draw(st.sampled_from([16, 48]))
    most = {1: 40, 2: 20, 3: 4, 4: 3, 5: 2}[rank]
    outer = st.lists(st.integers(1, most), min_size=rank - 1, max_size=rank - 1)
    dims = [draw(st.integers(1, 2 * row // item)), *draw(outer)]
    strides, nbytes = [], dims[0] * item
    for dim in dims[1:]:
        strides.append(-(-nbytes // 16) * 16 + 16 * draw(st.integers(0, 2)))
        nbytes = strides[-1] * dim
    box = [row // item, *draw(outer)]
    steps = st.integers(1, 3)
    padding = draw(st.sampled_from(["zero", "nan"] if "float" in dtype else ["zero"]))
    coords = [draw(st.integers(-size - 3, dim + 3)) for size, dim in zip(box, dims, strict=True)]
    given = {
        "base": 16 * draw(st.integers(0, 3)),
        "dtype": dtype,
        "dims": dims,
        "strides": strides,
        "box": box,
        "elem_strides": [draw(steps) for _ in dims],
        "swizzle": swizzle,
        "padding": padding,
    }
    return given, coords


# ---- a box in shared memory ----------------------------------------------------------------


@given(drawn=maps())
def test_boxes_of_every_rank_arrive(tensor_map, loads, drawn):
    given, coords = drawn
    loads(tensor_map(**given), coords)


@pytest.mark.parametrize(
    "coords",
    [
        [4, 2],
        [-3, 2],
        [15, 2],
        [4, -2],
        [4, 7],
        [-3, -2],
        [20, 2],
        [4, 9],
        [-8, 2],
        [4, -4],
        [25, 2],
        [-11, 2],
    ],
    ids=str,
)
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_what_lies_outside_is_filled(tensor_map, loads, padding, coords):
    loads(tensor_map(padding=padding), coords)


def test_a_box_wider_than_the_tensor_sticks_out_on_both_sides(tensor_map, loads):
    loads(tensor_map(dims=[5, 3], strides=[32], box=[16, 8]), [-4, -2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_float_has_a_nan(tensor_map, loads, dtype):
    loads(tensor_map(dtype=dtype, dims=[6, 3], padding="nan"), [-1, -1])


@pytest.mark.parametrize("coords", [[1, 1, 1, 1, 1], [-2, 2, -1, 1, -2], [6, -1, 3, 4, 5]], ids=str)
def test_boxes_have_five_dimensions(tensor_map, loads, coords):
    five = {"dims": [8, 4, 5, 6, 7], "strides": [48, 208, 1056, 6400], "box": [8, 2, 3, 4, 3]}
    loads(tensor_map(**five, elem_strides=[1, 1, 2, 1, 2], swizzle=32), coords)


def test_bits_of_floats_are_only_copied(kata, oracle, tensor_map):
    # a signalling NaN, -0.0, a subnormal
    data = np.array([0x7F800001, 0x80000000, 1, 0xFFC12345], np.uint32).tobytes()
    tm = tensor_map(base=0, dims=[4], strides=[], box=[4], padding="nan")
    assert kata.tma_load(tm, oracle.Memory(data), [0]).hex() == data.hex()


@pytest.mark.parametrize(
    ("swizzle", "line", "order"),
    [
        (128, 1, [1, 0, 3, 2, 5, 4, 7, 6]),
        (128, 6, [6, 7, 4, 5, 2, 3, 0, 1]),
        (128, 9, [1, 0, 3, 2, 5, 4, 7, 6]),
        (64, 1, [1, 0, 3, 2, 5, 4, 7, 6]),  # two rows of the box in each line
        (64, 3, [3, 2, 1, 0, 7, 6, 5, 4]),
        (64, 4, [0, 1, 2, 3, 4, 5, 6, 7]),
        (32, 1, [1, 0, 3, 2, 5, 4, 7, 6]),  # four of them
        (32, 2, [0, 1, 2, 3, 4, 5, 6, 7]),
        (0, 5, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_chunks_change_places_within_a_line(kata, oracle, tensor_map, swizzle, line, order):
    # 16-byte chunks that hold their number; a line is 128 bytes of shared memory
    row = swizzle or 128
    data = np.repeat(np.arange(80, dtype=np.uint8), 16).tobytes()
    box = [row, 1280 // row]
    tm = tensor_map(base=0, dtype="uint8", dims=box, strides=[row], box=box, swizzle=swizzle)
    arrived = kata.tma_load(tm, oracle.Memory(data), [0, 0])
    assert [one - 8 * line for one in arrived[128 * line : 128 * line + 128 : 16]] == order


def test_the_swizzle_counts_rows_of_the_box(tensor_map, loads):
    # the box begins at row 3 of the tensor, and its first row keeps its order
    loads(tensor_map(dims=[32, 20], strides=[128], box=[32, 8], swizzle=128), [0, 3])


def test_the_swizzle_goes_on_across_planes(tensor_map, loads):
    # planes of 3 rows: row 0 of the second is row 3 of the box
    tm = tensor_map(dims=[32, 3, 4], strides=[128, 384], box=[32, 3, 3], swizzle=128)
    loads(tm, [0, 0, 1])


def test_rows_outside_are_swizzled_too(tensor_map, loads):
    loads(tensor_map(dims=[20, 20], strides=[128], box=[32, 8], swizzle=128), [3, -3])


# ---- element strides -----------------------------------------------------------------------


@pytest.mark.parametrize("coords", [[4, 0], [4, 3], [4, -1], [4, -2], [4, 5]], ids=str)
def test_every_second_row_arrives(tensor_map, loads, coords):
    # 3 of 5 rows; the coordinate counts rows of the tensor
    loads(tensor_map(box=[8, 5], elem_strides=[1, 2]), coords)


def test_the_innermost_element_stride_is_ignored(kata, tensor_map, loads):
    tm = tensor_map(elem_strides=[3, 1])
    assert kata.tx_bytes(tm) == 8 * 4 * 4
    loads(tm, [4, 2])


def test_rows_of_stride_0_repeat(tensor_map, loads):
    loads(tensor_map(strides=[0]), [4, 2])


# ---- transactions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 128),
        ({"dims": [5, 2], "box": [16, 8]}, 512),  # larger than the tensor: the full box counts
        ({"dtype": "uint8", "dims": [16], "strides": [], "box": [256]}, 256),
        ({"box": [8, 5], "elem_strides": [1, 2]}, 96),  # 3 rows of 5
        ({"box": [8, 6], "elem_strides": [1, 2]}, 96),
        ({"box": [8, 3], "elem_strides": [1, 8]}, 32),
        ({"dims": [8] * 5, "strides": [32, 256, 2048, 16384], "box": [4, 2, 3, 4, 5]}, 1920),
    ],
    ids=["usual", "larger", "one", "odd", "even", "beyond", "five"],
)
def test_barriers_expect_the_full_box(kata, tensor_map, given, expected):
    assert kata.tx_bytes(tensor_map(**given)) == expected


# ---- stores --------------------------------------------------------------------------------


@given(drawn=maps())
def test_boxes_of_every_rank_are_stored(tensor_map, stores, drawn):
    given, coords = drawn
    stores(tensor_map(**given), coords)


@pytest.mark.parametrize(
    "coords", [[4, 2], [-3, 2], [15, 2], [4, -2], [4, 7], [20, 2], [25, 2]], ids=str
)
def test_stores_are_clipped(tensor_map, stores, coords):
    stores(tensor_map(), tuple(coords))


def test_what_was_loaded_can_be_stored(kata, tensor_map, memory):
    tm = tensor_map(dims=[20, 20], strides=[80], box=[16, 12], swizzle=64, padding="nan")
    gmem = memory(tm)
    before = bytes(gmem.data)
    for coords in ([0, 0], [16, 0], [-4, 12], [12, 12]):
        kata.tma_store(tm, gmem, coords, kata.tma_load(tm, gmem, coords))
    assert bytes(gmem.data) == before


def test_a_store_reads_nothing(kata, tensor_map, memory):
    tm = tensor_map()
    gmem = memory(tm)
    kata.tma_store(tm, gmem, [15, 7], bytes(kata.tx_bytes(tm)))
    assert gmem.read_sectors == 0


# ---- addresses -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [2**20, 2**28 + 1], ids=["2**55", "2**63"])
def test_addresses_are_exact_past_the_integers_of_a_float(kata, oracle, tensor_map, rows):
    far = {"base": 48, "dims": [2**31, rows], "strides": [2**35 + 16]}
    tm = tensor_map(**far, dtype="uint8", box=[16, 2])
    coords, gmem = [2**31 - 7, rows - 1], oracle.FarMemory()
    address = 48 + (rows - 1) * (2**35 + 16) + 2**31 - 7
    assert kata.tma_load(tm, gmem, coords) == gmem.read(address, 7) + bytes(25)
    kata.tma_store(tm, gmem, coords, bytes(range(32)))
    assert gmem.written == {address + one: one for one in range(7)}


def test_each_load_is_a_new_one(kata, oracle, tensor_map, memory):
    # the same map: a box inside, two across the edges, and new contents of the same memory
    tm = tensor_map(padding="nan")
    gmem = memory(tm)
    for seed, coords in ((0, (4, 2)), (0, (15, 7)), (1, (15, 7)), (1, (-3, -2))):
        gmem.data[:] = memory(tm, seed).data
        wrong = oracle.difference(kata.tma_load(tm, gmem, coords), tm, gmem.data, coords)
        assert not wrong, wrong


def test_a_map_keeps_what_it_was_made_of(kata, tensor_map):
    lists = {"dims": [20, 9], "strides": [96], "box": [8, 4], "elem_strides": [1, 1]}
    tm = tensor_map(**lists, swizzle=32, padding="nan")
    for values in lists.values():
        values[-1] = 2
    assert tm == kata.TensorMap(
        base=32,
        dtype="float32",
        dims=(20, 9),
        strides=(96,),
        box=(8, 4),
        elem_strides=(1, 1),
        swizzle=32,
        padding="nan",
    )
    assert kata.tx_bytes(tm) == 128


# ---- bad input -----------------------------------------------------------------------------


def _names(value):
    return " ".join(value) if isinstance(value, dict) else str(value)


RANK_6 = {"dims": [8] * 6, "strides": [32] * 5, "box": [8] * 6, "elem_strides": [1] * 6}


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("dims", {"dims": [], "strides": [], "box": [], "elem_strides": []}),
        ("dims", RANK_6),
        ("dims", {"dims": [20, 0]}),
        ("dims", {"dims": [2**32 + 1, 9]}),
        ("strides", {"strides": []}),
        ("strides", {"strides": [4, 96]}),
        ("strides", {"strides": [88]}),
        ("strides", {"strides": [2**40]}),
        ("strides", {"strides": [-96]}),
        ("box", {"box": [8]}),
        ("box", {"box": [8, 4, 1]}),
        ("box", {"box": [8, 0]}),
        ("box", {"box": [8, 257]}),
        ("box", {"box": [260, 4]}),
        ("box", {"box": [6, 4]}),  # rows of 24 bytes
        ("box", {"box": [12, 4], "swizzle": 32}),
        ("box", {"box": [20, 4], "swizzle": 64}),
        ("box", {"box": [36, 4], "swizzle": 128}),
        ("elem_strides", {"elem_strides": [1]}),
        ("elem_strides", {"elem_strides": [1, 0]}),
        ("elem_strides", {"elem_strides": [9, 1]}),
        ("base", {"base": 8}),
        ("base", {"base": -16}),
        ("dtype", {"dtype": "float8_e4m3fn"}),
        ("swizzle", {"swizzle": 16}),
        ("padding", {"padding": "one"}),
        ("padding", {"dtype": "int32", "padding": "nan"}),
    ],
    ids=_names,
)
def test_what_tma_cannot_do_is_refused(tensor_map, argument, given):
    with pytest.raises(ValueError, match=f"^{argument}: "):
        tensor_map(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"dims": [2**32, 2**32], "strides": [2**40 - 16]},
        {"dims": [1, 1], "box": [256, 256]},
        {"elem_strides": [8, 8]},
        {"base": 0, "strides": [0]},
        {"box": [8, 4], "swizzle": 32},
        {"box": [8, 4], "swizzle": 128},  # shorter than the swizzle
        {"dims": [8] * 5, "strides": [16] * 4, "box": [4] * 5},
        {"dims": [8], "strides": [], "box": [8]},
    ],
    ids=_names,
)
def test_limits_are_allowed(kata, tensor_map, given):
    tm = tensor_map(**given)
    assert kata.tx_bytes(tm) % 16 == 0


@pytest.mark.parametrize("coords", [[4], [4, 2, 0]], ids=str)
def test_coordinates_that_do_not_fit_are_refused(kata, tensor_map, memory, coords):
    tm = tensor_map()
    with pytest.raises(ValueError, match="^coords: "):
        kata.tma_load(tm, memory(tm), coords)
    with pytest.raises(ValueError, match="^coords: "):
        kata.tma_store(tm, memory(tm), coords, bytes(128))


@pytest.mark.parametrize("nbytes", [0, 112, 144])
def test_images_that_do_not_fit_are_refused(kata, tensor_map, memory, nbytes):
    tm = tensor_map()
    gmem = memory(tm)
    with pytest.raises(ValueError, match="^smem: "):
        kata.tma_store(tm, gmem, [4, 2], bytes(nbytes))
    assert gmem.written_sectors == 0


# ---- cost ----------------------------------------------------------------------------------


def test_rows_are_moved_whole(kata, oracle, tensor_map, memory, cost):
    touched = least = 0
    for options, coords in (
        ({"box": [16, 8]}, [2, 1]),
        ({"box": [16, 8]}, [-6, -2]),
        ({"box": [16, 8]}, [12, 4]),
        ({"box": [16, 8], "elem_strides": [1, 3]}, [2, 1]),
        ({"box": [16, 8]}, [20, 1]),  # nothing of it
        ({"dims": [48, 9], "strides": [192], "box": [32, 8], "swizzle": 128}, [5, 3]),
    ):
        tm = tensor_map(**options)
        gmem = memory(tm)
        kata.tma_store(tm, gmem, coords, kata.tma_load(tm, gmem, coords))
        touched += gmem.read_sectors + gmem.written_sectors
        least += 2 * oracle.least_sectors(tm, coords)
    cost.check("sectors", touched / least)


def test_core_matrices_are_read_without_conflicts(kata, oracle, tensor_map, cost):
    extra = 0
    for swizzle in (32, 64, 128):
        box = [swizzle // 8, 16]
        chunks = np.repeat(np.arange(prod(box) // 2, dtype=np.int64), 2)
        tm = tensor_map(
            base=0, dtype="int64", dims=box, strides=[swizzle], box=box, swizzle=swizzle
        )
        arrived = kata.tma_load(tm, oracle.Memory(chunks.tobytes()), [0, 0])
        extra += oracle.core_matrix_conflicts(arrived, swizzle)
    cost.check("core_matrix_conflicts", extra)
