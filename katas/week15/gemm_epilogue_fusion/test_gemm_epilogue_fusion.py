"""What is special about an epilogue: it is float32, has its own tile, and may be anybody's."""

import math
import mmap

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime.errors import InterpreterError

from harness.judge import assert_matches

INF, NAN = float("inf"), float("nan")
# a case of kata.toml
BUILD = {
    "m": 8192, "n": 8192, "k": 512, "epilogue": "bias_relu", "bias": True, "dtype": "float16",
}  # fmt: skip


def halves(rows, device):
    return torch.tensor(rows, dtype=torch.float16, device=device)


# ---- sums ----------------------------------------------------------------------------------


@settings(max_examples=10)
@given(
    m=st.integers(0, 20), n=st.integers(0, 20), k=st.integers(0, 35),
    biased=st.booleans(), transposed=st.booleans(),
)  # fmt: skip
def test_any_size_is_exact_in_integers(kata, device, m, n, k, biased, transposed):
    # products up to 9 and sums up to 318 are exact in float16
    a = torch.randint(-3, 4, (m, k), device=device).half()
    b = torch.randint(-3, 4, (n, k), device=device).half().T
    if transposed:
        a, b = a.T.contiguous().T, b.contiguous()
    bias = torch.randint(-3, 4, (n,), device=device).half() if biased else None
    want = a.double() @ b.double() + (bias.double() if biased else 0)
    c = kata.gemm_epilogue_fusion(a, b, "bias_relu", bias)
    assert c.is_contiguous()
    assert_matches(c, want.clamp(min=0), same_precision=want.clamp(min=0).half())


@pytest.mark.parametrize("of", ["a", "b"])
def test_what_lies_past_the_end_adds_nothing(kata, device, of):
    # NaN times a masked zero would still be NaN; rows of 24 suit a descriptor
    size = {"a": (5, 24), "b": (24, 8)}[of]
    padded = torch.full(size, NAN, device=device, dtype=torch.float16)
    part = padded[:, :19] if of == "a" else padded[:19]
    part.fill_(1.0)
    other = torch.ones((19, 8) if of == "a" else (5, 19), device=device, dtype=torch.float16)
    a, b = (part, other) if of == "a" else (other, part)
    assert kata.gemm_epilogue_fusion(a, b).tolist() == [[19.0] * 8] * 5


def test_rows_may_begin_anywhere(kata, device):
    # 2 bytes past a multiple of 16; all at one place, which is a stride of 0
    ones = torch.ones(1 + 8 * 32, dtype=torch.float16, device=device)
    b = torch.ones(16, 8, dtype=torch.float16, device=device)
    for a in (ones[1:129].view(8, 16), ones[:16].expand(8, 16)):
        assert kata.gemm_epilogue_fusion(a, b).tolist() == [[16.0] * 8] * 8


# ---- rounded once, at the end --------------------------------------------------------------


@pytest.mark.parametrize("epilogue", ["bias_relu", "bias_gelu_aux"])
def test_bias_is_added_before_rounding(kata, device, epilogue):
    # 64 · 32 + 1 = 2049 is not in float16, 2049 + 1 is
    a, b = halves([[64.0, 1.0]], device), halves([[32.0], [1.0]], device)
    assert kata.gemm_epilogue_fusion(a, b, epilogue).item() == 2048
    assert kata.gemm_epilogue_fusion(a, b, epilogue, b[1]).item() == 2050


def test_sums_past_the_range_come_back(kata, device):
    # 16 · 64 · 64 = 65536 is inf in float16
    a = torch.full((1, 16), 64.0, dtype=torch.float16, device=device)
    b = torch.full((16, 1), 64.0, dtype=torch.float16, device=device)
    assert kata.gemm_epilogue_fusion(a, b).item() == INF
    assert kata.gemm_epilogue_fusion(a, b, "bias_relu", halves([-1024.0], device)).item() == 64512
    assert (
        kata.gemm_epilogue_fusion(a, b, "bias_gelu_aux", halves([-1024.0], device)).item() == 64512
    )
    assert kata.gemm_epilogue_fusion(a, b, "scale_only", halves([0.5], device)).item() == 32768


def test_relu_comes_before_rounding(kata, device):
    # -2^-30 rounds to -0.0, max(-2^-30, 0) to 0.0
    a, b = halves([[-(2.0**-15)]], device), halves([[2.0**-15]], device)
    assert repr(kata.gemm_epilogue_fusion(a, b).item()) == "-0.0"
    assert repr(kata.gemm_epilogue_fusion(a, b, "bias_relu").item()) == "0.0"


def test_relu_keeps_nan(kata, device):
    a = halves([[-INF], [-1.0], [0.0], [1.0], [INF], [NAN]], device)
    found = kata.gemm_epilogue_fusion(a, halves([[1.0]], device), "bias_relu").flatten().tolist()
    assert found[:5] == [0.0, 0.0, 0.0, 1.0, INF]
    assert math.isnan(found[5])


