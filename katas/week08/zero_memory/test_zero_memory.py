"""Model states and traffic against the paper and by hand; peaks against a ledger and real steps."""

from dataclasses import asdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

PRECISION = st.sampled_from(("fp32", "mixed-bf16", "mixed-bf16-fp32-grads"))
MODES = ("ddp-fp32", "ddp-bf16", "fsdp-bf16")
STAGE, WORLD = st.integers(0, 3), st.integers(1, 9)


# ---- model states --------------------------------------------------------------------------


def test_figure_1_of_the_paper(kata, oracle, cost):
    # 7.5e9 parameters on 64 GPUs, in GB to one decimal
    off = 0.0
    for stage, published in oracle.FIGURE_1.items():
        total = kata.model_states(7_500_000_000, 64, stage).total
        off += abs(round(total / 1e9, 1) - published)
    cost.check("off_the_published_figures", off)


def test_13b_on_eight_gpus_takes_26_gb_of_states(kata):
    parts = kata.model_states(13_000_000_000, 8, 3)
    assert asdict(parts) == {
        "params": 3_250_000_000, "grads": 3_250_000_000, "optimizer": 19_500_000_000,
    }  # fmt: skip
    assert parts.total == 26_000_000_000


@pytest.mark.parametrize(
    ("precision", "total"), [("fp32", 16), ("mixed-bf16", 16), ("mixed-bf16-fp32-grads", 18)]
)
def test_mixed_precision_does_not_shrink_model_states(kata, precision, total):
    assert kata.model_states(1000, 1, 0, precision).total == 1000 * total


@example(n=0, world=3, stage=3, precision="fp32")
@example(n=6, world=3, stage=3, precision="mixed-bf16")
@example(n=2, world=3, stage=2, precision="mixed-bf16-fp32-grads")
@given(n=st.integers(0, 40), world=WORLD, stage=STAGE, precision=PRECISION)
def test_each_stage_shards_one_part_more(kata, oracle, n, world, stage, precision):
    parts = asdict(kata.model_states(n, world, stage, precision))
    assert parts == oracle.largest_rank(n, world, stage, precision)


def test_precision_is_mixed_unless_said(kata):
    for stage in range(4):
        assert kata.model_states(70, 4, stage) == kata.model_states(70, 4, stage, "mixed-bf16")
        assert kata.max_params(4, stage, 999) == kata.max_params(4, stage, 999, "mixed-bf16")


def test_huge_models_are_counted_to_the_byte(kata, lines):
    # more than a float64 tells apart
    n = 2**60 + 1
    assert kata.model_states(n, 2, 3).params == 2**60 + 2
    assert kata.comm_bytes(n, 2, 3) == 3 * (2**60 + 2)
    with lines(limit=100_000):  # whoever counts up is stopped
        largest = kata.max_params(2, 3, 2**59 + 15)
    assert largest == 2**56
    peak = kata.peak_memory([kata.Unit(params=n, kept=1, work=1)], "ddp-bf16", 1)
    assert peak == 16 * n + 4


# ---- traffic -------------------------------------------------------------------------------


def test_13b_on_eight_gpus_sends_68_25_gb(kata):
    n = 13_000_000_000
    assert kata.comm_bytes(n, 8, 3) == 68_250_000_000
    assert kata.comm_bytes(n, 8, 0) == 45_500_000_000
    assert kata.comm_bytes(n, 8, 0, bytes_per_param=4) == 91_000_000_000


@example(n=0, world=4, stage=3, size=2)
@example(n=10, world=4, stage=0, size=2)
@example(n=10, world=4, stage=1, size=2)
@example(n=10, world=4, stage=2, size=2)
@example(n=10, world=4, stage=3, size=2)
@given(n=st.integers(0, 100), world=WORLD, stage=STAGE, size=st.integers(1, 4))
def test_traffic_is_that_of_the_ring(kata, oracle, n, world, stage, size):
    sent = kata.comm_bytes(n, world, stage, size)
    assert sent == oracle.traffic(n, world, stage, size)


# ---- peaks ---------------------------------------------------------------------------------


def test_peak_by_hand(kata):
    # 100 and 10 parameters; 5 and 200 elements kept; 3 and 1 needed by the way
    units = [kata.Unit(params=100, kept=5, work=3), kata.Unit(params=10, kept=200, work=1)]
    # 110 · 12 are always there. At the second unit: 205 kept, 1 by the way, 10 gradients. At the
    # first: 5 kept, 3 by the way, 110 gradients
    assert kata.peak_memory(units, "ddp-fp32", 4) == 4 * (3 * 110 + 206 + 10)
    # shards of 25 and 3, of 14 bytes each; at the first unit 100 gathered, 100 gradients, 3 shards
    assert kata.peak_memory(units, "fsdp-bf16", 4) == max(
        28 * 14 + 2 * (206 + 10 + 10), 28 * 14 + 2 * (8 + 100 + 100 + 3)
    )


