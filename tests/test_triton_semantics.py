"""
What Triton's interpreter computes is what the instruction does that the compiler emits.

Each operation is compiled for sm_90, which needs no GPU, and searched for its instruction; what
that instruction does on each operand is written down here from the PTX ISA, without NumPy's or
PyTorch's operation of that name.
"""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are interpreted in CPU sessions only", allow_module_level=True)

import numpy as np
import torch
import triton
import triton.language as tl

from harness.meters.dispatch import dispatch_meter
from harness.simulators.triton_guards import OutOfBounds, install_bounds_guard
from harness.simulators.triton_semantics import from_fp8, install_compiled_semantics, to_fp8

FILE = Path(__file__).parent / "fixtures" / "semantics_kernels.py"
LANES = 32
NAN, INF = math.nan, math.inf
BUILDS = {
    # kernel, architecture, operands, result: what the PTX must have
    ("maximum", 90, "fp32", "fp32"): r"\bmax\.f32\b",
    ("minimum", 90, "fp32", "fp32"): r"\bmin\.f32\b",
    ("maximum_nan", 90, "fp32", "fp32"): r"\bmax\.NaN\.f32\b",
    ("minimum_nan", 90, "fp32", "fp32"): r"\bmin\.NaN\.f32\b",
    ("clamp", 90, "fp32", "fp32"): r"(?s)\bmax\.f32\b.*\bmin\.f32\b",
    ("clamp_nan", 90, "fp32", "fp32"): r"(?s)\bmax\.NaN\.f32\b.*\bmin\.NaN\.f32\b",
    ("cast", 90, "fp32", "fp8e4nv"): r"\bcvt\.rn\.satfinite\.e4m3x2\.f32\b",
    ("cast", 90, "fp32", "fp8e5"): r"\bcvt\.rn\.satfinite\.e5m2x2\.f32\b",
    ("cast", 90, "fp16", "fp8e4nv"): r"\bcvt\.rn\.satfinite\.e4m3x2\.f16x2\b",
    ("cast", 90, "fp16", "fp8e5"): r"\bcvt\.rn\.satfinite\.e5m2x2\.f16x2\b",
    ("cast", 90, "fp8e4nv", "fp32"): r"\bcvt\.rn\.f16x2\.e4m3x2\b",
    ("cast", 90, "fp8e5", "fp32"): r"\bcvt\.rn\.f16x2\.e5m2x2\b",
    ("cast", 90, "fp32", "i32"): r"\bcvt\.rzi\.s32\.f32\b",
    ("cast", 90, "fp32", "i64"): r"\bcvt\.rzi\.s64\.f32\b",
    ("cast", 90, "fp32", "i16"): r"\bcvt\.rzi\.s16\.f32\b",
    ("cast", 90, "fp32", "i8"): r"\bcvt\.rzi\.s16\.f32\b",
    ("cast", 90, "fp32", "u32"): r"\bcvt\.rzi\.u32\.f32\b",
    ("divide", 90, "i32", "i32"): r"\bdiv\.s32\b",
    ("divide", 90, "u32", "u32"): r"\bdiv\.u32\b",
    ("remainder", 90, "i32", "i32"): r"\brem\.s32\b",
    ("shift_left", 90, "i32", "i32"): r"\bshl\.b32\b",
    ("shift_right", 90, "i32", "i32"): r"\bshr\.s32\b",
    ("shift_right", 90, "u32", "u32"): r"\bshr\.u32\b",
    ("where", 90, "fp32", "fp32"): r"(?s)\bsetp\.lt\.f32\b.*\bselp\.f32\b",
    ("differs", 90, "fp32", "i32"): r"\bsetp\.neu\.f32\b",
    ("multiply", 90, "i32", "i32"): r"\bmul\.lo\.s32\b",
    ("dot", 90, "fp32", "fp32"): r"\bmma\.sync\.\S*\.f32\.tf32\.tf32\.f32\b",
    ("dot", 80, "fp32", "fp32"): r"\bmma\.sync\.\S*\.f32\.tf32\.tf32\.f32\b",
    ("dot_ieee", 90, "fp32", "fp32"): r"\bfma\.rn\.f32\b",
}