def test_gelu_of_any_sum(kata, oracle, device):
    a = halves([[x] for x in (-6e4, -30.0, -3.0, -0.1, -1e-6, 0.0, 1e-6, 2.0, 30.0, 6e4)], device)
    inputs = {"a": a, "b": halves([[1.0]], device), "epilogue": "bias_gelu_aux"}
    trusted = oracle.same_precision(**inputs)
    got = kata.gemm_epilogue_fusion(**inputs)
    assert_matches(got, oracle.reference(**inputs), same_precision=trusted)


def test_gelu_sees_what_aux_has_not_room_for(kata, oracle, device):
    # -3 + 2^-10 is -3.0 in float16, where GELU is six steps of float16 away
    a, b = halves([[-3.0, 2.0**-10]], device), halves([[1.0], [1.0]], device)
    aux = halves([[NAN]], device)
    got = kata.gemm_epilogue_fusion(a, b, "bias_gelu_aux", None, aux)
    assert aux.item() == -3.0
    want = oracle.reference(a=a, b=b, epilogue="bias_gelu_aux")
    assert_matches(got, want, same_precision=want.half())


# ---- aux -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2], ids=["rows", "gaps"])
def test_aux_has_the_sums_before_the_activation(kata, device, step):
    # exact in float16, with tiles at both ends
    a = torch.randint(-3, 4, (20, 19), device=device).half()
    b = torch.randint(-3, 4, (19, 40), device=device).half()
    bias = torch.randint(-3, 4, (40,), device=device).half()
    room = torch.full((22, 40 * step + 2), 7.0, dtype=torch.float16, device=device)
    aux = room[1:21, 1 : 1 + 40 * step : step]
    kata.gemm_epilogue_fusion(a, b, "bias_gelu_aux", bias, aux)
    want = a.double() @ b.double() + bias.double()
    assert_matches(aux, want, same_precision=want.half(), name="aux")
    aux.fill_(7.0)
    assert torch.equal(room, torch.full_like(room, 7.0)), "written around aux"


@pytest.mark.parametrize("epilogue", ["plain", "bias_relu", "scale_only"])
def test_aux_is_left_alone_by_who_needs_none(kata, device, epilogue):
    a, aux = torch.ones(5, 5, device=device).half(), torch.full((5, 5), 7.0, device=device).half()
    kata.gemm_epilogue_fusion(a, a, epilogue, a[0], aux)
    assert aux.tolist() == [[7.0] * 5] * 5


def test_bias_and_aux_may_lie_past_31_bits(kata, device):
    # what lies between is never touched, and takes no memory on a CPU
    apart = 2**30 + 8
    if device == "cpu":
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        memory = mmap.mmap(-1, 2 * (2 * apart + 16), flags=flags)
        room = torch.frombuffer(memory, dtype=torch.float16)
    else:
        room = torch.empty(2 * apart + 16, dtype=torch.float16, device=device)
    bias, aux = room.as_strided((3,), (apart,)), room.as_strided((3, 3), (apart, 1), 8)
    bias.copy_(torch.tensor([1.0, 2.0, 4.0]))
    a = torch.ones(3, 16, dtype=torch.float16, device=device)
    kata.gemm_epilogue_fusion(a, a.T, "bias_gelu_aux", bias, aux)
    assert aux.tolist() == [[17.0, 18.0, 20.0]] * 3


# ---- anybody's visitor ---------------------------------------------------------------------


@triton.jit
def scaled_residual(acc, bias, aux):
    return acc * bias + tl.load(aux[0], mask=aux[1], other=0.0)


SHAPE = tl.constexpr("a visitor expects a bias of shape [1, BLOCK_N]")
DTYPE = tl.constexpr("a visitor expects float32, of acc and of the bias")


@triton.jit
def tells_what_is_there(acc, bias, aux):
    found = acc * 0.0
    if bias is not None:
        tl.static_assert(bias.shape[0] == 1 and bias.shape[1] == acc.shape[1], SHAPE)
        tl.static_assert(bias.dtype == tl.float32 and acc.dtype == tl.float32, DTYPE)
        found += 1.0
    if aux is not None:
        found += 2.0
    return found


def test_a_visitor_may_read_aux(kata, device):
    # 64 · 32 · 32 = 65536, halved, and -30720 beside it; in tiles at both ends
    a = torch.full((20, 64), 32.0, dtype=torch.float16, device=device)
    b = torch.full((64, 40), 32.0, dtype=torch.float16, device=device)
    bias = torch.full((40,), 0.5, dtype=torch.float16, device=device)
    aux = (torch.arange(800, device=device).view(20, 40) - 32700).half()
    c = kata.gemm_epilogue_fusion(a, b, scaled_residual, bias, aux)
    want = 32768 + aux.double()
    assert_matches(c, want, same_precision=want.half())