@given(
    sizes=st.lists(st.tuples(*[st.integers(0, 60)] * 3), max_size=5),
    mode=st.sampled_from(MODES),
    world=st.integers(1, 5),
)
@example(sizes=[], mode="fsdp-bf16", world=2)
@example(sizes=[(7, 0, 0)], mode="fsdp-bf16", world=1)
@example(sizes=[(1, 50, 0), (60, 1, 0), (1, 1, 0)], mode="ddp-bf16", world=1)  # in the middle
@example(sizes=[(60, 0, 0), (1, 0, 0), (1, 0, 0)], mode="fsdp-bf16", world=5)  # a shard each
@example(sizes=[(10, 40, 9), (10, 1, 1)], mode="fsdp-bf16", world=4)
def test_peak_is_the_highest_balance_of_the_ledger(kata, oracle, sizes, mode, world):
    units = [kata.Unit(params=params, kept=kept, work=work) for params, kept, work in sizes]
    peak = kata.peak_memory(units, mode, world)
    assert peak == oracle.ledger_peak(units, mode, world)
    assert isinstance(peak, int)


def test_peaks_of_real_steps_are_predicted(kata, oracle, dispatch, cost, seed):
    off = []
    for name in oracle.REAL:
        units = oracle.units_of(kata.Unit, name)
        for mode in MODES:
            step = oracle.Step(name, mode, 4, seed)
            with dispatch(held=step.held()) as ops:
                step.run()
            predicted = kata.peak_memory(units, mode, 4)
            off.append(abs(predicted - ops.peak_live_bytes) / ops.peak_live_bytes)
    cost.check("off_the_measured_peak", max(off))


# ---- the largest model ---------------------------------------------------------------------


@example(world=3, stage=1, mem=0, precision="mixed-bf16")
@example(world=3, stage=1, mem=24, precision="mixed-bf16")  # three parameters, exactly
@example(world=3, stage=1, mem=23, precision="mixed-bf16")
@example(world=4, stage=3, mem=64, precision="mixed-bf16")  # a shard of four, exactly
@example(world=4, stage=2, mem=18, precision="mixed-bf16")
@example(world=64, stage=3, mem=1000, precision="fp32")  # more parameters than bytes
@given(world=WORLD, stage=STAGE, mem=st.integers(0, 2000), precision=PRECISION)
def test_largest_model_fits_and_one_more_does_not(kata, oracle, world, stage, mem, precision):
    n = kata.max_params(world, stage, mem, precision)
    fits = sum(oracle.largest_rank(n, world, stage, precision).values())
    over = sum(oracle.largest_rank(n + 1, world, stage, precision).values())
    assert fits <= mem < over, f"{n} parameters take {fits} of {mem} bytes, one more {over}"


def test_largest_model_on_80_gb_by_few_steps(kata, cost, lines):
    with lines(limit=100_000) as counted:
        n = kata.max_params(8, 3, 80_000_000_000)
    assert n == 40_000_000_000
    cost.check("lines", counted.lines)


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "args", "named"),
    [
        ("model_states", (10, 2, 4), "stage"),
        ("model_states", (10, 2, -1), "stage"),
        ("model_states", (10, 0, 1), "world"),
        ("model_states", (-1, 2, 1), "n_params"),
        ("model_states", (10, 2, 1, "bf16"), "precision"),
        ("comm_bytes", (10, 2, 4), "stage"),
        ("comm_bytes", (10, 0, 1), "world"),
        ("comm_bytes", (-1, 2, 1), "n_params"),
        ("comm_bytes", (10, 2, 1, 0), "bytes_per_param"),
        ("peak_memory", ([], "fsdp", 2), "mode"),
        ("peak_memory", ([], "ddp-fp32", 0), "world"),
        ("peak_memory", ([], "fsdp-bf16", 0), "world"),
        ("max_params", (2, -1, 100), "stage"),
        ("max_params", (-1, 1, 100), "world"),
        ("max_params", (2, 1, -1), "mem"),
        ("max_params", (2, 1, 100, "fp16"), "precision"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_arguments_are_refused(kata, function, args, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        getattr(kata, function)(*args)
