"""Gluon kernels on their simulator: right ones pass in silence, wrong ones are named."""

import os

import pytest

if os.environ.get("KATA_DEVICE", "cpu") != "cpu":
    pytest.skip("kernels are simulated in CPU sessions only", allow_module_level=True)

from dataclasses import replace

from harness.meters.gluon import gluon_meter
from harness.simulators.gluon import simulating
from harness.simulators.hazards import Hazard
from tests import gluon_cases
from tests.gluon_cases import BUGS, CASES, EDGES, FILES, VARIANTS, changed, load

POLICIES = ("late", "random", "early")


@pytest.fixture(scope="module")
def modules():
    """The files of kernels, as they are."""
    return {path: load(path) for path in set(FILES.values())}


def assert_right(found):
    got, want, tolerance = found
    assert (got.double() - want.double()).abs().max() <= tolerance


# ---- right ones ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_right_kernel_is_right_and_silent_whatever_the_schedule(name, modules):
    for seed in range(6):
        with simulating(seed=seed, policy=POLICIES[seed % 3]) as simulator:
            assert_right(CASES[name](modules[FILES[name]]))
        assert not simulator.notes


@pytest.mark.parametrize("edge", EDGES)
def test_a_right_kernel_is_right_at_the_edges(edge, modules):
    name, sizes = EDGES[edge]
    for seed in range(2):
        with simulating(seed=seed):
            assert_right(CASES[name](modules[FILES[name]], **sizes))


@pytest.mark.parametrize("variant", VARIANTS)
def test_more_synchronisation_than_needed_is_no_hazard(variant, tmp_path):
    entry = VARIANTS[variant]
    module = changed(entry["kernel"], entry["edits"], tmp_path)
    for seed, policy in enumerate(POLICIES):
        with simulating(seed=seed, policy=policy):
            assert_right(CASES[entry["kernel"]](module))


# ---- wrong ones ----------------------------------------------------------------------------


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_named_whatever_the_schedule(bug, tmp_path):
    entry = BUGS[bug]
    module = changed(entry["kernel"], entry["edits"], tmp_path)
    for seed, policy in enumerate(POLICIES):
        with simulating(seed=seed, policy=policy, strict=True), pytest.raises(Hazard) as caught:
            CASES[entry["kernel"]](module)
        assert caught.value.name in entry["hazards"], f"{policy} {seed}: {caught.value}"


def test_a_hazard_carries_the_lines_of_both(tmp_path):
    module = changed("gemm", BUGS["gemm: wgmma wait off by one"]["edits"], tmp_path)
    with simulating(), pytest.raises(Hazard) as caught:
        gluon_cases.gemm(module)
    first, now, before, fix = str(caught.value).splitlines()
    assert first == (
        "reused-too-early: TMA load writes a_bufs[0] while a wgmma may still be reading it"
    )
    assert "tma_load(a_desc" in now
    assert "[issue_loads, called at line " in now
    assert "warpgroup_mma(a_bufs" in before
    assert fix.startswith("  fix: ")


def test_a_deadlock_tells_who_waits_for_what(tmp_path):
    edits = BUGS["ws: producer starts on the wrong parity"]["edits"]
    module = changed("ws", edits, tmp_path)
    with simulating(), pytest.raises(Hazard) as caught:
        gluon_cases.ws(module)
    text = str(caught.value)
    assert "consumer: waits for parity 0 of full[0]: phase 0 is incomplete" in text
    assert "producer: waits for parity 0 of empty[0]: phase 0 is incomplete" in text


def test_partitions_of_one_function_are_told_apart(tmp_path):
    module = changed(
        "pingpong", BUGS["pingpong: both wait for their first turn"]["edits"], tmp_path
    )
    with simulating(), pytest.raises(Hazard) as caught:
        gluon_cases.pingpong(module)
    assert "turn_consumer 0: waits " in str(caught.value)
    assert "turn_consumer 1: waits " in str(caught.value)


def test_a_kernel_without_partitions_is_called_the_kernel(tmp_path):
    module = changed("tma", BUGS["tma: no mbarrier wait"]["edits"], tmp_path)
    with simulating(), pytest.raises(Hazard, match="^missing-wait: the kernel reads tiles"):
        gluon_cases.tma(module)


def test_a_program_that_never_ends_is_named(tmp_path):
    edits = [{"find": "        row = ahead\n", "replace": ""}]
    module = changed("layernorm", edits, tmp_path)
    with simulating(most_steps=2000), pytest.raises(Hazard, match="^endless: ") as caught:
        gluon_cases.layernorm(module)
    assert caught.value.now is not None


def test_a_phase_that_is_no_parity_is_named(tmp_path):
    edits = [{"find": "(k // STAGES) & 1)", "replace": "k // STAGES)"}]
    module = changed("gemm", edits, tmp_path)
    with simulating(), pytest.raises(Hazard, match="^wrong-phase: waits for parity 2 of full"):
        gluon_cases.gemm(module, 64, 64, 448)


