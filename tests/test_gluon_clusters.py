"""Gluon kernels whose programs are clusters: right ones pass in silence, wrong ones are named."""

import os
import tomllib

import pytest

if os.environ.get("KATA_DEVICE", "cpu") != "cpu":
    pytest.skip("kernels are simulated in CPU sessions only", allow_module_level=True)

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper

from harness.meters.compiled import CompileRequest, compile_kernels
from harness.meters.gluon import gluon_meter
from harness.simulators.gluon import LayoutError, NotModelled, simulating
from harness.simulators.gluon.layouts import boxes, copies, flaw_of
from harness.simulators.hazards import Hazard
from tests import gluon_cases
from tests.gluon_cases import CLUSTERS, FOLDER, changed, load, numbers

if not CLUSTERS:
    pytest.skip("Triton 3.6 has no barrier of a cluster", allow_module_level=True)

FILE = FOLDER / "clusters.py"
BUGS = tomllib.loads((FOLDER / "cluster_bugs.toml").read_text(encoding="utf-8"))
POLICIES = ("late", "random", "early")
ROWS, COLUMNS, SQUARE = ((1, 0),), ((0, 1),), ((1, 0), (0, 1))


CASES = {
    "a row over 2 CTAs": (gluon_cases.spread, {}),
    "a row over 4 CTAs": (gluon_cases.spread, {"num_ctas": 4}),
    "a row over 16 CTAs": (gluon_cases.spread, {"num_ctas": 16, "rows": 1}),
    "cp.async in each CTA": (gluon_cases.staged, {}),
    "cp.async of a copy for each CTA": (gluon_cases.staged, {"bases": ((0, 0),)}),
    "cp.async of a row for each CTA": (gluon_cases.staged, {"bases": ROWS, "rows": 2}),
    "a box for 2 CTAs": (gluon_cases.multicast, {}),
    "a box for 4 CTAs, 3 in flight": (
        gluon_cases.multicast,
        {"bases": ((0, 0), (0, 0)), "stages": 3},
    ),
    "two halves of a box for 2 CTAs each": (gluon_cases.multicast, {"bases": ((1, 0), (0, 0))}),
    "a CTA's own half of a box": (gluon_cases.multicast, {"bases": ROWS, "columns": 64}),
    "2 CTAs share b": (gluon_cases.shared, {}),
    "2 CTAs share b, each with its own copy": (gluon_cases.shared, {"multicast": False}),
    "2 CTAs share a": (gluon_cases.shared, {"bases": COLUMNS, "BM": 64, "BN": 128}),
    "4 CTAs share both": (gluon_cases.shared, {"bases": SQUARE, "BN": 128, "STAGES": 4}),
    "one tile, of which one CTA has nothing": (gluon_cases.shared, {"m": 64, "n": 64, "k": 64}),
    "specialised warps in 2 CTAs": (gluon_cases.split, {}),
    "specialised warps in 4 CTAs": (gluon_cases.split, {"bases": SQUARE, "BN": 128}),
}


@pytest.fixture(scope="module")
def module():
    """The file of kernels, as it is."""
    return load(FILE)


def edits_of(changes):
    return [{"find": find, "replace": replace} for find, replace in changes.items()]


def assert_right(found):
    got, want, tolerance = found
    assert (got.double() - want.double()).abs().max() <= tolerance


# ---- right ones ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_right_kernel_is_right_and_silent_whatever_the_schedule(name, module):
    call, details = CASES[name]
    for seed in range(20):
        with simulating(seed=seed, policy=POLICIES[seed % 3]) as simulator:
            assert_right(call(module, **details))
        assert not simulator.notes


