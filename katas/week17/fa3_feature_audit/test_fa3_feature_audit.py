"""Kernels whose features are known, texts written to mislead, and a published ablation."""

import re
from dataclasses import replace

import pytest

NAMES = (
    "sm80", "sm90_one_stage", "sm90_pointers", "sm90_descriptors", "sm90_specialize",
    "sm100_specialize", "sm90_fp8", "sm89_fp8", "sm90_unpipelined", "sm90_d32", "sm100",
    "sm90_product",
)  # fmt: skip
MODULE = 'module attributes {"ttg.num-warps" = 4 : i32} {\n}'
MMA = "mma.sync.aligned.m16n8k32.row.col.f32.{}.f32 {{%r1}}, {{%r2}}, {{%r3}}, {{%r1}};"
WGMMA = "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%r1,%r2}, "
TMA = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1], [%r2]"


@pytest.fixture(scope="module")
def gpus(oracle, profile):
    """By name: profiles with the figures of real GPUs, and "toy" for sums by hand."""
    return {name: replace(profile, id=name, **figures) for name, figures in oracle.GPUS.items()}


def written(*instructions):
    """PTX whose first instruction stands in line 6."""
    head = [".version 8.7", ".target sm_90a", ".visible .entry kernel(", ")", "{"]
    return "\n".join([*head, *(f"\t{line}" for line in instructions), "\tret;", "}", ""])


def found_in(kata, *instructions):
    """Feature -> lines, counted from the first of these instructions as 1."""
    found = kata.annotate(MODULE, written(*instructions))
    assert all(one.where == "ptx" for one in found)
    assert len({one.feature for one in found}) == len(found)
    return {one.feature: tuple(line - 5 for line in one.lines) for one in found}


def found_in_module(kata, *lines):
    found = kata.annotate("\n".join([*lines, MODULE]), written())
    assert all(one.where == "ttgir" for one in found)
    assert len({one.feature for one in found}) == len(found)
    return {one.feature: one.lines for one in found}


# ---- compiled kernels ----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_features_of_compiled_kernels(kata, oracle, name):
    found = kata.annotate(*oracle.texts(name))
    assert {one.feature: len(one.lines) for one in found} == oracle.LABELS[name]


def test_every_line_has_its_evidence(kata, oracle):
    for name in NAMES:
        texts = dict(zip(("ttgir", "ptx"), oracle.texts(name), strict=True))
        for one in kata.annotate(texts["ttgir"], texts["ptx"]):
            lines = texts[one.where].split("\n")
            without = [at for at in one.lines if one.evidence not in lines[at - 1].split("//")[0]]
            assert (one.feature, without) == (one.feature, [])
            assert len(one.evidence) >= 4
            assert one.lines == tuple(sorted(set(one.lines)))


def test_precision_and_recall(kata, oracle, cost):
    found = {(name, one.feature) for name in NAMES for one in kata.annotate(*oracle.texts(name))}
    known = {(name, feature) for name in NAMES for feature in oracle.LABELS[name]}
    cost.check("precision", len(found & known) / max(1, len(found)))
    cost.check("recall", len(found & known) / len(known))


# ---- instructions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instruction", "features"),
    [
        (TMA + ";", {"tma_load"}),
        (TMA.replace("shared::cta", "shared::cluster") + ";", {"tma_load"}),
        (TMA.replace("2d", "5d") + ";", {"tma_load"}),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16;", {"cp_async"}),
        ("cp.async.ca.shared::cta.global [%r1], [%rd1], 4;", {"cp_async"}),
        (WGMMA + "%rd1, %rd2, 1, 1, 1, 0, 0;", {"wgmma_async"}),
        (WGMMA + "{%r3,%r4}, %rd2, 1, 1, 1, 1;", {"wgmma_async", "register_p"}),
        (
            WGMMA.replace("{%r1,%r2}, ", "{ %r1, %r2 } ,{%r3}, %rd2, 1;"),
            {"wgmma_async", "register_p"},
        ),
        (WGMMA.replace("f32.f16.f16", "f32.e4m3.e5m2") + "%rd1, %rd2, 1;", {"wgmma_async", "fp8"}),
        (MMA.format("f16.f16"), {"mma_sync"}),
        (MMA.format("e5m2.e5m2"), {"mma_sync", "fp8"}),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;", {"tcgen05"}),
        ("tcgen05.mma.cta_group::2.kind::f8f6f4 [%r1], %rd1, %rd2, %r2, %p1;", {"tcgen05", "fp8"}),
        ("setmaxnreg.dec.sync.aligned.u32 24;", {"warp_specialized"}),
        ("ex2.approx.f32 %r1, %r2;", {"mufu_exp2"}),
        ("ex2.approx.ftz.f16x2 %r1, %r2;", {"mufu_exp2"}),
    ],
    ids=[
        "tma", "tma of a cluster", "tma of 5d", "cp.async.cg", "cp.async.ca", "wgmma",
        "wgmma of registers", "wgmma of registers, blanks", "wgmma in fp8", "mma", "mma in fp8",
        "tcgen05", "tcgen05 in fp8", "setmaxnreg", "ex2", "ex2 of two",
    ],
)  # fmt: skip
def test_an_instruction_proves_its_features(kata, instruction, features):
    """With any predicate; in line 2."""
    for predicate in ("", "@%p1 ", "@!%p12 ", "@!elected\t"):
        found = found_in(kata, "bar.sync 0;", predicate + instruction)
        assert found == dict.fromkeys(features, (2,))


