"""Published counts to the last parameter, curves with known answers, and a search that is short."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

# ---- parameters --------------------------------------------------------------------------------

PUBLISHED = {
    "LLAMA_2_13B": (13_015_864_320, 13_015_864_320),
    "MIXTRAL_8X7B": (46_702_792_704, 12_879_925_248),
    "DEEPSEEK_MOE_16B": (16_375_728_128, 2_828_650_496),
    "DEEPSEEK_V3": (671_026_419_200, 37_552_297_472),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models(kata, name):
    assert kata.moe_params(getattr(kata, name)) == PUBLISHED[name]


def configs(kata):
    """Draw configs of all kinds."""
    small = st.integers(1, 7)
    attention = st.one_of(
        st.builds(kata.Attention, heads=small, kv_heads=small, head_dim=small),
        st.builds(
            kata.LatentAttention,
            heads=small, q_rank=small, kv_rank=small, nope_dim=small, rope_dim=small, v_dim=small,
        ),
    )  # fmt: skip
    experts = st.integers(1, 9).flatmap(
        lambda e: st.tuples(st.just(e), st.integers(1, e), st.integers(0, 3))
    )
    layers = st.integers(1, 5).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
    return st.builds(
        lambda vocab, d, layers, attention, ffn, experts, expert_ffn, bias, tied: kata.Config(
            vocab=vocab, d=d, layers=layers[0], attention=attention, dense_layers=layers[1],
            dense_ffn=ffn, experts=experts[0], k=experts[1], shared=experts[2],
            expert_ffn=expert_ffn, router_bias=bias, tied=tied,
        ),
        small, small, layers, attention, small, experts, small, st.booleans(), st.booleans(),
    )  # fmt: skip


@given(data=st.data())
def test_any_config_shape_by_shape(kata, oracle, data):
    cfg = data.draw(configs(kata))
    assert kata.moe_params(cfg) == oracle.params(cfg)


def test_all_experts_for_every_token_leave_none_over(kata):
    params = kata.moe_params(replace(kata.MIXTRAL_8X7B, k=8))
    assert type(params) is kata.Params
    assert params.active == params.total


def test_counts_are_exact_past_53_bits(kata, oracle):
    cfg = replace(kata.DEEPSEEK_V3, experts=2**28 + 1, k=2**27 + 1)
    found = kata.moe_params(cfg)
    assert found == oracle.params(cfg)
    narrow = kata.Attention(heads=3, kv_heads=1, head_dim=5)
    cfg = replace(cfg, attention=narrow)
    assert kata.flops_per_token(cfg, 2**60 + 1) == oracle.flops(cfg, 2**60 + 1, True)


# ---- FLOPs -------------------------------------------------------------------------------------


def test_flops_of_published_models(kata):
    found = [
        (kata.flops_per_token(cfg, 4096), kata.flops_per_token(cfg, 4096, causal=False))
        for cfg in (kata.LLAMA_2_13B, kata.MIXTRAL_8X7B, kata.DEEPSEEK_V3)
    ]
    assert found == [
        (27_380_940_800, 29_058_662_400),
        (26_570_915_840, 27_644_657_664),
        (83_483_295_744, 93_717_397_504),
    ]


@given(data=st.data(), seqlen=st.integers(1, 50), causal=st.booleans())
def test_flops_of_any_config(kata, oracle, data, seqlen, causal):
    cfg = data.draw(configs(kata))
    assert kata.flops_per_token(cfg, seqlen, causal) == oracle.flops(cfg, seqlen, causal)


# ---- what is no config -------------------------------------------------------------------------

WRONG = {
    "more choices than experts": ({"k": 9}, "k"),
    "no choice": ({"k": 0}, "k"),
    "no experts": ({"experts": 0, "k": 0}, "k"),
    "more dense layers than layers": ({"dense_layers": 33}, "dense_layers"),
    "fewer than none": ({"dense_layers": -1}, "dense_layers"),
}


@pytest.mark.parametrize(("changed", "name"), WRONG.values(), ids=WRONG)
def test_what_is_no_config(kata, changed, name):
    cfg = replace(kata.MIXTRAL_8X7B, **changed)
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.moe_params(cfg)
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.flops_per_token(cfg, 128)


def test_no_tokens_take_no_flops(kata):
    with pytest.raises(ValueError, match="^seqlen: "):
        kata.flops_per_token(kata.LLAMA_2_13B, 0)


# ---- curves ------------------------------------------------------------------------------------


def test_a_shift_is_the_speedup_everywhere(kata, oracle):
    dense = oracle.power_law(30.0, 0.05, [1e18, 3e19, 1e21, 7e23])
    moe = [(c / 4, loss) for c, loss in dense]
    for _, loss in dense:
        assert kata.compute_speedup(dense, moe, loss) == 4.0
    for loss in (3.7, 2.9, 2.5, 2.1):
        assert kata.compute_speedup(dense, moe, loss) == pytest.approx(4.0, rel=1e-9)


def test_a_knot_gives_its_own_compute(kata, oracle):
    # 2.8 is a knot of both
    assert kata.compute_speedup(oracle.DENSE, oracle.MOE, 2.8) == 1e21 / 2e20
    assert kata.compute_speedup(oracle.DENSE, oracle.DENSE, 4.0) == 1.0
    assert kata.compute_speedup(oracle.DENSE, oracle.DENSE, 2.2) == 1.0
    apart = [(1.1e18 * 7.3**at, 4.0 * 0.93**at) for at in range(20)]
    # a · (b / a) is not always b
    close = [(1e18 * (at + 1) ** 3, 4.0 * 0.93**at) for at in range(20)]
    for curve in (apart, close):
        for compute, loss in curve:
            one = [(0.5, loss * 1.1), (1.0, loss), (2.0, loss * 0.9)]
            found = kata.compute_speedup(curve, one, loss)
            assert found == compute, f"loss {loss}: {found}, expected the point's own {compute}"


@pytest.mark.parametrize("loss", [3.9, 3.4, 3.0, 2.5, 2.25])
def test_between_knots_logarithms_are_linear(kata, oracle, loss):
    def compute(curve):
        for (c, high), (next_c, low) in pairwise(curve):
            if low <= loss <= high:
                t = (math.log(high) - math.log(loss)) / (math.log(high) - math.log(low))
                return math.exp((1 - t) * math.log(c) + t * math.log(next_c))
        raise AssertionError

    expected = compute(oracle.DENSE) / compute(oracle.MOE)
    found = kata.compute_speedup(oracle.DENSE, oracle.MOE, loss)
    assert found == pytest.approx(expected, rel=1e-9)


def test_two_points_are_a_curve(kata):
    moe = [(1e17, 4.0), (1e19, 2.0)]
    found = kata.compute_speedup([(1e18, 4.0), (1e20, 2.0)], moe, math.sqrt(8))
    assert found == pytest.approx(10.0, rel=1e-9), f"halfway, 1e19 over 1e18: {found}, expected 10"


def test_the_speedup_shrinks_with_the_budget(kata, oracle):
    # 4 at 1e18, and a factor of 10^(1/12) less for each decade: 1 where the laws cross
    exponent, points = 0.05, [10.0**e for e in range(16, 30)]
    delta = math.log10(4) / 6
    dense = oracle.power_law(30.0, exponent, points)
    moe = [(c / (4 * (c / 1e18) ** -delta), loss) for c, loss in dense]
    for budget, expected in ((1e18, 4.0), (1e21, 2.0), (1e24, 1.0), (1e27, 0.5)):
        loss = 30.0 * budget**-exponent
        assert kata.compute_speedup(dense, moe, loss) == pytest.approx(expected, rel=1e-9)


@given(unit=st.floats(1e-18, 1e3), loss=st.floats(2.2, 4.0))
def test_units_of_compute_do_not_matter(kata, oracle, unit, loss):
    dense, moe = ([(c * unit, value) for c, value in one] for one in (oracle.DENSE, oracle.MOE))
    expected = kata.compute_speedup(oracle.DENSE, oracle.MOE, loss)
    assert kata.compute_speedup(dense, moe, loss) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("loss", [4.01, 2.19, 0.0, math.nan])
def test_nothing_is_extrapolated(kata, oracle, loss):
    for curves in ((oracle.DENSE, oracle.MOE), (oracle.MOE, oracle.DENSE)):
        with pytest.raises(ValueError, match="^loss: "):
            kata.compute_speedup(*curves, loss)


CURVES = {
    "one point": [(1e18, 3.0)],
    "none": [],
    "loss that rises": [(1e18, 3.0), (1e19, 2.5), (1e20, 2.6)],
    "loss that stays": [(1e18, 3.0), (1e19, 3.0), (1e20, 2.0)],
    "compute that falls": [(1e18, 3.0), (1e17, 2.5)],
    "compute that falls after it has risen": [(1e18, 3.0), (1e20, 2.6), (1e19, 2.5)],
    "compute that stays": [(1e18, 3.0), (1e18, 2.5)],
    "compute that falls at the last of four": [(1e18, 3.0), (1e19, 2.9), (1e20, 2.6), (1e19, 2.5)],
    "loss that rises at the last of four": [(1e18, 3.0), (1e19, 2.9), (1e20, 2.5), (1e21, 2.6)],
    "the other way round": [(1e20, 2.5), (1e18, 3.0)],
    "no compute": [(0.0, 3.0), (1e18, 2.5)],
    "no loss": [(1e18, 3.0), (1e19, 0.0)],
    "no loss at the last of three": [(1e18, 3.0), (1e19, 2.0), (1e20, 0.0)],
    "no number": [(1e18, 3.0), (1e19, math.nan), (1e20, 2.0)],
}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_what_is_no_curve(kata, oracle, curve):
    with pytest.raises(ValueError, match="^dense: "):
        kata.compute_speedup(curve, oracle.MOE, 2.8)
    with pytest.raises(ValueError, match="^moe: "):
        kata.compute_speedup(oracle.DENSE, curve, 2.8)


# ---- where the laws cross ----------------------------------------------------------------------


def laws(oracle, crossing, asked, floor=0.0):
    """Two laws, of exponents 0.05 and 0.047, that cross there."""
    a = 30.0
    b = a * crossing ** (0.047 - 0.05)
    return oracle.Law(a, 0.05, floor, asked), oracle.Law(b, 0.047, floor, asked)


@pytest.mark.parametrize("crossing", [1.2e14, 3e17, 8.1e20, 6e23, 9.9e25])
def test_laws_cross_where_they_do(kata, oracle, cost, crossing):
    asked = []
    law_a, law_b = laws(oracle, crossing, asked, floor=1.7)
    for pair in ((law_a, law_b), (law_b, law_a)):
        asked.clear()
        found = kata.crossover_compute(*pair, 1e14, 1e26, 1e-6)
        assert found == pytest.approx(crossing, rel=1.001e-6)
        assert min(asked) >= 1e14, "expected that no law is asked below lo"
        assert max(asked) <= 1e26, "expected that no law is asked above hi"
    if crossing == 8.1e20:
        cost.check("evaluations", len(asked))


@given(exponent=st.floats(14.01, 25.99), rtol=st.sampled_from([1e-2, 1e-4, 1e-9]))
def test_any_crossing_to_any_share(kata, oracle, exponent, rtol):
    crossing = 10.0**exponent
    law = oracle.patient(lambda c: math.log(c / crossing))
    found = kata.crossover_compute(law, lambda c: 0.0, 1e14, 1e26, rtol)
    assert found == pytest.approx(crossing, rel=rtol * 1.001)


def test_the_finest_share_that_may_be_asked_for(kata, oracle):
    law = oracle.patient(lambda c: c)
    found = kata.crossover_compute(law, lambda c: 7e20, 1e14, 1e26, 1e-12)
    assert found == pytest.approx(7e20, rel=1e-12), f"{found}, expected 7e20 to a share of 1e-12"


@pytest.mark.parametrize("scale", [1e-250, 1.0, 1e250], ids="scale {}".format)
def test_no_scale_is_too_large_or_too_small(kata, oracle, scale):
    """Of C, and of the difference of the laws, whose product with another is 0 or infinite."""
    law = oracle.patient(lambda c: scale * math.log(c / scale / 7.0))
    found = kata.crossover_compute(law, lambda c: 0.0, scale, 1e9 * scale, 1e-6)
    assert found / scale == pytest.approx(7.0, rel=1.001e-6)


def test_laws_that_meet_at_an_end(kata):
    for end in (1e14, 1e26):
        found = kata.crossover_compute(lambda c, end=end: c - end, lambda c: 0.0, 1e14, 1e26, 1e-6)
        assert found == end


@pytest.mark.parametrize(
    ("lo", "hi", "rtol", "name"),
    [
        (0.0, 1e3, 1e-6, "lo"), (-1.0, 1e3, 1e-6, "lo"), (1e3, 1e3, 1e-6, "lo"),
        (1e3, 1e2, 1e-6, "lo"), (1e2, 1e3, 0.0, "rtol"), (1e2, 1e3, 1e-13, "rtol"),
        (1e2, 1e3, math.nan, "rtol"), (20.0, 1e3, 1e-6, "hi"), (1.0, 9.0, 1e-6, "hi"),
    ],
)  # fmt: skip
def test_where_there_is_no_crossing_to_find(kata, lo, hi, rtol, name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.crossover_compute(lambda c: c, lambda c: 10.0, lo, hi, rtol)