@pytest.fixture(scope="module")
def kernels():
    """The kernels, interpreted as in a session on the CPU."""
    install_compiled_semantics()
    spec = importlib.util.spec_from_file_location("semantics_kernels", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ptx():
    """PTX of every build, by a process that does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(FILE), json.dumps([list(build) for build in BUILDS])],
        capture_output=True, text=True, timeout=300, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(BUILDS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: "-".join(map(str, build)))
def test_the_compiler_emits_this_instruction(ptx, build):
    assert re.search(BUILDS[build], ptx[build]), ptx[build]


def interpreted(kernel, x, y=None, *, dtype=None):
    """The kernel's result for these operands, as many as there are."""
    x = torch.as_tensor(x)
    y = torch.zeros_like(x) if y is None else torch.as_tensor(y)
    lanes = torch.zeros(2, LANES, dtype=x.dtype)
    lanes[0, : len(x)], lanes[1, : len(y)] = x, y
    if not x.is_floating_point():
        lanes[1, len(y) :] = 1  # what is left over divides by something
    z = torch.empty(LANES, dtype=dtype or x.dtype)
    kernel[(1,)](lanes[0], lanes[1], z)
    return z[: len(x)]


LEFT = [1.0, NAN, 1.0, NAN, -INF, INF, NAN]
RIGHT = [2.0, 1.0, NAN, NAN, NAN, 3.0, INF]


@pytest.mark.parametrize(
    ("name", "number"),
    [("maximum", [2.0, 1.0, 1.0, NAN, -INF, INF, INF]),
     ("minimum", [1.0, 1.0, 1.0, NAN, -INF, 3.0, INF]),
     ("maximum_nan", [2.0, NAN, NAN, NAN, NAN, INF, NAN]),
     ("minimum_nan", [1.0, NAN, NAN, NAN, NAN, 3.0, NAN])],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_max_and_min_drop_a_nan_unless_told_to_keep_it(kernels, name, number, dtype):
    left, right = torch.tensor(LEFT, dtype=dtype), torch.tensor(RIGHT, dtype=dtype)
    found = interpreted(getattr(kernels, name), left, right)
    np.testing.assert_array_equal(found.float().numpy(), np.array(number, np.float32))


def test_clamp_is_max_then_min(kernels):
    x, low = torch.tensor([NAN, -5.0, 5.0, 0.25]), torch.zeros(4)
    assert interpreted(kernels.clamp, x, low).tolist() == [0.0, 0.0, 1.0, 0.25]
    kept = interpreted(kernels.clamp_nan, x, low)
    assert bool(kept[0].isnan())
    assert kept[1:].tolist() == [0.0, 1.0, 0.25]


class Fp8:
    """An 8-bit float by its definition (Micikevicius et al. 2022, arXiv 2209.05433)."""

    def __init__(self, mantissa, bias, most):
        self.most = most
        codes = np.arange(128)
        exponents, fractions = codes >> mantissa, (codes % 2**mantissa) / 2**mantissa
        self.sizes = np.where(
            exponents, (1 + fractions) * 2.0 ** (exponents - bias), fractions * 2.0 ** (1 - bias)
        )
        self.finite = self.sizes[self.sizes <= most]  # of a positive code, in order
        self.has_inf = mantissa == 2

    def encode(self, values):
        """To nearest, of two as near the even code; what is too large becomes the largest."""
        distances = np.abs(np.minimum(np.abs(values), self.most)[:, None] - self.finite)
        odd = np.arange(len(self.finite)) % 2
        nearest = [min(zip(row, odd, range(len(row)), strict=True))[2] for row in distances]
        return np.array(nearest) + 128 * np.signbit(values)

    def decode(self, codes):
        """The number of each code: above the largest lie an infinity, in e5m2, and NaN."""
        beyond = np.full(128, NAN)
        beyond[: len(self.finite)] = self.finite
        if self.has_inf:
            beyond[len(self.finite)] = INF
        return np.where(codes & 128, -1, 1) * beyond[codes & 127]


FORMATS = [
    pytest.param(torch.float8_e4m3fn, Fp8(mantissa=3, bias=7, most=448.0), id="e4m3"),
    pytest.param(torch.float8_e5m2, Fp8(mantissa=2, bias=15, most=57344.0), id="e5m2"),
]


@pytest.mark.parametrize("source", [torch.float32, torch.float16])
@pytest.mark.parametrize(("dtype", "form"), FORMATS)
def test_a_cast_to_fp8_rounds_to_even_and_saturates(kernels, source, dtype, form):
    ties = (form.finite[1:] + form.finite[:-1]) / 2
    beside = np.concatenate([ties, ties * (1 + 2**-9), ties * (1 - 2**-9), form.finite])
    beyond = [form.most * 1.06, 60000.0, 65504.0, INF, 1e-6, 0.0]
    values = torch.tensor(np.concatenate([beside, beyond, -beside, np.negative(beyond)]))
    values = values.to(source)
    want = form.encode(values.double().numpy())
    for at in range(0, len(values), LANES):
        some = slice(at, at + LANES)
        bits = interpreted(kernels.cast, values[some], dtype=dtype).view(torch.uint8)
        np.testing.assert_array_equal(bits.numpy(), want[some])
    nan = interpreted(kernels.cast, torch.tensor([NAN, -NAN], dtype=source), dtype=dtype)
    assert nan.view(torch.uint8).tolist() == [0x7F, 0x7F]


@pytest.mark.parametrize("target", [torch.float32, torch.float16])
@pytest.mark.parametrize(("dtype", "form"), FORMATS)
def test_every_fp8_number_widens_to_itself(kernels, target, dtype, form):
    for at in range(0, 256, LANES):
        codes = torch.arange(at, at + LANES, dtype=torch.uint8)
        found = interpreted(kernels.cast, codes.view(dtype), dtype=target).double().numpy()
        np.testing.assert_array_equal(found, form.decode(codes.numpy()))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=["e4m3", "e5m2"])
def test_a_cast_to_fp8_is_that_of_pytorch(dtype):
    # all there is of bfloat16, as float32
    x = (torch.arange(2**16, dtype=torch.int32) << 16).view(torch.float32)
    x = x[~x.isnan()]
    most = torch.finfo(dtype).max
    want = x.clamp(-most, most).to(dtype).view(torch.uint8)
    kind = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}[dtype]
    np.testing.assert_array_equal(to_fp8(x.numpy(), kind), want.numpy())
    codes = torch.arange(256, dtype=torch.uint8)
    for target in (np.float16, np.float32):
        found = from_fp8(codes.numpy(), kind, np.dtype(target))
        np.testing.assert_array_equal(found, codes.view(dtype).float().numpy().astype(target))


