"""Rank, ties, infinities and ends; the law of the samples; what a row costs to read."""

import math

import numpy as np
import pytest
from numba import cuda

from harness.judge import assert_follows

# numba advises against launches that leave most of a GPU idle: a few rows are no harder
pytestmark = pytest.mark.filterwarnings("ignore:Grid size")

INF = math.inf
LAST_U = 1 - 2**-24  # the largest float32 below 1
SENTINEL = -7


def rows_of(logits, temperature=1.0, top_k=0, top_p=1.0, u=0.5):
    """Arguments: what is given once is given for every row."""
    logits = np.array(logits, dtype=np.float32, ndmin=2)
    per_row = {"temperature": temperature, "top_p": top_p, "u": u}
    rows = max(len(logits), *(np.size(one) for one in (*per_row.values(), top_k)))
    filled = {name: np.zeros(rows, np.float32) + np.float32(one) for name, one in per_row.items()}
    filled["top_k"] = np.zeros(rows, np.int32) + np.int32(top_k)
    return {"logits": np.repeat(logits, rows // len(logits), axis=0), **filled}


def drawn(kata, inputs, **options):
    options = {"block": 32, **options}
    inputs = {name: cuda.to_device(one) for name, one in inputs.items()}
    return kata.topk_topp_sampling(**inputs, **options).copy_to_host()


def assert_drawn(kata, inputs, expected, **options):
    """Fail at the first row that draws another token."""
    found = drawn(kata, inputs, **options)
    for row, (got, want) in enumerate(zip(found.tolist(), expected, strict=True)):
        given = ", ".join(f"{name} = {inputs[name][row]}" for name in inputs if name != "logits")
        line = inputs["logits"][row].tolist()
        shown = str(line) if len(line) <= 12 else f"{line[:6]} … {line[-2:]} ({len(line)} logits)"
        assert got == want, f"row {row}: expected token {want}, found {got} | {given}, {shown}"


def padded(logits, vocab):
    """The same and so many that cannot be drawn, in front: too many for the fewest threads."""
    return [-INF] * (vocab - len(logits)) + [*logits]


@pytest.fixture(params=[0, 140], ids=["alone", "among many"])
def many(request):
    """How long a row is made: short ones may be settled in another way than long ones."""
    return request.param


def told(logits, many, **options):
    """Arguments for `logits` padded to `many`, and how far that moves the tokens."""
    shift = max(0, many - len(logits))
    return rows_of(padded(logits, many or len(logits)), **options), shift


# ---- the order of rank -----------------------------------------------------------------------


def test_u_walks_down_the_ranks(kata, many):
    inputs, shift = told(
        np.log([0.1, 0.4, 0.3, 0.2]), many, u=[0, 0.39, 0.41, 0.69, 0.71, 0.89, 0.91, LAST_U]
    )
    assert_drawn(kata, inputs, [shift + token for token in (1, 1, 2, 2, 3, 3, 0, 0)])


def test_top_k_comes_first_and_top_p_sees_what_it_left(kata, many):
    # of 0.4 : 0.3 : 0.2 the first two hold 0.78, of all four 0.70
    inputs, shift = told(
        np.log([0.2, 0.1, 0.4, 0.3]), many, top_k=3, top_p=0.75, u=[0.56, 0.58, LAST_U]
    )
    assert_drawn(kata, inputs, [shift + 2, shift + 3, shift + 3])


def test_a_nucleus_is_as_small_as_it_can_be(kata, many):
    # sums of 0.5, 0.75 and 0.875, and the lower of two equal tokens first
    inputs, shift = told(
        np.log([0.125, 0.5, 0.25, 0.125]), many, top_p=[0.49, 0.51, 0.74, 0.76, 1e-30], u=LAST_U
    )
    assert_drawn(kata, inputs, [shift + token for token in (1, 2, 2, 0, 1)])


def test_temperature_counts_before_top_p(kata, many):
    # 0.8 : 0.2 at a temperature of 1 is 2 : 1 at 2 and 16 : 1 at a half
    inputs, shift = told(
        np.log([0.2, 0.8]), many, temperature=[2, 1, 0.5, 2], top_p=0.9, u=[0.66, 0.81, 0.99, 0.67]
    )
    assert_drawn(kata, inputs, [shift + token for token in (1, 0, 1, 0)])


def test_every_row_has_parameters_of_its_own(kata):
    logits = np.log([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.2, 0.3, 0.5]])
    inputs = rows_of(logits, [1, 0.5, 1], [0, 2, 1], [1, 1, 0.5], [0.95, 0.8, 0.9])
    assert_drawn(kata, inputs, [0, 2, 2])


# ---- ties ------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [9, 140])
def test_of_equal_logits_the_lower_tokens_survive(kata, vocab):
    k = vocab - 2
    inputs = rows_of(np.ones(vocab), top_k=[k, k, 4, 4], u=[0, LAST_U, 0.5, 0.49])
    assert_drawn(kata, inputs, [0, k - 1, 2, 1])


@pytest.mark.parametrize("vocab", [8, 140])
def test_of_equal_logits_the_lower_tokens_are_the_nucleus(kata, vocab):
    inputs = rows_of(np.zeros(vocab), top_p=0.5, u=[0, 0.5, LAST_U])
    assert_drawn(kata, inputs, [0, vocab // 4, vocab // 2 - 1])


def test_a_tie_across_the_kth_place_leaves_the_lower_token(kata, many):
    # 5, 4, 4: the second 4 is out
    inputs, shift = told([4, 1, 5, 4, 4], many, top_k=[3, 2], u=LAST_U)
    assert_drawn(kata, inputs, [shift + 3, shift + 0])


def test_zeros_of_both_signs_are_equal(kata, many):
    inputs, shift = told([-0.0, 0.0, -0.0, -1.0], many, top_k=[1, 2, 3], u=LAST_U)
    assert_drawn(kata, inputs, [shift, shift + 1, shift + 2])


# ---- what is not finite, or hardly -----------------------------------------------------------


def test_plus_infinity_leaves_nothing_to_the_others(kata, many):
    options = {"temperature": [1, 1, 1, 0], "top_k": [0, 3, 2, 0], "top_p": [1, 0.3, 1, 1]}
    inputs, shift = told([3.4e38, INF, 1, -INF], many, **options, u=LAST_U)
    assert_drawn(kata, inputs, [shift + 1] * 4)


def test_infinities_share_alike(kata, many):
    inputs, shift = told([INF, 2, INF], many, u=[0.49, 0.51], top_k=[0, 3])
    assert_drawn(kata, inputs, [shift, shift + 2])


def test_minus_infinity_is_never_drawn(kata, many):
    inputs, shift = told([-INF, 1, -INF, -INF, 1], many, top_k=[0, 4, 5, 0], u=[LAST_U] * 3 + [0])
    assert_drawn(kata, inputs, [shift + 4] * 3 + [shift + 1])


@pytest.mark.parametrize("vocab", [3, 140])
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "warm"])
def test_a_row_without_a_token_to_draw_gives_minus_one(kata, vocab, temperature):
    inputs = rows_of(np.full(vocab, -INF), temperature, top_k=[0, 2])
    assert_drawn(kata, inputs, [-1, -1])


@pytest.mark.parametrize("vocab", [4, 140])
def test_a_row_with_nan_gives_minus_one_and_the_next_a_token(kata, vocab):
    logits = np.tile(np.arange(vocab, dtype=np.float32), (7, 1))
    logits[0, 0] = logits[1, vocab - 1] = logits[4, 2] = np.nan
    logits[2, 1] = logits[6, 0] = np.copysign(np.float32(np.nan), np.float32(-1))
    inputs = rows_of(logits, [1, 1, 1, 1, 0, 1, 1], [0, 0, 2, 0, 0, 1, 1], u=0)
    assert_drawn(kata, inputs, [-1, -1, -1, vocab - 1, -1, vocab - 1, -1])


def test_logits_of_any_size(kata, many):
    # differences of 1 leave the second 0.269 of the first two; 88 is where exp overflows
    for offset in (1e4, -1e4, 89.0, -120.0):
        inputs, shift = told([offset, offset - 1, offset - 300], many, u=[0.73, 0.74])
        assert_drawn(kata, inputs, [shift, shift + 1])


def test_a_rare_token_is_drawn_where_all_are_kept(kata, many):
    # e^-10 is 4.5e-5 of the whole
    inputs, shift = told([-10, 0], many, u=[0.99994, 0.99997, 0.99997], top_p=[1, 1, 0.9999])
    assert_drawn(kata, inputs, [shift + 1, shift, shift + 1])
    # e^-14.5 is 5.0e-7, four units in the last place of a float32 sum
    inputs, shift = told([-14.5, 0], many, u=[LAST_U, 0.999999])
    assert_drawn(kata, inputs, [shift, shift + 1])


# a warp's next logits, and what is one more than 8 loads of each of its threads
@pytest.mark.parametrize("top_k", [0, 2])
def test_no_logit_is_missed(kata, top_k):
    vocab, places = 257, [256, 255, 224, 223, 32, 1]
    logits = np.full((len(places), vocab), -20, np.float32)
    logits[:, 0] = logits[range(len(places)), places] = 0
    assert_drawn(kata, rows_of(logits, top_k=top_k, u=0.75), places)


def test_top_k_may_reach_into_minus_infinity(kata):
    logits = [1] * 100 + [-INF] * 29
    assert_drawn(kata, rows_of(logits, top_k=[128, 101], u=LAST_U), [99, 99])


# ---- greedy ----------------------------------------------------------------------------------


def test_temperature_zero_takes_the_first(kata, many):
    inputs, shift = told(
        [1, 3, 3, 2], many, temperature=0, top_k=[0, 3, 0, 9], top_p=[1, 0.1, 1, 1], u=LAST_U
    )
    assert_drawn(kata, inputs, [shift + 1] * 4)


def test_the_smallest_temperatures_are_greedy_without_overflow(kata, many):
    inputs, shift = told([-3e38, 3e38, 1, 3e38], many, temperature=[1e-40, 1e-6], u=[0.51, 0.49])
    assert_drawn(kata, inputs, [shift + 3, shift + 1])


def test_as_many_survivors_as_a_block_may_have_room_for(kata):
    # rows that keep one more than a power of two of 520 equal logits: half of them hold 0.5
    top_k = np.array([129, 257, 513])
    inputs = rows_of(np.zeros(520), top_k=top_k, top_p=0.5, u=LAST_U)
    assert_drawn(kata, inputs, (top_k + 1) // 2 - 1, block=128)


def test_many_rare_tokens_have_their_share(kata):
    # each has a little less than 2^-23 of the first one's mass, and 1000 of them 1.2e-4
    logits = np.full(1001, math.log(0.99 * 2**-23))
    logits[0] = 0
    (found,) = drawn(kata, rows_of(logits, u=0.99995), block=128)
    assert 500 < found < 650, f"u = 0.99995: expected token 577, or one near it, found {found}"


# ---- parameters ------------------------------------------------------------------------------


def test_all_survive_a_top_k_that_is_off_or_large(kata, many):
    inputs, shift = told([0, 0, 0, 0], many, top_k=[0, many or 4, 141, 2**31 - 1], u=LAST_U)
    assert_drawn(kata, inputs, [shift + 3] * 4)


def test_a_row_out_of_range_gives_minus_one_and_stops_no_other(kata):
    ranges = {"temperature": (-1, np.nan, INF), "top_k": (-1,)}
    ranges |= {"top_p": (0, -0.5, 1.0001, np.nan), "u": (-1e-7, 1, np.nan)}
    wrong = [(name, value) for name, values in ranges.items() for value in values]
    inputs = rows_of(np.zeros(3), u=np.full(len(wrong) + 4, 0.4))
    for row, (name, value) in enumerate(wrong):
        inputs[name][row] = value
    inputs["temperature"][-4:-1] = 0  # greedy asks for none of the three: wrong all the same
    inputs["top_k"][-4], inputs["top_p"][-3], inputs["u"][-2] = -1, 0, 1
    assert_drawn(kata, inputs, [-1] * len(wrong) + [-1, -1, -1, 1])


def test_the_largest_u_draws_the_last_of_the_nucleus(kata, many):
    # sums that differ by rounding must not leave u, or top_p, behind their end
    generator = np.random.default_rng(5)
    rows = 3 if many else 12
    logits = np.full((rows, many or 9), -INF, np.float32)
    logits[:, -9:] = generator.standard_normal((rows, 9))
    top_p = np.where(np.arange(rows) % 3, 1, LAST_U)
    top_k = np.tile([0, 9, 5], rows // 3)
    expected = [
        logits[row].argsort()[::-1][(5 if top_k[row] == 5 else 9) - 1] for row in range(rows)
    ]
    assert_drawn(kata, rows_of(logits, 0.9, top_k, top_p, LAST_U), expected)


# ---- samples ---------------------------------------------------------------------------------


def test_samples_follow_the_law(kata, oracle, device):
    samples, top_k, top_p = 20_000 if device == "cuda" else 100, 5, 0.9
    generator = np.random.default_rng(11)
    logits = np.float32([0.3, -0.4, 1.1, 0.9, -6.0, 0.0, 1.1])
    u = generator.random(samples).astype(np.float32) * np.float32(LAST_U)
    found = drawn(kata, rows_of(logits, 0.7, top_k, top_p, u))
    tokens, probabilities = oracle.law(logits, 0.7, top_k, top_p)
    expected = np.zeros(len(logits))
    expected[tokens[: len(probabilities)]] = probabilities
    assert found.min() >= 0, f"expected a token in every row, found {found.min()}"
    assert_follows(np.bincount(found, minlength=len(logits)), expected, what="tokens")


# ---- how it gets there -----------------------------------------------------------------------


@pytest.mark.parametrize("order", ["reversed", "random"])
def test_threads_may_run_in_any_order(kata, oracle, simt, seed, order):
    inputs = oracle.make_inputs(
        rows=2, vocab=140, dtype=np.dtype("float32"), device="cpu", seed=seed, block=96
    )
    with simt(order=order):
        found = kata.topk_topp_sampling(**inputs)
    np.testing.assert_array_equal(found, oracle.reference(**inputs))


@pytest.mark.parametrize(
    ("top_k", "name"),
    [(50, "reads_of_a_row"), (0, "reads_without_top_k")],
    ids=["top_k = 50", "no top_k"],
)
def test_rows_are_read_a_few_times(kata, oracle, simt, seed, cost, top_k, name):
    # no two alike, and 24 bits tell any two apart
    logits = np.random.default_rng(seed).permutation(1024) / 64 - 8
    inputs, out = rows_of(logits, 0.8, top_k, 0.9), np.full(1, SENTINEL, np.int32)
    with simt() as counted:
        found = kata.topk_topp_sampling(**inputs, out=out, block=64)
    np.testing.assert_array_equal(found, oracle.reference(**inputs))
    read = counted.of(inputs["logits"]).load
    assert read.elements >= logits.size, "logits are read where they are"
    cost.check(name, read.sectors * 8 / logits.size)
    cost.check("shared_bytes", counted.shared_bytes)


def test_a_token_is_stored_once(kata, simt):
    # one that is drawn, and those of a row with NaN, of one of -inf and of one that is out of range
    logits = np.zeros((4, 140), np.float32)
    logits[1, 70], logits[2] = np.nan, -INF
    out = np.full(4, SENTINEL, np.int32)
    with simt() as counted:
        kata.topk_topp_sampling(**rows_of(logits, temperature=[1, 1, 1, -1]), out=out, block=64)
    stored = counted.global_store.elements
    assert stored == 4, f"4 rows: expected 4 stores to global memory, found {stored}"


def test_rows_that_lie_apart_are_not_copied(kata, simt):
    wide = cuda.to_device(np.zeros((2, 200), np.float32))
    inputs = {**rows_of(np.zeros((2, 1))), "logits": wide[:, :140]}
    with simt() as counted:
        kata.topk_topp_sampling(**inputs, out=np.zeros(2, np.int32), block=64)
    loaded = counted.of(wide).load.elements
    assert loaded >= 2 * 140, f"2 rows of 140, 200 apart: {loaded} loads of what they are part of"


def test_rows_may_lie_apart(kata):
    wide = np.full((3, 8), 99, dtype=np.float32)
    wide[:, :5] = np.log([0.1, 0.2, 0.4, 0.2, 0.1])
    inputs = {name: cuda.to_device(one) for name, one in rows_of(wide, u=[0.3, 0.5, 0.95]).items()}
    inputs["logits"] = inputs["logits"][:, :5]
    found = kata.topk_topp_sampling(**inputs, block=32).copy_to_host()
    assert found.tolist() == [2, 1, 4]


def test_a_given_array_is_used(kata):
    out = cuda.to_device(np.full(4, SENTINEL, dtype=np.int32))
    inputs = rows_of(np.log([0.5, 0.3, 0.2]), u=[0.4, 0.7])
    first = out[:2]
    inputs = {name: cuda.to_device(one) for name, one in inputs.items()}
    assert kata.topk_topp_sampling(**inputs, out=first) is first
    assert out.copy_to_host().tolist() == [0, 1, SENTINEL, SENTINEL]
