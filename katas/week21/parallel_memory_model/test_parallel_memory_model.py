"""Bytes against the paper, a list of tensors, a schedule; longest sequences and best plans."""

import math
import zlib
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

GB = 10**9


def check(what, found, expected):
    assert found == expected, f"{what}: {found}, expected {expected}"


# ---- activations ---------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_layer_is_that_of_the_paper(kata, tp):
    m = replace(kata.GPT3_175B, layers=1)
    s, b, h, a = 2048, 3, m.h, m.a
    assert 5 * a * s // h == 80
    p = kata.Plan(tp=tp, s=s, b=b, attn="math")
    sbh = s * b * h
    for plan, per_sbh in (
        (p, 10 + (24 + 80) / tp),
        (replace(p, sp=True), (34 + 80) / tp),
        (replace(p, recompute="selective"), 10 + 24 / tp),
        (replace(p, attn="flash"), 10 + 24 / tp),
        (replace(p, recompute="full"), 2),
        (replace(p, recompute="full", sp=True), 2 / tp),
    ):
        check(f"{plan}", kata.activation_bytes(m, plan), int(sbh * per_sbh))


def test_large_counts_stay_exact(kata):
    m, s = replace(kata.GPT3_175B, layers=1), 10**9 + 1
    found = kata.activation_bytes(m, kata.Plan(s=s, b=3, attn="math"))
    check(f"{s} tokens", found, 34 * s * 3 * 12288 + 5 * 96 * s * s * 3)


@pytest.mark.parametrize(("name", "percent"), [("GPT3_175B", 70), ("MT_NLG_530B", 65)])
def test_selective_recomputation_saves_what_was_published(kata, name, percent):
    m = replace(getattr(kata, name), layers=1)
    p = kata.Plan(tp=8, sp=True, attn="math")
    kept = kata.activation_bytes(m, replace(p, recompute="selective"))
    saved = round(100 * (1 - kept / kata.activation_bytes(m, p)))
    check(f"{name}: percent saved", saved, percent)


def test_tensor_parallelism_alone_leaves_a_floor(kata):
    m = replace(kata.GPT3_175B, layers=1)
    for tp in (1, 2, 4, 8, 16, 32, 96):
        found = kata.activation_bytes(m, kata.Plan(tp=tp))
        assert found > 10 * 2048 * m.h, f"tp {tp}: {found} bytes, more than 10 sbh expected"


def test_context_parallelism_divides_queries_and_leaves_keys(kata):
    m = replace(kata.LLAMA2_7B, layers=1)
    p = kata.Plan(cp=4, s=8192, attn="math")
    base = kata.activation_bytes(m, p)
    longer = kata.activation_bytes(m, replace(p, s=16384))
    assert longer > 2 * base, f"16384 tokens: {longer}, more than twice {base} expected"
    wider = kata.activation_bytes(m, replace(p, s=16384, cp=8))
    # 34 sbh of 2048 rows as before; 2048 x 8192 more scores of each head, 5 bytes each
    check("16384 tokens, cp 8", wider, base + 5 * 32 * 2048 * 8192)


SIZES = st.sampled_from([1, 2, 4])
COPIES = st.sampled_from([1, 2, 3, 4])


@st.composite
def plans(draw):
    dp, tp, pp, cp, vpp, etp, ep = draw(COPIES), *(draw(SIZES) for _ in range(6))
    microbatches = draw(st.integers(1, 9))
    fields = {
        "dp": dp, "tp": tp, "sp": draw(st.booleans()), "pp": pp, "cp": cp, "vpp": vpp,
        "microbatches": microbatches * pp if vpp > 1 else microbatches,
        "b": draw(st.integers(1, 3)), "s": 32 * draw(st.integers(1, 4)),
        "zero": draw(st.integers(0, 3)), "attn": draw(st.sampled_from(["math", "flash"])),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
    }  # fmt: skip
    if dp * tp * cp % (ep * etp) == 0:
        fields |= {"ep": ep, "etp": etp}
    return fields


MOE = {"layers": 16, "h": 40, "a": 8, "kv": 4, "ffn": 20, "mlp": 2, "vocab": 101, "experts": 4}
TWO_EXPERTS = MOE | {"experts": 2}
DENSE = MOE | {"experts": 1, "kv": 8, "mlp": 3, "vocab": 50}