@pytest.mark.parametrize(
    "instruction",
    [
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];",
        "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd1, {%r1, %r2}];",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%rd1], [%r3];",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 8, [%r];",
        "cp.async.bulk.commit_group;",
        "cp.async.commit_group;",
        "cp.async.wait_group 2;",
        "cp.async.mbarrier.arrive.shared.b64 [%r1];",
        "wgmma.fence.sync.aligned;",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 1;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 512;",
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%r1}, [%r2];",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%r1];",
        "cvt.rn.satfinite.e4m3x2.f32 %rs1, %r1, %r2;",
        "mbarrier.init.shared::cta.b64 [%r1], 1;",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}, [%r2];",
        "mov.b32 %r1, 0; // wgmma.mma_async.sync.aligned {%r1}, {%r2}, %rd1; setmaxnreg ex2.approx",
        "// cp.async.cg.shared.global [%r1], [%rd1], 16;",
        "mov.b64 %rd1, mma_sync_table;",
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%r1}, {%r2}, {%r3}, {%r1};",
        "call.uni (%r1), ex2.approx, (%r2);",
        "lg2.approx.f32 %r1, %r2;",
    ],
    ids=lambda value: value.split(";")[0][:60],
)  # fmt: skip
def test_what_only_looks_like_evidence(kata, instruction):
    assert found_in(kata, instruction, "@%p1 " + instruction) == {}


def test_all_lines_of_a_feature(kata):
    lines = [
        "ex2.approx.f32 %r1, %r2;",
        "bar.sync 0;",
        "@%p1 ex2.approx.ftz.f32 %r1, %r2;",
        TMA + ";",
    ]
    assert found_in(kata, *lines) == {"mufu_exp2": (1, 3), "tma_load": (4,)}


def test_only_a_newline_ends_a_line(kata):
    """Other characters that some take for an end of a line may stand in comments and names."""
    for other in ("\r", "\f", "\v", "\x1c", "\u2028"):
        comment = f"// page one{other}page two"
        assert found_in(kata, comment, "ex2.approx.f32 %r1, %r2;") == {"mufu_exp2": (2,)}
        note = f'module attributes {{note = "one{other}two"}} {{'
        assert found_in_module(kata, note, alloc("2x1xi64")) == {"mbarrier_depth(2)": (2,)}


# ---- waits in loops ------------------------------------------------------------------------

WAIT = "wgmma.wait_group.sync.aligned {};"


def waits(kata, *lines):
    """Whole numbers are waits for so many."""
    found = found_in(kata, *(WAIT.format(one) if isinstance(one, int) else one for one in lines))
    return {feature: at for feature, at in found.items() if feature.startswith("wgmma_wait")}


def test_the_largest_wait_in_a_loop(kata):
    assert waits(kata, "$L__BB0_2:", 0, 1, "bar.sync 0;", 1, "@%p1 bra $L__BB0_2;") == {
        "wgmma_wait(1)": (3, 5)
    }
    assert waits(kata, "$L2:", 2, 10, "bra.uni $L2;") == {"wgmma_wait(10)": (3,)}
    assert waits(kata, "again:", 7, "@%p1 bra again;") == {"wgmma_wait(7)": (2,)}
    assert waits(kata, "$L2:", 0, "@!%p1 bra $L2;") == {"wgmma_wait(0)": (2,)}
    # once more by a later branch to the same label
    assert waits(kata, "$L2:", 1, "@%p1 bra $L2;", 2, "@%p2 bra $L2;") == {"wgmma_wait(2)": (4,)}


