"""What is special about RMSNorm here: a residual in place, roundings, batches, gradients."""

import pytest
import torch

from harness.judge import assert_matches

both_conventions = pytest.mark.parametrize("gemma", [False, True], ids=["llama", "gemma"])


def tensor(*values, device, dtype=torch.float32):
    return torch.tensor(values, device=device, dtype=dtype)


def plain(x, gemma=False):
    """Weights that change nothing, for rows like those of `x`."""
    return (torch.zeros_like if gemma else torch.ones_like)(x[0])


def far_apart(x):
    """The same rows, 2**30 elements apart: the stride alone fits in 31 bits."""
    wide = torch.empty(2**31 + 64, dtype=x.dtype, device=x.device)
    return wide.as_strided(x.shape, (2**30, 1)).copy_(x)


# ---- the sum -------------------------------------------------------------------------------


def test_rms_norm_by_hand(kata, device):
    # h = 1, 7: a mean square of 25; with eps = 75 a root of 10
    x, residual = tensor([3.0, 5.0], device=device), tensor([-2.0, 2.0], device=device)
    w = tensor(10.0, 2.0, device=device)
    y, rstd = kata.rms_norm(x, residual, w, eps=75.0)
    assert_matches(y, torch.tensor([[1.0, 1.4]]))
    assert_matches(rstd, torch.tensor([0.1]))
    assert residual.tolist() == [[1.0, 7.0]]


@pytest.mark.parametrize(
    ("dtype", "gemma"),
    [(torch.float16, False), (torch.float32, True)],
    ids=["llama in float16", "gemma in float32"],
)
@pytest.mark.parametrize("cols", [1, 127, 128, 129])
def test_the_residual_becomes_the_sum(kata, device, cols, dtype, gemma):
    x, wide = torch.randn(2, 3, cols + 4, device=device).to(dtype)
    x, residual, gap = x[:, :cols], wide[:, :cols], wide[:, cols:].clone()
    want = x + residual
    kata.rms_norm(x, residual, plain(x, gemma), gemma=gemma)
    assert torch.equal(residual, want), f"expected {want.tolist()}, found {residual.tolist()}"
    assert torch.equal(wide[:, cols:], gap), "wrote into the gaps between the residual's rows"


def test_what_is_normalised_is_what_is_stored(kata, device):
    # float16 has no 2049: the residual is 2048, and so is the root mean square
    x, residual = (tensor([one], device=device, dtype=torch.float16) for one in (1, 2048))
    _, rstd = kata.rms_norm(x, residual, plain(x), eps=0.0)
    assert residual.item() == 2048
    assert 1 / rstd.item() == pytest.approx(2048, abs=0.1)


@both_conventions
def test_the_first_layer_has_no_residual(kata, device, oracle, dispatch, gemma):
    x, w = torch.randn(3, 70, device=device), torch.randn(70, device=device)
    before = x.clone()
    with dispatch() as counted:
        found = kata.rms_norm(x, None, w, gemma=gemma)
    given = {"x": x, "residual": None, "w": w, "gemma": gemma}
    assert_matches(found, oracle.reference(**given), same_precision=oracle.same_precision(**given))
    assert torch.equal(x, before), "x was written to"
    assert counted.allocated_bytes <= 4 * (3 * 70 + 3)


# ---- the norm ------------------------------------------------------------------------------


@both_conventions
def test_a_row_of_zeros_stays_zero(kata, device, gemma):
    x = torch.zeros(2, 50, device=device)
    y, rstd = kata.rms_norm(x, x.clone(), torch.randn(50, device=device), eps=1 / 64, gemma=gemma)
    assert y.eq(0).all()
    assert_matches(rstd, torch.full((2,), 8.0))


def test_the_mean_is_not_taken_away(kata, device):
    x = torch.full((1, 40), 3.0, device=device)
    y, _ = kata.rms_norm(x, torch.zeros_like(x), plain(x), eps=0.0)
    assert_matches(y, torch.ones(1, 40))


@pytest.mark.parametrize(
    ("gemma", "w", "want"),
    # a third in float16 is 0.33325, and 2.5 of that 0.8330; 2.5 / 3 is 0.8335
    [(False, 2.5, 0.8330078125), (True, 1.5, 0.83349609375)],
    ids=["llama rounds first", "gemma rounds once"],
)
def test_when_float16_is_rounded(kata, device, gemma, w, want):
    x = torch.ones(1, 20, device=device).half()
    y, _ = kata.rms_norm(x, torch.zeros_like(x), torch.full_like(x[0], w), eps=8.0, gemma=gemma)
    assert y.tolist() == [[want] * 20]