@given(plans(), st.sampled_from([MOE, DENSE]))
@example({"pp": 4, "microbatches": 2}, DENSE)
@example({"pp": 4, "microbatches": 4}, DENSE)
@example({"pp": 4, "microbatches": 9, "sp": True}, DENSE)
@example({"pp": 4, "vpp": 2, "microbatches": 4}, DENSE)
@example({"pp": 2, "vpp": 4, "microbatches": 8}, DENSE)
@example({"pp": 1, "vpp": 4, "microbatches": 8}, DENSE)
@example({"dp": 2, "tp": 4, "ep": 4, "etp": 2, "zero": 3}, MOE)
@example({"dp": 2, "cp": 2, "tp": 2, "ep": 2, "zero": 1}, MOE)
@example({"dp": 4, "tp": 1, "ep": 1, "zero": 2}, MOE)
@example({"dp": 2, "ep": 2}, TWO_EXPERTS)
@example({"dp": 3, "zero": 3}, MOE)  # each part rounded by itself
def test_bytes_are_those_of_all_tensors(kata, oracle, fields, model):
    m = kata.ModelCfg(**model)
    p = kata.Plan(**fields | ({"ep": 1, "etp": 1} if m.experts == 1 else {}))
    found = kata.activation_bytes(m, p)
    assert found == oracle.activations(m, p), (
        f"{m}, {p}: {found} bytes of activations, expected {oracle.fullest(p)} micro-batches of "
        f"{m.layers // (p.pp * p.vpp)} layers with {oracle.kept_tensors(m, p)}"
    )
    check(f"state_bytes({m}, {p})", kata.state_bytes(m, p), oracle.states(m, p))


