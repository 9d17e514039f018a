"""Statistics that merge in any order, masked blocks, extremes, and how often memory is touched."""

import math
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

INF = math.inf
LOGITS = st.floats(-1e4, 1e4) | st.just(-INF)
LONG = 2**16  # elements: a block of 1/128 and what is made of it stay far below a quarter
FEW = st.integers(-3, 3).map(float)  # so that ties are common


def softmax_of(kata, oracle, row, block):
    reader, writer = oracle.Reader(np.array(row)), oracle.Writer(len(row))
    kata.online_softmax(reader, writer, block)
    length, most = len(row), max(reader.largest_read, writer.largest_write)
    assert most <= block, f"expected at most {block} elements at a time, found {most}"
    assert reader.reads <= 2 * length, f"{length} elements: expected 2 reads each, {reader.reads}"
    assert writer.writes == length, f"{length} elements: expected 1 write each, {writer.writes}"
    return writer.row


def state_of(kata, oracle, row, values):
    pairs = np.array(values, dtype=float).reshape(-1, 2)
    return kata.State(*oracle.state(np.array(row, dtype=float), pairs))


def assert_same_state(oracle, got, want):
    for found, expected in zip(got, want, strict=True):
        oracle.assert_close(np.asarray(found, dtype=float), np.asarray(expected, dtype=float))


def assert_quarter_of(row, peak):
    limit = row.nbytes // 4
    assert peak <= limit, f"expected at most {limit} bytes held at once, found {peak}"


# ---- statistics and their merge ------------------------------------------------------------


def test_stats_by_hand(kata):
    largest, total = kata.stats(np.log([1.0, 2.0, 3.0]))
    assert largest == math.log(3)
    assert math.isclose(total, 1 / 3 + 2 / 3 + 1, rel_tol=1e-15)  # a few roundings


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [([1e4, -1e4], (1e4, 1.0)), ([-1e4, -1e4, -1e4], (-1e4, 3.0)), ([-INF, 2.0], (2.0, 1.0))],
    ids=["far apart", "all low", "one masked"],
)
def test_stats_of_extreme_values(kata, chunk, expected):
    assert kata.stats(np.array(chunk)) == expected


@pytest.mark.parametrize("length", [0, 1, 5])
def test_stats_of_nothing_but_masked_elements(kata, length):
    assert kata.stats(np.full(length, -INF)) == (-INF, 0.0)


def test_merge_by_hand(kata, oracle):
    # softmax([0, ln 3]) = [1/4, 3/4], and 10/4 - 2·3/4 = 1 = weighted / total
    merged = kata.merge(
        kata.State(largest=0.0, total=1.0, weighted=10.0),
        kata.State(largest=math.log(3), total=1.0, weighted=-2.0),
    )
    assert isinstance(merged, kata.State)
    assert_same_state(oracle, merged, (math.log(3), 4 / 3, 4 / 3))


@given(
    tiles=st.lists(st.lists(LOGITS, max_size=4), min_size=2, max_size=6),
    random=st.randoms(use_true_random=False),
)
def test_any_tree_of_merges_gives_the_same(kata, oracle, tiles, random):
    # values of one sign do not cancel, so a relative tolerance is fair
    values = [[(random.randint(0, 9), random.randint(1, 9)) for _ in tile] for tile in tiles]
    states = [state_of(kata, oracle, *pair) for pair in zip(tiles, values, strict=True)]
    random.shuffle(states)
    while len(states) > 1:
        left, right = (states.pop(random.randrange(len(states))) for _ in range(2))
        states.append(kata.merge(left, right))
    row, of_row = list(chain(*tiles)), list(chain(*values))
    assert_same_state(oracle, states[0], state_of(kata, oracle, row, of_row))


def test_empty_is_the_identity(kata):
    state = kata.State(largest=-3.5, total=1.7, weighted=0.3)
    assert kata.merge(kata.EMPTY, state) == state
    assert kata.merge(state, kata.EMPTY) == state
    assert kata.merge(kata.EMPTY, kata.EMPTY) == kata.EMPTY


@pytest.mark.parametrize(
    ("largest", "total", "weighted"),
    [(-INF, 0.0, [0.0, 0.0]), (5.0, 2.0, [1.0, -1.0])],
    ids=["masked", "seen"],
)
def test_empty_leaves_the_shape_of_weighted(kata, oracle, largest, total, weighted):
    state = kata.State(largest, total, np.array(weighted))
    assert_same_state(oracle, kata.merge(state, kata.EMPTY), state)
    assert_same_state(oracle, kata.merge(kata.EMPTY, state), state)


