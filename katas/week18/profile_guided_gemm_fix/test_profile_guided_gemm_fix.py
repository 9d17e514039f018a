"""What is special here: flaws and gains by the model, and the counters that each fix moves."""

import copy
import math
import re

import pytest
import torch

BUILD = {"m": 8192, "n": 8192, "k": 8192, "dtype": "float16"}  # a case of kata.toml: built once

# of oracle.report(): 512 clocks of products a step, 5120 in all; 768 of the store
BUSY = 5120 + 768


# ---- which flaws ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["shipped", "small_tiles", "four_warps", "narrow", "one_slot", "mended"]
)
def test_reports_show_what_was_planted(kata, oracle, name):
    found = kata.diagnose(oracle.reports()[name])
    assert sorted(found) == sorted(oracle.PLANTED[name])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"load_overlap": 0.5}, []),
        ({"load_overlap": 0.49}, ["single_stage"]),
        ({"product_n": 64}, ["small_instr_n"]),
        ({"product_n": 64, "tile_n": 64}, []),
        ({"product_n": 128, "tile_n": 256}, []),
        ({"product_n": 32, "tile_n": 64}, ["small_instr_n"]),
        ({"wave_bytes": 560_000}, []),
        ({"wave_bytes": 570_000}, ["row_major_raster"]),
        ({"wave_bytes": 790_000, "blocks_per_sm": 2}, []),
        ({"wave_bytes": 800_000, "blocks_per_sm": 2}, ["row_major_raster"]),
        ({"bank_passes": 1}, ["smem_conflict_epilogue"]),
        ({"spill_bytes": 1}, ["spill"]),
        ({"tma_store_bytes": 32766}, ["sync_store"]),
    ],
    ids=[
        "none", "half of the loads", "less than half", "half of the tile", "all of a tile of 64",
        "128 of 256", "half of a tile of 64", "a wave of 1.49", "a wave of 1.51",
        "two blocks, 1.48", "two blocks, 1.50", "one more pass", "one byte", "one element",
    ],
)  # fmt: skip
def test_a_flaw_begins_where_the_brief_says(kata, oracle, change, expected):
    assert kata.diagnose(oracle.report(**change)) == expected


def test_flaws_come_in_the_order_of_their_gain(kata, oracle):
    # 5120, 1792 and 1536 of 14336 clocks
    report = oracle.report(spill_bytes=256, bank_passes=7, tma_store_bytes=0)
    gains = {flaw: kata.predicted_gain(flaw, report) for flaw in kata.diagnose(report)}
    assert list(gains) == ["spill", "smem_conflict_epilogue", "sync_store"]
    assert list(gains.values()) == sorted(gains.values(), reverse=True)


def test_equal_gains_come_by_name(kata, oracle):
    # what memory takes hides all else: mending any of these alone gains nothing
    report = oracle.report(
        wave_bytes=50_000_000, spill_bytes=4, load_overlap=0.0, product_n=64, bank_passes=1
    )
    assert kata.diagnose(report) == [
        "row_major_raster", "single_stage", "small_instr_n", "smem_conflict_epilogue", "spill",
    ]  # fmt: skip
    assert kata.predicted_gain("spill", report) == 1


# ---- what each gains -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "flaw", "expected"),
    [
        # a step's 32 KB arrive 700 + 512 clocks after they are asked for
        ({"load_overlap": 0.0}, "single_stage", (BUSY + 12120) / BUSY),
        ({"load_overlap": 0.25}, "single_stage", (BUSY + 9090) / BUSY),
        # a product of 16 columns takes 20 clocks instead of 8, of 32 24 instead of 16
        ({"product_n": 16}, "small_instr_n", (12800 + 768) / BUSY),
        ({"product_n": 32}, "small_instr_n", (7680 + 768) / BUSY),
        ({"product_n": 64, "tile_n": 256}, "small_instr_n", 1.0),
        ({"product_n": 16, "tile_n": 32}, "small_instr_n", (3200 + 768) / (1920 + 768)),
        ({"spill_bytes": 64}, "spill", (BUSY + 1280) / BUSY),
        ({"spill_bytes": 64, "threads": 128}, "spill", (BUSY + 640) / BUSY),
        ({"bank_passes": 7}, "smem_conflict_epilogue", (BUSY + 7 * 256) / BUSY),
        ({"tma_store_bytes": 0}, "sync_store", (BUSY - 512 + 2048) / BUSY),
        ({"tma_store_bytes": 16384}, "sync_store", (BUSY - 256 + 1024) / BUSY),
        # 2640 bytes a clock for all: longer than the tensor cores take, and shorter
        ({"wave_bytes": 2_640_000}, "row_major_raster", 10000 / BUSY),
        ({"wave_bytes": 600_000}, "row_major_raster", 1.0),
    ],
    ids=[
        "no load ahead", "a quarter ahead", "16 columns", "32 columns", "64 of 256 columns",
        "16 of 32 columns", "spills", "spills of half the threads", "conflicts", "stores",
        "half of the stores", "memory", "memory, hidden",
    ],
)  # fmt: skip
def test_a_gain_is_the_quotient_of_two_times(kata, oracle, change, flaw, expected):
    assert kata.predicted_gain(flaw, oracle.report(**change)) == pytest.approx(expected)


