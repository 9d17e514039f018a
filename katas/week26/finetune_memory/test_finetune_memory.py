"""The formulas against published figures, a list of every tensor, and steps that are really run."""

import dataclasses

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from harness.meters.dispatch import dispatch_meter, saved_meter

SEVEN = ("q", "k", "v", "o", "gate", "up", "down")
METHODS = ("full", "lora", "qlora")


def tiny(kata, **changes):
    sizes = {"layers": 2, "d": 64, "heads": 4, "kv_heads": 2, "ffn": 176, "vocab": 512}
    return kata.Llama(**{**sizes, **changes})


# ---- published -----------------------------------------------------------------------------


def test_llama3_8b_takes_sixteen_bytes_a_parameter(kata):
    states = kata.state_bytes(kata.LLAMA3_8B, kata.Plan(method="full"))
    n = 8_030_261_248
    assert states == {"weights": 2 * n, "grads": 2 * n, "master": 4 * n, "optim": 8 * n}


@pytest.mark.parametrize(
    ("r", "targets", "count"),
    [(8, ("v", "q"), 3_407_872), (16, SEVEN, 41_943_040)],
    ids=["r8-q-v", "r16-all"],
)
def test_adapters_of_llama3_8b_are_as_many_as_peft_says(kata, r, targets, count):
    for method in ("lora", "qlora"):
        plan = kata.Plan(method=method, r=r, targets=targets)
        assert kata.trainable_params(kata.LLAMA3_8B, plan) == count


def test_gpt3s_adapters_are_a_nine_thousandth(kata):
    wide = kata.Llama(layers=96, d=12288, heads=96, kv_heads=96, ffn=49152, vocab=50257)
    assert kata.trainable_params(wide, kata.Plan(method="lora", r=4)) == 18_874_368


def test_65b_fits_on_48_gb_in_four_bits(kata):
    weights = kata.state_bytes(kata.LLAMA_65B, kata.Plan(method="qlora", r=1))["weights"]
    assert round(weights / 1e9, 1) == 34.5


def test_double_quantisation_saves_3_gb_of_65b(kata):
    n = 64_760_053_760
    assert kata.nf4_bytes(n, False) - kata.nf4_bytes(n) == 3_019_816_956


# nothing, one element, an odd one, a block, one more, 256 blocks, one more; past 2 ** 53
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 64 * 256, 64 * 256 + 1, 2**54 + 1])
def test_nf4_counts_every_block_it_began(kata, oracle, n):
    assert kata.nf4_bytes(n) == oracle.packed_bytes(n)
    assert kata.nf4_bytes(n, double=False) == oracle.packed_bytes(n, double=False)


# ---- every tensor --------------------------------------------------------------------------


@st.composite
def runs(draw):
    """A model, a plan, b and s, as keywords for the kata's classes."""
    kv_heads, share = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    model = {
        "layers": draw(st.integers(1, 3)),
        "d": draw(st.integers(1, 5)) * kv_heads * share,
        "heads": kv_heads * share,
        "kv_heads": kv_heads,
        "ffn": draw(st.integers(1, 300)),
        "vocab": draw(st.integers(1, 100)),
        "tied": draw(st.booleans()),
    }
    plan = {
        "method": draw(st.sampled_from(METHODS)),
        "r": draw(st.integers(1, 20)),
        "targets": tuple(draw(st.lists(st.sampled_from(SEVEN), min_size=1, unique=True))),
        "optim": draw(st.sampled_from(("adamw", "adam8bit"))),
        "master": draw(st.booleans()),
        "foreach": draw(st.booleans()),
        "recompute": draw(st.booleans()),
        "fsdp": draw(st.sampled_from((1, 2, 7, 8))),
    }
    return model, plan, draw(st.integers(1, 9)), draw(st.integers(1, 9))


SMALL = {"layers": 2, "d": 12, "heads": 6, "kv_heads": 2, "ffn": 40, "vocab": 5}
WIDE = {**SMALL, "vocab": 5000}


