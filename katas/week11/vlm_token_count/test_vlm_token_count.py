"""Token counts: published ones, grids really built, ties, halves, and images too thin."""

import random

import pytest


def test_clip_grid_has_a_token_for_each_patch(kata):
    assert kata.llava15_tokens() == 576
    assert kata.llava15_tokens(672) == 4 * 576
    assert kata.llava15_tokens(224, 16) == 196
    assert kata.llava15_tokens(518, 15) == 34**2  # the 8 pixels left over make no patch
    assert kata.llava15_tokens(14, 14) == 1


@pytest.mark.parametrize(
    ("h", "w", "tokens"),
    [(336, 336, 1176), (672, 672, 2928), (480, 640, 2340), (1000, 300, 2232)],
    ids=["one tile", "four tiles", "vga", "upright strip"],
)
def test_llava_next_counts_are_the_published_ones(kata, oracle, h, w, tokens):
    assert kata.llava_next_tokens(h, w, oracle.PINPOINTS) == tokens


@pytest.mark.parametrize(
    ("h", "w", "expected"),
    [
        (224, 224, (224, 224, 64)),
        (1080, 1920, (728, 1316, 1222)),
        (4000, 3000, (1148, 840, 1230)),
        (28, 28, (56, 56, 4)),
    ],
    ids=["224", "full hd", "photograph", "icon"],
)
def test_qwen2_vl_sizes_are_the_published_ones(kata, h, w, expected):
    assert kata.qwen2_vl_tokens(h, w) == expected


def test_no_token_is_unaccounted_for(kata, oracle, cost, seed):
    dice, gap, first = random.Random(seed), 0, ""
    for _ in range(1000):
        h, w = oracle.a_size(dice)
        tiled = kata.llava_next_tokens(h, w, oracle.PINPOINTS)
        resized = kata.qwen2_vl_tokens(h, w)[2]
        for model, found, expected in (
            ("llava-next", tiled, oracle.tiled(h, w, oracle.PINPOINTS)),
            ("qwen2-vl", resized, oracle.resized(h, w)[2]),
        ):
            gap += abs(found - expected)
            if found != expected and not first:
                first = f"{model}, {h} x {w}: expected {expected} tokens, found {found}"
    assert not first, f"{first}; {gap:,} tokens unaccounted for in 1000 images of two models"
    cost.check("unaccounted_tokens", gap)


@pytest.mark.parametrize(
    ("tile", "patch"), [(224, 32), (70, 14), (100, 15)], ids=["7", "5", "with a rest"]
)
def test_grids_of_other_encoders(kata, oracle, seed, tile, patch):
    dice = random.Random(seed)
    canvases = [(tile, tile), (3 * tile, tile), (2 * tile, 2 * tile), (tile, 5 * tile)]
    for _ in range(40):
        h, w = oracle.a_size(dice)
        expected = oracle.tiled(h, w, canvases, tile, patch)
        if expected:
            assert kata.llava_next_tokens(h, w, canvases, tile, patch) == expected


def test_size_follows_the_settings_of_the_resize(kata, oracle, seed):
    dice = random.Random(seed)
    for _ in range(200):
        h, w = oracle.a_size(dice)
        factor, least = dice.choice([28, 32, 7]), dice.choice([1000, 65_536])
        limits = {"factor": factor, "min_pixels": least, "max_pixels": least * dice.choice([2, 9])}
        assert kata.qwen2_vl_tokens(h, w, **limits) == oracle.resized(h, w, **limits)


# ---- the canvas ----------------------------------------------------------------------------


def test_canvas_follows_the_orientation(kata, oracle):
    for h, w, expected in [
        (400, 900, (336, 1008)),
        (500, 1000, (336, 672)),
        (800, 900, (672, 672)),
    ]:
        assert kata.select_best_resolution(h, w, oracle.PINPOINTS) == expected
        assert kata.select_best_resolution(w, h, oracle.PINPOINTS) == expected[::-1]


def test_first_of_equal_canvases_is_taken(kata, oracle):
    # a small square loses nothing on any canvas; two waste the least
    assert kata.select_best_resolution(100, 100, oracle.PINPOINTS) == (336, 672)
    assert kata.select_best_resolution(100, 100, oracle.PINPOINTS[::-1]) == (672, 336)