def test_other_blocks_hide_a_blocks_loads(kata, oracle):
    # alone 18008 clocks for a tile, shared by two 9004, by four 4502: then 5888 are left
    gains = [
        kata.predicted_gain("single_stage", oracle.report(load_overlap=0.0, blocks_per_sm=blocks))
        for blocks in (1, 2, 4)
    ]
    assert gains == pytest.approx([18008 / BUSY, 9004 / BUSY, 1.0])


def test_a_larger_wave_has_more_programs_to_share_it(kata, oracle):
    report = oracle.report(wave_bytes=2 * 2_640_000, blocks_per_sm=2)
    assert kata.predicted_gain("row_major_raster", report) == pytest.approx(10000 / BUSY)


def test_the_least_wave_is_a_square(kata, oracle):
    # so small a tile waits for memory even then
    report = oracle.report(tile_m=8, tile_n=16, product_n=16, wave_bytes=1_000_000,
                           store_bytes=256, tma_store_bytes=256)  # fmt: skip
    least = 2 * math.sqrt(132 * 8 * 16) * 64 * 2
    busy = 10 * 0.125 * 4 * 20 + 256 / 128 + 256 / 64
    assert busy < 10 * least / 2640
    found = kata.predicted_gain("row_major_raster", report)
    assert found == pytest.approx(1_000_000 / least, rel=1e-9)


def test_what_is_no_flaw_here_gains_nothing(kata, oracle):
    # a load in eight not ahead, a wave a little larger than a square: both cost, and are no flaws
    report = oracle.report(load_overlap=0.875, wave_bytes=500_000, product_n=128, tile_n=256)
    flaws = ["single_stage", "row_major_raster", "small_instr_n", "spill"]
    assert [kata.predicted_gain(flaw, report) for flaw in flaws] == [1, 1, 1, 1]


# ---- one after the other -------------------------------------------------------------------


def test_a_plan_profiles_again_after_each_step(kata, oracle):
    # the loads first; only then does memory show, and only then the tensor cores
    report = oracle.report(load_overlap=0.0, wave_bytes=2_640_000, product_n=32)
    steps = kata.plan(report)
    assert [flaw for flaw, _ in steps] == ["single_stage", "row_major_raster", "small_instr_n"]
    expected = [(7680 + 768 + 12120) / 10000, 10000 / 8448, 8448 / BUSY]
    assert [gain for _, gain in steps] == pytest.approx(expected)


def test_what_gained_most_at_first_may_gain_little_later(kata, oracle):
    # two blocks: loads hide behind the other's spills, and the other way round
    report = oracle.report(load_overlap=0.0, spill_bytes=520, blocks_per_sm=2, bank_passes=7)
    steps = kata.plan(report)
    assert [flaw for flaw, _ in steps] == ["spill", "single_stage", "smem_conflict_epilogue"]
    first = (BUSY + 1792 + 10400) / ((BUSY + 1792 + 12120) / 2)
    second = (BUSY + 1792 + 12120) / 2 / (BUSY + 1792)
    assert [gain for _, gain in steps] == pytest.approx([first, second, (BUSY + 1792) / BUSY])


@pytest.mark.parametrize("name", ["shipped", "four_warps", "one_slot", "mended"])
def test_a_plan_mends_every_flaw_once(kata, oracle, name):
    found = [flaw for flaw, _ in kata.plan(oracle.reports()[name])]
    assert sorted(found) == sorted(oracle.PLANTED[name])


def test_what_has_no_flaw_has_no_plan(kata, oracle):
    assert kata.plan(oracle.report()) == []