@example(run=(SMALL, {"method": "full", "fsdp": 7}, 1, 1))
@example(run=(SMALL, {"method": "full", "foreach": False}, 1, 1))
@example(run=(WIDE, {"method": "full", "foreach": False}, 1, 1))
@example(run=(WIDE, {"method": "full", "optim": "adam8bit", "fsdp": 8}, 1, 1))
@example(run=(SMALL, {"method": "lora", "foreach": False, "targets": ("down",)}, 1, 1))
@example(run=(SMALL, {"method": "lora", "foreach": False, "targets": ("up",)}, 1, 1))
@example(run=(SMALL, {"method": "lora", "foreach": False, "targets": ("k",), "r": 20}, 1, 1))
@example(run=(SMALL, {"method": "lora", "targets": ("up", "k"), "master": False}, 5, 3))
@example(run=(SMALL, {"method": "lora", "targets": ("gate",)}, 5, 3))
@example(run=(SMALL, {"method": "lora", "targets": ("o",)}, 5, 3))
@example(run=(SMALL, {"method": "lora", "optim": "adam8bit", "r": 20}, 1, 1))
@example(run=(SMALL, {"method": "qlora", "recompute": True, "targets": SEVEN}, 5, 3))
@example(run=(SMALL, {"method": "full", "recompute": True}, 5, 3))
@example(run=({**SMALL, "tied": True}, {"method": "qlora", "fsdp": 8}, 5, 3))
@example(run=({**SMALL, "tied": True}, {"method": "full"}, 1, 1))
# 1e18 bytes: a double has no odd numbers there
@example(run=({**SMALL, "d": 6 * (2**25 + 1)}, {"method": "full", "fsdp": 7}, 1, 1))
@given(run=runs())
def test_every_tensor_is_counted(kata, oracle, run):
    model, plan, b, s = run
    cfg, plan = kata.Llama(**model), kata.Plan(**plan)
    assert kata.state_bytes(cfg, plan) == oracle.states(cfg, plan)
    assert kata.activation_bytes(cfg, plan, b, s) == oracle.activations(cfg, plan, b, s)
    assert kata.peak_bytes(cfg, plan, b, s) == oracle.peak(cfg, plan, b, s)


def test_bytes_are_whole_numbers(kata):
    for method in METHODS:
        plan = kata.Plan(method=method, fsdp=3)
        sizes = [
            *kata.state_bytes(kata.LLAMA3_70B, plan).values(),
            kata.activation_bytes(kata.LLAMA3_70B, plan, 3, 5),
            kata.peak_bytes(kata.LLAMA3_70B, plan, 3, 5),
            kata.max_batch(kata.LLAMA3_70B, plan, 5, 10**15),
        ]
        assert [type(size) for size in sizes] == [int] * 7


# ---- real steps ----------------------------------------------------------------------------


def ways(kata):
    """Seven ways to finetune, with few tokens where the step decides, with many elsewhere."""
    yield kata.Plan(method="full"), 2, 128
    yield kata.Plan(method="full", master=False), 1, 8
    yield kata.Plan(method="full", foreach=False, recompute=True), 2, 128
    yield kata.Plan(method="lora"), 2, 128
    yield kata.Plan(method="lora", r=16, targets=SEVEN), 1, 8
    yield kata.Plan(method="lora", r=3, targets=("down", "k", "gate"), recompute=True), 2, 128
    yield kata.Plan(method="qlora", r=5, targets=("o", "up")), 2, 128


def test_the_peak_is_that_of_a_real_step(kata, oracle, cost):
    cfg, off = tiny(kata), 0.0
    for plan, b, s in ways(kata):
        run = oracle.Finetuning(cfg, plan)
        ids = torch.arange(b * s).view(b, s)
        with dispatch_meter(held=run.held()) as counted:
            run.step(ids, ids)
        real = counted.peak_live_bytes
        off = max(off, abs(kata.peak_bytes(cfg, plan, b, s) / real - 1))
    cost.check("off_the_real_peak", off)