def test_a_visitor_is_told_what_there_is(kata, device):
    a = torch.ones(3, 3, dtype=torch.float16, device=device)
    given = [(None, None), (a[0], None), (None, a.clone()), (a[0], a.clone())]
    found = [
        kata.gemm_epilogue_fusion(a, a, tells_what_is_there, *those)[0, 0].item() for those in given
    ]
    assert found == [0.0, 1.0, 2.0, 3.0]


@triton.jit
def _visit_kernel(visitor: tl.constexpr, x_ptr, bias_ptr, aux_ptr, y_ptr):
    at = tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :]
    bias = tl.load(bias_ptr + tl.arange(0, 8))[None, :]
    y = visitor(tl.load(x_ptr + at), bias, (aux_ptr + at, at < 20))
    tl.store(y_ptr + at, y)


def visited(kata, name, x, bias):
    """What the visitor makes of a tile [4, 8], and of an aux of which it may write 20 elements."""
    aux = torch.full((32,), NAN, dtype=torch.float16, device=x.device)
    y = torch.empty_like(x)
    try:
        _visit_kernel[(1,)](kata.EPILOGUES[name], x, bias, aux, y)
    except InterpreterError as error:
        if "NotImplementedError" in str(error):
            raise NotImplementedError from None
        raise
    return y, aux


@pytest.mark.parametrize("name", ["bias_relu", "bias_gelu_aux", "scale_only"])
def test_visitors_work_in_another_kernel(kata, oracle, device, name):
    x, bias = torch.randn(4, 8, device=device), torch.randn(8, device=device)
    y, aux = visited(kata, name, x, bias)
    want, left = oracle.epilogue_of(x.double(), name, bias.double())
    trusted, _ = oracle.epilogue_of(x, name, bias)
    assert_matches(y, want, same_precision=trusted)
    assert aux[20:].isnan().all(), f"{name}: written where the mask is off"
    if left is not None:
        assert_matches(aux[:20], left.flatten()[:20], same_precision=left.half().flatten()[:20])


def test_relu_takes_zero_for_what_it_is(kata, device):
    # no sum over K is -0.0, but what another kernel hands on may be
    minus_zero = torch.full((4, 8), -0.0, device=device)
    assert repr(visited(kata, "bias_relu", minus_zero, minus_zero[0])[0][0, 0].item()) == "-0.0"


@pytest.mark.parametrize(
    "unknown", [max, 3, None, ["plain"]], ids=["function", "number", "none", "list"]
)
def test_refuses_what_triton_cannot_call(kata, device, unknown):
    a = torch.ones(3, 3, dtype=torch.float16, device=device)
    with pytest.raises(ValueError, match="^epilogue: "):
        kata.gemm_epilogue_fusion(a, a, unknown)


# ---- what it costs -------------------------------------------------------------------------


def test_epilogue_costs_its_bias_and_nothing_else(kata, traffic):
    # two tile columns and a half
    a, b, bias = (torch.randn(*size).half() for size in ((32, 16), (16, 40), (40,)))
    with traffic() as alone:
        kata.gemm_epilogue_fusion(a, b)
    with traffic() as fused:
        kata.gemm_epilogue_fusion(a, b, "bias_relu", bias)
    assert alone.stored_bytes == fused.stored_bytes == 32 * 40 * 2
    # each of the tile rows reads it once, and none is lower than 16
    assert fused.loaded_bytes - alone.loaded_bytes <= 32 // 16 * bias.nbytes


@pytest.mark.parametrize("visitor", ["plain", "bias_gelu_aux", "reader"])
def test_only_visitors_touch_aux(kata, traffic, visitor):
    a, b, bias = (torch.randn(*size).half() for size in ((20, 16), (16, 40), (40,)))
    aux = torch.zeros(20, 40, dtype=torch.float16)
    with traffic() as t:
        kata.gemm_epilogue_fusion(
            a, b, scaled_residual if visitor == "reader" else visitor, bias, aux
        )
    assert t.of(aux).loaded_bytes == (1600 if visitor == "reader" else 0)
    assert t.of(aux).stored_bytes == (1600 if visitor == "bias_gelu_aux" else 0)


@pytest.mark.parametrize("programs", [1, 5], ids=["one", "five"])
def test_each_tile_is_made_once(kata, traffic, monkeypatch, programs):
    # GPUs differ in how many programs share the six tiles
    monkeypatch.setattr(kata, "_programs", lambda a: programs)
    a, b = torch.ones(32, 16, dtype=torch.float16), torch.ones(16, 40, dtype=torch.float16)
    with traffic() as t:
        c = kata.gemm_epilogue_fusion(a, b)
    assert c.unique().tolist() == [16.0]
    assert t.stored_bytes == 32 * 40 * 2


def test_products_run_on_tensor_cores(compiled):
    (kernel,) = compiled(target="sm_90", **BUILD)
    assert kernel.has("wgmma.mma_async")


def test_gelu_has_one_kernel_on_other_chips_too(compiled):
    case = {**BUILD, "k": 500, "epilogue": "bias_gelu_aux", "aux": "given", "layout": "cols"}
    (kernel,) = compiled(target="sm_80", **case)
    assert kernel.has("mma.sync")