def test_gemma_adds_1_in_float32(kata, device):
    # in float16 1 + w is 1; the product with 1.0004 lies nearer to 1.00098 than to 1
    x = torch.ones(1, 20, device=device).half()
    x[:, 1::2] = 0
    w = torch.full_like(x[0], 2**-12)
    y, _ = kata.rms_norm(x, torch.zeros_like(x), w, eps=1.0004**-2 - 0.5, gemma=True)
    assert y.tolist()[0][::2] == [1 + 2**-10] * 10


def test_each_column_has_its_own_weight(kata, device):
    x, w = torch.ones(2, 50, device=device), torch.arange(50.0, device=device)
    y, _ = kata.rms_norm(x, torch.zeros_like(x), w, eps=0.0)
    assert_matches(y, w.expand(2, 50))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["float16", "float32"])
def test_the_result_is_like_x_and_rstd_is_float32(kata, device, dtype):
    x = torch.randn(3, 8, device=device).to(dtype)
    y, rstd = kata.rms_norm(x, x.clone(), plain(x))
    assert [y.dtype, rstd.dtype] == [dtype, torch.float32]


def test_a_row_has_the_same_bits_in_every_batch(kata, device):
    # ones, and a 4096: beside its square, 2**24, a 1 counts or is lost by when it is added
    rows, cols = 24, 500
    x = torch.ones(rows, cols, device=device)
    x[torch.arange(rows), 7 * torch.arange(rows) % cols] = 4096
    w, root = torch.ones(cols, device=device), torch.ones(rows, device=device)

    def part(first, last):
        h = torch.zeros(last - first, cols, device=device)
        y, rstd = kata.rms_norm(x[first:last], h, w)
        dh, _ = kata.rms_norm_bwd(h, h, w, root[first:last])
        return {"y": y, "residual": h, "rstd": rstd, "dh": dh}

    batch = part(0, rows)
    for first, last in ((0, 1), (10, 11), (17, rows)):
        for name, alone in part(first, last).items():
            apart = (alone - batch[name][first:last]).abs().max()
            assert apart == 0, (
                f"{name} of rows {first} to {last - 1}: expected the bits that they have among "
                f"{rows}, found others, off by up to {apart:.1e}"
            )


# ---- memory --------------------------------------------------------------------------------


def overlaps():
    flat = torch.arange(400.0)
    x = flat[:200].view(4, 50)
    return {
        "the same": (x, x),
        "one row down": (x[:3], x[1:]),
        "one row up": (x[1:], x[:3]),
        "the last element": (flat[:50].view(1, 50), flat[49:99].view(1, 50)),
        "the first element": (flat[49:99].view(1, 50), flat[:50].view(1, 50)),
        "between the rows": (x[:, :25], x[:, 25:]),
        "within a larger span": (x[::3, :10], flat[60:80].view(2, 10)),
        "the last rows": (x[:, :10], flat[110:310].view(4, 50)[:, :10]),
    }


@pytest.mark.parametrize("which", overlaps().keys())
def test_shared_memory_is_refused(kata, which):
    x, residual = overlaps()[which]
    before = x.clone(), residual.clone()
    with pytest.raises(ValueError, match="^residual: "):
        kata.rms_norm(x, residual, torch.ones(x.shape[1]))
    assert torch.equal(x, before[0]), "x was written to before it was refused"
    assert torch.equal(residual, before[1]), "residual was written to before it was refused"


@pytest.mark.parametrize("order", [1, -1], ids=["x first", "residual first"])
@pytest.mark.parametrize("stride", [10, 13], ids=["packed", "strided"])
def test_neighbours_in_memory_are_taken(kata, device, stride, order):
    # one begins where the other ends
    flat = torch.randn(80, device=device)
    x, residual = [flat[start:].as_strided((3, 10), (stride, 1)) for start in (0, 2 * stride + 10)][
        ::order
    ]
    want = x + residual
    kata.rms_norm(x, residual, torch.ones(10, device=device))
    assert torch.equal(residual, want)


def test_two_columns_may_not_have_a_gap_between_them(kata):
    strided, packed = torch.ones(2, 4)[:, ::2], torch.ones(2, 2)
    for name, x, residual in (("x", strided, packed), ("residual", packed, strided)):
        with pytest.raises(ValueError, match=f"^{name}: .*contiguous"):
            kata.rms_norm(x, residual, torch.ones(2))


