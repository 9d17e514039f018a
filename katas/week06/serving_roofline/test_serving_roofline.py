"""What a step takes op by op, which batch turns it to compute, and what fits beside the weights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROUNDING = 1e-9  # relative: a few products and sums in another order

CHUNKS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), max_size=3)
CONTEXTS = st.lists(st.integers(1, 60), max_size=5)


def close(expected):
    return pytest.approx(expected, rel=ROUNDING, abs=0)


def models(kata):
    return {"llama2": kata.LLAMA2_7B, "llama3": kata.LLAMA3_8B}


# ---- a step ----------------------------------------------------------------------------------


@given(
    prefill=CHUNKS,
    decode_ctx=CONTEXTS,
    bits=st.sampled_from([1, 3, 4, 8, 16]),
    weights=st.integers(1, 10**6),
    group=st.sampled_from([1, 4]),
    peak=st.sampled_from([1e12, 3e14]),
)
def test_each_op_takes_the_longer_of_arithmetic_and_memory(
    kata, oracle, profile, prefill, decode_ctx, bits, weights, group, peak
):
    a100 = oracle.machine(profile, launch_s=1e-30, peak=peak)
    cfg = oracle.small_model(
        kata, linear_params=weights, layers=3, heads=8, kv_heads=8 // group, d_head=16
    )
    linear, attention = oracle.times(cfg, prefill, decode_ctx, a100, bits)
    found = kata.step_time(cfg, prefill, decode_ctx, a100, bits)
    assert found.linear_s == close(float(max(linear)))
    assert found.attention_s == close(float(max(attention)))
    if prefill or decode_ctx:
        assert found.total_s == close(float(max(linear) + max(attention)))
        slack = float((linear[0] + attention[0]) / (linear[1] + attention[1]))
        if slack != close(1):
            assert found.regime == ("compute" if slack > 1 else "memory")


def test_a_decode_reads_all_weights_for_one_token(kata, oracle, profile):
    a100, cfg = oracle.machine(profile), kata.LLAMA3_8B
    found = kata.step_time(cfg, [], [1024], a100)
    assert found.regime == "memory"
    assert found.linear_s == close(2 * 7_504_658_432 / 2.039e12)  # 7.36 ms
    assert found.attention_s == close(1024 * 131_072 / 2.039e12)  # 0.066 ms
    flops = 2 * 7_504_658_432 + 4 * 32 * 4096 * 1024
    assert flops / found.total_s < 0.01 * 312e12


def test_a_prompt_of_2048_tokens_is_bound_by_arithmetic(kata, oracle, profile):
    found = kata.step_time(kata.LLAMA3_8B, [(2048, 0)], [], oracle.machine(profile))
    assert found.regime == "compute"
    assert found.linear_s == close(2 * 7_504_658_432 * 2048 / 312e12)  # 98.5 ms
    assert found.attention_s == close(4 * 32 * 4096 * (2048 * 2049 // 2) / 312e12)  # 3.5 ms


def test_a_chunk_rides_along_with_decodes_almost_for_free(kata, oracle, profile):
    a100, cfg = oracle.machine(profile), kata.LLAMA3_8B
    alone = kata.step_time(cfg, [], [1024] * 16, a100).total_s
    together = kata.step_time(cfg, [(128, 0)], [1024] * 16, a100).total_s
    # 144 tokens still wait for the weights; only the chunk's own attention is added
    assert together < 1.002 * alone
    assert kata.step_time(cfg, [(256, 0)], [1024] * 16, a100).total_s > 1.5 * alone


def test_linear_layers_compute_while_attention_reads(kata, oracle, profile):
    found = kata.step_time(kata.LLAMA3_8B, [], [1024] * 256, oracle.machine(profile))
    linear_s, attention_s = 2 * 7_504_658_432 * 256 / 312e12, 256 * 1024 * 131_072 / 2.039e12
    assert found.linear_s == close(linear_s)  # 12.3 ms
    assert found.attention_s == close(attention_s)  # 16.9 ms
    assert found.total_s == close(linear_s + attention_s)
    assert found.regime == "memory"


def test_a_chunk_reads_the_keys_of_those_before_it(kata, oracle, profile):
    found = kata.step_time(kata.LLAMA3_8B, [(2, 4094), (1, 4095)], [], oracle.machine(profile))
    assert found.attention_s == close(2 * 4096 * 131_072 / 2.039e12)


def test_chunks_of_one_prompt_see_what_came_before(kata, oracle, profile):
    a100, cfg = oracle.machine(profile, launch_s=1e-30), kata.LLAMA2_7B
    whole = kata.step_time(cfg, [(4096, 0)], [], a100)
    halves = [kata.step_time(cfg, [(2048, past)], [], a100) for past in (0, 2048)]
    assert whole.attention_s == close(sum(half.attention_s for half in halves))
    assert whole.linear_s == close(sum(half.linear_s for half in halves))


def test_query_heads_that_share_keys_read_them_once(kata, oracle, profile):
    a100 = oracle.machine(profile)
    own, shared = (
        kata.step_time(cfg, [], [1000] * 8, a100).attention_s
        for cfg in (kata.LLAMA2_7B, kata.LLAMA3_8B)
    )
    assert own == close(4 * shared)


def test_fewer_bits_make_the_weights_lighter_and_nothing_else(kata, oracle, profile):
    a100, cfg = oracle.machine(profile), kata.LLAMA2_7B
    half, quarter = (kata.step_time(cfg, [], [1000] * 4, a100, bits) for bits in (16, 4))
    assert quarter.linear_s == close(half.linear_s / 4)
    assert quarter.attention_s == half.attention_s
    prompts = [kata.step_time(cfg, [(4096, 0)], [], a100, bits) for bits in (16, 4)]
    assert prompts[0] == prompts[1]  # arithmetic stays in 16 bits


def test_a_step_leaves_its_work_as_it_was(kata, oracle, profile):
    a100, prefill, decode_ctx = oracle.machine(profile), [(40, 3), (5, 0)], [7, 8, 9]
    found = kata.step_time(kata.LLAMA3_8B, prefill, decode_ctx, a100)
    assert (prefill, decode_ctx) == ([(40, 3), (5, 0)], [7, 8, 9])
    again = kata.step_time(kata.LLAMA3_8B, ((40, 3), (5, 0)), range(7, 10), a100)
    assert again == found


def test_nothing_to_do_takes_a_launch(kata, oracle, profile):
    found = kata.step_time(kata.LLAMA3_8B, [], [], oracle.machine(profile))
    assert (found.linear_s, found.attention_s) == (0, 0)
    assert (found.total_s, found.regime) == (3e-6, "latency")


@pytest.mark.parametrize(
    ("launch", "regime"),
    [(2.0**-8, "memory"), (2.0**-7, "memory"), (2.0**-6, "latency")],
    ids=["shorter than the step", "as long", "longer"],
)
def test_a_step_below_the_launch_floor_is_latency(kata, oracle, profile, launch, regime):
    # 2^10 weights of 2 bytes and as much cache, at 2^19 bytes/s: 2^-8 s each
    cfg = oracle.small_model(kata, linear_params=2**10)
    slow = oracle.machine(profile, peak=2.0**60, bandwidth=2.0**19, launch_s=launch)
    found = kata.step_time(cfg, [], [512], slow)
    assert (found.linear_s, found.attention_s) == (2.0**-8, 2.0**-8)
    assert (found.total_s, found.regime) == (max(launch, 2.0**-7), regime)


def test_at_a_tie_the_step_is_bound_by_arithmetic(kata, oracle, profile):
    # linear: 2^-9 s of arithmetic, 2^-8 of memory; attention the other way round
    cfg = oracle.small_model(kata, linear_params=2**10, heads=2)
    tie = oracle.machine(profile, peak=2.0**20, bandwidth=2.0**20, launch_s=1e-9)
    found = kata.step_time(cfg, [], [512], tie, bits=32)
    assert (found.linear_s, found.attention_s) == (2.0**-8, 2.0**-8)
    assert found.regime == "compute"


# ---- the batch that turns it -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "ctx", "bits", "expected"),
    [
        ("llama3", 256, 16, (154, 230)),
        ("llama3", 512, 16, (154, 459)),
        ("llama3", 768, 16, (154, 259_318)),
        ("llama3", 1024, 16, (154, None)),
        ("llama3", 256, 4, (39, 58)),
        ("llama2", 64, 16, (154, 250)),
        ("llama2", 256, 16, (154, None)),
        ("llama2", 1, 8, (77, 77)),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_the_batch_that_turns_a_step_on_an_a100(kata, oracle, profile, model, ctx, bits, expected):
    assert kata.crossover_batch(models(kata)[model], ctx, oracle.machine(profile), bits) == expected


def test_no_batch_up_to_64_turns_llama3_on_an_a100(kata, oracle, profile):
    a100 = oracle.machine(profile)
    for batch in range(1, 65):
        assert kata.step_time(kata.LLAMA3_8B, [], [1] * batch, a100).regime == "memory"


@pytest.mark.parametrize(("ctx", "batch"), [(256, 230), (512, 459)], ids=["256", "512"])
def test_the_regime_turns_at_that_batch(kata, oracle, profile, ctx, batch):
    a100 = oracle.machine(profile)
    regimes = [
        kata.step_time(kata.LLAMA3_8B, [], [ctx] * size, a100).regime for size in (batch - 1, batch)
    ]
    assert regimes == ["memory", "compute"]


@given(
    weights=st.integers(1, 10**5),
    layers=st.integers(1, 4),
    kv_heads=st.sampled_from([1, 2, 8]),
    ctx=st.integers(1, 200),
    ridge=st.integers(3, 300),
    bits=st.sampled_from([1, 3, 4, 8, 16]),
)
def test_batches_are_those_of_trying_them_all(
    kata, oracle, profile, weights, layers, kv_heads, ctx, ridge, bits
):
    # odd figures: no batch is a tie
    figures = {"peak": ridge * 1e12 + 7.3e9, "bandwidth": 1.0037e12}
    cfg = oracle.small_model(
        kata, linear_params=weights, layers=layers, heads=8, kv_heads=kv_heads, d_head=4
    )
    gpu = oracle.machine(profile, **figures)
    linear, attention = oracle.times(cfg, [], [ctx], gpu, bits)
    gained = float((linear[0] + attention[0] - attention[1]) / linear[1])
    if 0 < gained < 1e-3:
        return  # thousands of batches to try
    assert kata.crossover_batch(cfg, ctx, gpu, bits) == oracle.crossovers(cfg, ctx, gpu, bits)


def test_a_tie_counts_as_turned(kata, oracle, profile):
    # 2^30 FLOP/s over 2^20 bytes/s: 1024 FLOP a byte; a weight of 2 bytes does 2 FLOPs a token
    gpu = oracle.machine(profile, peak=2.0**30, bandwidth=2.0**20)
    cfg = oracle.small_model(kata, linear_params=2**20)
    assert kata.crossover_batch(cfg, 1, gpu)[0] == 1024
    # 1024 query heads on one of keys: attention is a tie by itself
    even = oracle.small_model(kata, linear_params=2**20, heads=1024)
    assert kata.crossover_batch(even, 8, gpu) == (1024, 1024)


def test_gaining_nothing_it_never_turns(kata, oracle, profile):
    gpu = oracle.machine(profile, peak=2.0**30, bandwidth=2.0**20)
    # a token's weights and its attention take as long as its cache: (2 * 2046 + 4) = 1024 * 4
    cfg = oracle.small_model(kata, linear_params=2046)
    assert kata.crossover_batch(cfg, 1, gpu) == (1024, None)


def test_attention_that_computes_turns_the_whole_first(kata, oracle, profile):
    # one key head for 128 query heads: 128 FLOPs a byte, more than this ridge of 100
    gpu = oracle.machine(profile, peak=1.003e14, bandwidth=1e12)
    cfg = oracle.small_model(kata, linear_params=10**6, heads=128, d_head=64)
    linear, whole = kata.crossover_batch(cfg, 1000, gpu)
    assert (linear, whole) == oracle.crossovers(cfg, 1000, gpu, 16)
    assert whole < linear


def test_a_large_batch_is_not_searched_for(kata, oracle, profile, lines, cost):
    a100 = oracle.machine(profile)
    with lines(limit=5000) as counted:
        found = kata.crossover_batch(kata.LLAMA3_8B, 768, a100)
    assert found == (154, 259_318)
    cost.check("lines", counted.lines)


# ---- what fits -------------------------------------------------------------------------------


def test_an_int4_model_on_one_a100(kata, oracle, profile):
    tokens = kata.kv_token_capacity(kata.LLAMA2_7B, oracle.machine(profile), 4)
    assert tokens == 130_902  # (0.9 * 80e9 - 3 369 207 808) / 524 288
    assert type(tokens) is int
    assert tokens // 2048 == 63


@pytest.mark.parametrize(
    ("bits", "utilization", "reserve", "expected"),
    [
        (16, 0.9, 0, 426_784),  # keys and values of 131 072 bytes a token
        (16, 1.0, 0, 487_819),
        (8, 0.5, 2 * 10**9, 228_650),
        (1, 0.9, 0, 541_658),
    ],
    ids=["most of the memory", "all of it", "some kept back", "a bit each"],
)
def test_grouped_queries_fit_more_tokens(
    kata, oracle, profile, bits, utilization, reserve, expected
):
    a100 = oracle.machine(profile)
    found = kata.kv_token_capacity(kata.LLAMA3_8B, a100, bits, utilization, reserve)
    room = int(utilization * 80 * 10**9) - 8_030_261_248 * bits // 8 - reserve
    assert found == room // 131_072 == expected


@pytest.mark.parametrize(
    ("memory", "reserve", "expected"),
    [
        (1000 + 40, 0, 10),  # ten tokens of 4 bytes, and not a byte to spare
        (1000 + 39, 0, 9),
        (1000 + 39.5, 0, 9),
        (1000 + 41, 1, 10),
        (1000 + 4, 0, 1),
        (1000 + 3, 0, 0),
        (1000, 0, 0),
        (999, 0, 0),
        (500, 0, 0),  # less than nothing fits
        (2000, 5000, 0),
    ],
    ids=[
        "exactly",
        "a byte short",
        "half a byte short",
        "exactly beside a reserve",
        "one",
        "not one",
        "the weights alone",
        "not even they",
        "far from it",
        "all kept back",
    ],
)
def test_whole_tokens_fit_or_none(kata, oracle, profile, memory, reserve, expected):
    cfg = oracle.small_model(kata, linear_params=500)
    gpu = oracle.machine(profile, memory_bytes=int(2 * memory))
    assert kata.kv_token_capacity(cfg, gpu, 16, 0.5, reserve) == expected


def test_all_weights_take_room_the_table_too(kata, oracle, profile):
    cfg = kata.ServedModel(params=700, linear_params=500, layers=1, heads=1, kv_heads=1, d_head=1)
    gpu = oracle.machine(profile, memory_bytes=2000)
    assert kata.kv_token_capacity(cfg, gpu, 16, 1.0) == 150


def test_half_a_byte_of_weights_takes_a_whole_one(kata, oracle, profile):
    cfg = oracle.small_model(kata, linear_params=201)  # 100.5 bytes
    gpu = oracle.machine(profile, memory_bytes=104)
    assert kata.kv_token_capacity(cfg, gpu, 4, 1.0) == 0


def test_capacity_does_not_round_large_memories(kata, oracle, profile):
    cfg = oracle.small_model(kata, linear_params=4)
    gpu = oracle.machine(profile, memory_bytes=2**50)
    assert kata.kv_token_capacity(cfg, gpu, 8, 1.0) == 2**48 - 1


# ---- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "prefill", "decode_ctx", "bits"),
    [
        ("decode_ctx", [], [5, 0, 5], 16),
        ("decode_ctx", [], [-1], 16),
        ("prefill", [(5, 0), (0, 5)], [5], 16),
        ("prefill", [(5, -1)], [], 16),
        ("bits", [(5, 0)], [5], 0),
    ],
    ids=["no context", "negative context", "an empty chunk", "a negative past", "bits"],
)
def test_a_step_of_impossible_work_is_refused(
    kata, oracle, profile, name, prefill, decode_ctx, bits
):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.step_time(kata.LLAMA3_8B, prefill, decode_ctx, oracle.machine(profile), bits)


@pytest.mark.parametrize(
    ("name", "ctx", "bits"),
    [("ctx", 0, 16), ("ctx", -5, 16), ("bits", 5, 0)],
    ids=["no context", "negative context", "bits"],
)
def test_a_crossover_of_impossible_work_is_refused(kata, oracle, profile, name, ctx, bits):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.crossover_batch(kata.LLAMA3_8B, ctx, oracle.machine(profile), bits)


@pytest.mark.parametrize(
    ("name", "bits", "utilization", "reserve"),
    [
        ("utilization", 16, 0.0, 0),
        ("utilization", 16, -0.5, 0),
        ("utilization", 16, 1.01, 0),
        ("utilization", 16, float("nan"), 0),
        ("bits", 0, 0.9, 0),
        ("reserve", 16, 0.9, -1),
    ],
    ids=["none", "negative", "above 1", "nan", "bits", "reserve"],
)
def test_an_impossible_share_is_refused(kata, oracle, profile, name, bits, utilization, reserve):
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.kv_token_capacity(kata.LLAMA3_8B, oracle.machine(profile), bits, utilization, reserve)
