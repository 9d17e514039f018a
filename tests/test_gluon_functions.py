"""What the functions of `gl` compute on their simulator, and what the compiler makes of kernels."""

import os
from itertools import product
from pathlib import Path

import pytest

if os.environ.get("KATA_DEVICE", "cpu") != "cpu":
    pytest.skip("kernels are simulated in CPU sessions only", allow_module_level=True)

import numpy as np
import torch
import triton.language as tl
from triton.experimental.gluon import language as gl

from harness.gluon import descriptor
from harness.meters.compiled import CompileRequest, compile_kernels
from harness.meters.gluon import gluon_meter
from harness.running.causes import NOT_MODELLED as NOT_MODELLED_CAUSE
from harness.running.causes import cause_of
from harness.simulators.gluon import LayoutError, NotModelled, simulating
from harness.simulators.gluon.compiler import promoted
from harness.simulators.gluon.layouts import flaw_of
from harness.simulators.gluon.values import NUMPY, convert
from tests.gluon_cases import FILES, FOLDER, changed, gemm, load, transpose

N = 64
NOT_MODELLED = r"^changed\.py:\d+: expected code that the simulator models, found .*fp4_to_fp"
FLOATS = torch.linspace(-4, 4, N)
INTEGERS = torch.arange(N, dtype=torch.int32) - 20
NONZERO = torch.where(INTEGERS % 7 == 0, 3, INTEGERS % 7 - 3).to(torch.int32)
NONZERO[NONZERO == 0] = -2


@pytest.fixture(scope="module")
def functions():
    """The kernels of one operation each, on the simulator."""
    module = load(FOLDER / "functions.py")
    with simulating():
        yield module


@pytest.mark.parametrize(
    ("op", "want"),
    [
        ("add", lambda x, y: x + y),
        ("sub", lambda x, y: x - y),
        ("mul", lambda x, y: x * y),
        ("div", lambda x, y: x / y),
        ("mod", torch.fmod),
        ("maximum", torch.maximum),
        ("minimum", torch.minimum),
        ("where", lambda x, y: torch.where(x > y, x, -y)),
        ("fma", lambda x, y: x * y + y),
        ("mapped", torch.maximum),
        ("exp2", lambda x, _: torch.exp2(x)),
        ("log", lambda x, _: torch.log(x.abs() + 1)),
        ("rsqrt", lambda x, _: torch.rsqrt(x.abs() + 1)),
        ("erf", lambda x, _: torch.erf(x)),
        ("floor", lambda x, _: torch.floor(x)),
    ],
)
def test_floats_are_computed_as_pytorch_does(op, want, functions):
    x, y = FLOATS, FLOATS.flip(0) * 1.5
    torch.testing.assert_close(functions.elementwise(op, x, y, torch.empty(N)), want(x, y))


@pytest.mark.parametrize(
    ("op", "want"),
    [
        # towards zero, as on the GPU
        ("floordiv", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
        ("mod", torch.fmod),
        ("and", lambda x, y: x & y),
        ("or", lambda x, y: x | y),
        ("xor", lambda x, y: x ^ y),
        ("shl", lambda x, y: x << y.abs()),
        ("shr", lambda x, y: x >> y.abs()),
        ("less", lambda x, y: (x < y).int()),
        ("numbers", lambda x, _: 3 - 2 * x + 7 * (x < 0)),
    ],
)
def test_integers_are_computed_as_the_gpu_does(op, want, functions):
    y = NONZERO.abs() if op.startswith("sh") else NONZERO
    got = functions.elementwise(op, INTEGERS, y, torch.empty(N, dtype=torch.int32))
    assert torch.equal(got, want(INTEGERS, y).int())


def test_integers_wrap_at_32_bits(functions):
    x = torch.full((N,), 2**31 - 1, dtype=torch.int32)
    got = functions.elementwise("add", x, torch.ones_like(x), torch.empty_like(x))
    assert got.unique().tolist() == [-(2**31)]


def test_the_high_half_of_a_product_is_unsigned(functions):
    x = torch.full((N,), -1, dtype=torch.int32)
    got = functions.elementwise("umulhi", x, x, torch.empty_like(x))
    assert got.unique().tolist() == [-2]


def test_an_extreme_drops_a_nan(functions):
    x = torch.full((N,), float("nan"))
    got = functions.elementwise("maximum", x, torch.ones(N), torch.empty(N))
    assert got.unique().tolist() == [1]


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        (2.9, tl.int32, 2),
        (-2.9, tl.int32, -2),
        (1e20, tl.int32, 2**31 - 1),
        (1e20, tl.int64, 2**63 - 1),
        (float("nan"), tl.int32, 0),
        (-1.0, tl.uint32, 0),
        (300.0, tl.int8, 44),
        (0.0, tl.int1, False),
    ],
)
def test_a_cast_to_integers_cuts_and_saturates(value, dtype, want):
    assert convert(np.float32(value), tl.float32, dtype) == want


