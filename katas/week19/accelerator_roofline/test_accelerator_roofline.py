"""Published machines by hand, collectives step by step, and the search against brute force."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

WEIGHTS = 137_953_296_384  # LLaMA-2-70B in bfloat16


# ---- capacity ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "chips"),
    [
        ("MI300X", 1), ("H100", 2), ("H200", 2), ("MI300A", 2), ("Gaudi 3", 2), ("TPU v5p", 2),
        ("TPU v5e", 10), ("Groq LPU", 667), ("WSE-3", 4),
    ],
)  # fmt: skip
def test_chips_that_hold_70b(kata, name, chips):
    assert kata.chips_needed(WEIGHTS, 0, kata.ACCELERATORS[name]) == chips


@pytest.mark.parametrize(("tokens", "chips"), [(106_343, 1), (106_344, 2)])
def test_context_that_takes_a_second_mi300x(kata, oracle, tokens, chips):
    found = kata.chips_needed(WEIGHTS, tokens * oracle.KV_PER_TOKEN, kata.ACCELERATORS["MI300X"])
    assert found == chips


@pytest.mark.parametrize(
    ("weights", "kv", "usable", "chips"),
    [
        (1000, 0, 1.0, 1),  # just fits
        (1000, 1, 1.0, 2),
        (0, 0, 1.0, 1),
        (250, 250, 0.25, 2),  # just fits two
        (2**60, 1, 0.5, 2**60 // 500 + 1),  # more than a float holds
        (999, 0, 0.9999, 1),  # 999.9 bytes are 999
        (1998, 1, 0.9999, 3),
    ],
)
def test_exact_fits(kata, weights, kv, usable, chips):
    acc = replace(kata.ACCELERATORS["H100"], memory_bytes=1000)
    assert kata.chips_needed(weights, kv, acc, usable) == chips


def test_multiples_of_a_chip_past_53_bits(kata):
    acc = replace(kata.ACCELERATORS["H100"], memory_bytes=1000)
    assert kata.chips_needed(1000 * 10**16, 1000, acc, 1.0) == 10**16 + 1
    assert kata.chips_needed(1000 * 10**16, 1001, acc, 1.0) == 10**16 + 2


# ---- a decode step -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "chips", "tok_s"),
    [("MI300X", 1, 38.4188), ("H100", 2, 48.5672), ("Groq LPU", 667, 386_797.6)],
)
def test_one_sequence_is_bound_by_memory(kata, oracle, name, chips, tok_s):
    acc = kata.ACCELERATORS[name]
    seconds, bound = kata.decode_step_s(oracle.LLAMA_2_70B, 2, 0, 1, chips, acc)
    assert bound == "memory"
    assert 1 / seconds == pytest.approx(tok_s, rel=1e-5)


@pytest.mark.parametrize(
    ("kv_bytes", "batch", "chips", "expected"),
    [  # 4 parameters of 2 bytes, 8 bytes and 32 FLOPs per second
        (0, 1, 1, (1.0, "memory")),
        (0, 4, 1, (1.0, "memory")),  # a tie
        (0, 5, 1, (1.25, "compute")),
        (8, 5, 1, (2.0, "memory")),
        (8, 8, 1, (2.0, "memory")),  # a tie again
        (8, 16, 1, (4.0, "compute")),
        (8, 16, 4, (1.0, "compute")),
        (24, 1, 2, (2.0, "memory")),
    ],
)
def test_steps_by_hand(kata, kv_bytes, batch, chips, expected):
    acc = kata.Accelerator(memory_bytes=1, bandwidth=8.0, flops=32.0, host_link=1.0)
    assert kata.decode_step_s(4, 2, kv_bytes, batch, chips, acc) == expected


def test_ridge_by_hand(kata):
    found = [kata.batch_ridge(kata.ACCELERATORS["H100"], itemsize) for itemsize in (1, 2)]
    assert found == [pytest.approx(147.6716, rel=1e-6), pytest.approx(295.3433, rel=1e-6)]
    assert kata.batch_ridge(kata.ACCELERATORS["Groq LPU"], 2) == pytest.approx(2.35, rel=1e-9)


# ---- collectives ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axes", "seconds"),
    [  # 4096 bytes, links of 64 bytes per second in each direction
        ([(4, True)], 24.0),
        ([(4, False)], 48.0),
        ([(2, True)], 16.0),
        ([(1, True)], 0.0),
        ([(1, False), (1, True)], 0.0),
        ([(4, True), (1, False)], 24.0),  # an axis of one chip takes no part
        ([(4, True), (4, True)], 15.0),
        ([(4, True), (1, True), (4, True)], 15.0),
        ([(4, False), (4, False)], 30.0),  # a 4 x 4 slice of v5e has no wrap-around
        ([(4, True), (4, False)], 30.0),  # the line is what the ring waits for, in both phases
        ([(4, True), (2, True)], 18.0),
        ([(2, True), (2, True), (2, True)], 28 / 3),
    ],
)
def test_all_gather_by_hand(kata, axes, seconds):
    found = kata.torus_all_gather_s(4096, [kata.Axis(n, wrap) for n, wrap in axes], 64.0, 0.0)
    assert found == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("axes", "hops"),
    [
        ([(8, True)], 7),
        ([(4, True), (1, True)], 3),
        ([(8, False)], 7),
        ([(4, True), (3, True)], 6),
        ([(4, True), (4, False)], 6),
    ],
)
def test_hops_alone(kata, axes, hops):
    """Each phase lasts as long as its longest axis."""
    axes = [kata.Axis(n, wrap) for n, wrap in axes]
    assert kata.torus_all_gather_s(0, axes, 64.0, 0.25) == 0.25 * hops


@given(
    st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=3),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e-6, 1e-2]),
)
def test_all_gather_step_by_step(kata, oracle, axes, nbytes, hop_s):
    found = kata.torus_all_gather_s(nbytes, [kata.Axis(*axis) for axis in axes], 1e6, hop_s)
    assert found == pytest.approx(float(oracle.gather_s(nbytes, axes, 1e6, hop_s)), rel=1e-9)


def test_axes_are_left_alone(kata):
    axes = [kata.Axis(1, True), kata.Axis(4, True)]
    kata.torus_all_gather_s(64, axes, 64.0, 0.0)
    assert axes == [kata.Axis(1, True), kata.Axis(4, True)]


# ---- the host's memory ---------------------------------------------------------------------


@pytest.mark.parametrize(("name", "seconds"), [("MI300X", 2.1555203), ("MI300A", 0.02602893)])
def test_weights_in_host_memory(kata, name, seconds):
    found = kata.host_weight_stream_s(WEIGHTS, kata.ACCELERATORS[name])
    assert found == pytest.approx(seconds, rel=1e-6)


# ---- the search ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv_tokens", "batch", "tok_s", "expected"),
    [
        (0, 1, 1.0, ("MI300X", 1)),  # capacity alone
        (0, 1, 100.0, ("H200", 3)),  # MI300X would do as well, further down the table
        (0, 1, 110.0, ("MI300X", 3)),
        (0, 1, 1000.0, ("WSE-3", 4)),
        (10**6, 64, 45.0, ("MI300X", 4)),
        (10**6, 1, 1.0, ("MI300X", 3)),  # the cache is twice as large as the weights
    ],
)
def test_cheapest_by_hand(kata, oracle, kv_tokens, batch, tok_s, expected):
    problem = (oracle.LLAMA_2_70B, 2, kv_tokens * oracle.KV_PER_TOKEN, batch, tok_s)
    assert kata.cheapest(kata.ACCELERATORS, *problem) == expected


@given(st.data())
def test_cheapest_of_all_numbers_of_chips(kata, oracle, data):
    # powers of two, so that a target may just be met
    power = st.integers(0, 6).map(lambda exponent: 2.0**exponent)
    table = {
        name: kata.Accelerator(
            memory_bytes=data.draw(st.integers(10, 200)),
            bandwidth=data.draw(power), flops=data.draw(power), host_link=None,
        )
        for name in data.draw(st.permutations("abc"))
    }  # fmt: skip
    problem = (
        data.draw(st.integers(1, 60)), data.draw(st.integers(1, 2)), data.draw(st.integers(0, 60)),
        data.draw(st.integers(1, 8)), data.draw(power) / 8,
    )  # fmt: skip
    expected = oracle.cheapest(table, *problem, kata.chips_needed)
    assert kata.cheapest(table, *problem) == expected


def test_first_of_equals(kata):
    acc = kata.ACCELERATORS["H100"]
    assert kata.cheapest({"z": acc, "a": acc}, 1000, 2, 0, 1, 1.0) == ("z", 1)


def test_few_steps_are_computed(kata, oracle, calls, cost):
    asked = calls("decode_step_s", limit=100_000)
    found = kata.cheapest(
        {name: kata.ACCELERATORS[name] for name in kata.ACCELERATORS if name != "WSE-3"},
        oracle.LLAMA_2_70B, 2, 0, 1, 100_000.0,
    )  # fmt: skip
    assert found == ("Groq LPU", 667)
    cost.check("evaluations", asked.calls)


# ---- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("usable", [0.0, -0.5, 1.5, float("nan")])
def test_usable_share(kata, usable):
    with pytest.raises(ValueError, match="^usable: "):
        kata.chips_needed(1, 0, kata.ACCELERATORS["H100"], usable)


@pytest.mark.parametrize("name", ["batch", "chips"])
@pytest.mark.parametrize("value", [0, -1])
def test_no_batch_and_no_chips(kata, name, value):
    call = {"params": 8, "itemsize": 2, "kv_bytes": 0, "batch": 1, "chips": 1, name: value}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.decode_step_s(**call, acc=kata.ACCELERATORS["H100"])


@pytest.mark.parametrize("sizes", [[], [0], [4, -1]], ids=["none", "zero", "negative"])
def test_no_mesh(kata, sizes):
    with pytest.raises(ValueError, match="^axes: "):
        kata.torus_all_gather_s(64, [kata.Axis(n, True) for n in sizes], 64.0, 0.0)


@pytest.mark.parametrize("target_tok_s", [0.0, -1.0, float("nan")])
def test_no_target(kata, target_tok_s):
    with pytest.raises(ValueError, match="^target_tok_s: "):
        kata.cheapest(kata.ACCELERATORS, 8, 2, 0, 1, target_tok_s)


def test_no_machine(kata):
    with pytest.raises(ValueError, match="^table: "):
        kata.cheapest({}, 8, 2, 0, 1, 1.0)
