"""What is special about LayerNorm on chip: large means, padding, pieces, and what is read."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge import assert_matches

# arguments that choose a path for a row of up to 128 columns: whole, or in pieces of 32
WHOLE, PIECES = {}, {"max_block": 16, "block": 32}
both_paths = pytest.mark.parametrize("path", [WHOLE, PIECES], ids=["whole", "pieces"])


def plain(x):
    """Weights that change nothing, for rows like those of `x`."""
    return torch.ones_like(x[0]), torch.zeros_like(x[0])


def assert_right(kata, oracle, x, path, **options):
    """Rows with plain weights have the result and the statistics that they should have."""
    w, b = plain(x)
    found = kata.layer_norm(x, w, b, **options, **path)
    truth = oracle.reference(x=x, w=w, b=b, **options)
    trusted = oracle.same_precision(x=x, w=w, b=b, **options)
    assert_matches(found, truth, same_precision=trusted)


@both_paths
def test_layer_norm_by_hand(kata, device, path):
    # mean 5, distances ±1 and ±3, so a variance of 5; with eps = 11 a deviation of 4
    x = torch.tensor([[2.0, 4.0, 6.0, 8.0] * 12], device=device)
    y, mean, rstd = kata.layer_norm(x, *plain(x), eps=11.0, **path)
    assert_matches(y, torch.tensor([[-0.75, -0.25, 0.25, 0.75] * 12]))
    assert_matches((mean, rstd), (torch.tensor([5.0]), torch.tensor([0.25])))


@both_paths
def test_each_column_has_its_own_weight_and_shift(kata, device, path):
    x = torch.tensor([[-1.0, 1.0] * 25], device=device)
    w, b = torch.arange(50.0, device=device), torch.arange(50.0, device=device) ** 2
    y, _, _ = kata.layer_norm(x, w, b, eps=0.0, **path)
    assert_matches(y, x * w + b)


@both_paths
def test_statistics_survive_a_large_mean(kata, device, oracle, path):
    # float32 near 10^4 has steps of 0.001, and near its square of 8: E[x²] - E[x]² knows nothing
    x = 1e4 + 0.1 * torch.randn(4, 100, device=device)
    _, mean, rstd = kata.layer_norm(x, *plain(x), **path)
    _, true_mean, true_rstd = oracle.reference(x=x, w=x[0], b=x[0])
    assert_matches(mean, true_mean)
    off = (rstd / true_rstd - 1).abs().max()
    assert off < 0.005, f"rstd: expected {true_rstd.tolist()} within 0.5 %, found {rstd.tolist()}"


@both_paths
def test_small_numbers_keep_their_digits(kata, device, oracle, path):
    # beside a 1 that takes part in their mean they would have three digits left
    x = 1e-4 * (3 + torch.randn(2, 100, device=device))
    assert_right(kata, oracle, x, path)


@both_paths
def test_pieces_far_apart_are_spread_too(kata, device, oracle, path):
    # within a piece of 32 the variance is about 1, of the row it is about 10^4
    apart = 90 * torch.arange(4, device=device).repeat_interleave(32)
    assert_right(kata, oracle, torch.randn(2, 128, device=device) + apart, path)


@both_paths
@pytest.mark.parametrize("cols", [21, 50], ids=["a piece", "two pieces"])
def test_constant_rows_are_the_shift(kata, device, cols, path):
    # float32 holds each multiple of these numbers, but of 3 / 21 and its like it does not
    constants = [0.0, 2.0, -512.0, 3.0, 1001.0]
    x = torch.tensor(constants, device=device)[:, None].repeat(1, cols)
    w, b = torch.randn(2, cols, device=device)
    y, mean, rstd = kata.layer_norm(x, w, b, eps=0.0625, **path)
    assert mean.tolist() == constants
    off = (y - b).abs().amax(dim=1).tolist()
    assert off == [0] * 5, f"y of rows of {constants}: expected b, found it off by up to {off}"
    assert_matches(rstd, torch.full((5,), 4.0))


@both_paths
def test_float16_has_float32_statistics(kata, device, oracle, path):
    # the sum of a row, 128 · 1000, is past the largest float16, and so is the square of any x
    # whole numbers: how many digits their mean keeps does not depend on the order of the sum
    x = (1000 + torch.randint(-8, 9, (3, 128), device=device)).half()
    assert_right(kata, oracle, x, path)
    dtypes = [one.dtype for one in kata.layer_norm(x, *plain(x), **path)]
    assert dtypes == [torch.float16, torch.float32, torch.float32]


@both_paths
def test_nothing_is_rounded_to_float16_before_the_shift(kata, device, path):
    # 0.5002 lies between two numbers of float16, of which 64 are 32 and 32.03
    x = torch.tensor([[-1.0, 1.0] * 25], device=device).half()
    w, b = torch.full_like(x[0], 64), torch.full_like(x[0], -32)
    y, _, _ = kata.layer_norm(x, w, b, eps=1 / 0.5002**2 - 1, **path)
    assert y[0, 1::2].tolist() == pytest.approx([64 * 0.5002 - 32] * 25, rel=0.01)


@given(
    cols=st.integers(1, 100),
    block=st.sampled_from([16, 32, 64]),
    shift=st.sampled_from([-3, -1, 1, 3]),
    draw=st.integers(0, 2**32),
)
@settings(max_examples=12)
def test_any_split_gives_the_same_statistics(kata, device, oracle, cols, block, shift, draw):
    x = torch.randn(2, cols, generator=torch.Generator().manual_seed(draw)).to(device) + shift
    # eps is large enough for rows of two numbers nearly alike, whose difference has few digits
    assert_right(kata, oracle, x, {"max_block": 1, "block": block}, eps=0.5)


# ---- which path, and what it costs ---------------------------------------------------------


@pytest.mark.parametrize(
    ("cols", "max_block", "reads"),
    [(128, 128, 1), (129, 128, 2), (129, 200, 2)],
    ids=["fits", "one too long", "too long when rounded up"],
)
def test_a_row_is_read_again_only_when_it_does_not_fit(kata, traffic, cols, max_block, reads):
    x = torch.randn(3, cols)
    with traffic() as moved:
        kata.layer_norm(x, *plain(x), max_block=max_block, block=64)
    assert moved.of(x).loaded_bytes == reads * 3 * cols * 4


@both_paths
def test_the_results_are_the_only_allocations(kata, device, dispatch, path):
    # float16: weights in another dtype would be copies
    x = torch.randn(3, 100, device=device).half()
    w, b = plain(x)
    with dispatch() as ops:
        kata.layer_norm(x, w, b, **path)
    assert ops.allocated_bytes == 3 * 100 * 2 + 2 * 3 * 4


def test_pieces_are_as_long_as_asked(kata, compiled):
    def code(block):
        sizes = {"rows": 2, "cols": 1000, "dtype": "float16", "max_block": 64}
        return [one.instructions for one in compiled(target="sm_90", **sizes, block=block)]

    same = code(64) == code(256)
    assert not same, "block = 64 and block = 256: expected two kernels, found the same"


def test_a_single_column_may_have_any_stride(kata, device):
    x = torch.randn(1, 5, device=device).T
    y, mean, _ = kata.layer_norm(x, *plain(x))
    assert y.eq(0).all()
    assert torch.equal(mean, x[:, 0])


def test_two_columns_may_not(kata, device):
    x = torch.randn(2, 4, device=device)[:, ::2]
    with pytest.raises(ValueError, match="^x: .*contiguous"):
        kata.layer_norm(x, *(one.contiguous() for one in plain(x)))


def test_traffic_counts_passes(kata):
    nbytes = 16384 * 8192 * 2
    assert kata.traffic(16384, 8192, 2) == {
        "single": 2 * nbytes,
        "two_pass": 3 * nbytes,
        "three_pass": 4 * nbytes,
    }
    assert kata.traffic(3, 5, 4)["two_pass"] == 180