def test_a_cast_to_fp8_saturates():
    pytest.importorskip("ml_dtypes")
    found = convert(np.array([1e9, -1e9, 17.0], np.float32), tl.float32, tl.float8e4nv)
    assert found.astype(np.float32).tolist() == [448, -448, 16]


def test_two_dtypes_meet_as_triton_says_or_not_at_all():
    kinds = [one for one in NUMPY if one.name in ("int1", "int32", "uint32", "fp16", "fp32")]
    met = {}
    for a, b in product(kinds, kinds):
        met[a.name, b.name] = promoted(a, b).name
    assert met["int32", "uint32"] == "uint32"
    assert met["fp16", "fp32"] == "fp32"
    assert promoted(tl.float16, tl.float32, b_number=True) == tl.float16
    assert promoted(tl.float16, tl.float16, divides=True) == tl.float32
    with pytest.raises(TypeError):
        promoted(tl.int32, tl.uint32, divides=True)


# ---- along an axis -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "want"),
    [
        ("sum", lambda x: x.sum(1)),
        ("max", lambda x: x.amax(1)),
        ("argmin", lambda x: x.argmin(1).float()),
        ("reduce", lambda x: x.sum(1)),
        ("reduce two", lambda x: x[:, -1].clone()),
        ("scan", lambda x: x.cumsum(1)),
        ("scan back", lambda x: x.flip(1).cumsum(1).flip(1)),
        ("transpose", lambda x: x.T.contiguous()),
        ("pairs", lambda x: x.view(16, -1, 2).flip(2).reshape(16, -1)),
    ],
)
def test_what_goes_along_an_axis_is_right(op, want, functions):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-50, 50, (16, 32), generator=generator).float()
    expected = want(x)
    assert torch.equal(functions.along(op, x, torch.empty_like(expected)), expected)


def test_atomics_take_one_lane_after_the_other(functions):
    sums, old = torch.zeros(4, dtype=torch.int32), torch.empty(N, dtype=torch.int32)
    functions.atomic("add", sums, old, 4)
    lanes = torch.arange(N).view(-1, 4)
    assert torch.equal(sums, lanes.sum(0).int())
    assert torch.equal(old.view(-1, 4), (lanes.cumsum(0) - lanes).int())


def test_one_program_wins_a_compare_and_swap(functions):
    flag, out = functions.once(5)
    assert flag.item() == 1
    assert out[1] == 5


# ---- products ------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["fma", "mma", "wgmma"])
def test_products_are_those_of_float16(op, functions):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-3, 4, (64, 64), generator=generator).half() for _ in range(2))
    want = a.float() @ (b.float().T if op == "wgmma" else b.float())
    assert torch.equal(functions.product(op, a, b), want)


def test_a_tensor_core_cuts_float32_to_tf32(functions):
    a = torch.full((64, 64), 1 + 2.0**-11)
    assert functions.product("mma", a, torch.eye(64)).unique().tolist() == [1]
    assert functions.product("fma", a, torch.eye(64)).unique().tolist() == [1 + 2.0**-11]


# ---- what a kata imports -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "block", "said"),
    [
        (torch.ones(8, 8, dtype=torch.float64), [8, 8], "dtype: "),
        (torch.ones(8, 8), [8], "block: "),
        (torch.ones(0, 8), [8, 8], "shape: "),
        (torch.ones(16, 8).flatten()[1:65].view(8, 8), [8, 8], "address: "),
        (torch.ones(8, 8).T, [8, 8], "stride: expected 1"),
        (torch.ones(8, 7), [8, 4], "stride: expected multiples of 16 bytes, found \\[28\\]"),
    ],
    ids=["dtype", "rank", "empty", "address", "transposed", "pitch"],
)
def test_what_no_tensor_map_describes_is_refused_in_words(tensor, block, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        descriptor(tensor, block)


# ---- layouts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("find", "replace"),
    [
        ("z = gl.convert_layout(x + y[None, :], col)", "z = x + y[None, :]"),
        ("n = n0 + gl.arange(0, BN, gl.SliceLayout(0, row))",
         "n = n0 + gl.arange(0, BN, gl.SliceLayout(1, row))"),
    ],
    ids=["a conversion is missing", "a slice of the other axis"],
)  # fmt: skip
def test_layouts_have_to_agree_as_in_the_compiler(find, replace, tmp_path):
    module = changed("transpose", [{"find": find, "replace": replace}], tmp_path)
    with simulating(), pytest.raises(LayoutError, match=r", at changed\.py:\d+ "):
        transpose(module)


