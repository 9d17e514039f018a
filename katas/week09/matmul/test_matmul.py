"""What is special about a tiled product: tails, float32 sums, the epilogue, the order of tiles."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime.errors import InterpreterError

from harness.judge import assert_matches

INF, NAN = float("inf"), float("nan")
# cases of kata.toml, so that they are built once
BUILD = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float16"}
BUILD_FP32 = {"m": 4096, "n": 4096, "k": 4096, "dtype": "float32"}


# ---- sums ----------------------------------------------------------------------------------


@settings(max_examples=15)
@given(
    m=st.integers(0, 20),
    n=st.integers(0, 20),
    k=st.integers(0, 35),
    dtype=st.sampled_from([torch.float16, torch.float32]),
    transposed=st.booleans(),
)
def test_any_size_is_exact_in_integers(kata, device, m, n, k, dtype, transposed):
    # products up to 9 and sums up to 315 are exact in float16
    a = torch.randint(-3, 4, (m, k), device=device).to(dtype)
    b = torch.randint(-3, 4, (n, k), device=device).to(dtype).T
    if transposed:
        a, b = a.T.contiguous().T, b.contiguous()
    assert torch.equal(kata.matmul(a, b).double(), a.double() @ b.double())


def test_products_are_summed_in_float32(kata, device):
    # 2049 terms of 10^4, then 2047 of -10^4: far past float16 on the way, 20000 in the end
    a = torch.full((2, 4096), 100.0, dtype=torch.float16, device=device)
    b = torch.full((4096, 8), 100.0, dtype=torch.float16, device=device)
    b[2049:] *= -1
    assert kata.matmul(a, b).tolist() == [[20000.0] * 8] * 2


def test_nan_stays_in_its_row_and_column(kata, device):
    a, b = torch.ones(20, 20, device=device), torch.ones(20, 20, device=device)
    a[3, 7] = b[7, 5] = NAN
    bad = kata.matmul(a, b, activation="relu").isnan()
    want = torch.zeros(20, 20, dtype=torch.bool, device=device)
    want[3] = want[:, 5] = True
    assert torch.equal(bad, want)


@pytest.mark.parametrize("of", ["a", "b"])
def test_what_lies_past_the_end_adds_nothing(kata, device, of):
    # NaN times a masked zero would still be NaN
    size = {"a": (5, 24), "b": (24, 5)}[of]
    padded = torch.full(size, NAN, device=device)
    part = padded[:, :19] if of == "a" else padded[:19]
    part.fill_(1.0)
    other = torch.ones(size[::-1], device=device)
    c = kata.matmul(part, other[:19]) if of == "a" else kata.matmul(other[:, :19], part)
    assert c.tolist() == [[19.0] * 5] * 5


# ---- the epilogue --------------------------------------------------------------------------


def test_bias_is_added_before_rounding(kata, device):
    # 64 · 32 + 1 = 2049 is not in float16, 2049 + 1 is
    a = torch.tensor([[64.0, 1.0]], dtype=torch.float16, device=device)
    b = torch.tensor([[32.0], [1.0]], dtype=torch.float16, device=device)
    assert kata.matmul(a, b).item() == 2048
    assert kata.matmul(a, b, bias=b[1]).item() == 2050


@pytest.mark.parametrize("activation", ["silu", "relu"])
def test_activation_of_extreme_sums(kata, oracle, device, activation):
    a = torch.tensor([[-1e4], [-100.0], [-1.0], [0.0], [1.0], [1e4], [INF], [NAN]], device=device)
    inputs = {"a": a, "b": torch.ones(1, 1, device=device), "activation": activation}
    trusted = oracle.same_precision(**inputs)
    assert_matches(kata.matmul(**inputs), oracle.reference(**inputs), same_precision=trusted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_epilogue_adds_the_bias_and_nothing_else(kata, traffic, dtype):
    # two tile columns and a half
    a, b, bias = (torch.randn(*size).to(dtype) for size in ((32, 16), (16, 40), (40,)))
    with traffic() as plain:
        kata.matmul(a, b)
    with traffic() as fused:
        kata.matmul(a, b, bias, "silu")
    assert plain.stored_bytes == fused.stored_bytes == 32 * 40 * dtype.itemsize
    # each of the tile rows reads it once, and none is lower than 16
    assert fused.loaded_bytes - plain.loaded_bytes <= 32 // 16 * bias.nbytes


# ---- memory --------------------------------------------------------------------------------


def test_rows_may_begin_anywhere(kata, device):
    # 2 bytes past a multiple of 16; all at one place, which is a stride of 0
    ones = torch.ones(1 + 8 * 32, dtype=torch.float16, device=device)
    b = torch.ones(16, 8, dtype=torch.float16, device=device)
    for a in (ones[1:129].view(8, 16), ones[:16].expand(8, 16)):
        assert kata.matmul(a, b).tolist() == [[16.0] * 8] * 8


def test_elements_may_lie_apart_in_rows_that_do_not(kata, device):
    # rows 64 bytes apart, every other element of them
    a = torch.arange(8 * 32, dtype=torch.float16, device=device).view(8, 32)[:, ::2]
    one_hot = torch.eye(16, 8, dtype=torch.float16, device=device)
    assert torch.equal(kata.matmul(a, one_hot), a[:, :8])


def test_columns_may_lie_past_31_bits(kata, device):
    # as of a transposed matrix; what lies between is never touched, and takes no memory on a CPU
    room = torch.empty(2**31 + 10, dtype=torch.float16, device=device)
    far = room.as_strided((8, 3), (1, 2**30 + 1))  # odd, which no descriptor can hold
    far.copy_(torch.tensor([1.0, 2.0, 4.0]))
    ones = torch.ones(3, 8, dtype=torch.float16, device=device)
    assert kata.matmul(far, ones).tolist() == [[7.0] * 8] * 8
    assert kata.matmul(ones, far, bias=far[0]).tolist() == [[9.0, 18.0, 36.0]] * 3


# ---- order of the tiles --------------------------------------------------------------------


@triton.jit
def _record_kernel(grouped_pid: tl.constexpr, tiles_ptr, num_m, num_n, GROUP_M: tl.constexpr):
    pid = tl.program_id(0)
    m, n = grouped_pid(pid, num_m, num_n, GROUP_M)
    tl.store(tiles_ptr + 2 * pid, m)
    tl.store(tiles_ptr + 2 * pid + 1, n)


def tile_order(kata, device, num_m, num_n, group_m):
    """The tile of each program, in order."""
    tiles = torch.full((num_m * num_n, 2), -1, dtype=torch.int32, device=device)
    try:
        _record_kernel[(num_m * num_n,)](kata.grouped_pid, tiles, num_m, num_n, group_m)
    except InterpreterError as error:
        if "NotImplementedError" in str(error):
            raise NotImplementedError from None
        raise
    return [tuple(tile) for tile in tiles.tolist()]


@settings(max_examples=12)
@given(num_m=st.integers(1, 7), num_n=st.integers(1, 5), group_m=st.sampled_from([1, 2, 3, 8]))
def test_each_tile_has_one_program(kata, device, num_m, num_n, group_m):
    tiles = tile_order(kata, device, num_m, num_n, group_m)
    assert sorted(tiles) == [(m, n) for m in range(num_m) for n in range(num_n)]


def test_order_by_hand(kata, device):
    # two bands of two tile rows, then one of one row
    assert tile_order(kata, device, 5, 2, 2) == [
        (0, 0), (1, 0), (0, 1), (1, 1),
        (2, 0), (3, 0), (2, 1), (3, 1),
        (4, 0), (4, 1),
    ]  # fmt: skip


def test_neighbouring_programs_share_tiles(kata, device, cost):
    tiles = tile_order(kata, device, 9, 9, 3)[:9]
    rows, cols = {m for m, _ in tiles}, {n for _, n in tiles}
    cost.check("tiles", 9 * (len(rows) + len(cols)))


# ---- what the compiler makes of it ---------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "instruction", "layout"),
    [("sm_90", "wgmma.mma_async", {"b_layout": "cols"}), ("sm_80", "mma.sync", {})],
    ids=["sm_90, b transposed", "sm_80"],
)
def test_products_run_on_tensor_cores(compiled, target, instruction, layout):
    (kernel,) = compiled(target=target, **BUILD, **layout)
    assert kernel.has(instruction)


def test_float32_is_not_rounded_to_tf32(compiled):
    (kernel,) = compiled(target="sm_80", **BUILD_FP32)
    assert "tf32" not in kernel.ptx
