"""Fields bit by bit; each element against where TMA puts it; products by wgmma on the simulator."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def reads(kata, oracle):
    """Make the descriptors of a tile, and hold what each reads against where it lies."""

    def check(**tile):
        wrong = oracle.difference(kata.operand_descriptors(**tile), **tile)
        assert not wrong, wrong

    return check


@pytest.fixture(scope="module")
def tile():
    """128 x 64 of float16 with a swizzle of 128 bytes, by rows, but for what is given."""

    def make(**given):
        usual = {"addr": 0, "rows": 128, "k_elems": 64, "elem_bytes": 2, "swizzle": 128}
        return {**usual, "major": "K", "block": 64, **given}

    return make


def _names(value):
    if isinstance(value, dict):
        return " ".join(f"{name}={one}" for name, one in value.items()) or "nothing"
    return hex(value) if isinstance(value, int) else value


def _hex(descriptors):
    return [[hex(desc) for desc in steps] for steps in descriptors]


# ---- fields --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 0),
        ({"addr": 16}, 1),
        ({"addr": 2**18 - 16}, 0x3FFF),
        ({"lbo": 16}, 1 << 16),
        ({"lbo": 2**18 - 16}, 0x3FFF << 16),
        ({"sbo": 1024}, 64 << 32),
        ({"sbo": 2**18 - 16}, 0x3FFF << 32),
        ({"base_offset": 1}, 1 << 49),
        ({"base_offset": 7}, 7 << 49),
        ({"swizzle": 128}, 1 << 62),
        ({"swizzle": 64}, 2 << 62),
        ({"swizzle": 32}, 3 << 62),
        ({"sbo": 1024, "swizzle": 128}, 0x4000004000000000),
    ],
    ids=_names,
)
def test_fields_lie_where_the_hardware_reads_them(kata, given, expected):
    fields = {"addr": 0, "lbo": 0, "sbo": 0, "swizzle": 0, **given}
    assert kata.encode(**fields) == expected
    assert kata.decode(expected) == {"base_offset": 0, **fields}


FIELDS = st.integers(0, 2**14 - 1).map(lambda units: 16 * units)


@given(
    addr=FIELDS,
    lbo=FIELDS,
    sbo=FIELDS,
    swizzle=st.sampled_from([0, 32, 64, 128]),
    base_offset=st.integers(0, 7),
)
def test_decode_gives_back_what_was_encoded(kata, **fields):
    assert kata.decode(kata.encode(**fields)) == fields


def test_bits_between_the_fields_mean_nothing(kata):
    largest = 2**18 - 16
    expected = {"addr": largest, "lbo": largest, "sbo": largest, "swizzle": 32, "base_offset": 7}
    assert kata.decode(2**64 - 1) == expected


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        *((name, {name: value}) for name in ("addr", "lbo", "sbo") for value in (8, 2**18, -16)),
        ("swizzle", {"swizzle": 16}),
        ("swizzle", {"swizzle": 1}),
        ("base_offset", {"base_offset": 8}),
        ("base_offset", {"base_offset": -1}),
    ],
    ids=_names,
)
def test_what_no_field_can_hold_is_refused(kata, argument, given):
    with pytest.raises(ValueError, match=f"^{argument}: "):
        kata.encode(**{"addr": 0, "lbo": 0, "sbo": 0, "swizzle": 0, **given})


# ---- steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("desc", "byte_offset", "expected"),
    [
        (0x4000004000000000, 32, 0x4000004000000002),
        (0x4000004000000000, 8192, 0x4000004000000200),
        (0x4000004000000200, -8192, 0x4000004000000000),
        (0x8000002000400001, 0, 0x8000002000400001),
        (0x0000000800403FFE, 16, 0x0000000800403FFF),  # the last address
        (2**64 - 1, -16, 2**64 - 2),
    ],
    ids=["32 bytes", "a block", "back", "nothing", "to the end", "all bits"],
)
def test_a_step_adds_to_the_address(kata, desc, byte_offset, expected):
    mine = kata.advance(desc, byte_offset)
    assert mine == expected, (
        f"input: advance({desc:#x}, {byte_offset}) | yours: {mine:#x}, expected: {expected:#x}"
    )


@pytest.mark.parametrize("byte_offset", [8, 33, -32, 2**18 - 16])
def test_steps_to_no_address_are_refused(kata, byte_offset):
    # from address 16 on: below 0, and into the next field
    with pytest.raises(ValueError, match="^byte_offset: "):
        kata.advance(0x4000004000000001, byte_offset)


# ---- operands ------------------------------------------------------------------------------


def test_descriptors_are_those_of_a_compiled_gemm(kata, tile):
    # what Gluon made of 128 x 64 by 64 x 128 for sm_90: four steps inside one atom, two blocks
    base = 0x4000004000000000
    expected = [[base + block + step for step in (0, 2, 4, 6)] for block in (0, 512)]
    mine = kata.operand_descriptors(**tile())
    assert mine == expected, f"input: {tile()} | yours: {_hex(mine)}, expected: {_hex(expected)}"


@pytest.mark.parametrize(
    ("layout", "lbo", "sbo"),
    [
        ({"major": "K", "swizzle": 64, "rows": 8, "k_elems": 32, "block": 8}, 0, 512),
        ({"major": "K", "swizzle": 0, "rows": 8, "k_elems": 16, "block": 8}, 128, 128),
        ({"major": "MN", "swizzle": 64, "rows": 32, "k_elems": 48, "block": 32}, 3072, 512),
        ({"major": "MN", "swizzle": 0, "rows": 8, "k_elems": 48, "block": 8}, 128, 768),
    ],
    ids=["K swizzled", "K", "MN swizzled", "MN"],
)
def test_offsets_are_told_though_no_step_takes_them(kata, oracle, tile, layout, lbo, sbo):
    # blocks of one panel, or of 8 rows
    mine = kata.operand_descriptors(**tile(**layout))[0][0]
    found = {"lbo": oracle.bits(mine, 16), "sbo": oracle.bits(mine, 32)}
    expected = {"lbo": lbo, "sbo": sbo}
    assert found == expected, f"input: {tile(**layout)} | yours: {found}, expected: {expected}"


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("elem_bytes", [1, 2, 4])
def test_rows_of_neighbours_along_k_are_read(reads, tile, elem_bytes, swizzle):
    # two panels of the widest swizzle, two blocks
    given = {"k_elems": 256 // elem_bytes, "elem_bytes": elem_bytes, "swizzle": swizzle}
    reads(**tile(**given, addr=3 * (8 * swizzle or 16)))


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_columns_of_neighbours_along_m_are_read(reads, tile, swizzle):
    # four panels of the widest swizzle, two of them in each block
    reads(**tile(major="MN", swizzle=swizzle, rows=256, k_elems=48, block=128, addr=2048))


@st.composite
def tiles(draw):
    """Tiles of a few blocks, steps and panels, anywhere."""
    swizzle, major = draw(st.sampled_from([0, 32, 64, 128])), draw(st.sampled_from(["K", "MN"]))
    elem_bytes = draw(st.sampled_from([1, 2, 4])) if major == "K" else 2
    width = swizzle or 16
    unit = 8 if major == "K" else width // elem_bytes
    block = unit * draw(st.integers(1, 64 // unit + 1))
    step_bytes = max(width, 32) if major == "K" else 32
    return {
        "addr": (8 * swizzle or 16) * draw(st.integers(0, 20)),
        "rows": block * draw(st.integers(1, 3)),
        "k_elems": step_bytes // elem_bytes * draw(st.integers(1, 4)),
        "elem_bytes": elem_bytes,
        "swizzle": swizzle,
        "major": major,
        "block": block,
    }


@given(drawn=tiles())
def test_any_tile_is_read(reads, drawn):
    reads(**drawn)


def test_a_block_is_64_rows_unless_said_otherwise(kata, tile):
    usual = tile()
    del usual["block"]
    assert kata.operand_descriptors(**usual) == kata.operand_descriptors(**tile(block=64))


def test_a_block_has_up_to_256_rows(reads, tile):
    reads(**tile(rows=256, block=256))


def test_the_last_tile_of_shared_memory_is_read(reads, tile):
    reads(**tile(addr=228 * 1024 - 128 * 64 * 2))


@pytest.mark.parametrize(
    ("kind", "majors", "swizzles", "n", "k_elems"),
    [
        ("f16", ("K", "K"), (128, 128), 64, 128),
        ("f16", ("K", "MN"), (128, 64), 128, 64),  # as PyTorch's matrices lie
        ("f16", ("MN", "MN"), (128, 128), 128, 32),
        ("f16", ("MN", "K"), (32, 32), 24, 48),
        ("f16", ("K", "MN"), (0, 0), 40, 32),
        ("f16", ("MN", "MN"), (0, 0), 8, 16),
        ("e4m3", ("K", "K"), (128, 0), 16, 128),
        ("tf32", ("K", "K"), (64, 32), 8, 32),
    ],
    ids=["K", "pytorch", "MN", "a turned", "b plain", "MN plain", "fp8", "tf32"],
)
def test_wgmma_multiplies_what_lies_there(kata, oracle, seed, kind, majors, swizzles, n, k_elems):
    random = np.random.default_rng(seed)
    size, _ = oracle.KINDS[kind]
    nbytes, tiles, numbers, descriptors = 1024, [], [], []
    for rows, major, swizzle in zip((64, n), majors, swizzles, strict=True):
        given = {"rows": rows, "k_elems": k_elems, "elem_bytes": size, "swizzle": swizzle}
        given = {"addr": nbytes, "major": major, **given}
        (steps,) = kata.operand_descriptors(**given, block=rows)
        values, exact = oracle.small_integers(random, rows, k_elems, kind)
        tiles.append((values, oracle.tile_places(**given)))
        numbers.append(exact)
        descriptors.append(steps)
        nbytes += -(-rows * k_elems * size // 1024) * 1024
    image = oracle.image_of(nbytes, tiles)
    pairs = list(zip(*descriptors, strict=True))
    turned = tuple(int(major == "MN") for major in majors)
    c, want = oracle.wgmma(image, pairs, n, kind, turned), numbers[0] @ numbers[1].T
    asked = (
        f"input: 64 x {n} of {k_elems} in {kind}, {'- and '.join(majors)}-major, swizzles "
        f"{swizzles} | descriptors {[(hex(a), hex(b)) for a, b in pairs]}"
    )
    assert not isinstance(c, str), f"{asked}: {c}"
    for row, column in np.argwhere(c != want).tolist():
        mine, expected = c[row, column], want[row, column]
        pytest.fail(f"{asked}: at {(row, column)}: yours: {mine}, expected: {expected}")


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("addr", {"addr": 512}),
        ("addr", {"addr": 256, "swizzle": 64}),
        ("addr", {"addr": 128, "swizzle": 32}),
        ("addr", {"addr": 8, "swizzle": 0}),
        ("addr", {"addr": -1024}),
        ("addr", {"addr": 228 * 1024 - 128 * 64 * 2 + 1024}),  # ends past shared memory
        ("addr", {"rows": 64, "k_elems": 2048}),
        ("rows", {"rows": 96}),
        ("rows", {"rows": 0}),
        ("rows", {"rows": 64, "block": 128}),
        ("rows", {"rows": -64}),
        ("k_elems", {"k_elems": 0}),
        ("k_elems", {"k_elems": -64}),
        ("k_elems", {"k_elems": 96}),  # a panel and a half
        ("k_elems", {"k_elems": 16, "swizzle": 64}),
        ("k_elems", {"k_elems": 24, "swizzle": 0}),
        ("k_elems", {"k_elems": 24, "major": "MN"}),
        ("elem_bytes", {"elem_bytes": 3}),
        ("elem_bytes", {"elem_bytes": 8}),
        ("swizzle", {"swizzle": 16}),
        ("major", {"major": "M"}),
        ("major", {"major": "k"}),
        ("major", {"major": "MN", "elem_bytes": 1}),
        ("major", {"major": "MN", "elem_bytes": 4}),
        ("block", {"block": 4}),
        ("block", {"block": 12, "rows": 48}),
        ("block", {"block": 264, "rows": 264}),
        ("block", {"block": 0}),
        ("block", {"block": 32, "major": "MN"}),  # half a panel
    ],
    ids=_names,
)
def test_operands_that_wgmma_cannot_read_are_refused(kata, tile, argument, given):
    with pytest.raises(ValueError, match=f"^{argument}: "):
        kata.operand_descriptors(**tile(**given))


# ---- cost ----------------------------------------------------------------------------------


def test_the_loop_only_adds(kata, tile, calls, cost):
    # 2 blocks of 4 steps, in each of the layouts
    encodes = calls("encode")
    for layout in ({}, {"swizzle": 0}, {"major": "MN"}, {"major": "MN", "swizzle": 0}):
        kata.operand_descriptors(**tile(**layout))
    cost.check("encodes", encodes.calls / 4)
