"""Mixtral's numbers, parameters dealt out, every choice of experts, and the best of all plans."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

GB = 10**9


def check(what, found, expected):
    assert found == expected, f"{what}: {found}, expected {expected}"


def close(what, found, expected):
    assert found == pytest.approx(expected, rel=1e-12), f"{what}: {found}, expected {expected}"


# ---- parameters ----------------------------------------------------------------------------


def test_parameters_of_published_models(kata):
    check("Mixtral", kata.param_counts(kata.MIXTRAL_8X7B), (46_702_792_704, 12_879_925_248))
    check("LLaMA 13B", kata.param_counts(kata.LLAMA_13B), (13_015_864_320,) * 2)


def test_eight_gpus_hold_an_expert_each(kata):
    m, plan = kata.MIXTRAL_8X7B, kata.Plan(dp=8, ep=8)
    # 1,605,636,096 that all of them hold, and an eighth of 45,097,156,608
    check("parameters", kata.params_per_gpu(m, plan), 7_242_780_672)
    check("infer", kata.vram_per_gpu(m, plan, "infer"), 14_485_561_344)
    check("train", kata.vram_per_gpu(m, plan, "train"), 115_884_490_752)


@st.composite
def divided(draw):
    """A small model, and a plan that divides it."""
    tp, pp, ep, etp = (draw(st.sampled_from([1, 2, 4])) for _ in range(4))
    cfg = {
        "layers": pp * draw(st.integers(1, 2)), "h": 24, "heads": 12, "kv": draw(st.integers(1, 4)),
        "ffn": 8, "vocab": draw(st.integers(3, 9)), "experts": ep * draw(st.integers(1, 3)),
    }  # fmt: skip
    cfg["top_k"] = draw(st.integers(1, min(3, cfg["experts"])))
    dp = math.lcm(tp, ep * etp) // tp * draw(st.integers(1, 2))
    return cfg, {"dp": dp, "tp": tp, "pp": pp, "ep": ep, "etp": etp}


SMALL = {"layers": 4, "h": 24, "heads": 12, "kv": 2, "ffn": 8, "vocab": 7, "experts": 4, "top_k": 2}


@given(divided())
@example((SMALL, {"dp": 4, "tp": 2, "ep": 4, "etp": 2}))
@example((SMALL, {"dp": 2, "tp": 2, "pp": 4, "ep": 4}))
@example((SMALL | {"experts": 1, "top_k": 1}, {"dp": 2, "tp": 2, "etp": 4, "pp": 2}))
def test_a_gpu_holds_what_is_dealt_to_it(kata, oracle, both):
    cfg, plan = kata.MoeCfg(**both[0]), kata.Plan(**both[1])
    held = oracle.by_rank(cfg, plan)
    check(f"params_per_gpu({cfg}, {plan})", kata.params_per_gpu(cfg, plan), max(held))
    expected = oracle.whole(cfg), oracle.met(cfg)
    check(f"param_counts({cfg})", kata.param_counts(cfg), expected)


# ---- all-to-all ----------------------------------------------------------------------------


def test_bytes_that_mixtral_sends_for_a_token(kata):
    m, eight, four = kata.MIXTRAL_8X7B, kata.Plan(dp=8, ep=8), kata.Plan(dp=4, ep=4)
    # 2 directions · 2 experts · 8192 bytes · 7/8 · 32 layers
    close("ep 8", kata.a2a_bytes_per_forward(m, eight, 1), 917_504)
    close("ep 8, dedup", kata.a2a_bytes_per_forward(m, eight, 1, dedup=True), 917_504)
    # 3/4, and 1 - 6/8 · 5/7 = 13/28 for each of the three others
    close("ep 4", kata.a2a_bytes_per_forward(m, four, 1), 786_432)
    found = kata.a2a_bytes_per_forward(m, four, 1, dedup=True)
    close("ep 4, dedup", found, 2 * 3 * 13 / 28 * 8192 * 32)
    close("one GPU", kata.a2a_bytes_per_forward(m, kata.Plan(), 5), 0.0)
    # two directions, both copies, to the one other GPU that holds a half of each expert
    halves = kata.a2a_bytes_per_forward(m, kata.Plan(dp=2, etp=2), 1)
    close("etp 2", halves, 2 * 2 * 8192 * 32)
    tp = kata.a2a_bytes_per_forward(m, kata.Plan(tp=8, ep=8), 1)
    close("tp 8, ep 8", tp, 917_504)


@given(
    both=divided(),
    tokens=st.integers(0, 50).map(lambda quarters: quarters / 4),
    itemsize=st.sampled_from([1, 2, 4]),
    dedup=st.booleans(),
)
@example((SMALL | {"top_k": 3}, {"dp": 4, "ep": 2, "etp": 2}), 10, 1, True)
@example((SMALL | {"top_k": 3}, {"dp": 4, "ep": 2, "etp": 2, "pp": 2}), 10, 4, False)
@example((SMALL | {"top_k": 4}, {"dp": 4, "ep": 4}), 3, 2, True)
@example((SMALL | {"top_k": 4}, {"dp": 2, "ep": 2}), 3, 2, True)
def test_bytes_are_the_mean_over_all_choices(kata, oracle, both, tokens, itemsize, dedup):
    cfg, plan = kata.MoeCfg(**both[0]), kata.Plan(**both[1])
    found = kata.a2a_bytes_per_forward(cfg, plan, tokens, itemsize, dedup=dedup)
    expected = oracle.a2a(cfg, plan, tokens, itemsize, dedup)
    close(f"a2a_bytes_per_forward({cfg}, {plan}, {tokens}, {itemsize}, {dedup})", found, expected)


# ---- beside a dense model ------------------------------------------------------------------


def test_mixtral_beside_13b(kata):
    m, dense = kata.MIXTRAL_8X7B, kata.LLAMA_13B
    found = kata.compare_dense(m, dense, kata.Plan(dp=8, ep=8))
    check("keys", sorted(found), ["flops", "flops_per_byte", "weights"])
    close("weights", found["weights"], 46_702_792_704 / 13_015_864_320)
    close("flops", found["flops"], 12_879_925_248 / 13_015_864_320)
    assert abs(found["flops"] - 1) < 0.02, f"flops: {found['flops']}, within 2 % of 1 expected"
    close("flops_per_byte", found["flops_per_byte"], 2 * 12_879_925_248 / 917_504)
    # stages send for their own layers only, and compute them only
    staged = kata.compare_dense(m, dense, kata.Plan(dp=8, ep=8, pp=4), 1)
    close("pp 4, 1 byte", staged["flops_per_byte"], 4 * 12_879_925_248 / 917_504)
    alone = kata.compare_dense(m, dense, kata.Plan(dp=8))
    check("ep 1", alone["flops_per_byte"], math.inf)


# ---- plans ---------------------------------------------------------------------------------

# so few layers and experts that a plan has to divide each expert
WIDE = {
    "layers": 2, "h": 4096, "heads": 32, "kv": 8, "ffn": 14336, "vocab": 32000,
    "experts": 2, "top_k": 1,
}  # fmt: skip
# everything divides by 3
THREES = {
    "layers": 6, "h": 1536, "heads": 24, "kv": 24, "ffn": 3072, "vocab": 32000,
    "experts": 3, "top_k": 2,
}  # fmt: skip
MODELS = {"wide": WIDE, "threes": THREES}
SEARCHES = [
    # model, GPUs, mode, GB of memory, GPUs of a node, GB/s within, between
    ("wide", 16, "infer", 0.4, 8, 450, 50),
    ("threes", 24, "infer", 0.12, 8, 450, 50),  # best with tp 3 and ep 3
    ("threes", 24, "infer", 0.04, 8, 450, 50),  # fits with tp 12 or more only
    ("mixtral", 8, "infer", 80, 8, 450, 50),
    ("mixtral", 8, "infer", 24, 4, 450, 1),
    ("mixtral", 24, "infer", 16, 8, 64, 25),
    ("mixtral", 64, "train", 80, 8, 450, 50),
    ("mixtral", 64, "train", 24, 4, 300, 300),
    ("mixtral", 512, "train", 16, 8, 900, 100),
]


def machine_of(kata, memory, node, within, between):
    return kata.Machine(
        hbm_bytes=memory,
        gpus_per_node=node,
        within_bytes_per_s=within * 1e9,
        between_bytes_per_s=between * 1e9,
    )


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_the_best_of_the_plans_that_fit_is_found(kata, oracle, calls, cost, search):
    model, n_gpus, mode, memory, *rest = search
    m = kata.MoeCfg(**MODELS[model]) if model in MODELS else kata.MIXTRAL_8X7B
    tokens = 2**20
    machine = machine_of(kata, int(memory * GB), *rest)
    size = {"infer": 2, "train": 16}[mode]
    fitting = [
        plan
        for plan in oracle.plans(kata.Plan, m, n_gpus)
        if oracle.fullest(m, plan) * size <= 0.9 * machine.hbm_bytes
    ]
    times = {plan: kata.comm_s(m, plan, machine, tokens) for plan in fitting}
    least = min(times.values())
    asked = calls("comm_s", limit=5000)
    found = kata.best_plan(m, n_gpus, machine, tokens, mode)
    assert found in times, f"{search}: {found} does not fit, or is no plan of the brief's"
    assert times[found] <= least * (1 + 1e-12), (
        f"{search}: {found} sends for {times[found]} s, {least} s are possible"
    )
    cost.check("calls", asked.calls / len(fitting))


def test_a_tenth_of_the_memory_stays_free(kata):
    # 31,248 bytes are nine tenths of 34,720
    m = kata.MoeCfg(**SMALL | {"vocab": 9})
    check("bytes", kata.vram_per_gpu(m, kata.Plan(), "infer"), 31_248)
    found = kata.best_plan(m, 1, machine_of(kata, 34_720, 8, 1, 1), 1)
    check("34,720 bytes", found, kata.Plan())
    with pytest.raises(ValueError, match="^machine: "):
        kata.best_plan(m, 1, machine_of(kata, 34_719, 8, 1, 1), 1)


# ---- bad input -----------------------------------------------------------------------------

REFUSED = [
    ({"tp": 5, "dp": 1}, "tp"),
    ({"pp": 3}, "pp"),
    ({"ep": 3, "dp": 3}, "ep"),
    ({"etp": 3, "dp": 3}, "etp"),
    ({"ep": 4, "dp": 2}, "ep"),
    ({"ep": 2, "etp": 2, "dp": 2, "pp": 2}, "ep"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=str)
def test_plans_that_do_not_divide_are_refused(kata, fields, named):
    cfg, plan = kata.MoeCfg(**SMALL), kata.Plan(**fields)
    for call in (
        lambda: kata.params_per_gpu(cfg, plan),
        lambda: kata.vram_per_gpu(cfg, plan, "train"),
        lambda: kata.a2a_bytes_per_forward(cfg, plan, 1),
        lambda: kata.compare_dense(cfg, cfg, plan),
    ):
        with pytest.raises(ValueError, match=f"^{named}: "):
            call()


def test_modes_that_there_are_not_are_refused(kata):
    cfg, machine = kata.MoeCfg(**SMALL), machine_of(kata, GB, 8, 1, 1)
    with pytest.raises(ValueError, match="^mode: "):
        kata.vram_per_gpu(cfg, kata.Plan(), "serve")
    with pytest.raises(ValueError, match="^mode: "):
        kata.best_plan(cfg, 1, machine, 1, "serve")
