"""Utilisation: published runs, the conventions one by one, and steps that are not all alike."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

# sums and quotients of floats: a few roundings of 1.1e-16 each
ROUNDING = 1e-14

RUN = {"tokens_per_s": 65.43e3, "n_chips": 2240, "seq": 2048}


def config(kata, fields):
    return kata.ModelConfig(**fields)


@st.composite
def fields(draw):
    """Any model; its width has nothing to do with its heads."""
    params = draw(st.integers(10**6, 10**12))
    return {
        "params": params,
        "active_params": draw(st.none() | st.integers(10**5, params)),
        **{name: draw(st.integers(1, 200)) for name in ("layers", "heads", "d_head")},
        "d": draw(st.integers(1, 20_000)),
    }


def published(kata, oracle, name):
    """MFU of a published run, and what the paper says."""
    fields, tokens_per_s, n_chips, chip, attention, share = oracle.PUBLISHED[name]
    found = kata.mfu(
        config(kata, fields), tokens_per_s, n_chips, getattr(kata, chip), 2048, attention=attention
    )
    return found, share


@pytest.mark.parametrize(
    ("name", "percent"),
    [("palm-540b", 46.2), ("mt-nlg-530b", 29.8), ("mt-nlg-530b with attention", 30.3)],
    ids=["palm-540b", "mt-nlg-530b", "mt-nlg-530b with attention"],
)
def test_published_runs_to_three_digits(kata, oracle, name, percent):
    assert round(100 * published(kata, oracle, name)[0], 1) == percent


def test_no_published_run_is_far_off(kata, oracle, cost):
    runs = [published(kata, oracle, name) for name in oracle.PUBLISHED]
    cost.check("published_error", max(abs(found - share) for found, share in runs))


def test_llama3_405b_against_the_dense_peak(kata, oracle):
    # 430 TFLOP/s a GPU, and 6N + 12·L·H·Q·T = 2.638 TFLOP a token; the paper prints 43 %
    tokens_per_s = 8192 * 430e12 / 2.63805e12
    found = kata.mfu(config(kata, oracle.LLAMA3_405B), tokens_per_s, 8192, kata.H100, 8192)
    assert math.isclose(found, 430 / 989.45, rel_tol=1e-5)  # the FLOPs above have six digits


def test_skipped_zeros_are_no_peak(kata):
    assert kata.dense_peak(kata.H100) == 989.45e12
    assert kata.dense_peak(kata.A100) == 312e12
    assert kata.dense_peak(kata.Chip(name="by hand", printed_flops_per_s=0.5)) == 0.5
    assert (
        kata.dense_peak(kata.Chip(name="X", printed_flops_per_s=8e12, with_sparsity=True)) == 4e12
    )
    honest = kata.Chip(name="H100 SXM", printed_flops_per_s=989.45e12)
    cfg = kata.ModelConfig(params=7e9, layers=32, d=4096, heads=32, d_head=128)
    printed, dense = (kata.mfu(cfg, 5000.0, 1, chip, 4096) for chip in (kata.H100, honest))
    assert printed == dense


@given(
    fields=fields(),
    seq=st.integers(1, 10**5),
    tokens_per_s=st.integers(0, 10**6).map(lambda quarters: quarters / 4),
)
def test_attention_counts_every_pair_of_every_head(kata, oracle, fields, seq, tokens_per_s):
    chip = kata.Chip(name="any", printed_flops_per_s=1e24)  # faster than all of these runs
    expected = oracle.share(fields, tokens_per_s, 7, 1e24, seq)
    found = kata.mfu(config(kata, fields), tokens_per_s, 7, chip, seq)
    assert math.isclose(found, expected, rel_tol=ROUNDING)


def test_experts_that_rest_do_not_count(kata, oracle):
    # 6 · 12.9e9 + 12 · 32 · 32 · 128 · 4096 = 8.3842e10 FLOP a token
    found = kata.mfu(config(kata, oracle.MIXTRAL), 4000.0, 1, kata.H100, 4096)
    assert math.isclose(found, 8.3842450944e10 * 4000 / 989.45e12, rel_tol=ROUNDING)


@given(fields=fields(), seq=st.integers(1, 10**5))
def test_full_recomputation_is_a_third_more(kata, fields, seq):
    cfg, chip = config(kata, fields), kata.Chip(name="any", printed_flops_per_s=1e24)
    ratio = kata.hfu(cfg, 1e4, 1, chip, seq, "full") / kata.mfu(cfg, 1e4, 1, chip, seq)
    assert math.isclose(ratio, 4 / 3, rel_tol=ROUNDING)


def test_selective_recomputation_adds_attention_alone(kata, oracle):
    cfg = config(kata, oracle.MT_NLG)
    added = kata.hfu(cfg, **RUN, chip=kata.A100, recompute="selective") - kata.mfu(
        cfg, **RUN, chip=kata.A100
    )
    again = 4 * 105 * 128 * 160 * 2048 * 65.43e3 / (2240 * 312e12)
    assert math.isclose(added, again, rel_tol=1e-12)  # a difference of two shares 100 times larger


def test_without_recomputation_both_are_the_same(kata, oracle):
    cfg = config(kata, oracle.PALM)
    none = kata.hfu(cfg, 238.3e3, 6144, kata.TPU_V4, 2048, "none")
    assert math.isclose(none, kata.mfu(cfg, 238.3e3, 6144, kata.TPU_V4, 2048), rel_tol=ROUNDING)


# ---- from step times -----------------------------------------------------------------------


def from_steps(kata, oracle, step_times_s, **warmup):
    cfg = config(kata, oracle.PALM)
    return kata.mfu_from_steps(cfg, step_times_s, 2**22, 6144, kata.TPU_V4, 4096, **warmup)


def test_steady_steps_are_the_throughput(kata, oracle):
    cfg = config(kata, oracle.PALM)
    expected = kata.mfu(cfg, 2**22 / 17.6, 6144, kata.TPU_V4, 4096)
    found = from_steps(kata, oracle, [17.6] * 9)
    assert math.isclose(found, expected, rel_tol=ROUNDING)


def test_steps_may_take_less_than_a_second(kata, oracle):
    cfg, run = config(kata, oracle.PALM), (6144, kata.TPU_V4, 4096)
    long = kata.mfu_from_steps(cfg, [17.6] * 6, 2**22, *run)
    short = kata.mfu_from_steps(cfg, [17.6 / 2**10] * 6, 2**12, *run)
    assert math.isclose(short, long, rel_tol=ROUNDING)


@pytest.mark.parametrize("warmup", [{}, {"warmup": 5}], ids=["default", "given"])
def test_warm_up_is_left_out(kata, oracle, warmup):
    slow_start = [120.0, 40.0, 30.0, 25.0, 20.0, 17.6, 17.6, 17.6]
    log = list(slow_start)
    assert from_steps(kata, oracle, log, **warmup) == from_steps(kata, oracle, [17.6] * 6)
    assert log == slow_start


def test_warm_up_is_the_first_steps_whatever_they_took(kata, oracle):
    log = (20.0, 0.0, 20.0, 20.0, 20.0, 50.0)  # fast ones too; a tuple cannot be changed
    assert from_steps(kata, oracle, log) == from_steps(kata, oracle, [50.0] * 6)


def test_even_number_of_steps_has_its_median_in_the_middle(kata, oracle):
    found = from_steps(kata, oracle, [40.0, 15.0, 25.0, 10.0], warmup=0)
    expected = from_steps(kata, oracle, [20.0], warmup=0)
    assert math.isclose(found, expected, rel_tol=ROUNDING)


def test_first_step_counts_when_asked_to(kata, oracle):
    found = from_steps(kata, oracle, [20.0, 10.0, 20.0], warmup=0)
    assert found == from_steps(kata, oracle, [20.0], warmup=0)


def test_straggler_changes_little(kata, oracle, cost):
    steps = [17.6 + 0.01 * (i % 7) for i in range(25)]
    calm = from_steps(kata, oracle, steps)
    steps[15] *= 10  # one slow node, one checkpoint
    cost.check("straggler", abs(from_steps(kata, oracle, steps) / calm - 1))


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("peak", [0.0, -1.0])
def test_peak_of_nothing_is_refused(kata, oracle, peak):
    chip = kata.Chip(name="none", printed_flops_per_s=peak)
    with pytest.raises(ValueError, match="printed_flops_per_s"):
        kata.dense_peak(chip)
    for call in (kata.mfu, lambda *args: kata.hfu(*args, "full")):
        with pytest.raises(ValueError, match="printed_flops_per_s"):
            call(config(kata, oracle.PALM), 1.0, 1, chip, 2048)


@pytest.mark.parametrize(
    ("tokens_per_s", "n_chips", "named"),
    [(-1.0, 1, "tokens_per_s"), (1.0, 0, "n_chips"), (1.0, -4, "n_chips")],
    ids=["tokens", "no chips", "fewer than none"],
)
def test_impossible_run_is_refused(kata, oracle, tokens_per_s, n_chips, named):
    for call in (kata.mfu, lambda *args: kata.hfu(*args, "full")):
        with pytest.raises(ValueError, match=named):
            call(config(kata, oracle.PALM), tokens_per_s, n_chips, kata.TPU_V4, 2048)


def test_peak_itself_is_a_share_of_one(kata):
    cfg = kata.ModelConfig(params=10**12, layers=1, d=1, heads=1, d_head=1)
    chip = kata.Chip(name="even", printed_flops_per_s=6e12)
    assert kata.mfu(cfg, 1, 1, chip, 1, attention=False) == 1
    with pytest.raises(ValueError, match="peak or throughput"):
        kata.mfu(cfg, 1.001, 1, chip, 1, attention=False)


def test_more_than_the_peak_is_refused(kata, oracle):
    cfg = config(kata, oracle.PALM)
    with pytest.raises(ValueError, match="peak or throughput"):
        kata.mfu(cfg, 238.3e3, 2000, kata.TPU_V4, 2048)
    with pytest.raises(ValueError, match="peak or throughput"):  # MFU would be 0.83
        kata.hfu(cfg, 238.3e3, 3400, kata.TPU_V4, 2048, "full")


def test_unknown_recomputation_is_refused(kata, oracle):
    with pytest.raises(ValueError, match="everything"):
        kata.hfu(config(kata, oracle.PALM), 1.0, 1, kata.TPU_V4, 2048, "everything")


@pytest.mark.parametrize(
    ("step_times_s", "warmup", "named"),
    [
        ([], 0, "warmup"),
        ([17.6] * 5, 5, "warmup"),
        ([17.6] * 5, -1, "warmup"),
        ([17.6, 0.0, 17.6], 0, "step_times_s"),
        ([17.6, -0.1, 17.6], 0, "step_times_s"),
    ],
    ids=["no steps", "none left", "negative", "no time", "less than none"],
)
def test_steps_that_say_nothing_are_refused(kata, oracle, step_times_s, warmup, named):
    with pytest.raises(ValueError, match=named):
        from_steps(kata, oracle, step_times_s, warmup=warmup)
