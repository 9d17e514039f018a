"""What is special about the gradients of LayerNorm: directions that dx lacks, and sums of rows."""

import pytest
import torch


def normalised(rows, cols, device, eps=0.0):
    """Rows with their mean and rstd, in float32."""
    x = torch.randn(rows, cols, device=device) + 1
    exact = x.double()
    mean, variance = exact.mean(dim=1), exact.var(dim=1, correction=0)
    return x, mean.float(), (1 / torch.sqrt(variance + eps)).float()


def test_gradients_by_hand(kata, device):
    # x̂ = -1, 1, -1, 1; dy·w = 0, 8, 0, 0: a mean of 2, and 2 along x̂; dx = 2 · (0 - 2 + 2, …)
    x = torch.tensor([[4.5, 5.5, 4.5, 5.5]], device=device)
    dy = torch.tensor([[0.0, 4.0, 0.0, 0.0]], device=device)
    w = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)
    mean, rstd = torch.tensor([5.0], device=device), torch.tensor([2.0], device=device)
    dx, dw, db = kata.layer_norm_bwd(dy, x, w, mean, rstd)
    assert dx.tolist() == [[0.0, 8.0, 0.0, -8.0]]
    assert dw.tolist() == [0.0, 4.0, 0.0, 0.0]
    assert db.tolist() == [0.0, 4.0, 0.0, 0.0]


def test_statistics_are_those_given(kata, device):
    # not those of x: a forward pass in other words, or with a larger eps
    x, dy = torch.tensor([[1.0, 3.0]], device=device), torch.tensor([[1.0, 0.0]], device=device)
    mean, rstd = torch.tensor([1.0], device=device), torch.tensor([0.5], device=device)
    # x̂ = 0, 1: half of dy is taken from both, and nothing along x̂
    dx, dw, _ = kata.layer_norm_bwd(dy, x, torch.ones(2, device=device), mean, rstd)
    assert dx.tolist() == [[0.25, -0.25]]
    assert dw.tolist() == [0.0, 0.0]


def test_moving_or_stretching_a_row_changes_nothing(kata, device):
    x, mean, rstd = normalised(4, 100, device)
    dy, w = torch.randn(4, 100, device=device) + 1, torch.randn(100, device=device)
    dx, _, _ = kata.layer_norm_bwd(dy, x, w, mean, rstd, groups=2)
    x_hat = (x.double() - mean.double()[:, None]) * rstd.double()[:, None]
    for name, along in (("ones", torch.ones_like(x_hat)), ("x_hat", x_hat)):
        terms = dx.double() * along
        share = terms.sum(dim=1).abs() / terms.abs().sum(dim=1)
        assert share.max() < 1e-5, f"dx along {name}: expected 0, found {share.tolist()} of dx"


def test_constant_rows_have_a_gradient(kata, device):
    # variance 0, eps 1/16: only the mean of dy·w is taken away
    x = torch.full((2, 4), 7.0, device=device)
    dy = torch.tensor([[1.0, 2.0, 3.0, 6.0]] * 2, device=device)
    mean, rstd = torch.full((2,), 7.0, device=device), torch.full((2,), 4.0, device=device)
    dx, dw, db = kata.layer_norm_bwd(dy, x, torch.ones(4, device=device), mean, rstd)
    assert dx.tolist() == [[-8.0, -4.0, 0.0, 12.0]] * 2
    assert dw.tolist() == [0.0] * 4
    assert db.tolist() == [2.0, 4.0, 6.0, 12.0]


@pytest.mark.parametrize("groups", [1, 2, 4], ids=["in a program", "in turns", "apart"])
def test_sums_over_rows_are_float32(kata, device, groups):
    # in float16 a 1 is lost beside 2048 (4096), within a program's rows as among the programs'
    dy = torch.tensor([4096.0, -2048.0, 1.0, -2048.0], device=device).half()
    dy = dy[:, None].repeat(1, 8192)  # so wide that a tile is not of several rows
    x, w = torch.ones_like(dy), torch.ones_like(dy[0])
    mean, rstd = torch.zeros(4, device=device), torch.ones(4, device=device)
    _, dw, db = kata.layer_norm_bwd(dy, x, w, mean, rstd, groups=groups)
    assert dw.unique().tolist() == [1.0]
    assert db.unique().tolist() == [1.0]