def test_autograd_keeps_what_is_predicted(kata, oracle, cost):
    cfg, off = tiny(kata, kv_heads=1), 0
    for plan, b, s in ways(kata):
        run = oracle.Finetuning(cfg, plan)
        ids = torch.arange(b * s).view(b, s)
        with saved_meter(exclude=[*run.held(), ids]) as saved:
            run.model(ids)
        off += abs(kata.activation_bytes(cfg, plan, b, s) - saved.bytes)
    cost.check("off_the_kept_bytes", off)


# ---- what fits -----------------------------------------------------------------------------


@pytest.mark.parametrize("gigabytes", [24, 80, 141])
def test_as_much_as_fits_is_found(kata, oracle, gigabytes):
    for method in METHODS:
        for changes in ({}, {"recompute": True}, {"recompute": True, "fsdp": 8}):
            plan = kata.Plan(method=method, **changes)
            want = oracle.batch(kata.LLAMA3_8B, plan, 2048, gigabytes * 10**9)
            assert kata.max_batch(kata.LLAMA3_8B, plan, 2048, gigabytes * 10**9) == want


def test_an_exact_fit_fits(kata, oracle):
    cfg = tiny(kata)
    for method in METHODS:
        for foreach in (True, False):
            plan = kata.Plan(method=method, foreach=foreach)
            steps_end = oracle.peak(cfg, plan, 1, 1)
            for b in (1, 2, 40):
                size = oracle.peak(cfg, plan, b, 30)
                for memory in (size, size - 1, steps_end, steps_end - 1):
                    want = oracle.batch(cfg, plan, 30, memory)
                    assert kata.max_batch(cfg, plan, 30, memory) == want
            # 1e18 bytes: a quotient of doubles would round up to one sequence more
            b, s = 3 * 10**8, 10**6
            size = oracle.peak(cfg, plan, b, s)
            assert kata.max_batch(cfg, plan, s, size) == b
            assert kata.max_batch(cfg, plan, s, size - 1) == b - 1


def test_few_peaks_are_asked_for(kata, oracle, calls, cost):
    cfg, plan, memory = tiny(kata), kata.Plan(method="lora"), 4 * 10**12
    asked = calls("peak_bytes", limit=1000)
    found = kata.max_batch(cfg, plan, 1, memory)
    cost.check("evaluations", asked.calls)
    many = 10**6  # by then the loss decides, and each sequence more takes as much
    one = oracle.peak(cfg, plan, many + 1, 1) - oracle.peak(cfg, plan, many, 1)
    assert found == many + (memory - oracle.peak(cfg, plan, many, 1)) // one


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"method": "ia3", "r": 0}, "method"),
        ({"r": 0, "targets": ()}, "r"),
        ({"method": "qlora", "r": -1}, "r"),
        ({"targets": ("q", "head"), "optim": "sgd"}, "targets"),
        ({"targets": ("q", "q")}, "targets"),
        ({"targets": ()}, "targets"),
        ({"optim": "sgd", "fsdp": 0}, "optim"),
        ({"fsdp": 0}, "fsdp"),
        ({"method": "full", "fsdp": -1}, "fsdp"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_plans_are_refused(kata, changes, named):
    cfg, plan = tiny(kata), kata.Plan(**{"method": "lora", **changes})
    for call in (
        lambda: kata.trainable_params(cfg, plan),
        lambda: kata.state_bytes(cfg, plan),
        lambda: kata.activation_bytes(cfg, plan, 1, 1),
        lambda: kata.peak_bytes(cfg, plan, 1, 1),
        lambda: kata.max_batch(cfg, plan, 1, 1),
    ):
        with pytest.raises(ValueError, match=f"^{named}: "):
            call()


def test_full_finetuning_does_not_look_at_adapters(kata):
    plain = kata.Plan(method="full")
    odd = dataclasses.replace(plain, r=0, targets=("head",))
    assert kata.peak_bytes(tiny(kata), odd, 2, 3) == kata.peak_bytes(tiny(kata), plain, 2, 3)
    assert kata.trainable_params(tiny(kata), odd) == kata.trainable_params(tiny(kata), plain)
