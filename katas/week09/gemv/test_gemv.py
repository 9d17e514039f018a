"""Weights read once, splits that agree, sums that are wide enough, bits that no batch changes."""

import re

import pytest
import torch

from harness.judge import assert_matches

INF, NAN = float("inf"), float("nan")
# columns that one program can take alone, and columns that are worth two of them at least
K_SIZES = pytest.mark.parametrize("k", [100, 1300], ids=["short K", "long K"])


def draw(oracle, device, seed, *, n, k, b, dtype=torch.float32, **more):
    return oracle.make_inputs(n=n, k=k, b=b, dtype=dtype, device=device, seed=seed, **more)


# ---- sums ----------------------------------------------------------------------------------


def test_any_number_of_vectors(kata, device):
    # whole numbers below 2²⁴: exact in any order
    w = torch.arange(35, device=device).reshape(5, 7).float() - 17
    for b in range(1, 9):
        x = torch.arange(b * 7, device=device).reshape(b, 7).float()
        want = (x.long().cpu() @ w.long().cpu().T).float()
        y = kata.gemv(w, x).cpu()
        assert torch.equal(y, want), f"{b} vectors: expected {want.tolist()}, found {y.tolist()}"


def test_sums_are_kept_in_float32(kata, device):
    # in float16 a sum of ones ends at 2048
    w = torch.ones(3, 4113, dtype=torch.float16, device=device)
    y = kata.gemv(w, w[:1])
    assert y.tolist() == [[4112.0] * 3]  # the float16 nearest to 4113


def test_products_are_float32(kata, device):
    # 300 · 300 is more than float16 holds
    w = torch.full((2, 2), 300.0, dtype=torch.float16, device=device)
    x = torch.tensor([[300.0, -299.0]], dtype=torch.float16, device=device)
    assert kata.gemv(w, x).tolist() == [[300.0, 300.0]]


def test_what_a_split_leaves_is_float32(kata, device):
    # 1024 columns of it come to more than float16 holds
    w = torch.ones(2, 4096, dtype=torch.float16, device=device)
    x = torch.full((1, 4096), 100.0, dtype=torch.float16, device=device)
    x[:, 2048:] = -99.5
    assert kata.gemv(w, x).tolist() == [[1024.0, 1024.0]]


@K_SIZES
@pytest.mark.parametrize("value", [NAN, INF])
def test_nan_and_infinity_stay_in_their_row_and_vector(kata, oracle, device, seed, k, value):
    inputs = draw(oracle, device, seed, n=34, k=k, b=3)
    inputs["x"].abs_()
    inputs["w"].abs_()
    want = oracle.reference(**inputs)
    inputs["w"][33, k - 1] = inputs["x"][1, k // 2] = value
    want[:, 33] = want[1] = value
    trusted = oracle.same_precision(**inputs)
    assert_matches(kata.gemv(**inputs), want, same_precision=trusted)


# ---- the same bits -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "k", "sms"),
    [
        (torch.float16, 100, 132),
        (torch.float32, 1300, 132),
        (torch.float32, 2100, 1),  # sms, not MIN_SPLIT, says how many splits there are
        (torch.float32, 2100, 4),
    ],
    ids=["one split", "short splits", "one multiprocessor", "four"],
)
def test_other_vectors_do_not_change_the_bits(kata, oracle, device, seed, dtype, k, sms):
    inputs = draw(oracle, device, seed, n=33, k=k, b=8, dtype=dtype)
    w, x = inputs["w"], inputs["x"]
    together = kata.gemv(w, x, sms)
    for b in (1, 3, 5):
        few = kata.gemv(w, x[8 - b :], sms)
        assert torch.equal(few, together[8 - b :]), f"{b} of 8 vectors: other bits than among 8"


def test_a_gpu_is_given_the_same_tiles_for_any_number_of_vectors(compiled):
    shapes = set()
    for b in (1, 8):
        kernel = compiled(target="sm_90", n=8192, k=8192, b=b, dtype="float16")[0]
        tile = sorted(size for size in kernel.tile.values() if size > 8)  # not the vectors
        shapes.add((kernel.grid, kernel.num_warps, tuple(tile)))
    assert len(shapes) == 1, f"1 and 8 vectors: expected one grid, warps, tiles, found {shapes}"


# ---- memory --------------------------------------------------------------------------------


@K_SIZES
def test_each_weight_is_read_once(kata, oracle, seed, traffic, k):
    for b in (1, 8):
        inputs = draw(oracle, "cpu", seed, n=33, k=k, b=b)
        with traffic() as moved:
            kata.gemv(**inputs)
        loaded, least = moved.of(inputs["w"]).loaded_bytes, inputs["w"].nbytes
        assert loaded == least, f"w, {b} vectors: expected {least} bytes, loaded {loaded}"


def test_few_rows_are_split_over_programs(kata, oracle, seed, traffic, cost):
    inputs = draw(oracle, "cpu", seed, n=64, k=16384, b=1, sms=32)
    with traffic() as moved:
        kata.gemv(**inputs)
    # whoever adds the splits has a program at least, and reads no weights
    cost.check("programs", moved.programs - (moved.launches - 1))


@pytest.mark.parametrize("k", [1024, 1025, 3000])
def test_only_what_splits_leave_is_allocated(kata, oracle, device, seed, dispatch, k):
    inputs = draw(oracle, device, seed, n=40, k=k, b=3, w_layout="gaps", x_layout="cols")
    splits = -(-k // kata.MIN_SPLIT)
    with dispatch() as ops:
        y = kata.gemv(**inputs)
    room = y.nbytes + (splits * y.numel() * 4 if splits > 1 else 0)
    assert ops.allocated_bytes <= room, f"K = {k}: expected at most {splits} splits and no copies"
    assert y.is_contiguous()


# ---- errors and the build ------------------------------------------------------------------


def test_columns_apart_are_refused(kata):
    w = torch.zeros(3, 4)[:, ::2]
    with pytest.raises(ValueError, match="^w: .*contiguous"):
        kata.gemv(w, torch.zeros(1, 2))


def test_bfloat16_on_the_cpu_is_refused(kata):
    w = torch.zeros(2, 3, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="^w: "):
        kata.gemv(w, w)


@pytest.mark.parametrize(("b", "dtype"), [(1, "float16"), (8, "float16"), (1, "bfloat16")])
def test_weights_are_loaded_16_bytes_at_a_time(compiled, b, dtype):
    kernels = compiled(target="sm_90", n=8192, k=8192, b=b, dtype=dtype)
    wide = [re.search(r"\b(LDG|LDGSTS)\.E\.(\S+\.)?128\b", kernel.sass) for kernel in kernels]
    assert any(wide), f"{b} vectors, {dtype}: expected loads of 128 bits in the build for sm_90"
