"""The algebra against its definitions, offset by offset; documented results; sizes of 2**40."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

SIZES = st.sampled_from([1, 2, 2, 3, 4, 6])
STRIDES = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 24])
HUGE = 2**80 + 2**20  # has more digits than a float


@st.composite
def trees(draw, modes):
    """A pair of trees from the pairs (size, stride) of a list, nested in some way."""
    shape, stride = (list(part) for part in zip(*modes, strict=True))
    while len(shape) > 1 and draw(st.booleans()):
        at = draw(st.integers(0, len(shape) - 2))
        for tree in (shape, stride):
            tree[at : at + 2] = [(tree[at], tree[at + 1])]
    if len(shape) == 1:
        return shape[0], stride[0]
    return tuple(shape), tuple(stride)


@st.composite
def layouts(draw, most=3):
    """Any sizes and strides; every second one is compact, in some order of its modes."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=most))
    strides = draw(st.lists(STRIDES, min_size=len(sizes), max_size=len(sizes)))
    if draw(st.booleans()):
        reached = draw(st.sampled_from([1, 1, 2]))
        for mode in draw(st.permutations(range(len(sizes)))):
            strides[mode] = reached
            reached *= sizes[mode]
    return draw(trees(list(zip(sizes, strides, strict=True))))


# ---- coordinates ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("crd", "offset"),
    [  # ((2, 3), 4):((12, 1), 3)
        (23, 23),  # the last element: 12 + 2 + 9
        (1, 12),
        (2, 1),
        (6, 3),
        ((5, 1), 17),  # an int for the mode (2, 3): its last element
        (((0, 2), 3), 11),
    ],
)
def test_an_int_may_stand_for_any_mode(kata, crd, offset):
    assert kata.crd2idx(crd, kata.Layout(((2, 3), 4), ((12, 1), 3))) == offset


@given(layout=layouts())
def test_offsets_of_all_coordinates(kata, oracle, layout):
    made = kata.Layout(*layout)
    found = [kata.crd2idx(crd, made) for crd in oracle.coordinates(made.shape)]
    assert found == oracle.offsets(*layout)
    by_ints = [kata.crd2idx(i, made) for i in range(len(found))]
    assert by_ints == oracle.offsets(*layout)


@given(layout=layouts())
@example(layout=(((2, (3,)), 2), ((1, (2,)), 6)))
@example(layout=(((2, 3),), ((3, 1),)))  # one mode, which has two of its own
def test_coordinates_in_order(kata, oracle, layout):
    shape = layout[0]
    expected = oracle.coordinates(shape)
    found = [kata.idx2crd(i, shape) for i in range(len(expected))]
    assert found == expected


def test_large_coordinates_are_exact(kata):
    layout = kata.Layout((HUGE - 1, (3, 4)), (1, (HUGE, 5 * HUGE)))
    last = 12 * (HUGE - 1) - 1
    assert kata.crd2idx(last, layout) == HUGE - 2 + 2 * HUGE + 15 * HUGE
    assert kata.idx2crd(last, layout.shape) == (HUGE - 2, (2, 3))


@pytest.mark.parametrize(
    "crd",
    [24, -1, (0, 4), (6, 0), ((2, 0), 0), ((0, -1), 0), (0,), (0, 0, 0), ((0, 0, 0), 0), (0, (0,))],
    ids=str,
)
def test_coordinates_beyond_the_shape_are_refused(kata, crd):
    with pytest.raises(ValueError, match="^crd: "):
        kata.crd2idx(crd, kata.Layout(((2, 3), 4), ((12, 1), 3)))


@pytest.mark.parametrize("crd", [(1, 0), (0, (0, 1)), 4], ids=str)
def test_a_mode_of_one_element_has_one_coordinate(kata, crd):
    with pytest.raises(ValueError, match="^crd: "):
        kata.crd2idx(crd, kata.Layout((1, (4, 1)), (9, (1, 9))))


@pytest.mark.parametrize("i", [24, -1])
@pytest.mark.parametrize("shape", [24, (6, 4), ((2, 3), 4)], ids=str)
def test_indices_beyond_the_shape_are_refused(kata, i, shape):
    with pytest.raises(ValueError, match="^i: "):
        kata.idx2crd(i, shape)


# ---- coalesce ------------------------------------------------------------------------------


@given(layout=layouts(most=4))
@example(layout=((2, (1, 6)), (1, (6, 2))))  # 12:1, of CuTe's documentation
@example(layout=((2, 1, 3), (0, 5, 0)))  # stride 0 goes on with stride 0
@example(layout=((2, 3), (3, 0)))
@example(layout=((3, 2), (1, 2)))  # a stride that overlaps the mode before
@example(layout=((1, 1), (7, 3)))
@example(layout=((4, 2, 3), (2, 1, 8)))  # not in the order of strides
def test_coalesce_keeps_the_function_in_the_fewest_modes(kata, oracle, layout):
    assert kata.coalesce(kata.Layout(*layout)) == kata.Layout(*oracle.coalesced(*layout))