def test_masked_tiles_merge_without_nan(kata, oracle):
    masked = kata.State(largest=-INF, total=0.0, weighted=np.zeros(2))
    seen = kata.State(largest=5.0, total=2.0, weighted=np.array([1.0, -1.0]))
    assert_same_state(oracle, kata.merge(masked, masked), masked)
    assert_same_state(oracle, kata.merge(kata.merge(masked, seen), masked), seen)


def test_arguments_are_left_as_they_were(kata):
    chunk, weighted = np.array([1.0, 2.0]), np.array([4.0, 8.0])
    kata.stats(chunk)
    assert chunk.tolist() == [1.0, 2.0], "stats changed its chunk"
    small, large = kata.State(0.0, 1.0, weighted), kata.State(1.0, 1.0, weighted)
    for pair in ((small, large), (large, small)):
        kata.merge(*pair)
        assert weighted.tolist() == [4.0, 8.0], "merge changed a state it was given"


# ---- softmax of a stream -------------------------------------------------------------------


def test_softmax_by_hand(kata, oracle):
    found = softmax_of(kata, oracle, [0.0, math.log(3)], block=1)
    oracle.assert_close(found, np.array([0.25, 0.75]))


@pytest.mark.parametrize(
    ("length", "block"),
    [(0, 4), (1, 1), (8, 8), (10, 4), (3, 64), (257, 16)],
    ids=["empty", "one element", "one block", "ragged end", "long block", "power of two plus one"],
)
def test_softmax_of_normal_numbers(kata, oracle, seed, length, block):
    row = np.random.default_rng(seed).normal(size=length)
    oracle.assert_close(softmax_of(kata, oracle, row, block), oracle.softmax(row))


@given(row=st.lists(LOGITS, max_size=24).map(lambda row: [0.0, *row]), block=st.integers(1, 30))
def test_block_size_does_not_matter(kata, oracle, row, block):
    oracle.assert_close(softmax_of(kata, oracle, row, block), oracle.softmax(row))


def test_large_logits_stay_finite(kata, oracle):
    row = [-1e4, 9999.0, 1e4, 1e4]  # the maximum grows by 1 and by far more than exp can take
    near = math.exp(-1)
    expected = np.array([0, near, 1, 1]) / (near + 2)
    oracle.assert_close(softmax_of(kata, oracle, row, block=1), expected)


def test_masked_blocks_get_zero(kata, oracle):
    row = [-INF] * 4 + [7.0, 7.0] + [-INF] * 5
    assert softmax_of(kata, oracle, row, block=2).tolist() == [0.0] * 4 + [0.5, 0.5] + [0.0] * 5


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize(
    "row",
    [[1.0, INF, 2.0], [INF, -INF, INF], [math.nan, -INF, 3.0], [-INF] * 3],
    ids=["inf", "inf twice", "nan", "all masked"],
)
def test_undefined_softmax_is_nan_throughout(kata, oracle, row, block):
    with np.errstate(invalid="ignore"):
        assert np.isnan(softmax_of(kata, oracle, row, block)).all()


def test_softmax_accesses(kata, oracle, cost, seed):
    length = 1000
    row = np.random.default_rng(seed).normal(size=length)
    reader, writer = oracle.Reader(row), oracle.Writer(length)
    kata.online_softmax(reader, writer, block=64)
    oracle.assert_close(writer.row, oracle.softmax(row))
    cost.check("softmax_reads", reader.reads / length)
    cost.check("softmax_writes", writer.writes / length)


