"""The transform against its matrix, scales at their limits, and how much of attention is left."""

import math

import pytest
import torch

from harness.judge import assert_matches, assert_nearest
from harness.meters.dispatch import flop_meter
from harness.simulators.block_scaled import E4M3

INF, NAN = float("inf"), float("nan")
LARGEST = torch.finfo(torch.float32).max


def rows(device, seed, *shape, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).to(device)


def assert_right(kata, oracle, inputs):
    want, trusted = oracle.reference(**inputs), oracle.same_precision(**inputs)
    assert_matches(kata.fp8_attention(**inputs), want, same_precision=trusted)


def furthest(found, expected):
    return float((found - expected).abs().max())


# ---- the transform -------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 64, 128])
def test_transform_is_that_of_the_matrix(kata, oracle, device, d):
    found = kata.fwht(torch.eye(d, dtype=torch.float64, device=device))
    off = furthest(found, oracle.sylvester(d).to(device))
    assert off < 1e-12, f"fwht of the unit matrix, d = {d}: up to {off:g} from Sylvester's matrix"


@pytest.mark.parametrize("d", [0, 3, 24, 127])
def test_channels_that_are_no_power_of_two_are_refused(kata, device, d):
    with pytest.raises(ValueError, match="^x: "):
        kata.fwht(torch.ones(2, d, device=device))


def test_transform_adds_and_subtracts(kata, device, seed, dispatch, cost):
    x = rows(device, seed, 256, 128)
    with flop_meter() as products, dispatch() as ops:
        kata.fwht(x)
    cost.check("flops", products.flops)
    cost.check("allocated_bytes", ops.allocated_bytes)


# ---- incoherent processing -----------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 4, 128])
def test_scores_stay_what_they_were(kata, device, seed, d):
    q, k = (rows(device, seed + i, 5 + i, d, dtype=torch.float64) for i in range(2))
    q_spread, k_spread = kata.incoherent(q, k, 3)
    off = furthest(q_spread @ k_spread.T, q @ k.T)
    assert off < 1e-12 * d, f"d = {d}: scores are up to {off:g} away"


def test_an_outlier_is_shared_by_all_channels(kata, device):
    x = torch.zeros(2, 64, device=device)
    x[0, 5] = x[1, 63] = 80.0
    for spread in kata.incoherent(x, x, 1):
        assert furthest(spread.abs(), 10.0) < 1e-4, f"expected ±10 everywhere, found {spread}"


def test_signs_come_before_the_transform(kata, device):
    # the transform alone would make one outlier of 11.3 of a row of ones
    x = torch.ones(1, 128, device=device)
    for seed in range(3):
        for spread in kata.incoherent(x, x, seed):
            assert spread.abs().max().item() < 7.0, f"seed {seed}: all of it is in one channel"


def test_signs_are_those_of_the_seed(kata, device):
    x = torch.ones(1, 128, device=device)
    torch.manual_seed(11)
    one = kata.incoherent(x, x, 4)[0]
    torch.manual_seed(12)
    again = kata.incoherent(x, x, 4)[0]
    assert torch.equal(one, again), "seed 4: other signs the second time"
    # signs of other seeds, and of any two 128 of them agree in about half
    signs = [kata.fwht(kata.incoherent(x, x, seed)[0]).sign() for seed in range(4, 8)]
    for i in range(3):
        alike = int((signs[i] == signs[i + 1]).sum())
        assert 30 <= alike <= 98, f"seeds {4 + i} and {5 + i}: {alike} of 128 signs are alike"


def test_signs_are_as_likely_plus_as_minus(kata, device):
    # of 8192 signs half are plus, and six times their spread is 272
    x = torch.ones(1, 128, device=device)
    plus = sum(int((kata.fwht(kata.incoherent(x, x, seed)[0]) > 0).sum()) for seed in range(64))
    assert 3824 <= plus <= 4368, f"of seeds 0 to 63: {plus} of 8192 signs are plus"


def test_signs_depend_on_nothing_but_the_seed_and_d(kata, device):
    def signs(rows, keys, dtype):
        q, k = (torch.ones(n, 32, device=device, dtype=dtype) for n in (rows, keys))
        return kata.fwht(kata.incoherent(q, k, 9)[0][:1]).sign().tolist()

    want = signs(1, 1, torch.float32)
    assert signs(3, 1, torch.float32) == want
    assert signs(1, 4, torch.float32) == want
    assert signs(1, 1, torch.float64) == want


def test_narrow_heads_do_not_decide_about_wide_ones(kata, device):
    kata.incoherent(*torch.ones(2, 1, 2, device=device), 23)
    spread = kata.incoherent(*torch.ones(2, 1, 128, device=device), 23)[0]
    assert spread.abs().max().item() < 7.0, "the signs repeat those of a head of two channels"