def test_rows_are_read_and_written_in_place(kata, device, oracle, dispatch):
    wide = torch.randn(2, 5, 120, device=device)
    given = {"x": wide[0, :, :100], "residual": wide[1, :, :100], "w": wide[0, 0, :100].clone()}
    want, trusted = oracle.reference(**given), oracle.same_precision(**given)
    with dispatch() as counted:
        found = kata.rms_norm(**given)
    assert_matches(found, want, same_precision=trusted)
    # y and rstd
    assert counted.allocated_bytes <= 4 * (5 * 100 + 5)


@pytest.mark.parametrize("which", ["x", "residual"])
def test_rows_past_2_31_elements(kata, device, oracle, which):
    given = {key: torch.randn(3, 16, device=device).half() for key in ("x", "residual")}
    given["w"] = torch.randn(16, device=device).half()
    given[which] = far_apart(given[which])
    summed = given["x"] + given["residual"]
    want, trusted = oracle.reference(**given), oracle.same_precision(**given)
    assert_matches(kata.rms_norm(**given), want, same_precision=trusted)
    assert torch.equal(given["residual"], summed)


@pytest.mark.parametrize("row_stride", [0, 1, 9])
def test_rows_over_each_other_are_not_updated(kata, row_stride):
    residual = torch.ones(30).as_strided((2, 10), (row_stride, 1))
    with pytest.raises(ValueError, match="^residual: "):
        kata.rms_norm(torch.ones(2, 10), residual, torch.ones(10))


def test_no_rows_share_nothing(kata, device):
    x = torch.ones(8, device=device).as_strided((0, 8), (0, 1))
    y, rstd = kata.rms_norm(x, x, torch.ones(8, device=device))
    assert [y.shape, rstd.shape] == [(0, 8), (0,)]


def test_rows_over_each_other_are_read(kata, device):
    x = torch.full((1, 10), 3.0, device=device).expand(4, 10)
    residual = torch.zeros(4, 10, device=device)
    kata.rms_norm(x, residual, plain(x))
    assert residual.eq(3).all()


def test_one_row_and_one_column_have_any_stride(kata, device):
    x = torch.tensor([[1.0], [2.0], [3.0]], device=device)
    residual = torch.zeros(8, device=device).as_strided((3, 1), (2, 5))
    kata.rms_norm(x.as_strided((3, 1), (1, 3)), residual, torch.ones(2, device=device)[::2])
    assert residual.tolist() == [[1], [2], [3]]
    row = torch.zeros(3, device=device).as_strided((1, 3), (0, 1))
    kata.rms_norm(x.T, row, torch.ones(3, device=device))
    assert row.tolist() == [[1, 2, 3]]


# ---- the gradients -------------------------------------------------------------------------


def drawn(rows, cols, device, dtype=torch.float32, *, gemma=False, row_stride=None, eps=0.5):
    """Arguments of the backward pass."""
    dy, h = torch.randn(2, rows, row_stride or cols, device=device).to(dtype)[..., :cols]
    w = (torch.randn(cols, device=device) / 4 + (0 if gemma else 1)).to(dtype)
    rstd = 1 / torch.sqrt(h.double().pow(2).mean(dim=1) + eps)
    # sums over few rows should not happen to cancel
    return {"dy": dy + h / 2, "h": h, "w": w, "rstd": rstd.float(), "gemma": gemma}


def assert_gradients(kata, oracle, given, **options):
    want, trusted = oracle.backward(**given), oracle.backward_same_precision(**given)
    before = {name: given[name].clone() for name in ("dy", "h", "w", "rstd")}
    assert_matches(kata.rms_norm_bwd(**given, **options), want, same_precision=trusted)
    for name, old in before.items():
        assert torch.equal(given[name], old), f"{name}: was written to"


def test_gradients_by_hand(kata, device):
    # x̂ = 1, 3 and dy·w = 3, 2: a mean of 4.5 along x̂; half of 3 - 4.5 and of 2 - 13.5
    dy, h = tensor([3.0, 1.0], device=device), tensor([2.0, 6.0], device=device)
    rstd = tensor(0.5, device=device)
    for gemma, w in ((False, tensor(1.0, 2.0, device=device)), (True, tensor(0, 1, device=device))):
        dh, dw = kata.rms_norm_bwd(dy, h, w.float(), rstd, gemma=gemma)
        assert dh.tolist() == [[-0.75, -5.75]]
        assert dw.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("rows", "cols", "groups", "dtype", "gemma"),
    [
        (1, 1, 256, torch.float32, True),
        (5, 300, 2, torch.float32, False),
        (20, 100, 8, torch.float16, True),
        (75, 17, 70, torch.float32, False),
        (4, 512, 4, torch.float16, False),
        (2, 8192, 256, torch.float16, True),
    ],
    ids=["one", "a row more", "in turns", "many groups", "no padding", "longest"],
)
def test_gradients_match_autograd(kata, device, oracle, rows, cols, groups, dtype, gemma):
    assert_gradients(kata, oracle, drawn(rows, cols, device, dtype, gemma=gemma), groups=groups)