@pytest.mark.parametrize(
    ("layout", "flaw"),
    [
        (gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]), ""),
        (gl.BlockedLayout([1, 4], [4, 8], [8, 1], [1, 0]), "the 4 warps that run here, found 8"),
        (gl.BlockedLayout([1, 4], [4, 4], [4, 1], [1, 0]), "32 threads a warp, found 16"),
        (gl.BlockedLayout([1, 3], [4, 8], [4, 1], [1, 0]), "powers of two"),
        (gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 1]), "each axis once"),
        (gl.SliceLayout(2, gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])), "no axis 2"),
        (gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]), ""),
        (gl.NVMMADistributedLayout([3, 0], [4, 1], [17, 64, 16]), "instructions of"),
        (gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 260, 16]), "instructions of"),
        (gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 16]), "instructions of"),
        (gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 64, 16]), "warps"),
    ],
    ids=range(11),
)
def test_a_layout_that_the_compiler_refuses_has_a_flaw(layout, flaw):
    assert flaw in flaw_of(layout, num_warps=4)
    assert bool(flaw) == bool(flaw_of(layout, num_warps=4))


@pytest.mark.parametrize(
    ("find", "replace", "said"),
    [
        ("[16, BN, 16]", "[16, BN, 32]", "a wgmma takes 16 of fp16 along k"),
        ("gl.int64, [STAGES, 1]", "gl.int64, [STAGES, 2]", "an mbarrier is one int64"),
        ("off_m = gl.program_id(0)", "off_m = gl.program_id(-1)", "the axis of a grid is 0, 1"),
        ("tma.store_wait(pendings=0)", "tma.store_wait(pendings=-1)", "a wait leaves 0 or more"),
        ("gl.zeros([BM, BN]", "gl.zeros([BM, BN - 1]", "powers of two, found"),
        ("tma_store(c_desc, [off_m, off_n], c_smem)", "tma_store([off_m, off_n], c_desc, c_smem)",
         "expected a tensor descriptor, found list"),
        ("mbarrier.wait(full.index(slot), ", "mbarrier.wait(slot, ", "expected shared memory"),
    ],
    ids=range(7),
)  # fmt: skip
def test_what_the_compiler_refuses_is_refused_in_words(find, replace, said, tmp_path):
    module = changed("gemm", [{"find": find, "replace": replace}], tmp_path)
    with simulating(), pytest.raises((TypeError, ValueError), match=said):
        gemm(module, 64, 64, 256)


def test_bank_conflicts_are_told_with_their_line(functions):
    with gluon_meter() as meter:
        functions.conflicts(True)
    assert (meter.bank_conflicts, meter.conflicts) == (0, {})
    with gluon_meter() as meter:
        functions.conflicts(False)
    ((line, passes),) = meter.conflicts.items()
    assert "smem.load(rows if fits else columns)" in line
    assert passes == meter.bank_conflicts == 7


def test_what_is_not_simulated_is_no_fault_of_the_kernel(tmp_path):
    edits = [{"find": "z = gl.convert_layout(x + y[None, :], col)",
              "replace": "z = gl.fp4_to_fp(x, gl.float16, 1)"}]  # fmt: skip
    module = changed("transpose", edits, tmp_path)
    with simulating(), pytest.raises(NotModelled, match=NOT_MODELLED):
        transpose(module)


def test_a_name_of_another_version_of_triton_is_none(tmp_path):
    edits = [{"find": "z = gl.convert_layout(x", "replace": "z = gl.of_the_future(x"}]
    module = changed("transpose", edits, tmp_path)
    with simulating(), pytest.raises(AttributeError, match="of_the_future"):
        transpose(module)


def test_what_is_not_simulated_ends_a_run_as_an_error_of_the_harness():
    words = "gemm.py:3: expected code that the simulator models, found gl.x. Run it on a GPU."
    assert cause_of(words) == NOT_MODELLED_CAUSE


# ---- the same sources, compiled ------------------------------------------------------------

BUILT = {
    "transpose_add": ("ld.global.v4.b32",),
    "layernorm": ("cp.async.cg.shared.global", "cp.async.wait_group"),
    "tma_scale": ("cp.async.bulk.tensor", "mbarrier.arrive.expect_tx", "mbarrier.try_wait"),
    "wgmma_gemm": ("wgmma.mma_async", "cp.async.bulk.tensor"),
    "ws_gemm": ("wgmma.mma_async", "setmaxnreg"),
    "fa3": ("wgmma.mma_async", "wgmma.wait_group"),
    "pair_gemm": ("wgmma.mma_async", "setmaxnreg"),
    "pingpong": ("wgmma.mma_async", "setmaxnreg"),
    "relay": ("cp.async.bulk.tensor", "fence.proxy.async"),
    "grouped_gemm": ("wgmma.mma_async", "cp.async.bulk.tensor"),
    "scan_rows": ("cp.async.mbarrier.arrive", "mbarrier.try_wait"),
}


@pytest.mark.parametrize("call", BUILT)
def test_a_kernel_that_runs_here_is_built_for_sm_90(call):
    path = next(path for path in set(FILES.values()) if f"def {call}(" in Path(path).read_text())
    request = CompileRequest(
        file=path,
        oracle=FOLDER / "oracle.py",
        function=call,
        case={"call": call},
        target="sm_90",
    )
    (kernel,) = compile_kernels(request)
    assert [one for one in BUILT[call] if not kernel.has(one)] == []