def test_casts_of_fp8_are_no_operators():
    # what a kata forbids outside its kernels is not refused within one
    with dispatch_meter() as seen:
        bits = to_fp8(np.ones(LANES, np.float32), "e4m3")
        from_fp8(bits, "e4m3", np.dtype(np.float16))
    assert not seen.calls


@pytest.mark.parametrize(
    ("dtype", "want"),
    [(torch.int32, [-1, 1, 2**31 - 1, -(2**31), 0, 2**31 - 1, 300]),
     (torch.int64, [-1, 1, 3 * 10**9, -3 * 10**9, 0, 2**63 - 1, 300]),
     (torch.int16, [-1, 1, 2**15 - 1, -(2**15), 0, 2**15 - 1, 300]),
     (torch.int8, [-1, 1, -1, 0, 0, -1, 300 - 256]),
     (torch.uint32, [0, 1, 3 * 10**9, 0, 0, 2**32 - 1, 300])],
    ids=str,
)  # fmt: skip
def test_a_cast_to_an_integer_truncates_and_saturates(kernels, dtype, want):
    # to 8 bits by way of 16: the low byte of 2^15 - 1 is -1, of -2^15 it is 0
    x = torch.tensor([-1.9, 1.9, 3e9, -3e9, NAN, INF, 300.7])
    assert interpreted(kernels.cast, x, dtype=dtype).tolist() == want


def test_division_of_negative_numbers_truncates(kernels):
    x, y = [7, -7, 7, -7, -8, -1, 5], [2, 2, -2, -2, 2, 3, 7]
    x, y = torch.tensor(x, dtype=torch.int32), torch.tensor(y, dtype=torch.int32)
    quotients = interpreted(kernels.divide, x, y).tolist()
    assert quotients == [3, -3, -3, 3, -4, 0, 0]
    found = interpreted(kernels.remainder, x, y).tolist()
    assert found == [1, -1, 1, -1, 0, -1, 5]  # the sign of the dividend


def test_division_of_unsigned_numbers_has_no_sign(kernels):
    x = torch.tensor([2**32 - 7, 7], dtype=torch.uint32)
    assert interpreted(kernels.divide, x, torch.tensor([2, 2], dtype=torch.uint32)).tolist() == [
        (2**32 - 7) // 2,
        3,
    ]