# ---- composition ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (((6, 2), (8, 2)), ((4, 3), (3, 1)), (((2, 2), 3), ((24, 2), 8))),
        (((10, 2), (16, 4)), ((5, 4), (1, 5)), ((5, (2, 2)), (16, (80, 4)))),
        ((20, 2), ((5, 4), (4, 1)), ((5, 4), (8, 2))),
        (((4, 3), (1, 8)), (2, 3), (2, 3)),  # 3 does not divide 4, but 0 and 3 lie within it
        (((6, 2), (1, 10)), (2, 4), (2, 4)),
        (((4, 3), (1, 8)), ((1, 2), (3, 20)), ((1, 2), (0, 40))),  # one element, any stride
        (((4, 3), (1, 8)), ((3, 2), (0, 0)), ((3, 2), (0, 0))),
        (((4, 3), (1, 8)), (8, 4), (8, 8)),  # on beyond the last mode of a
        (((4, 3, 1), (1, 8, 5)), (8, 4), (8, 8)),  # and a mode of size 1 is none
        ((1, 0), (4, 2), (4, 0)),
        ((12, 1), (((4,), 3), ((1,), 4)), (((4,), 3), ((1,), 4))),  # b's form, tuples of one too
        ((12, 2), ((4,), (1,)), ((4,), (2,))),
    ],
    ids=str,
)
def test_compositions_by_hand(kata, a, b, expected):
    assert kata.composition(kata.Layout(*a), kata.Layout(*b)) == kata.Layout(*expected)


@given(a=layouts(), b=layouts(most=2))
@example(a=((4, 3, 5), (1, 8, 100)), b=(6, 2))  # from the first mode into the second
@example(a=((4, 3, 5), (1, 8, 100)), b=(30, 2))  # and on into the third
@example(a=((4, 6), (6, 1)), b=((2, 3), (12, 4)))  # begins in the second
@example(a=((2, 2, 3), (1, 2, 8)), b=(6, 2))  # (4, 3):(1, 8) when coalesced
def test_composition_is_a_of_b(kata, oracle, a, b):
    expected = oracle.composed(a, b)
    assume(expected is not None)
    assert kata.composition(kata.Layout(*a), kata.Layout(*b)) == kata.Layout(*expected)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (((4, 3), (1, 8)), (3, 3)),  # 0, 3, 6: leaves the first mode half way
        (((4, 3), (1, 8)), (3, 5)),  # 0, 5, 10: down the diagonal
        (((4, 3), (1, 8)), (2, 6)),
        (((6, 2), (1, 10)), (4, 2)),  # 3 of 4 fit in
        (((6, 2), (1, 10)), (5, 2)),
        (((4, 3, 2), (1, 8, 50)), (6, 4 * 2)),  # the second mode is the obstacle
        (((4, 3), (1, 8)), ((2, (2, 3)), (1, (1, 3)))),  # and of b the last one
    ],
    ids=str,
)
def test_modes_that_straddle_are_refused(kata, a, b):
    with pytest.raises(ValueError, match="^b: "):
        kata.composition(kata.Layout(*a), kata.Layout(*b))


@given(a=layouts(), count=SIZES, step=st.sampled_from([2, 3, 5, 6, 8, 9]))
def test_nothing_but_what_straddles_is_refused(kata, oracle, a, count, step):
    expected = oracle.composed(a, (count, step))
    try:
        found = kata.composition(kata.Layout(*a), kata.Layout(count, step))
    except ValueError:
        found = None
    words = f"input: a = {kata.Layout(*a)}, b = {count}:{step} | yours: {found or 'ValueError'}"
    expected = expected and kata.Layout(*expected)
    assert found == expected, f"{words}, expected: {expected or 'ValueError'}"


# ---- complement ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "bound", "expected"),
    [
        ((4, 2), 24, ((2, 3), (1, 8))),
        ((4, 1), 24, (6, 4)),
        ((6, 4), 24, (4, 1)),
        (((2, 2), (1, 6)), 24, ((3, 2), (2, 12))),
        (((2, 2), (6, 1)), 24, ((3, 2), (2, 12))),  # in whatever order
        ((4, 2), 25, ((2, 4), (1, 8))),  # 25 takes a fourth eight
        ((4, 2), 3, (2, 1)),  # less than the layout itself reaches
        ((1, 5), 6, (6, 1)),
        ((3, 0), 6, (6, 1)),
        (((3, 2), (0, 2)), 8, ((2, 2), (1, 4))),
        ((4, 1), 4, (1, 0)),
    ],
    ids=str,
)
def test_complements_by_hand(kata, layout, bound, expected):
    assert kata.complement(kata.Layout(*layout), bound) == kata.Layout(*expected)


@given(layout=layouts(), bound=st.integers(1, 100))
@example(layout=((2, 2), (1, 3)), bound=12)  # nothing is hit twice, but 2 cannot be reached
@example(layout=((2, 2), (1, 1)), bound=12)
@example(layout=((2, 3), (3, 2)), bound=12)
@example(layout=((4, 2), (1, 2)), bound=12)
def test_complement_fills_what_is_left_out(kata, oracle, layout, bound):
    expected = oracle.complemented(*layout, bound)
    made = kata.Layout(*layout)
    if expected is None:
        with pytest.raises(ValueError, match="^layout: "):
            kata.complement(made, bound)
    else:
        assert kata.complement(made, bound) == kata.Layout(*expected)