def test_fast_memory_holds_one_block(kata, oracle, seed, host_memory):
    row = np.random.default_rng(seed).normal(size=LONG)
    reader, writer = oracle.Reader(row), oracle.Writer(LONG)
    with host_memory() as held:
        kata.online_softmax(reader, writer, block=LONG // 128)
    weights = np.exp(row - row.max())
    oracle.assert_close(writer.row, weights / weights.sum())
    assert reader.largest_read <= LONG // 128
    assert reader.reads >= 2 * LONG, "fewer than two reads: the row was kept in fast memory"
    assert_quarter_of(row, held.peak_bytes)


# ---- softmax and top-k ---------------------------------------------------------------------


def test_topk_by_hand(kata, oracle):
    values, places = kata.softmax_topk(oracle.Reader(np.log([2.0, 5.0, 3.0])), k=2, block=1)
    oracle.assert_close(values, np.array([0.5, 0.3]))
    assert places.tolist() == [1, 2]
    assert places.dtype == np.int64


@given(row=st.lists(FEW, min_size=1, max_size=30), block=st.integers(1, 12), data=st.data())
def test_topk_agrees_with_sorting_everything(kata, oracle, row, block, data):
    k = data.draw(st.integers(1, len(row)))
    reader = oracle.Reader(np.array(row))
    values, places = kata.softmax_topk(reader, k, block)
    assert reader.largest_read <= block
    expected, where = oracle.topk(row, k)
    assert places.tolist() == where.tolist()
    oracle.assert_close(values, expected)


@pytest.mark.parametrize("block", [1, 2, 4])
def test_topk_ties_go_to_the_lower_index(kata, oracle, block):
    _, places = kata.softmax_topk(oracle.Reader(np.array([1.0, 3.0, 3.0, 3.0])), k=2, block=block)
    assert places.tolist() == [1, 2]


def test_topk_tells_apart_what_float64_does(kata, oracle):
    row = np.array([1.0, 1.0 + 2**-50, 1.0 - 2**-50])  # equal in float32
    assert kata.softmax_topk(oracle.Reader(row), k=3, block=2)[1].tolist() == [1, 0, 2]


def test_topk_of_a_long_row_of_ties(kata, oracle, seed):
    row = np.random.default_rng(seed).integers(3, size=2000).astype(float)
    _, places = kata.softmax_topk(oracle.Reader(row), k=100, block=512)
    assert places.tolist() == oracle.topk(row, 100)[1].tolist()


def test_topk_of_masked_elements_is_zero(kata, oracle):
    values, places = kata.softmax_topk(oracle.Reader(np.array([-INF, -INF, 2.0])), k=3, block=1)
    assert values.tolist() == [1.0, 0.0, 0.0]
    assert places.tolist() == [2, 0, 1]


def test_topk_reads_once(kata, oracle, cost, seed):
    row = np.random.default_rng(seed).normal(size=1000)
    reader = oracle.Reader(row)
    values, places = kata.softmax_topk(reader, k=8, block=64)
    expected, where = oracle.topk(row, 8)
    assert places.tolist() == where.tolist()
    oracle.assert_close(values, expected)
    cost.check("topk_reads", reader.reads / 1000)
    assert reader.largest_read <= 64


def test_topk_keeps_its_candidates_only(kata, oracle, seed, host_memory):
    row = np.random.default_rng(seed).normal(size=LONG)
    reader = oracle.Reader(row)
    with host_memory() as held:
        found = kata.softmax_topk(reader, k=8, block=LONG // 128)
    assert found[1].tolist() == np.argsort(-row)[:8].tolist()
    assert_quarter_of(row, held.peak_bytes)


def test_topk_keeps_no_more_than_k_candidates(kata, oracle, seed, host_memory):
    k, block = LONG // 8, LONG // 128
    reader = oracle.Reader(np.random.default_rng(seed).normal(size=LONG))
    with host_memory() as held:
        kata.softmax_topk(reader, k=k, block=block)
    # value and place of k candidates and a block; then what sorting them takes, and some more
    limit = 5 * 16 * (k + block)
    found = held.peak_bytes
    assert found <= limit, f"{k} candidates: expected at most {limit} bytes held, found {found}"


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, -1])
def test_block_below_one_is_refused(kata, oracle, block):
    reader = oracle.Reader(np.zeros(4))
    with pytest.raises(ValueError, match="block"):
        kata.online_softmax(reader, oracle.Writer(4), block)
    with pytest.raises(ValueError, match="block"):
        kata.online_softmax(oracle.Reader(np.zeros(0)), oracle.Writer(0), block)
    with pytest.raises(ValueError, match="block"):
        kata.softmax_topk(reader, 1, block)


@pytest.mark.parametrize("k", [0, -1, 5])
def test_k_outside_the_row_is_refused(kata, oracle, k):
    with pytest.raises(ValueError, match=r"\bk\b"):
        kata.softmax_topk(oracle.Reader(np.zeros(4)), k, block=2)