@pytest.mark.parametrize("cols", [31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1025])
def test_gradients_at_the_edges_of_tiles(kata, device, oracle, cols):
    assert_gradients(kata, oracle, drawn(3, cols, device), groups=2)


@pytest.mark.parametrize("groups", [1, 15, 16, 17, 31, 32, 33])
def test_gradients_of_any_number_of_groups(kata, device, oracle, groups):
    assert_gradients(kata, oracle, drawn(groups + 1, 5, device), groups=groups)


def test_gradients_of_no_rows(kata, device):
    dh, dw = kata.rms_norm_bwd(**drawn(0, 40, device))
    assert dh.shape == (0, 40)
    assert dw.tolist() == [0.0] * 40


def test_gradients_where_eps_is_all(kata, device):
    h, w = torch.zeros(2, 4, device=device), tensor(1.0, 2.0, 3.0, 4.0, device=device)
    rstd = torch.full((2,), 8.0, device=device)
    dh, dw = kata.rms_norm_bwd(torch.ones_like(h), h, w, rstd)
    assert dh.tolist() == [[8.0, 16.0, 24.0, 32.0]] * 2
    assert dw.tolist() == [0.0] * 4


@pytest.mark.parametrize("groups", [1, 2, 4], ids=["in a program", "in turns", "apart"])
def test_sums_over_rows_are_float32(kata, device, groups):
    # in float16 a 1 is lost beside 2048 (4096), within a program's rows as among the programs'
    dy = tensor(4096.0, -2048.0, 1.0, -2048.0, device=device, dtype=torch.float16)
    dy = dy[:, None].repeat(1, 20)
    h, rstd = torch.ones_like(dy), torch.ones(4, device=device)
    _, dw = kata.rms_norm_bwd(dy, h, h[0], rstd, groups=groups)
    assert dw.tolist() == [1.0] * 20


def test_float16_overflows_only_in_the_end(kata, device):
    # dy·w is 120 000, past float16; the result is not
    dy = torch.full((1, 20), 300.0, device=device).half()
    w, h = torch.full_like(dy[0], 400), torch.zeros_like(dy)
    dh, _ = kata.rms_norm_bwd(dy, h, w, tensor(0.25, device=device))
    assert dh.tolist() == [[30000.0] * 20]


def test_nothing_is_rounded_on_the_way_back(kata, device):
    # x̂ is a third: the forward pass may round it to 0.33325, and 2.5 of that would be 0.8330
    h = torch.ones(1, 20, device=device).half()
    rstd = tensor(1 / 3, device=device)
    _, dw = kata.rms_norm_bwd(2.5 * h, h, h[0], rstd)
    assert dw.tolist() == [0.83349609375] * 20


def test_gemma_adds_1_in_float32_on_the_way_back(kata, device):
    # in float16 1 + w is 1; the product with 1.0004 lies nearer to 1.00098 than to 1
    h = torch.zeros(1, 20, device=device).half()
    w, rstd = torch.full_like(h[0], 2**-12), tensor(1.0004, device=device)
    dh, _ = kata.rms_norm_bwd(torch.ones_like(h), h, w, rstd, gemma=True)
    assert dh.tolist() == [[1 + 2**-10] * 20]


def test_dh_is_rounded_once(kata, device):
    # dy·w · rstd is a little above the middle of 1 and its next float16, and a little below where
    # the product dy·w was rounded first
    after_1 = 1 + 2**-10
    exact, middle = after_1**2, 1 + 2**-11
    h = torch.zeros(1, 20, device=device).half()
    rstd = tensor(middle / exact * (1 + 2**-21), device=device)
    dh, _ = kata.rms_norm_bwd(torch.full_like(h, after_1), h, torch.full_like(h[0], after_1), rstd)
    assert dh.tolist() == [[after_1] * 20]


def test_gradients_have_the_dtype_of_h(kata, device):
    for dtype in (torch.float16, torch.float32):
        found = kata.rms_norm_bwd(**drawn(3, 8, device, dtype))
        assert [one.dtype for one in found] == [dtype] * 2


