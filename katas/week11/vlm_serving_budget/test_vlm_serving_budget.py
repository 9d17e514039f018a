"""Four stages against requests run product by product, published models, caches and users."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

STAGES = ("encode", "project", "prefill", "decode")
ROUNDING = 1e-9  # relative: a few products and sums in another order
KEYS_PER_TOKEN = 524_288  # bytes of LLaMA-2-7B's cache
PHOTO = (336, 336)


def close(expected):
    return pytest.approx(expected, rel=ROUNDING, abs=0)


def told(vlm, images, text_tokens, out_tokens, batch, profile):
    """A request in one line."""
    sizes = f"text_tokens = {text_tokens}, out_tokens = {out_tokens}, batch = {batch}"
    return f"images = {images}, {sizes}, vlm = {vlm}"


def all_weights(kata, vlm):
    """As the brief counts them, matrix by matrix."""
    text, vision = vlm.text, vlm.vision
    matrices = [(3 * vlm.patch**2, vision.d), (vlm.merge**2 * vision.d, text.d), (text.d, text.d)]
    layers = [vision] * vision.layers + [text] * text.layers
    layers += [text] * (vlm.cross_layers if vlm.style == "cross" else 0)
    for tower in layers:
        narrow = tower.kv_heads * (tower.d // tower.heads)
        matrices += [(tower.d, tower.d)] * 2 + [(tower.d, narrow)] * 2
        matrices += [(tower.d, tower.d_ff)] * (3 if tower.gated else 2)
    matrices += [(text.d, text.vocab)] * (1 if vlm.tied else 2)
    return sum(rows * cols for rows, cols in matrices)


# ---- four stages -----------------------------------------------------------------------------


def test_no_flop_of_a_request_is_unaccounted_for(kata, oracle, profile, cost, seed):
    dice, gap, first, gpu = random.Random(seed), 0, "", oracle.machine(profile)
    for _ in range(20):
        request = (*oracle.random_request(kata, dice), dice.randint(1, 3), gpu)
        cost_found, (run, _, _) = kata.request_cost(*request), oracle.request(*request)
        for name in STAGES:
            found, expected = getattr(cost_found, name).flops, run[name]["flops"]
            gap += abs(found - expected)
            if found != expected and not first:
                first = f"{name}: expected {expected} FLOPs, found {found} | {told(*request)}"
    assert not first, first
    cost.check("unaccounted_flops", gap)


@pytest.mark.parametrize("stage", STAGES)
@given(dice=st.randoms(use_true_random=False), batch=st.integers(1, 3))
def test_a_stage_is_what_running_it_takes(kata, oracle, profile, stage, dice, batch):
    # few FLOPs a byte: small models are on both sides of the ridge
    gpu = oracle.machine(profile, peak=3.1e12, bandwidth=1e12)
    request = (*oracle.random_request(kata, dice), batch, gpu)
    expected = oracle.request(*request)[0][stage]
    found = getattr(kata.request_cost(*request), stage)
    for figure in ("flops", "bytes"):
        ours = getattr(found, figure)
        what = f"{stage}: expected {expected[figure]} {figure}, found {ours}"
        assert ours == expected[figure], f"{what} | {told(*request)}"
    what = f"{stage}: expected {expected['seconds']} s, found {found.seconds}"
    assert found.seconds == close(expected["seconds"]), f"{what} | {told(*request)}"


@given(dice=st.randoms(use_true_random=False), batch=st.integers(1, 3))
def test_tokens_and_cache_are_those_of_running_it(kata, oracle, profile, dice, batch):
    request = (*oracle.random_request(kata, dice), batch, oracle.machine(profile))
    _, tokens, held = oracle.request(*request)
    found = kata.request_cost(*request)
    for figure, ours, expected in (
        ("prefill_tokens", found.prefill_tokens, tokens),
        ("kv_bytes", found.kv_bytes, held),
    ):
        assert ours == expected, f"{figure}: expected {expected}, found {ours} | {told(*request)}"


def test_sixteen_users_with_an_image_each(kata, oracle, profile):
    h100 = oracle.machine(profile)
    seeing = kata.request_cost(kata.LLAVA_15_7B, [PHOTO], 64, 0, 16, h100)
    assert (seeing.prefill_tokens, seeing.kv_bytes) == (16 * (576 + 64), 5 * 2**30)
    reading = kata.request_cost(kata.LLAVA_15_7B, [], 64, 0, 16, h100)
    assert (reading.prefill_tokens, reading.kv_bytes) == (16 * 64, 512 * 2**20)
    assert (reading.encode.flops, reading.encode.bytes, reading.encode.seconds) == (0, 0, 0)


def test_the_clip_tower_takes_382_gflop_of_which_llava_runs_366(kata, oracle, profile):
    whole = replace(kata.LLAVA_15_7B, vision_layers_run=24)
    flops = [
        kata.request_cost(vlm, [PHOTO], 64, 1, 1, oracle.machine(profile)).encode.flops
        for vlm in (whole, kata.LLAVA_15_7B)
    ]
    assert flops == [381_918_216_192, 366_033_858_560]


def test_the_encoder_is_a_small_part_of_llava(kata, oracle, profile):
    found = kata.request_cost(kata.LLAVA_15_7B, [PHOTO], 64, 1, 1, oracle.machine(profile))
    total = sum(getattr(found, name).flops for name in STAGES)
    assert total == 8_787_284_029_440
    assert found.encode.flops < 0.05 * total
    assert kata.regime(found) == "prefill"


def test_doubled_sides_cost_more_than_four_times(kata, oracle, profile):
    h100 = oracle.machine(profile)
    small, large = (
        kata.request_cost(vlm, [PHOTO], 64, 0, 1, h100)
        for vlm in (kata.LLAVA_15_7B, kata.LLAVA_15_672)
    )
    assert large.prefill_tokens - 64 == 4 * (small.prefill_tokens - 64)
    assert large.kv_bytes - 64 * KEYS_PER_TOKEN == 4 * (small.kv_bytes - 64 * KEYS_PER_TOKEN)
    assert round(large.encode.flops / small.encode.flops, 3) == 5.020
    assert round(large.prefill.flops / small.prefill.flops, 3) == 3.828  # the text stays


def test_a_resized_image_costs_the_same_whatever_its_size(kata, oracle, profile):
    h100 = oracle.machine(profile)
    square = kata.request_cost(kata.LLAVA_15_7B, [PHOTO] * 2, 64, 5, 2, h100)
    odd = kata.request_cost(kata.LLAVA_15_7B, ((1000, 301), (1, 5000)), 64, 5, 2, h100)
    assert odd == square


def test_an_answer_of_one_token_takes_no_decode(kata, oracle, profile):
    h100 = oracle.machine(profile)
    for out_tokens in (0, 1):
        found = kata.request_cost(kata.LLAVA_15_7B, [PHOTO], 64, out_tokens, 1, h100)
        assert (found.decode.flops, found.decode.bytes, found.decode.seconds) == (0, 0, 0)
        assert found.kv_bytes == 640 * KEYS_PER_TOKEN


def test_a_step_reads_the_weights_once_and_every_users_images(kata, oracle, profile):
    h100 = oracle.machine(profile)
    found = kata.request_cost(kata.LLAVA_15_7B, [PHOTO], 64, 2, 16, h100).decode
    assert found.bytes == 2 * 6_607_077_376 + 16 * 641 * KEYS_PER_TOKEN
    assert found.seconds == close(found.bytes / 3.35e12)


def test_one_image_is_enough_to_make_the_encoder_compute(kata, oracle, profile):
    found = kata.request_cost(kata.LLAVA_15_7B, [PHOTO], 64, 2, 1, oracle.machine(profile))
    assert found.encode.seconds == close(366_033_858_560 / 989.4e12)  # its weights: 0.17 ms
    assert found.decode.seconds == close(found.decode.bytes / 3.35e12)


def test_an_endless_answer_is_counted_and_not_walked(kata, oracle, profile, lines, cost):
    h100, steps = oracle.machine(profile), 10**15 - 1
    with lines(limit=5000) as counted:
        found = kata.request_cost(kata.LLAVA_15_7B, [PHOTO] * 2, 64, steps + 1, 3, h100)
    cost.check("lines", counted.lines)
    keys = 32 * (steps * (2 * 576 + 64) + steps * (steps + 1) // 2)
    assert found.decode.flops == 3 * (2 * 6_607_077_376 * steps + 4 * 4096 * keys)
    assert found.kv_bytes == 3 * (2 * 576 + 64 + steps) * KEYS_PER_TOKEN


def test_counts_of_huge_requests_are_exact(kata, oracle, profile):
    rows, cols, text_tokens = 10**17 + 1, 10**17 + 3, 10**15 + 1
    found = kata.request_cost(
        kata.NATIVE_1B, [(28 * rows, 28 * cols)], text_tokens, 1, 1, oracle.machine(profile)
    )
    tokens = rows * cols + text_tokens
    assert found.prefill_tokens == tokens
    assert found.kv_bytes == 32_768 * tokens
    layer = 24 * (4 * 1024**2 + 2 * 1024 * 4096) + 588 * 1024
    pairs = (4 * rows * cols) ** 2
    assert found.encode.flops == 2 * layer * 4 * rows * cols + 4 * 1024 * 24 * pairs
    linear = 16 * (2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 8192) * tokens + 2048 * 128_256
    assert found.prefill.flops == 2 * linear + 4 * 2048 * 16 * (tokens * (tokens + 1) // 2)


def test_images_stay_as_they_were(kata, oracle, profile):
    images = [(1008, 56), (28, 28)]
    kata.request_cost(kata.NATIVE_1B, images, 5, 5, 1, oracle.machine(profile))
    assert images == [(1008, 56), (28, 28)]


# ---- cross-attention -------------------------------------------------------------------------


def test_cross_attention_keeps_images_out_of_prompt_and_layers(kata, oracle, profile):
    h100 = oracle.machine(profile)
    found = kata.request_cost(kata.CROSS_7B, [PHOTO], 64, 11, 2, h100)
    assert found.prefill_tokens == 2 * 64
    # 16 384 bytes a layer: 32 layers hold 74 tokens of text, 8 hold 576 of the image
    assert found.kv_bytes == 2 * 16_384 * (32 * 74 + 8 * 576)


def test_what_makes_keys_of_images_is_read_in_the_prefill_alone(kata, oracle, profile):
    found = kata.request_cost(kata.CROSS_7B, [PHOTO], 64, 11, 2, oracle.machine(profile))
    own, kv = 2 * 4096**2 + 3 * 4096 * 11_008, 2 * 4096**2
    prefill = 2 * (6_607_077_376 + 8 * (own + kv)) + 2 * 16_384 * (32 * 64 + 8 * 576)
    assert found.prefill.bytes == prefill
    steps = [2 * (32 * (64 + step) + 8 * 576) * 16_384 for step in range(1, 11)]
    assert found.decode.bytes == 10 * 2 * (6_607_077_376 + 8 * own) + sum(steps)


def test_a_request_without_images_skips_the_cross_layers(kata, oracle, profile):
    h100 = oracle.machine(profile)
    expected = kata.request_cost(kata.LLAVA_15_7B, [], 64, 11, 2, h100)
    for images in ([], ()):
        assert kata.request_cost(kata.CROSS_7B, images, 64, 11, 2, h100) == expected


def test_cross_layers_are_for_the_cross_style_alone(kata, oracle, profile):
    h100 = oracle.machine(profile)
    vlm = replace(kata.LLAVA_15_7B, cross_layers=8)
    request = [PHOTO], 64, 11, 2, h100
    assert kata.request_cost(vlm, *request) == kata.request_cost(kata.LLAVA_15_7B, *request)
    users = kata.max_users(vlm, [PHOTO], 64, 11, h100)
    assert users == kata.max_users(kata.LLAVA_15_7B, [PHOTO], 64, 11, h100)


# ---- the regime ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out_tokens", "expected"), [(8, "encoder"), (500, "decode")], ids=["short", "long"]
)
def test_large_images_before_a_small_model(kata, oracle, profile, out_tokens, expected):
    images = [(1008, 1008)] * 4
    found = kata.request_cost(kata.NATIVE_1B, images, 32, out_tokens, 8, oracle.machine(profile))
    assert kata.regime(found) == expected


def timed(kata, **seconds):
    """A cost of these seconds, and of FLOPs and bytes that say otherwise."""
    stages = {
        name: kata.Stage(flops=int(1000 / (1 + took)), bytes=int(1000 / (1 + took)), seconds=took)
        for name, took in seconds.items()
    }
    return kata.RequestCost(prefill_tokens=7, kv_bytes=7, **stages)


@pytest.mark.parametrize(
    ("encode", "project", "prefill", "decode", "expected"),
    [
        (2.0, 1.5, 3.0, 1.0, "encoder"),
        (2.0, 1.0, 3.0, 3.0, "encoder"),
        (2.0, 0.5, 3.0, 3.0, "prefill"),
        (2.0, 0.5, 3.0, 3.5, "decode"),
        (0.0, 0.0, 0.5, 0.0, "prefill"),
    ],
    ids=["with its projector", "tie of three", "tie of two", "decode", "one stage alone"],
)
def test_the_regime_is_the_longest_stage(kata, encode, project, prefill, decode, expected):
    found = timed(kata, encode=encode, project=project, prefill=prefill, decode=decode)
    assert kata.regime(found) == expected


@pytest.mark.parametrize(
    ("hit_rate", "expected"),
    [(0, 1.0), (0.5, 8 / 6), (1, 2.0)],
    ids=["never", "half", "always"],
)
def test_hits_save_encoder_and_projector_and_nothing_else(kata, hit_rate, expected):
    found = timed(kata, encode=3.0, project=1.0, prefill=2.5, decode=1.5)
    assert kata.cache_hit_gain(found, hit_rate) == close(expected)


def test_a_cache_helps_where_the_encoder_is_long(kata, oracle, profile):
    h100 = oracle.machine(profile)
    small = kata.request_cost(kata.NATIVE_1B, [(1008, 1008)] * 4, 32, 8, 1, h100)
    assert round(kata.cache_hit_gain(small, 1), 2) == 2.34
    large = kata.request_cost(kata.LLAVA_15_7B, [PHOTO], 64, 256, 1, h100)
    assert round(kata.cache_hit_gain(large, 1), 4) == 1.0004


@pytest.mark.parametrize("hit_rate", [-0.01, 1.01, float("nan")], ids=["below", "above", "nan"])
def test_an_impossible_hit_rate_is_refused(kata, hit_rate):
    found = timed(kata, encode=3.0, project=1.0, prefill=2.5, decode=1.5)
    with pytest.raises(ValueError, match="^hit_rate: "):
        kata.cache_hit_gain(found, hit_rate)


# ---- users -----------------------------------------------------------------------------------


@given(dice=st.randoms(use_true_random=False), room=st.integers(0, 4000))
def test_one_more_user_would_not_fit(kata, oracle, profile, dice, room):
    vlm, images, text_tokens, out_tokens = oracle.random_request(kata, dice)
    memory = 2 * all_weights(kata, vlm) + room
    gpu = oracle.machine(profile, memory_bytes=memory)
    each = oracle.request(vlm, images, text_tokens, out_tokens, 1, gpu)[2]
    if each > room:
        with pytest.raises(ValueError, match="^memory: "):
            kata.max_users(vlm, images, text_tokens, out_tokens, gpu)
        return
    users = kata.max_users(vlm, images, text_tokens, out_tokens, gpu)
    assert users == next(n for n in range(1, room + 2) if (n + 1) * each > room)


@pytest.mark.parametrize(
    ("model", "expected"),
    [("LLAVA_15_7B", 140), ("LLAVA_15_672", 47), ("CROSS_7B", 258), ("NATIVE_1B", 5068)],
    ids=["llava", "twice the resolution", "cross-attention", "native"],
)
def test_users_on_an_80_gb_card(kata, oracle, profile, model, expected):
    h100 = oracle.machine(profile)
    assert kata.max_users(getattr(kata, model), [(336, 336)], 64, 256, h100) == expected


@pytest.mark.parametrize(
    ("spare", "users"), [(0, 10**12), (-1, 10**12 - 1)], ids=["exactly", "a byte short"]
)
def test_users_are_divided_exactly_and_not_tried(kata, oracle, profile, spare, users, calls, cost):
    each = (640 + 9) * KEYS_PER_TOKEN
    memory = 2 * all_weights(kata, kata.LLAVA_15_7B) + 10**12 * each + spare
    gpu, asked = oracle.machine(profile, memory_bytes=memory), calls("request_cost", limit=200)
    assert kata.max_users(kata.LLAVA_15_7B, [PHOTO], 64, 10, gpu) == users
    cost.check("evaluations", asked.calls)


def test_cross_layers_take_room_though_no_image_is_read(kata, oracle, profile):
    each = 32 * (64 + 10) * 16_384
    memory = 2 * all_weights(kata, kata.CROSS_7B) + 3 * each
    gpu = oracle.machine(profile, memory_bytes=memory)
    assert kata.max_users(kata.CROSS_7B, [], 64, 11, gpu) == 3


def test_a_card_too_small_for_the_weights_is_refused(kata, oracle, profile):
    gpu = oracle.machine(profile, memory_bytes=10**10)
    with pytest.raises(ValueError, match="^memory: "):
        kata.max_users(kata.LLAVA_15_7B, [PHOTO], 64, 10, gpu)


# ---- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("style", {"style": "interleaved"}),
        ("style", {"style": "interleaved", "images": []}),
        ("text_tokens", {"text_tokens": 0}),
        ("text_tokens", {"text_tokens": 0, "images": []}),
        ("out_tokens", {"out_tokens": -1}),
        ("images", {"images": [PHOTO, (0, 336)]}),
        ("images", {"images": [(336, 0)]}),
        ("images", {"images": [(336, -28)]}),
        ("images", {"image_size": None, "images": [(28, 28), (42, 28)]}),
        ("images", {"image_size": None, "images": [(28, 42)]}),
        ("images", {"image_size": None, "images": [(14, 56)]}),
        ("images", {"image_size": None, "images": [(0, 28)]}),
    ],
    ids=[
        "an unknown style", "a style of no images", "no text", "nothing at all",
        "a negative answer", "no height", "no width", "a negative width",
        "half a token high", "half a token wide", "as many pixels as a token",
        "no height as it is",
    ],
)  # fmt: skip
def test_impossible_requests_are_refused(kata, oracle, profile, name, changes):
    changes = {"images": [PHOTO], "text_tokens": 5, "out_tokens": 5, "style": "concat"} | changes
    size = changes.get("image_size", 336)
    vlm = replace(kata.LLAVA_15_7B, merge=2, style=changes["style"], image_size=size)
    request = vlm, changes["images"], changes["text_tokens"], changes["out_tokens"]
    h100 = oracle.machine(profile)
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.request_cost(*request, 1, h100)
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.max_users(*request, h100)


def test_an_empty_batch_is_refused(kata, oracle, profile):
    with pytest.raises(ValueError, match="^batch: "):
        kata.request_cost(kata.LLAVA_15_7B, [PHOTO], 5, 5, 0, oracle.machine(profile))
