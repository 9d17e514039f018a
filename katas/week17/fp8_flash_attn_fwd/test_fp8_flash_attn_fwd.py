"""Scales of blocks, weights in e4m3's range, scores far from zero, and the instructions used."""

import pytest
import torch

from harness.judge import assert_matches

SPEED_CASE = {"b": 2, "h": 16, "s": 8192, "d": 128, "dtype": "float8_e4m3fn"}
E4M3 = torch.float8_e4m3fn


def draw(oracle, device, seed, *, s, d=64, h=1, **more):
    return oracle.make_inputs(b=1, h=h, s=s, d=d, dtype=E4M3, device=device, seed=seed, **more)


def assert_right(kata, oracle, inputs):
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.fp8_flash_attn(**inputs), want, same_precision=trusted)


def one_channel(inputs, scores):
    """Set q to ones and k to these heights, in one channel of 64 alone: scores are exact."""
    for name in ("q8", "k8"):
        inputs[name] = torch.zeros_like(inputs[name].float())
    inputs["q8"][..., 9] = 1
    inputs["k8"][..., 9] = torch.tensor(scores)
    inputs["q8"], inputs["k8"] = inputs["q8"].to(E4M3), inputs["k8"].to(E4M3)
    inputs["q_scale"], inputs["k_scale"] = (torch.ones_like(inputs["q_scale"]) for _ in range(2))
    inputs["sm_scale"] = 1.0
    return inputs


# ---- scales --------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [2.0**-10, 2.0**10], ids=["smaller", "larger"])
@pytest.mark.parametrize("name", ["q_scale", "k_scale"])
def test_scales_of_scores_are_one_factor(kata, oracle, device, seed, name, factor):
    inputs = draw(oracle, device, seed, s=130)
    want = kata.fp8_flash_attn(**inputs)
    inputs[name] = inputs[name] * factor
    inputs["sm_scale"] /= factor
    found = kata.fp8_flash_attn(**inputs)
    assert torch.equal(found, want), f"{name} times {factor:g}, sm_scale over it: other bits"


@pytest.mark.parametrize("name", ["q_scale", "k_scale", "v_scale"])
def test_each_block_has_its_own_scale(kata, oracle, device, seed, name):
    # heads in a row, so that a scale of the wrong head shows too
    inputs = draw(oracle, device, seed, s=132, h=2)
    scales = inputs[name]
    scales *= torch.tensor([[[0.25, 3.0], [2.0, 0.5]]], device=device)
    assert_right(kata, oracle, inputs)


@pytest.mark.parametrize("name", ["q8", "k8", "v8t"])
def test_a_block_of_zeros(kata, oracle, device, seed, name):
    inputs = draw(oracle, device, seed, s=130)
    x = inputs[name] if name != "v8t" else inputs[name].mT
    x.view(torch.uint8)[:, :, :128] = 0
    assert_right(kata, oracle, inputs)


# ---- the softmax ---------------------------------------------------------------------------


def test_many_small_weights_count(kata, oracle, device, seed):
    # one score of 8 and 189 of -0.25: weights of 2⁻¹², whose values are ten times as large
    inputs = one_channel(draw(oracle, device, seed, s=190), [8.0] + [-0.25] * 189)
    v8 = inputs["v8t"].float().abs() / 8 + 64
    v8[..., 0] /= 8
    inputs["v8t"] = v8.to(E4M3)
    assert_right(kata, oracle, inputs)


def test_weights_are_cast_as_256_p(kata, oracle, device, seed):
    # weights of 1, e^-2 and e^-4, each to a channel of its own: e4m3 of 256 p is 256, 36 and 4.5
    inputs = one_channel(draw(oracle, device, seed, s=3), [0.0, -2.0, -4.0])
    inputs["v8t"] = torch.eye(64, device=device)[None, None, :, :3].to(E4M3).contiguous()
    inputs["v_scale"] = torch.ones_like(inputs["v_scale"])
    o = kata.fp8_flash_attn(**inputs)[0, 0, :, :3].float()
    # whatever the sum is of, it divides all three
    assert (o / o[:, :1] * 256).tolist() == [pytest.approx([256, 36, 4.5], rel=2e-3)] * 3


def test_keys_in_order_of_rising_score(kata, oracle, device, seed):
    # each of 13 heights for ten keys or so: nearly every tile moves the maximum
    inputs = one_channel(draw(oracle, device, seed, s=130), [key // 10 for key in range(130)])
    assert_right(kata, oracle, inputs)


@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_scores_far_from_zero(kata, oracle, device, seed, sign):
    # near two million: past float16, and lower than a number that is meant to hide a key
    heights = [sign * (240 + 16 * (key % 2)) for key in range(70)]
    inputs = one_channel(draw(oracle, device, seed, s=70), heights)
    inputs["sm_scale"] = 8192.0
    assert_right(kata, oracle, inputs)


def test_keys_past_the_end_do_not_count(kata, oracle, device, seed):
    # scores of -8 leave weights that are small beside those of zeros
    inputs = one_channel(draw(oracle, device, seed, s=70), [-8.0] * 70)
    assert_right(kata, oracle, inputs)


# ---- memory and the build --------------------------------------------------------------------


def test_keys_pass_once_for_64_queries(kata, oracle, seed, traffic, cost):
    inputs = draw(oracle, "cpu", seed, s=256)
    with traffic() as moved:
        o = kata.fp8_flash_attn(**inputs)
    assert moved.of(inputs["q8"]).loads_per_element == 1
    assert moved.stored_bytes == o.nbytes
    cost.check("kernel_bytes", moved.loaded_bytes + moved.stored_bytes)


@pytest.mark.parametrize("s", [8192, 8200], ids=["by TMA", "by pointers"])
def test_both_products_are_those_of_fp8(compiled, s):
    kernels = compiled(target="sm_90", **{**SPEED_CASE, "s": s})
    ptx = "".join(kernel.ptx for kernel in kernels)
    products = [line for line in ptx.splitlines() if "wgmma.mma_async" in line]
    assert products, "expected wgmma in the build for sm_90"
    wide = [line.strip() for line in products if "e4m3.e4m3" not in line]
    assert not wide, f"expected both products in e4m3, found {wide[:1]}"
    assert "cvt.rn.satfinite.e4m3x2" in ptx, "expected the weights to be cast to e4m3"
    # scale-d of 0: the first of a tile's wgmma does not add to what the accumulator held
    fresh = [line for line in products if line.rstrip().endswith(" 0, 1, 1;")]
    assert len(fresh) >= 2, "expected both products of a tile to begin at 0, not at `acc`"