def test_reports_are_left_as_they_are(kata, oracle):
    report = oracle.reports()["shipped"]
    before = copy.deepcopy(report)
    kata.diagnose(report)
    kata.plan(report)
    assert report == before


# ---- what was not collected ----------------------------------------------------------------


@pytest.mark.parametrize("ask", ["diagnose", "plan", "predicted_gain"])
def test_a_report_that_lacks_something_is_refused(kata, oracle, ask):
    def refusal(report):
        arguments = ("spill", report) if ask == "predicted_gain" else (report,)
        try:
            return f"no error, but {getattr(kata, ask)(*arguments)}"
        except ValueError as error:
            return str(error)

    for section, fields in oracle.report().items():
        for name in fields:
            report = oracle.report()
            del report[section][name]
            assert re.match(f"{section}: .*{name}", refusal(report)), (
                f"a report without {name} of {section}: expected a ValueError '{section}: … {name} "
                f"…', found {refusal(report)}"
            )
        report = oracle.report()
        del report[section]
        assert refusal(report).startswith(f"{section}: "), (
            f"a report without {section}: expected a ValueError '{section}: …', "
            f"found {refusal(report)}"
        )


def test_more_than_is_needed_is_no_fault(kata, oracle):
    report = oracle.report(spill_bytes=4) | {"clock": {"hz": 1.8e9}}
    report["code"]["registers"] = 255
    assert kata.diagnose(report) == ["spill"]


def test_an_unknown_flaw_is_refused(kata, oracle):
    with pytest.raises(ValueError, match="^flaw: .*occupancy"):
        kata.predicted_gain("occupancy", oracle.report())


# ---- the counters that the fixes move ------------------------------------------------------


def test_products_are_summed_in_float32(kata, device):
    # 513 terms of 10^4, then 511 of -10^4: far past float16 on the way, 20000 in the end
    a = torch.full((2, 1024), 100.0, dtype=torch.float16, device=device)
    b = torch.full((1024, 8), 100.0, dtype=torch.float16, device=device)
    b[513:] *= -1
    assert kata.profile_guided_gemm_fix(a, b).tolist() == [[20000.0] * 8] * 2


def test_rows_of_the_result_follow_each_other(kata, device):
    a, b = (torch.ones(shape, dtype=torch.float16, device=device) for shape in ((3, 16), (16, 8)))
    c = kata.profile_guided_gemm_fix(a, b)
    assert c.stride() == (8, 1)


def test_loads_start_while_a_product_is_under_way(kata, hazards, cost):
    a, b = (torch.ones(shape, dtype=torch.float16) for shape in ((64, 512), (512, 128)))
    with hazards() as seen:
        kata.profile_guided_gemm_fix(a, b)
    cost.check("load overlap", seen.overlap("TMA load", under="wgmma"))


def test_every_byte_travels_by_tma(kata, hazards):
    a, b = (torch.ones(shape, dtype=torch.float16) for shape in ((64, 128), (128, 128)))
    with hazards() as seen:
        c = kata.profile_guided_gemm_fix(a, b)
    assert seen.amount("TMA load") == a.nbytes + b.nbytes
    assert seen.amount("TMA store") == c.nbytes


def test_the_result_is_stored_without_bank_conflicts(kata, hazards, cost):
    a, b = (torch.ones(shape, dtype=torch.float16) for shape in ((64, 32), (32, 128)))
    with hazards() as seen:
        kata.profile_guided_gemm_fix(a, b)
    cost.check("bank conflicts", seen.bank_conflicts)


def test_a_wave_of_programs_shares_what_it_loads(kata, hazards, cost):
    # 16 x 33 tiles: four waves of 132, which row by row are 4 x 33 tiles each
    a = torch.ones(16 * 64, 8, dtype=torch.float16)
    b = torch.ones(8, 33 * 128, dtype=torch.float16)
    with hazards() as seen:
        kata.profile_guided_gemm_fix(a, b)
    row_by_row = (4 * 64 + 33 * 128) * 8 * 2
    cost.check("wave", seen.footprint(132) / row_by_row)


def test_products_are_wide_wgmma_on_sm_90(kata, compiled):
    (built,) = compiled(target="sm_90", **BUILD)
    widths = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.f16\.f16", built.ptx)
    assert widths
    assert min(map(int, widths)) >= 128


def test_a_product_stays_in_flight_on_sm_90(kata, compiled):
    (built,) = compiled(target="sm_90", **BUILD)
    assert re.search(r"wgmma\.wait_group\.sync\.aligned\s+[1-7];", built.ptx)