def test_shifts_by_the_width_or_more_leave_zero_or_the_sign(kernels):
    # an amount is unsigned and clamped: -1 is a large one
    x = torch.tensor([1, -8, -8, -8, 8, -1, -8], dtype=torch.int32)
    amounts = torch.tensor([31, 1, 31, 32, 40, 100, -1], dtype=torch.int32)
    left = interpreted(kernels.shift_left, x, amounts).tolist()
    assert left == [-(2**31), -16, 0, 0, 0, 0, 0]
    right = interpreted(kernels.shift_right, x, amounts).tolist()
    assert right == [0, -4, -1, -1, 0, -1, -1]
    unsigned = interpreted(
        kernels.shift_right, x.view(torch.uint32), amounts.view(torch.uint32)
    ).tolist()
    assert unsigned == [0, 2**31 - 4, 1, 0, 0, 0, 0]


def test_comparisons_with_nan_choose_the_other_branch(kernels):
    x, y = torch.tensor([NAN, -1.0, 1.0]), torch.zeros(3)
    chosen = interpreted(kernels.where, x, y)
    assert bool(chosen[0].isnan())
    assert chosen[1:].tolist() == [0.0, 1.0]
    differing = interpreted(
        kernels.differs, torch.tensor([NAN, 0.0]), torch.zeros(2), dtype=torch.int32
    )
    assert differing.tolist() == [1, 0]


def test_a_product_that_overflows_wraps(kernels):
    x = torch.tensor([65536, 65537, -(2**31)], dtype=torch.int32)
    y = torch.tensor([65536, 65536, -1], dtype=torch.int32)
    assert interpreted(kernels.multiply, x, y).tolist() == [0, 65536, -(2**31)]


def test_a_float32_product_has_ten_bits_unless_ieee(kernels):
    # the last bit of a tf32 mantissa is worth 2^-10: what lies below is cut off, not rounded
    given = [1 + 2**-10, 1 + 2**-11, 1 + 2**-10 - 2**-20, -1 - 2**-11, 2**-120]
    x, z = torch.zeros(16, 16), torch.empty(16, 16)
    x[0, :5] = torch.tensor(given)
    kernels.dot[(1,)](x, torch.eye(16), z)
    assert z[0, :5].tolist() == [1 + 2**-10, 1.0, 1.0, -1.0, 2**-120]
    kernels.dot[(1,)](torch.eye(16), x.T.contiguous(), z)
    assert z[:5, 0].tolist() == [1 + 2**-10, 1.0, 1.0, -1.0, 2**-120], "the second operand"
    kernels.dot_ieee[(1,)](x, torch.eye(16), z)
    assert z[0, :5].tolist() == given


def test_an_infinity_stays_one_in_tf32(kernels):
    x, z = torch.eye(16), torch.empty(16, 16)
    x[0, 0] = INF
    kernels.dot[(1,)](x, torch.ones(16, 16), z)
    assert z[0].tolist() == [INF] * 16


def test_installing_again_changes_nothing(kernels):
    from triton.runtime.interpreter import InterpreterBuilder

    before = dict(vars(InterpreterBuilder))
    install_compiled_semantics()
    assert dict(vars(InterpreterBuilder)) == before


# ---- offsets -------------------------------------------------------------------------------


@triton.jit
def far_kernel(x_ptr, row, row_stride, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(x_ptr + row * row_stride + cols, 1.0)


@triton.jit
def hash_kernel(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + ((i * 1_640_531_527) & (BLOCK - 1)), 1.0)


def test_an_int32_overflow_of_an_offset_is_called_that():
    install_bounds_guard()
    x = torch.zeros(32)
    with pytest.raises(OutOfBounds) as caught:
        far_kernel[(1,)](x, 50_000, 50_000, BLOCK=32)
    words = str(caught.value)
    assert "int32 overflow: 50,000 * 50,000 = 2,500,000,000 does not fit into 32 bits" in words
    assert ".to(tl.int64)" in words
    assert "Mask" not in words


def test_other_accesses_out_of_bounds_are_not_called_an_overflow():
    install_bounds_guard()
    with pytest.raises(OutOfBounds, match="Mask what lies beyond the data"):
        far_kernel[(1,)](torch.zeros(32), 1, 32, BLOCK=32)


def test_numbers_may_wrap_that_stay_within_bounds():
    install_bounds_guard()
    x = torch.zeros(32)
    hash_kernel[(1,)](x, BLOCK=32)
    assert x.tolist() == [1.0] * 32