def test_gpt3_by_hand(kata):
    # 8 of 12 layers a stage on tp 8, sp: 34 / 8 sbh each; 8 micro-batches alive, as 96 layers
    p = kata.Plan(dp=2, tp=8, sp=True, pp=12, microbatches=64)
    m = kata.GPT3_175B
    check("activations", kata.activation_bytes(m, p), 96 * 34 * 2048 * 12288 // 8)
    # 8 layers of 12 h² / 8 + 2 h, and 51,200 h / 8 of the embedding
    held = 8 * (12 * 12288**2 // 8 + 2 * 12288) + 6400 * 12288
    expected = {"params": 2 * held, "grads": 2 * held, "optim": 12 * held // 2}
    check("states", kata.state_bytes(m, p), expected)
    # one micro-batch after the other needs one, interleaving 1 + 11 / 24 as much
    one = kata.activation_bytes(m, replace(p, microbatches=1))
    check("one micro-batch", one, 8 * 34 * 2048 * 12288 // 8)
    interleaved = kata.activation_bytes(m, replace(p, vpp=2, microbatches=72))
    check("vpp 2", interleaved, 35 * 4 * 34 * 2048 * 12288 // 8)


def test_experts_are_divided_by_their_own_axes(kata):
    m, p = kata.MIXTRAL_8X7B, kata.Plan(dp=8, tp=2, ep=8, zero=0)
    expert = 3 * 4096 * 14336
    attention = 2 * 4096**2 + 2 * 4096 * 1024
    held = 32 * (attention // 2 + 2 * 4096 + 4096 * 8 + expert) + 32000 * 4096 // 2
    check("params", kata.state_bytes(m, p)["params"], 2 * held)


# ---- the longest sequence ------------------------------------------------------------------


@given(plans(), st.sampled_from([MOE, DENSE]), st.integers(0, 400_000), st.integers(1, 40))
@example({}, DENSE, 0, 1)
@example({"cp": 2, "s": 999}, DENSE, 3_000_000, 3)  # whatever s is
def test_one_step_more_does_not_fit(kata, oracle, fields, model, more, multiple):
    m = kata.ModelCfg(**model)
    p = kata.Plan(**fields | ({"ep": 1, "etp": 1} if m.experts == 1 else {}))
    hbm_bytes = sum(oracle.states(m, p).values()) + more - 1000 if more else 0
    found = kata.max_seqlen(m, p, hbm_bytes, multiple)
    expected = oracle.longest(replace, m, p, hbm_bytes, multiple)
    check(f"max_seqlen({m}, {p}, {hbm_bytes}, {multiple})", found, expected)


def test_an_exact_fit_fits(kata, oracle):
    m = kata.ModelCfg(**DENSE)
    p = kata.Plan(cp=2, s=64)
    hbm_bytes = oracle.total(m, p)
    check("all bytes", kata.max_seqlen(m, p, hbm_bytes, 4), 64)
    check("one byte less", kata.max_seqlen(m, p, hbm_bytes - 1, 4), 60)


def test_no_sequence_is_too_long_to_fit(kata, oracle):
    m, s = kata.ModelCfg(**DENSE), 2**40 + 4
    hbm_bytes = oracle.total(m, kata.Plan(s=s))
    check(f"bytes of {s} tokens", kata.max_seqlen(m, kata.Plan(), hbm_bytes, 1), s)


def test_context_parallelism_carries_the_sequence(kata, cost, lines):
    m = kata.LLAMA2_7B
    with lines(limit=40_000) as counted:
        alone = kata.max_seqlen(m, kata.Plan(dp=8), 80 * GB, 1)
        shared = kata.max_seqlen(m, kata.Plan(cp=8), 80 * GB, 1)
    # 6,607,339,520 parameters of 2 + 2 + 12 / 8 bytes leave 43,659,632,640; a token takes 34 · 4096
    # bytes in each of 32 layers
    check("dp 8", alone, 9796)
    cost.check("context", shared / (8 * alone))
    cost.check("lines", counted.lines)


# ---- the best plan -------------------------------------------------------------------------

SEARCHES = [
    # model, world, sequences a step, tokens, GB
    ("LLAMA2_7B", 1, 4, 2048, 200),
    ("LLAMA2_7B", 8, 12, 2048, 80),  # twelve sequences, not for eight copies
    ("MIXTRAL_8X7B", 64, 256, 8192, 80),
    ("LLAMA2_70B", 64, 96, 8192, 48),
    ("GPT3_175B", 512, 1536, 2048, 40),
    ("LLAMA2_70B", 512, 64, 131072, 64),
    ("ODD", 72, 72, 180, 80),  # 9 divides the heads, and tp 8 not the sequence
]
ODD = {"layers": 12, "h": 1152, "a": 72, "kv": 72, "ffn": 1440, "mlp": 2, "vocab": 100}


def shuffled(p):
    """A time that says nothing about the next plan's."""
    return zlib.crc32(repr(p).encode())


def by_bytes(p):
    """Fewer ranks on the axes that send much, more or less."""
    return 4 * p.tp + 3 * p.ep + 2 * p.cp + p.pp + p.dp / 8


def by_width(p):
    """Most ranks for tensor parallelism."""
    return 1 / p.tp + shuffled(p) / 2**40


def but_for_dp(p):
    """Nothing, for data parallelism alone: it is hidden behind the backward pass."""
    return p.tp * p.ep * p.cp * p.pp - 1


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_the_best_plan_is_found_among_those_that_fit(kata, oracle, cost, search):
    name, world, batch, s, gigabytes = search
    m = kata.ModelCfg(**ODD) if name == "ODD" else getattr(kata, name)
    everything = list(oracle.plans(kata.Plan, m, world, batch, s))
    fitting = [p for p in everything if oracle.total(m, p) <= gigabytes * GB]
    for comm_time in (shuffled, by_bytes, by_width, but_for_dp):
        calls = []

        def counted(p, comm_time=comm_time, calls=calls):
            calls.append(p)
            return comm_time(p)

        found = kata.best_plan(m, world, batch, s, gigabytes * GB, counted)
        best = min(fitting, key=comm_time)
        assert found in fitting, f"{search}: {found} does not fit, or is no plan of the brief's"
        assert comm_time(found) == comm_time(best), (
            f"{search}: {found} takes {comm_time(found)}, {best} takes {comm_time(best)}"
        )
    cost.check("calls", len(calls) / len(fitting))


def test_an_exact_fit_is_a_plan(kata, oracle):
    m = kata.LLAMA2_70B
    p = min(oracle.plans(kata.Plan, m, 8, 8, 8192), key=lambda p: oracle.total(m, p))
    least = oracle.total(m, p)
    check("plan", kata.best_plan(m, 8, 8, 8192, least, shuffled), p)
    check("plan that takes for ever", kata.best_plan(m, 8, 8, 8192, least, lambda _: math.inf), p)
    with pytest.raises(ValueError, match="^hbm_bytes: "):
        kata.best_plan(m, 8, 8, 8192, least - 1, shuffled)


# ---- bad input -----------------------------------------------------------------------------

REFUSED = [
    ({"tp": 3}, "tp"),
    ({"tp": 5}, "tp"),  # divides h and ffn, but not the heads
    ({"pp": 5}, "pp"),
    ({"pp": 4, "vpp": 8, "microbatches": 4}, "pp"),
    ({"cp": 3}, "s"),
    ({"tp": 4, "sp": True, "cp": 4, "s": 40}, "s"),
    ({"ep": 3, "dp": 3}, "ep"),
    ({"ep": 4, "dp": 2}, "ep"),
    ({"ep": 2, "etp": 2, "tp": 2, "pp": 2}, "ep"),
    ({"pp": 2, "vpp": 2, "microbatches": 3}, "microbatches"),
]


@pytest.mark.parametrize("function", ["activation_bytes", "state_bytes"])
@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=str)
def test_plans_that_do_not_divide_are_refused(kata, function, fields, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        getattr(kata, function)(kata.ModelCfg(**MOE), kata.Plan(**{"s": 64} | fields))


@pytest.mark.parametrize(
    ("fields", "named"), [(fields, named) for fields, named in REFUSED if named != "s"], ids=str
)
def test_a_plan_that_does_not_divide_has_no_longest_sequence(kata, fields, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        kata.max_seqlen(kata.ModelCfg(**MOE), kata.Plan(**fields), 0)


@pytest.mark.parametrize(
    ("args", "named"),
    [((-1,), "hbm_bytes"), ((100, 0), "multiple")],
    ids=str,
)
def test_impossible_limits_are_refused(kata, args, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        kata.max_seqlen(kata.ModelCfg(**MOE), kata.Plan(), *args)