MEETS = "        gl.barrier(cluster=True)\n"
IN_TWO_STEPS = "        cluster.arrive()\n        cluster.wait()\n"
GIVES_BACK = "        mbarrier.arrive(empty.index(slot), count=1)\n"
ISSUES = "        issue(a_desc, b_desc, m, n, k * BK, bar, a_box, b_box, True, False)\n"
# a kernel, and what is replaced in it by what
VARIANTS = {
    "a whole barrier makes mbarriers known": (
        "multicast",
        {"    mbarrier.sync_cluster_init()\n    row": "    gl.barrier(cluster=True)\n    row"},
    ),
    "arrives, then waits": (
        "shared",
        {f"{MEETS}        ahead": f"{IN_TWO_STEPS}        ahead"},
    ),
    "meets twice": ("shared", {f"{MEETS}        ahead": f"{MEETS}{MEETS}        ahead"}),
    "waits for every product": (
        "shared",
        {"warpgroup_mma_wait(1, deps": "warpgroup_mma_wait(0, deps"},
    ),
    "a fence for the whole cluster": (
        "shared",
        {"fence_async_shared()": "fence_async_shared(cluster=True)"},
    ),
    "atomics need no barrier": (
        "spread",
        {"gl.store(y_ptr + row * N + at,": "gl.atomic_xchg(y_ptr + row * N + at,"},
    ),
    "all warps of all partitions meet": (
        "split",
        {GIVES_BACK: GIVES_BACK + MEETS, ISSUES: ISSUES + MEETS, "[1],\n": "[4],\n"},
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_more_synchronisation_than_needed_is_no_hazard(variant, tmp_path):
    kernel, changes = VARIANTS[variant]
    module = changed(kernel, edits_of(changes), tmp_path)
    for seed in range(6):
        with simulating(seed=seed, policy=POLICIES[seed % 3]):
            assert_right(CLUSTERS[kernel](module))


# ---- wrong ones ----------------------------------------------------------------------------


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_named_whatever_the_schedule(bug, tmp_path):
    entry = BUGS[bug]
    module = changed(entry["kernel"], entry["edits"], tmp_path)
    for seed in range(6):
        policy = POLICIES[seed % 3]
        with simulating(seed=seed, policy=policy), pytest.raises(Hazard) as caught:
            CLUSTERS[entry["kernel"]](module)
        assert caught.value.name in entry["hazards"], (seed, policy)


def test_a_hazard_between_ctas_names_both(tmp_path):
    bug = BUGS["shared: a barrier of the CTA alone"]
    module = changed(bug["kernel"], bug["edits"], tmp_path)
    with simulating(seed=0, policy="late"), pytest.raises(Hazard) as caught:
        gluon_cases.shared(module)
    first, now, before, fix = str(caught.value).splitlines()
    assert first == (
        "reused-too-early: TMA load writes b_bufs[0] of CTA 1 while a wgmma may still be reading it"
    )
    assert "tma_load(b_desc" in now
    assert "warpgroup_mma(" in before
    assert "a barrier of the cluster" in fix


def test_a_race_in_global_memory_names_both_ctas(tmp_path):
    bug = BUGS["spread: a barrier of the CTA alone"]
    module = changed(bug["kernel"], bug["edits"], tmp_path)
    with simulating(), pytest.raises(Hazard) as caught:
        gluon_cases.spread(module)
    assert "the load of scratch_ptr in CTA 0 is unordered with the store of" in str(caught.value)
    assert "scratch_ptr in CTA 1" in str(caught.value)


# ---- counts --------------------------------------------------------------------------------


def test_a_multicast_reads_its_bytes_once(module):
    amounts = {}
    for shared in (True, False):
        with gluon_meter() as meter:
            gluon_cases.shared(module, m=128, n=64, k=128, multicast=shared)
        amounts[shared] = meter.amount("TMA load")
    a_bytes, b_bytes = 128 * 128 * 2, 128 * 64 * 2
    assert amounts == {True: a_bytes + b_bytes, False: a_bytes + 2 * b_bytes}


def test_what_ctas_load_alike_is_loaded_by_each_and_stored_by_one(module):
    x, num_ctas = numbers(1, 512), 4
    with gluon_meter() as meter:
        module.softmax(x, programs=1, num_ctas=num_ctas)
    row, partials = 512 * 4, 2 * num_ctas * 4
    assert meter.loaded_bytes == row + num_ctas * partials
    assert meter.stored_bytes == row + partials


def test_shared_memory_is_that_of_a_cta(module):
    with gluon_meter() as meter:
        gluon_cases.shared(module, m=128, n=64, k=64, STAGES=3)
    tiles = 3 * (64 * 64 + 64 * 64) * 2 + 64 * 64 * 2
    assert meter.shared_bytes == tiles + 3 * 8
    assert meter.flops == 2 * 128 * 64 * 64
    assert meter.programs == 1


# ---- what the compiler has no way to do ------------------------------------------------------

ONE_CTA = "gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())"
ACROSS = "gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0], ((0, 1),))"
TAKEN = "gl.atomic_add(scratch_ptr, 0.0).to(gl.int32)"
SCAN = "@gluon.jit\ndef plus(a, b):\n    return a + b\n\n\n@gluon.jit\ndef softmax_kernel("
# a kernel, what is replaced in it by what, and what is said of it
OUTSIDE = {
    "a reduction across CTAs": (
        "spread",
        {"total = gl.sum(": "total = gl.sum(top) + gl.sum("},
        LayoutError,
        "takes elements of several CTAs",
    ),
    "a scan of what is split": (
        "spread",
        {
            "@gluon.jit\ndef softmax_kernel(": SCAN,
            "top = gl.max(x, axis=1)": "top = gl.max(gl.associative_scan(x, 1, plus), axis=1)",
        },
        LayoutError,
        "a scan takes elements of several CTAs",
    ),
    "a layout that moves elements between CTAs": (
        "spread",
        {"gl.load(tops + every)": "gl.convert_layout(top, COPIES)"},
        LayoutError,
        "convert_layout would move elements between the CTAs",
    ),
    "shared memory of another CTA": (
        "shared",
        {"c_smem.store(acc.to(c_desc.dtype))": f"c_smem.load({ACROSS})"},
        LayoutError,
        "load would move elements between the CTAs",
    ),
    "a slice of shared memory": (
        "shared",
        {"c_smem.store(acc.to(c_desc.dtype))": "c_smem.slice(0, 64, 0)"},
        LayoutError,
        "Triton builds no slice in a cluster",
    ),
    "an operand of which a CTA lacks a part": (
        "shared",
        {"of_b = [[0, n] for _, n in bases]": "of_b = [[1, 0] for _ in bases]"},
        LayoutError,
        "wgmma: CTA 0 of the cluster lacks part of what it multiplies",
    ),
    "a layout of one CTA": (
        "spread",
        {"[0], bases_along(None, 1, num_ctas))": "[0])"},
        LayoutError,
        "expected as many CTAs as run here, 2, found 1",
    ),
    "an mbarrier of one CTA": (
        "shared",
        {"mbarrier.allocate_mbarrier(batch=STAGES)": ONE_CTA},
        LayoutError,
        "expected as many CTAs as run here, 2, found 1",
    ),
    "an mbarrier of two CTAs": (
        "shared",
        {"allocate_mbarrier(batch=STAGES)": "allocate_mbarrier(batch=STAGES, two_ctas=True)"},
        NotModelled,
        "an mbarrier of two CTAs",
    ),
    "what an atomic tells one CTA": (
        "spread",
        {"for row in range(gl.program_id(0)": f"for row in range({TAKEN}"},
        NotModelled,
        "the result of an atomic that one CTA of a cluster does for others",
    ),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_what_no_compiler_builds_is_refused_in_words(what, tmp_path):
    kernel, changes, kind, said = OUTSIDE[what]
    module = changed(kernel, edits_of(changes), tmp_path)
    with simulating(), pytest.raises(kind, match=said):
        CLUSTERS[kernel](module)


def test_a_cluster_has_a_power_of_two_of_ctas(module):
    with simulating(), pytest.raises(ValueError, match="num_ctas: expected one of .* found 3"):
        module.softmax_kernel[(1,)](numbers(1, 8), num_ctas=3)


def test_triton_3_6_has_no_clusters(module, monkeypatch):
    monkeypatch.delattr(hopper, "cluster")
    with simulating(), pytest.raises(NotModelled, match="a cluster .num_ctas. before Triton 3.7"):
        gluon_cases.spread(module)


# ---- layouts -------------------------------------------------------------------------------


def blocked(*bases):
    return gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0], [list(basis) for basis in bases])


@pytest.mark.parametrize(
    ("bases", "starts"),
    [
        (((1, 0),), [(0, 0), (4, 0)]),
        (((0, 0),), [(0, 0), (0, 0)]),
        (((1, 0), (0, 1)), [(0, 0), (4, 0), (0, 8), (4, 8)]),
        (((0, 1), (0, 2)), [(0, 0), (0, 4), (0, 8), (0, 12)]),
        (((0, 2), (0, 1)), [(0, 0), (0, 8), (0, 4), (0, 12)]),
    ],
)
def test_bases_say_where_the_part_of_each_cta_begins(bases, starts):
    layout, num_ctas = blocked(*bases), 1 << len(bases)
    found = boxes(layout, (8, 16), num_ctas)
    assert [tuple(one.start for one in box) for box in found] == starts
    size = 8 * 16 * copies(layout, num_ctas) // num_ctas
    assert {(box[0].stop - box[0].start) * (box[1].stop - box[1].start) for box in found} == {size}


def test_a_slice_has_the_copies_of_what_was_summed():
    of_rows, of_columns = (gl.SliceLayout(axis, blocked((1, 0))) for axis in (1, 0))
    assert boxes(of_rows, (8,), 2) == ((slice(0, 4),), (slice(4, 8),))
    assert boxes(of_columns, (16,), 2) == ((slice(0, 16),), (slice(0, 16),))


@pytest.mark.parametrize(
    ("layout", "num_ctas", "said"),
    [
        (blocked((1, 0)), 2, ""),
        (blocked((1, 0)), 1, "expected as many CTAs as run here, 1, found 2"),
        (blocked(), 4, "expected as many CTAs as run here, 4, found 1"),
        (blocked((2, 0)), 2, "expected steps of 1, 2, 4"),
    ],
)
def test_a_layout_of_other_ctas_has_a_flaw(layout, num_ctas, said):
    assert said in flaw_of(layout, 4, num_ctas)
    assert bool(said) == bool(flaw_of(layout, 4, num_ctas))


# ---- the same sources, compiled ------------------------------------------------------------

BUILT = {
    "softmax": ("barrier.cluster.arrive", "barrier.cluster.wait"),
    "staged": ("cp.async.cg.shared.global", "cp.async.wait_group"),
    "multicast": ("fence.mbarrier_init.release.cluster", "barrier.cluster.arrive.relaxed"),
    "shared_gemm": ("wgmma.mma_async", "barrier.cluster.arrive"),
    "split_gemm": ("wgmma.mma_async", "setmaxnreg"),
}


@pytest.mark.parametrize("call", BUILT)
def test_a_kernel_that_runs_here_is_built_for_sm_90(call):
    request = CompileRequest(
        file=FILE,
        oracle=FOLDER / "cluster_oracle.py",
        function=call,
        case={"call": call},
        target="sm_90",
    )
    (kernel,) = compile_kernels(request)
    assert [one for one in BUILT[call] if not kernel.has(one)] == []
    assert ".reqnctapercluster" in kernel.ptx
    assert (".multicast::cluster" in kernel.ptx) == (call in ("multicast", "shared_gemm"))