def test_lines_rise_wherever_the_loop_is(kata):
    """A set of small numbers comes in order, until they reach the size of its table."""
    for before in range(0, 130, 2):
        head = ["bar.sync 0;"] * before
        expected = {"wgmma_wait(1)": tuple(before + at for at in (2, 3, 4, 5))}
        assert waits(kata, *head, "$L2:", 1, 1, 1, 1, "bra $L2;") == expected


def test_waits_outside_of_loops_do_not_count(kata):
    assert waits(kata, 3, "$L2:", 1, "@%p1 bra $L2;", 4) == {"wgmma_wait(1)": (3,)}
    assert waits(kata, 3, "$L2:", "bar.sync 0;", "@%p1 bra $L2;", 4) == {}


def test_a_branch_forwards_is_no_loop(kata):
    """Not even where another kernel had that label above."""
    assert waits(kata, "$L3:", 0, "@%p1 bra $L3;") == {"wgmma_wait(0)": (2,)}
    assert waits(kata, "bar.sync 0;", 1, "@%p1 bra $L3;", "$L3:") == {}
    assert waits(kata, "@%p1 bra $L3;", 1, "$L3:", "bar.sync 0;") == {}
    # a name that begins with another is another
    assert waits(kata, "$L1:", 1, "@%p1 bra $L10;", "$L10:") == {}
    assert waits(kata, "$L10:", 1, "@%p1 bra $L1;", "$L1:") == {}


def test_loops_in_loops(kata):
    lines = ["$L1:", 1, "$L2:", 2, "@%p1 bra $L2;", 3, "@%p2 bra $L1;", 4]
    assert waits(kata, *lines) == {"wgmma_wait(3)": (6,)}


def test_a_label_that_stands_twice_is_the_nearest_above(kata):
    spin = ["{", "waitLoop:", "@!complete bra.uni waitLoop;", "}"]
    assert waits(kata, *spin, 2, *spin, "$L1:", 1, *spin, "@%p1 bra $L1;") == {
        "wgmma_wait(1)": (11,)
    }


# ---- structure -----------------------------------------------------------------------------


def alloc(shape, layout="#shared"):
    return f"  %0 = ttg.local_alloc : () -> !ttg.memdesc<{shape}, {layout}, #smem, mutable>"


def test_the_deepest_ring_of_barriers(kata):
    assert found_in_module(kata, alloc("1xi64"), alloc("2x1xi64"), alloc("12x1xi64")) == {
        "mbarrier_depth(12)": (3,)
    }
    assert found_in_module(kata, alloc("1xi64"), "", alloc("1x1xi64")) == {
        "mbarrier_depth(1)": (1, 3)
    }


def test_what_is_no_ring_of_barriers(kata):
    index = "%1 = ttg.memdesc_index %0[%c] : !ttg.memdesc<3x1xi64, #s> -> !ttg.memdesc<1xi64, #s>"
    stages = "} {tt.num_stages = 4 : i32}"
    assert found_in_module(kata, alloc("3x64x128xf16"), index, stages) == {}
    wait = "ttng.wait_barrier %0, %1 : !ttg.memdesc<4x1xi64, #s, #smem, mutable>"
    assert found_in_module(kata, wait, alloc("64xi64"), alloc("11xi64")) == {}


def layout(name, width):
    return f"{name} = #ttg.nvmma_shared<{{swizzlingByteWidth = {width}, transposed = false}}>"


def test_swizzles_of_buffers(kata):
    lines = [layout("#shared", 128), layout("#shared1", 64), layout("#shared2", 128)]
    buffers = [alloc("64x64xf16", f"#shared{n}") for n in ("", 1)]
    buffers += ["%1 = ttg.memdesc_trans %0 : !ttg.memdesc<2x64x8xf8E4M3FN, #shared2>"]
    assert found_in_module(kata, *lines, *buffers) == {"swizzle(128)": (1, 3), "swizzle(64)": (2,)}