@pytest.mark.parametrize("bound", [0, -4])
def test_bounds_below_one_are_refused(kata, bound):
    with pytest.raises(ValueError, match="^bound: "):
        kata.complement(kata.Layout(4, 2), bound)


# ---- division and product ------------------------------------------------------------------


@given(a=layouts(), b=layouts(most=2))
@example(a=((4, 2, 3), (2, 1, 8)), b=(4, 2))  # ((2, 2), (2, 3)):((4, 1), (2, 8))
@example(a=(10, 1), b=(4, 1))  # three tiles, the last one half beyond a
@example(a=(((2, 3), 4), ((1, 8), 2)), b=((2, 2), (1, 12)))
@example(a=(12, 1), b=((2, (2,)), (6, (1,))))
@example(a=((4, 3), (1, 10)), b=(2, 1))  # 12 elements over 24 offsets
def test_division_is_composition_with_tile_and_rest(kata, oracle, a, b):
    expected = oracle.divided(a, b)
    assume(expected is not None)
    assert kata.logical_divide(kata.Layout(*a), kata.Layout(*b)) == kata.Layout(*expected)


@given(a=layouts(), b=layouts(most=2))
@example(a=((2, 2), (4, 1)), b=(6, 1))  # ((2, 2), (2, 3)):((4, 1), (2, 8))
@example(a=((2, 2), (4, 1)), b=((4, 2), (2, 1)))  # copies in another order
@example(a=((2, 5), (5, 1)), b=((3, 4), (1, 3)))
@example(a=((2, 1), (1, 7)), b=(3, 2))  # a stays as it is
@example(a=(2, 4), b=(2, 4))  # 2 copies, the second one as far off as the fifth of many
def test_product_repeats_a_over_the_rest(kata, oracle, a, b):
    expected = oracle.multiplied(a, b)
    assume(expected is not None)
    assert kata.logical_product(kata.Layout(*a), kata.Layout(*b)) == kata.Layout(*expected)


@pytest.mark.parametrize(
    ("name", "a", "b", "argument"),
    [
        ("logical_divide", (12, 1), ((2, 2), (1, 1)), "layout"),  # b has no complement
        ("logical_divide", ((4, 3), (1, 8)), (3, 3), "b"),
        ("logical_product", ((2, 2), (1, 3)), (3, 1), "layout"),  # a has none
        ("logical_product", (4, 2), (3, 1), "b"),  # 2:1, then 4:8: three copies straddle
    ],
)
def test_division_and_product_refuse_what_their_parts_refuse(kata, name, a, b, argument):
    with pytest.raises(ValueError, match=f"^{argument}: "):
        getattr(kata, name)(kata.Layout(*a), kata.Layout(*b))


# ---- no layout is evaluated ----------------------------------------------------------------


def test_a_layout_of_2_to_the_40_is_not_evaluated(kata, lines, calls, cost):
    """Offsets beyond 2**53, so exact only as ints."""
    asked = calls("crd2idx", limit=100)
    a = kata.Layout((2**20, (2**10, 2**10)), (HUGE, (1, 2**10)))
    with lines(limit=20_000) as counted:
        found = [
            kata.coalesce(a),
            kata.composition(a, kata.Layout((2**25, 2**15), (2**15, 1))),
            kata.composition(kata.Layout((2**20, 9), (1, 2**30)), kata.Layout(3, HUGE)),
            kata.composition(
                kata.Layout((HUGE, 3), (1, 2 * HUGE)), kata.Layout(3 * 2**60 + 3, 2**20)
            ),
            kata.composition(kata.Layout((4, 9), (1, 8)), kata.Layout(4 * 2**60 + 4, 1)),
            kata.complement(kata.Layout((2**20, 3**5), (1, HUGE)), 3**5 * 2**9 * HUGE + 1),
            kata.logical_divide(a, kata.Layout(2**30, 2**5)),
            kata.logical_product(a, kata.Layout(2**30, 1)),
        ]
    expected = [
        f"({2**20},{2**20}):({HUGE},1)",
        f"(({2**5},{2**20}),{2**15}):(({2**15 * HUGE},1),{HUGE})",
        f"3:{2**30 * (2**60 + 1)}",
        f"({2**60 + 1},3):({2**20},{2 * HUGE})",
        f"(4,{2**60 + 1}):(1,8)",
        f"({2**60 + 1},{2**9 + 1}):({2**20},{3**5 * HUGE})",
        f"(({2**15},{2**15}),({2**5},{2**5})):(({2**5 * HUGE},1),({HUGE},{2**15}))",
        f"(({2**20},({2**10},{2**10})),{2**30}):(({HUGE},(1,{2**10})),{2**20})",
    ]
    assert [str(layout) for layout in found] == expected
    cost.check("evaluations", asked.calls)
    cost.check("lines", counted.lines)