def test_global_generators_are_left_alone(kata, device):
    x = torch.ones(1, 8, device=device)
    torch.manual_seed(5)
    want = torch.rand(1).item()
    torch.manual_seed(5)
    kata.incoherent(x, x, 6)
    kata.fp8_attention(x, x, x, seed=7)
    assert torch.rand(1).item() == want, "PyTorch's next random number is another one afterwards"


@pytest.mark.parametrize(("shape", "name"), [((2, 6), "q"), ((2, 4), "k"), ((2, 16), "k")])
def test_channels_have_to_agree(kata, device, shape, name):
    q = torch.ones(shape if name == "q" else (3, 8), device=device)
    k = torch.ones(shape, device=device)
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.incoherent(q, k, 0)


def test_inputs_stay_as_they_are(kata, device, seed):
    q, k = rows(device, seed, 5, 8), rows(device, seed + 1, 3, 8)
    before = q.clone(), k.clone()
    kata.incoherent(q, k, 0)
    kata.block_quant(q, 2)
    assert torch.equal(q, before[0])
    assert torch.equal(k, before[1])


# ---- blocks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("s", "block"), [(64, 16), (37, 16), (5, 8), (3, 1)],
    ids=["whole blocks", "a short one", "only a short one", "one row each"],
)  # fmt: skip
def test_numbers_are_the_nearest(kata, device, seed, s, block):
    # blocks that are far apart, each with an outlier
    size = torch.tensor([1.0, 1e-3, 1e6, 1e-20], device=device).repeat_interleave(block)[:s]
    x = rows(device, seed, s, 32) * size.resize_(s)[:, None]
    x[::block, 3] *= 50
    numbers, scale = kata.block_quant(x, block)
    want = torch.stack([part.abs().amax() for part in x.split(block)]) / 448
    assert numbers.dtype == torch.float8_e4m3fn
    assert scale.dtype == torch.float32
    assert_matches(scale, want.double())
    assert_nearest(numbers, scale[:, None], x, E4M3, (block, 32))


@pytest.mark.parametrize("value", [0.0, 1e-44, 1e-38, LARGEST], ids="{:g}".format)
def test_blocks_at_the_limits_of_float32(kata, device, value):
    x = torch.full((4, 8), value, device=device)
    x[2:] = -1.0
    numbers, scale = kata.block_quant(x, 2)
    least = torch.finfo(torch.float32).tiny
    assert scale.tolist() == pytest.approx([max(value / 448, least), 1 / 448], rel=1e-5, abs=0)
    back = numbers.double() * scale.double().repeat_interleave(2)[:, None]
    close = (back - x.double()).abs() <= x.abs() / 16 + least
    assert bool(close.all()), f"expected {x.tolist()} to a sixteenth, found {back.tolist()}"


def test_a_block_may_be_far_more_than_all_rows(kata, device, seed):
    x = rows(device, seed, 5, 8)
    numbers, scale = kata.block_quant(x, 2**40)
    want, one = kata.block_quant(x, 5)
    assert (numbers.float().tolist(), scale.tolist()) == (want.float().tolist(), one.tolist())
    assert kata.fp8_attention(x, x, x, 2**40).tolist() == kata.fp8_attention(x, x, x, 5).tolist()


def test_no_rows_have_no_scales(kata, device):
    numbers, scale = kata.block_quant(torch.ones(0, 8, device=device), 4)
    assert (numbers.shape, scale.shape) == ((0, 8), (0,))


@pytest.mark.parametrize("block", [0, -1])
def test_blocks_have_rows(kata, device, block):
    with pytest.raises(ValueError, match="^block: "):
        kata.block_quant(torch.ones(2, 2, device=device), block)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_not_finite_is_refused(kata, device, value):
    bad = torch.ones(3, 4, device=device)
    bad[2, 1] = value
    good = torch.ones(3, 4, device=device)
    with pytest.raises(ValueError, match="^x: "):
        kata.block_quant(bad, 2)
    for name in "qkv":
        inputs = {"q": good, "k": good, "v": good, name: bad}
        with pytest.raises(ValueError, match=f"^{name}: "):
            kata.fp8_attention(**inputs)


# ---- attention -----------------------------------------------------------------------------


def one_channel(device, heights):
    """Rows that have these heights in one channel of 64: rotated and in e4m3 they are exact."""
    x = torch.zeros(len(heights), 64, device=device)
    x[:, 9] = torch.tensor(heights)
    return x


def test_many_small_weights_count(kata, oracle, device, seed):
    # one score is 8.3 and 300 are 0: weights of 2⁻¹², whose values are ten times as large
    q, k = one_channel(device, [8.0] * 3), one_channel(device, [8.3] + [0.0] * 300)
    v = 1 + 0.1 * rows(device, seed, 301, 64)
    v[0] /= 10
    assert_right(kata, oracle, {"q": q, "k": k, "v": v})