def test_layouts_of_no_buffer_do_not_count(kata):
    """Of no buffer at all, of one whose name begins alike, or without a swizzle."""
    lines = [layout("#shared", 128), layout("#shared1", 32), layout("#shared2", 0)]
    buffers = [alloc("64x64xf16", "#shared1"), alloc("64x64xf16", "#shared2")]
    descriptor = "tt.func public @k(%q: !tt.tensordesc<tensor<128x128xf16, #shared>>) {"
    assert found_in_module(kata, *lines, descriptor, *buffers) == {"swizzle(32)": (2,)}
    plain = "#shared = #ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>"
    assert found_in_module(kata, plain, alloc("64x64xf16")) == {}


def test_what_was_asked_for_proves_nothing(kata):
    asked = [
        "} {tt.num_stages = 3 : i32, tt.warp_specialize, ttg.warp_specialize.tag = 0 : i32}",
        "ttng.async_tma_copy_global_to_local %q[%r, %c] %t, %b, %true : !tt.tensordesc<f16>",
        "%s = ttng.warp_group_dot %q, %k, %c {isAsync = true} : tensor<64x64xf32>",
        "%s = ttng.tc_gen5_mma %q, %k : !ttg.tensor<64x64xf8E4M3FN>",
        "%p = math.exp2 %s : tensor<64x64xf32>",
    ]
    assert found_in_module(kata, *asked) == {}


# ---- impact --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feature", "d", "dtype", "tflops"),
    [  # an exponential takes 0.5 clocks; 100,000,000,000 clocks a second
        ("wgmma_wait", 50, "float16", 200 / 0.75 / 10),  # 200 / 800 clocks of products
        ("warp_specialized", 50, "float16", 200 / 0.75 / 10),
        ("wgmma_async", 62, "float16", 248 / 1.0 / 10),  # 248 / 496
        ("wgmma_wait", 800, "float8", 3200 / 1.5 / 10),
        ("wgmma_async", 992, "float8", 3968 / 2.5 / 10),
        ("wgmma_wait", 1, "float16", 4 / 0.505 / 10),
        ("fp8", 200, "float8", 800 / 1.0 / 10),  # products take longest
        ("fp8", 50, "float8", 200 / 0.5 / 10),  # exponentials do
    ],
    ids=[
        "pipelining", "specialization", "wgmma", "pipelining of fp8", "wgmma of fp8",
        "one channel", "fp8",
        "fp8, small heads",
    ],
)  # fmt: skip
def test_impact_by_hand(kata, gpus, feature, d, dtype, tflops):
    assert kata.impact(feature, d, dtype, gpus["toy"]) == pytest.approx(tflops, rel=1e-12)


def test_the_published_ablation(kata, oracle, gpus, cost):
    errors = [
        abs(kata.impact(feature, 128, "float16", gpus["h100"]) / published - 1)
        for feature, published in oracle.ABLATION.items()
    ]
    cost.check("ablation", max(errors))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"feature": "swizzle"}, "feature"), ({"feature": "tma_load"}, "feature"),
        ({"feature": "wgmma_wait(1)"}, "feature"), ({"feature": ""}, "feature"),
        ({"feature": "fp8"}, "feature"), ({"d": 0}, "d"), ({"d": -64}, "d"),
        ({"dtype": "float64"}, "dtype"), ({"dtype": "float8"}, "dtype"),
    ],
    ids=lambda value: str(value),
)  # fmt: skip
def test_what_is_not_modelled_is_refused(kata, gpus, changes, name):
    """On an A100, which has no FP8."""
    sound = {"feature": "wgmma_wait", "d": 64, "dtype": "float16"}
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.impact(**sound | changes, profile=gpus["a100"])


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("blank", ["", " \n\t\n"], ids=["empty", "blank"])
def test_blank_texts_are_refused(kata, blank):
    with pytest.raises(ValueError, match="^ttgir: "):
        kata.annotate(blank, written())
    with pytest.raises(ValueError, match="^ptx: "):
        kata.annotate(MODULE, blank)


def test_ptx_without_an_entry_is_refused(kata):
    """A function that others call is none, nor is one in a comment, nor a word like it."""
    for line in (
        ".visible .func kernel(",
        "// .visible .entry kernel(",
        ".visible .entrypoint kernel(",
    ):
        text = re.sub(r"\.visible \.entry kernel\(", line, written("ex2.approx.f32 %r1, %r2;"))
        with pytest.raises(ValueError, match="^ptx: "):
            kata.annotate(MODULE, text)


def test_a_kernel_with_none_of_it(kata):
    for head in (".visible .entry kernel(", ".entry kernel(", ".weak .entry kernel("):
        assert kata.annotate(MODULE, written().replace(".visible .entry kernel(", head)) == []
