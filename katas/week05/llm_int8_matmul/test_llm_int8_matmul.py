"""What is an outlier, that integers are exact, and what it costs to be this exact."""

import pytest
import torch

INF, NAN = float("inf"), float("nan")


# ---- which features are outliers -----------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([6.0, 0.0, 0.0], True),  # at the threshold
        ([0.0, 0.0, -6.0], True),  # one token is enough, of either sign
        ([5.996, -5.996, 5.996], False),  # however many are close
        ([5.0, 5.0, 5.0], False),  # a mean or a norm would say yes
        ([INF, 0.0, 0.0], True),
    ],
    ids=["at", "negative", "close", "many", "infinite"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_feature_that_reaches_the_threshold_once_is_an_outlier(
    kata, device, dtype, column, expected
):
    x = torch.zeros(3, 4, dtype=dtype, device=device)
    x[:, 2] = torch.tensor(column, dtype=dtype)
    found = kata.outlier_columns(x, 6.0)
    assert found.tolist() == [2] * expected
    assert found.dtype == torch.int64


def test_outliers_come_in_ascending_order(kata, device):
    x = torch.zeros(2, 9, device=device)
    x[0, 7] = x[1, 0] = x[0, 3] = x[1, 3] = 50
    assert kata.outlier_columns(x, 6.0).tolist() == [0, 3, 7]
    assert kata.outlier_columns(x[:, ::3], 6.0).tolist() == [0, 1]  # strided


def test_small_thresholds_hold_too(kata, device):
    x = torch.tensor([[0.1, -0.5, 0.4]], device=device)
    assert kata.outlier_columns(x, 0.5).tolist() == [1]


def test_thresholds_are_not_rounded_to_the_dtype_of_x(kata, device):
    # 6.001 would be 6 in float16
    x = torch.tensor([[6.0, 6.004]], dtype=torch.float16, device=device)
    assert kata.outlier_columns(x, 6.001).tolist() == [1]


def test_no_tokens_have_no_outliers(kata, device):
    assert kata.outlier_columns(torch.zeros(0, 4, device=device), 6.0).tolist() == []


# ---- products ------------------------------------------------------------------------------


def whole_numbers(seed, tokens, k, n):
    """Numbers that are their own codes, with the largest code in each row and each column."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-127, 128, (tokens, k), generator=generator).float()
    w = torch.randint(-127, 128, (k, n), generator=generator).float()
    x[:, 3], w[5] = -127, 127
    return x, w


@pytest.mark.parametrize(
    ("x_scale", "w_scale"),
    [(2.0**-3, 2.0), (2.0**-60, 2.0**40), (2.0**40, 2.0**-60)],
    ids=["usual", "tiny tokens", "tiny weights"],
)
def test_what_is_on_the_grid_is_exact(kata, device, seed, x_scale, w_scale):
    # scales are powers of 2: sums of 64 products of codes are exact in float32
    x, w = whole_numbers(seed, tokens=5, k=64, n=9)
    out = kata.llm_int8_matmul((x * x_scale).to(device), (w * w_scale).to(device), threshold=INF)
    assert out.tolist() == ((x.long() @ w.long()).double() * x_scale * w_scale).tolist()


def test_sums_past_31_bits(kata, device):
    # 140,000 products of 127 by 127; and as many that cancel by halves
    x = torch.full((2, 140_000), 127.0, device=device)
    x[1, 70_000:] = -127
    out = kata.llm_int8_matmul(x, torch.full((140_000, 3), 127.0, device=device), threshold=INF)
    assert out[0].tolist() == pytest.approx([140_000 * 127**2] * 3, rel=1e-6)
    assert out[1].tolist() == pytest.approx([0.0] * 3, abs=140_000 * 127**2 * 1e-6)


def test_outliers_do_not_set_the_scale_of_a_token(kata, device):
    # without the outlier all is on the grid: codes of 1/127 of what is largest then
    x, w = (
        torch.tensor([[1.0, 100.0, -127.0]], device=device) / 127,
        torch.ones(3, 1, device=device),
    )
    x[0, 1] = 1000.0
    assert kata.llm_int8_matmul(x, w).item() == pytest.approx(1000 - 126 / 127, rel=1e-6)


def test_outlier_weights_keep_their_digits(kata, device):
    # 0.3 of a code of its column: int8 would make nothing of it
    w = torch.tensor([[0.3], [127.0]], device=device)
    x = torch.tensor([[1000.0, 0.0]], device=device)
    assert kata.llm_int8_matmul(x, w).item() == pytest.approx(300.0, rel=1e-6)


def test_scales_of_half_precision_weights_are_single(kata, device):
    # 305 of the smallest steps of float16: a scale in float16 would be 2 of them instead of 2.4
    w = torch.full((64, 1), 305 * 2.0**-24, dtype=torch.float16, device=device)
    x = torch.full((2, 64), 5.0, dtype=torch.float16, device=device)
    want = [[64 * 5 * 305 * 2.0**-24]] * 2
    assert kata.llm_int8_matmul(x, w).tolist() == [pytest.approx(row, rel=1e-3) for row in want]


def test_codes_of_half_precision_are_found_in_single(kata, device):
    # all numbers of float16 between 0.5 and 1, beside a 1: steps of 1/127, codes of 64 and more,
    # where float16 goes by sixteenths
    small = torch.arange(1025, 2048) / 2048
    x = torch.stack((small, torch.ones(1023)), dim=1).half().to(device)
    w = torch.tensor([[1.0], [0.0]], dtype=torch.float16, device=device)
    want = torch.round(127 * small.double()) / 127
    off = (kata.llm_int8_matmul(x, w)[:, 0].cpu().double() - want).abs()
    at = int(off.argmax())
    assert float(off[at]) < 0.001, f"x = {small[at]}: expected code {want[at] * 127}"


def test_the_two_parts_are_added_in_single(kata, device):
    # 64 · 5 · 0.3999 is 127.96875, half way between two numbers of float16
    x = torch.full((1, 65), 5.0, dtype=torch.float16, device=device)
    w = torch.full((65, 1), 0.4, dtype=torch.float16, device=device)
    x[0, 64], w[64, 0] = 512.0, -0.25
    assert kata.llm_int8_matmul(x, w).item() == pytest.approx(-0.03125, abs=1e-4)


def test_outliers_are_multiplied_in_the_dtype_of_x(kata, oracle):
    # on the CPU in every session
    x, w = torch.ones(3, 8, dtype=torch.float16), torch.ones(8, 4, dtype=torch.float16)
    x[1, 2] = 50.0
    with oracle.FloatProducts() as counted:
        kata.llm_int8_matmul(x, w)
    assert counted.dtypes == {torch.float16}


def test_an_infinite_feature_is_an_outlier_among_others(kata, device):
    # which spoils its own token alone
    x = torch.tensor([[127.0, INF, 0.0], [127.0, 1.0, -64.0]], device=device) / 32
    w = torch.tensor([[127.0], [2.0], [127.0]], device=device)
    assert kata.llm_int8_matmul(x, w).tolist() == [[INF], [(127 * 63 + 2) / 32]]


def test_few_features_are_multiplied_in_floating_point(kata, oracle, cost, seed):
    # counted on the CPU in every session
    x, w = oracle.like_a_language_model(seed)
    with oracle.FloatProducts() as counted:
        out = kata.llm_int8_matmul(x, w)
    truth = x.double() @ w.double()
    cost.check("relative_error", float((out.double() - truth).norm() / truth.norm()))
    cost.check("floating_point_share", counted.multiplications / (32 * 512 * 128))


@pytest.mark.parametrize("tokens", [2, 0])
@pytest.mark.parametrize("threshold", [0.0, -6.0, NAN], ids=str)
def test_thresholds_not_above_zero_are_refused(kata, device, threshold, tokens):
    with pytest.raises(ValueError, match=r"\bthreshold\b"):
        kata.outlier_columns(torch.ones(tokens, 3, device=device), threshold)
