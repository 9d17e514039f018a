"""What is special about the probe: the ISA's tables, compilers that fail, peaks, tiles."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

MISSING = 'probe.cu(2): catastrophic error: cannot open source file "mma.h"'
# as of a missing product, but for every product
INCOMPLETE = 'probe.cu(4): error: incomplete type "fragment<…>" is not allowed'
UNEXPECTED = "probe.cu: ptxas error: Unexpected instruction types specified for 'mma'"


# ---- the compiler's answers ----------------------------------------------------------------


@pytest.mark.parametrize("rows", ["half", "other types", "no fp8"])
def test_products_of_wmma(kata, oracle, rows):
    for question, exists in oracle.questions(oracle.WMMA[rows], kata.ARCHS):
        assert kata.tensor_core_probe("wmma", *question) is exists


@pytest.mark.parametrize("rows", ["16 bits", "32 and 64 bits", "integers", "fp8"])
def test_products_of_mma_sync(kata, oracle, rows):
    for question, exists in oracle.questions(oracle.MMA_SYNC[rows], kata.ARCHS):
        assert kata.tensor_core_probe("mma.sync", *question) is exists


def test_a_question_is_compiled_once(kata, calls, cost):
    asked = calls("refused", limit=40)
    for _ in range(2):
        for ab in ("f16", "bf16", "tf32", "e4m3"):
            for api in kata.APIS:
                kata.tensor_core_probe(api, (24, 8, 8), ab, "f32", "sm_90")
    cost.check("compilations", asked.calls)
    assert asked.calls


def test_a_yes_needs_no_second_question(kata, monkeypatch):
    asked = []
    monkeypatch.setattr(kata, "refused", lambda source, arch: asked.append(arch))
    for api in kata.APIS:  # nobody has that shape, but this compiler refuses nothing
        assert kata.tensor_core_probe(api, (40, 8, 8), "f16", "f32", "sm_100")
    assert len(asked) == 2, f"two products that exist: {len(asked)} compilations"


@pytest.mark.parametrize(
    ("api", "said", "arch"),  # on architectures that no other test compiles for
    [
        pytest.param("wmma", MISSING, "sm_100", id="wmma, no header"),
        pytest.param("wmma", INCOMPLETE, "sm_100", id="wmma, no type"),
        pytest.param("mma.sync", UNEXPECTED, "sm_86", id="mma.sync, no instruction"),
        pytest.param("wmma", "", "sm_86", id="wmma, no word"),
        pytest.param("mma.sync", "", "sm_100", id="mma.sync, no word"),
    ],
)
def test_a_compiler_that_refuses_everything_is_no_answer(kata, monkeypatch, api, said, arch):
    assert kata.tensor_core_probe(api, kata.KNOWN[api], "f16", "f32", "sm_75")
    # all of this API, with the other as it was
    compiler = kata.refused
    monkeypatch.setattr(
        kata, "refused", lambda source, arch: said if api in source else compiler(source, arch)
    )
    for shape, ab, acc in (
        ((16, 16, 32), "s8", "s32"),
        ((16, 16, 16), "e4m3", "f32"),  # wmma never has it, but who says so has not asked
        ((16, 8, 16), "f64", "f32"),
        (kata.KNOWN[api], "f16", "f32"),
    ):
        with pytest.raises(RuntimeError) as raised:
            kata.tensor_core_probe(api, shape, ab, acc, arch)
        assert said[:8] in str(raised.value)  # the words may be those of the first time


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api", "wgmma"),
        ("shape", (16, 16)),
        ("shape", (16, 16, 0)),
        ("shape", (-16, 16, 16)),
        ("shape", (16, 16, 16, 16)),
        ("ab", "fp8"),
        ("ab", "f32"),
        ("acc", "bf16"),
        ("arch", "sm_70"),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_what_is_unknown_is_refused(kata, name, value):
    question = {"api": "wmma", "shape": (16, 16, 16), "ab": "f16", "acc": "f32", "arch": "sm_80"}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.tensor_core_probe(**question | {name: value})


# ---- peaks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sms", "flops", "clock_hz", "peak"),
    [
        pytest.param(108, 2048, 1.41e9, 312e12, id="A100"),
        pytest.param(132, 4096, 1.83e9, 989.4e12, id="H100"),
        pytest.param(40, 1024, 1.59e9, 65e12, id="T4"),
        pytest.param(128, 512, 2.52e9, 165.2e12, id="RTX 4090"),
    ],
)
def test_peak_is_the_vendor_s(kata, profile, sms, flops, clock_hz, peak):
    gpu = replace(
        profile,
        sms=sms,
        clock_hz=clock_hz,
        max_clock_hz=1.2 * clock_hz,
        flops_per_clk_per_sm={"float32": 64, "float16": flops},
        peak={},
    )
    assert kata.tensor_peak(gpu, "float16") == pytest.approx(peak, rel=0.03)
    with pytest.raises(ValueError, match="^dtype: "):
        kata.tensor_peak(gpu, "float8")


# ---- what shared memory can feed -----------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "a_in_regs", "bound"),
    [(64, False, 1.0), (128, False, 0.75), (32, False, 1.5), (32, True, 0.5), (256, True, 0.5)],
)
def test_bound_of_a_wgmma_of_hopper(kata, n, a_in_regs, bound):
    # published: with both factors in shared memory it needs n >= 64
    assert kata.smem_bound(64, n, 16, 2, a_in_regs, 4096) == bound


def test_bound_follows_bytes_and_rate(kata):
    # m16n8k8 of tf32 on an A100: 768 bytes in 6 cycles, 2048 FLOPs in 2
    assert kata.smem_bound(16, 8, 8, 4, False, 1024) == 3.0
    # m8n8k4 of two bytes: 128 bytes in one cycle, 512 FLOPs in a quarter of one
    assert kata.smem_bound(8, 8, 4, 2, False, 2048) == 4.0
    # m16n8k8 of one byte: 192 bytes in one and a half, 2048 FLOPs in a half
    assert kata.smem_bound(16, 8, 8, 1, False, 4096) == 3.0


@pytest.mark.parametrize(
    ("flops", "ab_bytes", "tile"),
    [
        pytest.param(2048, 2, (32, 32), id="A100"),
        pytest.param(4096, 2, (64, 64), id="H100"),
        pytest.param(8192, 2, (128, 128), id="B200"),
        pytest.param(512, 2, (16, 8), id="RTX 4090"),
        pytest.param(2049, 2, (32, 40), id="no longer 32 x 32"),
        pytest.param(1504, 2, (32, 24), id="not 16 x 48"),
        pytest.param(2304, 2, (32, 48), id="not 48 x 32"),
        pytest.param(32768, 4, (1024, 1024), id="far more than today's"),
    ],
)
def test_tile_by_hand(kata, flops, ab_bytes, tile):
    assert kata.min_warp_tile(flops, ab_bytes) == tile


@settings(max_examples=25)
@given(sixteenths=st.integers(1, 320), ab_bytes=st.sampled_from([1, 2, 4]))
def test_tile_is_the_best_of_all(kata, oracle, sixteenths, ab_bytes):
    flops = 16 * sixteenths // ab_bytes * 2
    assert kata.min_warp_tile(flops, ab_bytes) == oracle.best_tile(flops, ab_bytes)