def test_collected_hazards_do_not_end_the_run_and_spoil_its_result(tmp_path):
    module = changed("layernorm", BUGS["cp.async: no wait"]["edits"], tmp_path)
    with simulating(collect=True) as simulator:
        got, _, _ = gluon_cases.layernorm(module)
    assert simulator.hazards[0].name == "missing-wait"
    assert got.isnan().any()


def test_who_has_hazards_kept_from_inside_gains_nothing(tmp_path):
    module = changed("layernorm", BUGS["cp.async: no wait"]["edits"], tmp_path)

    def keep_and_run():
        with simulating() as simulator:
            simulator.settings = replace(simulator.settings, collect=True)
            gluon_cases.layernorm(module)

    with pytest.raises(Hazard, match="^missing-wait: "):
        keep_and_run()


def test_a_wrong_result_without_a_hazard_is_just_wrong(tmp_path):
    edits = [{"find": "row, j * BN, S", "replace": "row, (j - 1) * BN, S"}]
    module = changed("fa3", edits, tmp_path)
    with simulating(), pytest.raises(AssertionError):
        gluon_cases.fa3(module)


# ---- counts --------------------------------------------------------------------------------


def test_overlap_is_counted_without_a_clock(tmp_path, modules):
    exposed = changed("fa3", VARIANTS["fa3: waits for both products"]["edits"], tmp_path)
    hidden = []
    for module in (modules[FILES["fa3"]], exposed):
        with gluon_meter() as meter:
            gluon_cases.fa3(module, length=512)
        hidden.append(meter.overlap("exp2", under="wgmma"))
    assert hidden == [7 / 8, 0]


def test_overlap_with_what_the_same_partition_has_in_flight(modules):
    # the consumer multiplies, the producer loads: each has only its own work in flight
    with gluon_meter() as meter:
        gluon_cases.ws(modules[FILES["ws"]])
    assert meter.overlap("TMA load", under="wgmma", own=True) == 0
    assert meter.overlap("TMA load", under="wgmma") > 0
    products = meter.overlap("wgmma", under="wgmma", own=True)
    assert products == meter.overlap("wgmma", under="wgmma") > 0


def test_more_stages_keep_more_bytes_in_flight(modules):
    found = []
    for stages in (2, 3, 4):
        with gluon_meter() as meter:
            gluon_cases.gemm(modules[FILES["gemm"]], 64, 64, 1024, stages)
        found.append(meter.bytes_in_flight)
    assert found == sorted(set(found))


def test_bytes_flops_and_shared_memory_are_those_of_the_kernel(modules):
    with gluon_meter() as meter:
        gluon_cases.gemm(modules[FILES["gemm"]], 128, 64, 192)
    # two programs: a tile of A and one of B for each of three steps, and one of C
    assert meter.loaded_bytes == 2 * 3 * 2 * 64 * 64 * 2
    assert meter.stored_bytes == 128 * 64 * 2
    assert meter.sectors == meter.bytes_moved // 32
    assert meter.flops == 2 * 128 * 64 * 192
    assert meter.shared_bytes == (3 * 2 + 1) * 64 * 64 * 2 + 3 * 8
    assert (meter.launches, meter.programs) == (1, 2)


def test_the_footprint_of_programs_counts_a_box_that_they_share_once(modules):
    with gluon_meter() as meter:
        for _ in range(2):  # what another launch loads counts again
            gluon_cases.gemm(modules[FILES["gemm"]], 128, 192, 64)
    box = 64 * 64 * 2
    # 2 x 3 tiles: one program, a tile column, all of them, and more than there are
    assert meter.footprint(1) == 2 * box
    assert meter.footprint(2) == (2 + 1) * box
    assert meter.footprint(6) == (2 + 3) * box
    with gluon_meter() as meter:
        gluon_cases.gemm(modules[FILES["gemm"]], 128, 192, 64)
    assert meter.footprint(132) == (2 + 3) * box


def test_what_lies_out_of_bounds_moves_no_bytes(modules):
    with gluon_meter() as meter:
        gluon_cases.tma(modules[FILES["tma"]], rows=17, cols=72)
    assert meter.loaded_bytes == meter.stored_bytes == 17 * 72 * 2


def test_operators_of_pytorch_count_beside_the_kernels(modules):
    with gluon_meter() as meter, meter.operators:
        out, _, _ = gluon_cases.tma(modules[FILES["tma"]], rows=16, cols=64)
    assert meter.loaded_bytes > out.nbytes


def test_launches_outside_run_nowhere_else(modules):
    with simulating() as outer:
        with simulating() as inner:
            gluon_cases.tma(modules[FILES["tma"]])
        assert inner.tally.launches == 1
    assert outer.tally.launches == 0