def test_gradients_cost_three_passes(kata, traffic, cost):
    given = drawn(12, 400, "cpu", row_stride=416)
    with traffic() as moved:
        kata.rms_norm_bwd(**given, groups=4)
    cost.check("backward_bytes", moved.bytes_moved)
    assert moved.launches == 2
    assert moved.atomics == 0, "dw is summed in an order that is not always the same"


@pytest.mark.parametrize(
    ("rows", "groups"), [(6, 4), (6, 256), (40, 37)], ids=["few groups", "rows", "many groups"]
)
def test_gradients_have_a_partial_sum_a_program(kata, device, dispatch, rows, groups):
    cols = 40
    given = drawn(rows, cols, device, row_stride=50)
    with dispatch() as counted:
        kata.rms_norm_bwd(**given, groups=groups)
    want = 4 * cols * (rows + min(groups, rows) + 1)
    assert counted.allocated_bytes == want, (
        f"bytes allocated: expected {want} for dh, the partial sums and dw, "
        f"found {counted.allocated_bytes}"
    )


def test_gradients_stay_what_they_were(kata, device):
    first = kata.rms_norm_bwd(**drawn(3, 40, device))
    before = [one.clone() for one in first]
    kata.rms_norm_bwd(**drawn(3, 40, device))
    for name, one, old in zip(("dh", "dw"), first, before, strict=True):
        assert torch.equal(one, old), f"{name} of the first call: changed by the second"


def test_gradients_of_an_expanded_row(kata, device, oracle):
    given = drawn(4, 30, device)
    given["dy"] = given["dy"][:1].expand(4, 30)
    assert_gradients(kata, oracle, given)


@pytest.mark.parametrize("name", ["dy", "h"])
def test_gradients_of_rows_past_2_31_elements(kata, device, oracle, name):
    given = drawn(3, 16, device, torch.float16)
    given[name] = far_apart(given[name])
    assert_gradients(kata, oracle, given)


def test_gradients_of_a_single_column_with_any_stride(kata, device):
    h = torch.zeros(8, device=device).as_strided((3, 1), (2, 2))
    h[:] = tensor([1.0], [2.0], [3.0], device=device)
    rstd = torch.ones(3, device=device)
    dh, dw = kata.rms_norm_bwd(h, h, rstd[:1], rstd)
    assert dh.tolist() == [[0.0], [-6.0], [-24.0]]
    assert dw.tolist() == [14.0]


@pytest.mark.parametrize(
    ("name", "wrong", "word"),
    [
        ("h", torch.ones(4, 10, dtype=torch.int32), ""),
        ("h", torch.ones(4, 10, dtype=torch.float64), ""),
        ("h", torch.ones(40), ""),
        ("h", torch.ones(2, 2, 10), ""),
        ("h", torch.ones(4, 0), ""),
        ("h", torch.ones(4, 8193), ""),
        ("h", torch.ones(4, 20)[:, ::2], "contiguous"),
        ("dy", torch.ones(4, 20)[:, ::2], "contiguous"),
        ("dy", torch.ones(3, 10), ""),
        ("dy", torch.ones(1, 10), ""),
        ("dy", torch.ones(4, 10, dtype=torch.float16), ""),
        ("w", torch.ones(9), ""),
        ("w", torch.ones(1), ""),
        ("w", torch.ones(10, dtype=torch.float16), ""),
        ("w", torch.ones(20)[::2], "contiguous"),
        ("rstd", torch.ones(5), ""),
        ("rstd", torch.ones(4, 1), ""),
        ("rstd", torch.ones(4, dtype=torch.float64), ""),
        ("rstd", torch.ones(8)[::2], "contiguous"),
        ("groups", 0, ""),
    ],
    ids=[
        *("h of integers", "h of float64", "h 1-D", "h 3-D", "h without columns", "h too wide"),
        *("h strided", "dy strided", "dy shorter", "dy of one row", "dy of float16"),
        *("w shorter", "one weight", "w of float16", "w strided"),
        *("rstd longer", "rstd 2-D", "rstd of float64", "rstd strided", "no groups"),
    ],
)
def test_gradients_are_checked(kata, name, wrong, word):
    given = drawn(4, 10, "cpu") | {name: wrong}
    if name == "h" and wrong.shape != (4, 10):
        given["dy"] = wrong
    with pytest.raises(ValueError, match=f"^{name}: .*{word}"):
        kata.rms_norm_bwd(**given)