def test_enlarging_keeps_no_more_pixels_than_there_are(kata):
    # 300 x 300 fits into both: the larger one only wastes more
    assert kata.select_best_resolution(300, 300, [(672, 672), (336, 336)]) == (336, 336)
    # waste is area: 250 x 250 has the shorter sides and more of it
    assert kata.select_best_resolution(10, 10, [(250, 250), (100, 500)]) == (100, 500)


def test_scale_is_exact(kata):
    # in floats 336 / h · h is 335.99… for these: the canvas seems to lose a row and a column
    for h in range(337, 4000):
        if int(h * (336 / h)) < 336:
            found = kata.select_best_resolution(h, h, [(335, 335), (336, 336)])
            assert found == (336, 336), f"{h} x {h}: found {found}, expected (336, 336)"


def test_canvases_that_floats_cannot_tell_apart(kata):
    # at half its size the image fills the second; as floats, n + extra and n are the same
    n, extra = 2**100, 2**40
    h, w = 2 * n, 2 * (n + extra)
    narrow, exact = (n, n + 3 * extra // 4), (n, n + extra)
    assert kata.select_best_resolution(h, w, [narrow, exact]) == exact
    assert kata.select_best_resolution(w, h, [narrow[::-1], exact[::-1]]) == exact[::-1]


def test_canvas_of_a_list_comes_back_as_a_tuple(kata):
    assert kata.select_best_resolution(10, 10, [[336, 336]]) == (336, 336)


# ---- what makes whole numbers necessary ---------------------------------------------------


def test_halves_go_to_the_even_multiple(kata):
    assert kata.qwen2_vl_tokens(70, 98)[:2] == (56, 112)  # 2.5 and 3.5 times 28
    assert kata.qwen2_vl_tokens(71, 97)[:2] == (84, 84)


def test_enlarged_to_the_least_multiple_and_not_past_it(kata, oracle):
    for h in range(1, 40):
        for w in (h, 4 * h, 9 * h):
            expected = oracle.resized(h, w)
            assert kata.qwen2_vl_tokens(h, w) == expected


def test_shrunk_to_the_largest_multiple_and_not_below_it(kata):
    for h in range(230, 1500):  # by whole numbers: 8 x 8 tokens for a square, 4 x 16 for 1 : 4
        for w, expected in ((h, (224, 224, 64)), (4 * h, (112, 448, 64))):
            found = kata.qwen2_vl_tokens(h, w, max_pixels=224 * 224)
            assert found == expected, f"{h} x {w}, max_pixels=50176: {found}, expected {expected}"


def test_a_side_never_vanishes(kata):
    assert kata.qwen2_vl_tokens(30, 6000, max_pixels=3136) == (28, 784, 28)
    assert kata.qwen2_vl_tokens(6000, 30, max_pixels=3136) == (784, 28, 28)
    assert kata.qwen2_vl_tokens(1, 200) == (28, 812, 29)


def test_limits_themselves_are_allowed(kata):
    assert kata.qwen2_vl_tokens(56, 58, max_pixels=3136) == (56, 56, 4)
    assert kata.qwen2_vl_tokens(60, 69, min_pixels=3136, max_pixels=3136) == (56, 56, 4)
    assert kata.qwen2_vl_tokens(98, 56, min_pixels=56 * 112) == (112, 56, 8)


def test_a_canvas_is_counted_and_not_laid_out(kata, oracle, cost, lines):
    large = [(a * 10**6, b * 10**6) for a, b in oracle.PINPOINTS]
    side = 24 * 10**6
    with lines(limit=5000) as counted:
        square = kata.llava_next_tokens(10**12, 10**12, large)
    assert square == 576 + 2 * side * (2 * side + 1)
    cost.check("lines", counted.lines)


def test_no_side_is_too_long_for_the_digits(kata, oracle):
    # a float counts up to 2**53; by one pixel 3 · side - 2 columns are kept, so one is cut off
    large = [(a * 10**6, b * 10**6) for a, b in oracle.PINPOINTS]
    side = 24 * 10**6
    h, w = side * 10**12, (3 * side - 1) * 10**12 - 1
    assert kata.llava_next_tokens(h, w, large) == 576 + side * (3 * side - 1)
    assert kata.llava_next_tokens(w, h, large) == 576 + (3 * side - 2) * (side + 1)
    # 28 · k + 14 with k even, and the next one
    assert kata.qwen2_vl_tokens(28 * 10**18 + 14, 28 * 10**18 + 15, max_pixels=10**50) == (
        28 * 10**18,
        28 * 10**18 + 28,
        10**18 * (10**18 + 1),
    )


def test_roots_of_long_numbers_are_exact(kata):
    k = 10**18 + 1  # the root of k * k in floats is 10**18
    expected = (28 * k, 28 * k, k * k)
    assert kata.qwen2_vl_tokens(10**21, 10**21, max_pixels=(28 * k) ** 2) == expected
    limits = {"min_pixels": (28 * k) ** 2, "max_pixels": 10**50}
    assert kata.qwen2_vl_tokens(1, 1, **limits) == expected


# ---- the prompt ----------------------------------------------------------------------------


def test_images_of_a_prompt_add_up(kata):
    images = [(480, 640), (672, 672)]
    assert kata.vlm_token_count("llava-1.5", images) == 2 * 576
    assert kata.vlm_token_count("llava-next", images) == 2340 + 2928
    assert kata.vlm_token_count("qwen2-vl", images) == 17 * 23 + 24 * 24
    assert kata.vlm_token_count("llava-1.5", [(20, 5), (5000, 20)]) == 2 * 576
    assert kata.vlm_token_count("qwen2-vl", [(480, 640)] * 3) == 3 * 17 * 23
    for model in kata.MODELS:
        assert kata.vlm_token_count(model, []) == 0


# ---- bad input -----------------------------------------------------------------------------


def test_unknown_model_is_refused(kata):
    for images in ([], [(336, 336)]):
        with pytest.raises(ValueError, match="^model: .*gpt"):
            kata.vlm_token_count("gpt-4o", images)


@pytest.mark.parametrize(("h", "w", "named"), [(0, 5, "^h: "), (5, -1, "^w: "), (-3, 5, "^h: ")])
def test_images_without_pixels_are_refused(kata, oracle, h, w, named):
    for ask in (
        lambda: kata.select_best_resolution(h, w, oracle.PINPOINTS),
        lambda: kata.llava_next_tokens(h, w, oracle.PINPOINTS),
        lambda: kata.qwen2_vl_tokens(h, w),
        *(lambda model=model: kata.vlm_token_count(model, [(h, w)]) for model in kata.MODELS),
    ):
        with pytest.raises(ValueError, match=named):
            ask()


def test_impossible_grids_are_refused(kata):
    for image, patch, named in [(13, 14, "^image: "), (0, 14, "^image: "), (336, 0, "^patch: ")]:
        with pytest.raises(ValueError, match=named):
            kata.llava15_tokens(image, patch)


def test_impossible_canvases_are_refused(kata):
    for pinpoints in ([], [(336, 336), (336, 500)], [(500, 336)]):
        with pytest.raises(ValueError, match="^pinpoints: "):
            kata.llava_next_tokens(336, 336, pinpoints)
    with pytest.raises(ValueError, match="^pinpoints: "):
        kata.select_best_resolution(336, 336, [])


def test_an_image_that_unpadding_removes_is_refused(kata, oracle):
    with pytest.raises(ValueError, match="^h: "):
        kata.llava_next_tokens(1, 1000, oracle.PINPOINTS)
    with pytest.raises(ValueError, match="^w: "):
        kata.llava_next_tokens(1000, 1, oracle.PINPOINTS)
    # of 24 rows one is kept, and 11 are cut off on either side
    assert kata.llava_next_tokens(10, 360, oracle.PINPOINTS) == 576 + 2 * 49
    # of 5 rows none is kept, but 2 are cut off on either side: one is left
    assert kata.llava_next_tokens(1, 70, [(70, 70)], tile=70) == 25 + 1 * (5 + 1)
    assert kata.llava_next_tokens(70, 1, [(70, 70)], tile=70) == 25 + 5 * (1 + 1)


def test_aspect_ratio_of_qwen2_vl_is_limited(kata):
    n = 10**17  # 200 n + 1 is 200 n in floats
    for h, w in [(1, 201), (201, 1), (10, 2001), (n, 200 * n + 1), (200 * n + 1, n)]:
        with pytest.raises(ValueError, match="^aspect"):
            kata.qwen2_vl_tokens(h, w)
    assert kata.qwen2_vl_tokens(2000, 10)[0] % 28 == 0  # 200 itself is allowed