def test_float16_overflows_only_in_the_end(kata, device):
    # dy·w·x̂ is 120 000, past float16; what is left of it is not
    sign = torch.tensor([[-1.0, 1.0] * 10], device=device).half()
    dy, w = 300 * sign, torch.full_like(sign[0], 400)
    mean, rstd = torch.zeros(1, device=device), torch.ones(1, device=device)
    dx, dw, _ = kata.layer_norm_bwd(dy, sign, w, mean, rstd)
    assert dx.tolist() == [[0.0] * 20]
    assert dw.tolist() == [300.0] * 20


def test_dx_is_rounded_once(kata, device):
    # both projections are 0, so dx is ±exact · rstd: a little above the middle of 1 and its next
    # float16, and a little below where the product dy·w was rounded first
    after_1 = 1 + 2**-10
    exact, middle = after_1**2, 1 + 2**-11
    dy = after_1 * torch.tensor([[1.0, -1.0, 1.0, -1.0]], device=device).half()
    x = torch.tensor([[1.0, 1.0, -1.0, -1.0]], device=device).half()
    mean = torch.zeros(1, device=device)
    rstd = torch.full((1,), middle / exact * (1 + 2**-21), device=device)
    dx, _, _ = kata.layer_norm_bwd(dy, x, torch.full_like(x[0], after_1), mean, rstd)
    assert dx.tolist() == [[after_1, -after_1, after_1, -after_1]]


def test_gradients_have_the_dtype_of_x(kata, device):
    x, mean, rstd = normalised(3, 8, device)
    for dtype in (torch.float16, torch.float32):
        found = kata.layer_norm_bwd(x.to(dtype), x.to(dtype), x[0].to(dtype), mean, rstd)
        assert [one.dtype for one in found] == [dtype] * 3


@pytest.mark.parametrize(
    ("rows", "groups"), [(6, 3), (40, 37)], ids=["few programs", "as many as asked"]
)
def test_rows_are_read_in_place(kata, device, dispatch, rows, groups):
    cols = 40
    wide = torch.randn(2, rows, cols + 8, device=device)
    _, mean, rstd = normalised(rows, cols, device)
    with dispatch() as counted:
        kata.layer_norm_bwd(*wide[:, :, :cols], wide[0, 0, :cols], mean, rstd, groups=groups)
    # dx, the partial sums, dw and db
    want = 4 * cols * (rows + 2 * groups + 2)
    assert counted.allocated_bytes == want, (
        f"bytes allocated: expected {want} for dx, dw, db and the sums of {groups} programs, "
        f"found {counted.allocated_bytes}"
    )


def test_a_single_column_may_have_any_stride(kata, device):
    x = torch.tensor([[1.0, 3.0, 5.0]], device=device).T
    wide = torch.zeros(3, 2, device=device)
    wide[:, :1] = x
    mean, rstd = torch.zeros(3, device=device), torch.ones(3, device=device)
    strided = wide.as_strided((3, 1), (2, 2))
    dx, dw, db = kata.layer_norm_bwd(strided, strided, mean[:1] + 1, mean, rstd)
    assert dx.tolist() == [[-1.0], [-27.0], [-125.0]]
    assert (dw.tolist(), db.tolist()) == ([35.0], [9.0])


def test_two_columns_may_not(kata, device):
    x, mean, rstd = normalised(2, 4, device)
    for name, dy, rows in (("dy", x[:, ::2], x[:, :2]), ("x", x[:, :2], x[:, ::2])):
        with pytest.raises(ValueError, match=f"^{name}: .*contiguous"):
            kata.layer_norm_bwd(dy, rows, mean, mean, rstd)