def test_a_weight_that_e4m3_holds_stays_as_it_is(kata, device):
    # weights of 1 and 9/16, values of 0 and 1: 9/25, whichever sum divides; divided before the
    # cast, or times what is no power of two, 9/16 becomes another number
    q, k = one_channel(device, [8.0]), one_channel(device, [0.0, math.log(9 / 16)])
    v = torch.tensor([[0.0] * 64, [1.0] * 64], device=device)
    assert kata.fp8_attention(q, k, v)[0].tolist() == pytest.approx([0.36] * 64, rel=1e-5)


def test_values_are_those_of_e4m3(kata, device, seed):
    # of one key nothing is left but its values, to three bits
    q, v = rows(device, seed, 3, 64), rows(device, seed + 1, 1, 64)
    numbers, scale = kata.block_quant(v, 64)
    want = (numbers.double() * scale.double()).expand(3, 64)
    assert_matches(kata.fp8_attention(q, q[:1], v), want)


def test_keys_are_those_of_e4m3(kata, device):
    # in a block that ends at 448 a key of 17.9 is 18, whose score is more by 0.8
    q, k = one_channel(device, [64.0]), one_channel(device, [-448.0, 17.9, 18.0])
    v = torch.eye(3, 64, device=device)
    _, near, held = kata.fp8_attention(q, k, v)[0, :3].tolist()
    assert near == held, f"keys of 17.9 and 18.0: expected one weight, found {near} and {held}"


def test_weights_are_those_of_e4m3(kata, device):
    # 0.54 is nearer to 9/16 than to 1/2, and e4m3 has nothing in between; a key a block is exact
    heights = [0.0, math.log(0.54), math.log(9 / 16)]
    q, k = one_channel(device, [8.0]), one_channel(device, heights)
    v = torch.eye(3, 64, device=device)
    _, near, held = kata.fp8_attention(q, k, v, block=1)[0, :3].tolist()
    told = f"weights of 0.54 and 0.5625: expected the same, found {near} and {held}"
    assert near == pytest.approx(held, rel=1e-4), told


def test_signs_are_those_that_the_seed_says(kata, oracle, device, seed):
    inputs = oracle.make_inputs(sq=9, sk=20, d=64, dtype=torch.float32, device=device, seed=seed)
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    one, again, other = (kata.fp8_attention(q, k, v, seed=at) for at in (1, 1, 2))
    assert torch.equal(one, again), "seed 1: other results the second time"
    assert not torch.equal(one, other), "seeds 1 and 2: the same results, as of the same signs"


def test_a_loud_block_that_nobody_attends_to(kata, oracle, device, seed):
    # values of 10⁶ with weights of exp(-64): with one scale for all the others would be nothing
    q, k = one_channel(device, [8.0] * 3), one_channel(device, [-64.0] * 64 + [0.0] * 64)
    v = rows(device, seed, 128, 64)
    v[:64] *= 1e6
    assert_right(kata, oracle, {"q": q, "k": k, "v": v})


@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_scores_far_from_zero(kata, oracle, device, seed, sign):
    # about ±80,000, all alike but for noise: past float16, and exp of them is inf, or 0
    inputs = oracle.make_inputs(sq=40, sk=40, d=64, dtype=torch.float32, device=device, seed=seed)
    inputs["q"] = sign * (100 + inputs["q"] / 5)
    inputs["k"] = 100 + inputs["k"] / 5
    o = kata.fp8_attention(**inputs)
    assert bool(o.isfinite().all()), f"{int((~o.isfinite()).sum())} results are not finite"


def test_a_block_of_zeros_in_each(kata, oracle, device, seed):
    inputs = oracle.make_inputs(sq=130, sk=130, d=16, dtype=torch.float32, device=device, seed=seed)
    for name in "qkv":
        inputs[name][:64] = 0
    assert_right(kata, oracle, inputs)


def test_error_with_outliers(kata, oracle, device, cost):
    own, baseline = 0.0, 0.0
    for draw in range(4):
        inputs = oracle.make_inputs(
            sq=1024, sk=1024, d=128, outliers=1e-3, q_size=1.0, dtype=torch.float32, device=device,
            seed=draw,
        )  # fmt: skip
        q, k, v = inputs["q"], inputs["k"], inputs["v"]
        want = oracle.reference(**inputs)
        own += float((kata.fp8_attention(q, k, v) - want).square().mean().sqrt()) / 4
        others = oracle.per_tensor_attention(q, k, v)
        baseline += float((others - want).square().mean().sqrt()) / 4
    cost.check("rmse", own)
    cost.check("rmse_share", own / baseline)
