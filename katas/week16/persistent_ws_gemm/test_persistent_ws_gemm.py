"""What is special about specialized warps: who loads, who multiplies, what goes on meanwhile."""

import re

import pytest
import torch

BUILD = {"m": 8192, "n": 8192, "k": 8192, "dtype": "float16"}  # a case of kata.toml: built once


def integers(generator, *shape):
    """Small ones, so that every product and sum is exact."""
    return torch.randint(-3, 4, shape, generator=generator).half()


def ones(*, m, n, k):
    return torch.ones(m, k, dtype=torch.float16), torch.ones(k, n, dtype=torch.float16)


# ---- sums ----------------------------------------------------------------------------------


def test_small_integers_are_exact(kata, device, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = (integers(generator, *shape).to(device) for shape in ((140, 200), (200, 136)))
    assert torch.equal(kata.persistent_ws_gemm(a, b).double(), a.double() @ b.double())


def test_products_are_summed_in_float32(kata, device):
    # 513 terms of 10^4, then 511 of -10^4: far past float16 on the way, 20000 in the end
    a = torch.full((2, 1024), 100.0, dtype=torch.float16, device=device)
    b = torch.full((1024, 8), 100.0, dtype=torch.float16, device=device)
    b[513:] *= -1
    assert kata.persistent_ws_gemm(a, b).tolist() == [[20000.0] * 8] * 2


def test_nan_stays_in_its_row_and_column(kata, device):
    a = torch.ones(20, 40, dtype=torch.float16, device=device)
    b = torch.ones(40, 24, dtype=torch.float16, device=device)
    a[3, 7] = b[7, 5] = float("nan")
    want = torch.zeros(20, 24, dtype=torch.bool, device=device)
    want[3] = want[:, 5] = True
    assert torch.equal(kata.persistent_ws_gemm(a, b).isnan(), want)


def test_overflow_is_infinite(kata, device):
    a = torch.tensor([[256.0], [-256.0]], device=device).half() * torch.eye(1, 8, device=device)
    b = torch.full((8, 8), 256.0, dtype=torch.float16, device=device)
    inf = float("inf")
    assert kata.persistent_ws_gemm(a.half(), b).tolist() == [[inf] * 8, [-inf] * 8]


# ---- memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "cols", "strides", "first"),
    [
        pytest.param(64, 64, (64, 1), 4, id="address"),
        pytest.param(64, 64, (68, 1), 0, id="pitch"),
        pytest.param(1, 64, (68, 1), 0, id="pitch of one row"),
        pytest.param(64, 1, (64, 8), 0, id="stride of one column"),
    ],
)
@pytest.mark.parametrize("of", ["a", "b"])
def test_what_tma_cannot_address_is_refused(kata, device, of, rows, cols, strides, first):
    ones = torch.ones(80 * 64, dtype=torch.float16, device=device)
    operands = {
        "a": ones.as_strided((8, rows), (64, 1)),
        "b": ones.as_strided((cols, 8), (64, 1)),
        of: ones.as_strided((rows, cols), strides, first),
    }
    with pytest.raises(ValueError, match=f"^{of}: "):
        kata.persistent_ws_gemm(**operands)


def test_empty_operands_may_lie_anywhere(kata, device):
    a = torch.ones(3, 1, dtype=torch.float16, device=device)[:, 1:]
    b = torch.ones(17, dtype=torch.float16, device=device)[1:].as_strided((0, 8), (1, 2))
    assert kata.persistent_ws_gemm(a, b).tolist() == [[0.0] * 8] * 3


@pytest.mark.parametrize("rows", [8, 0], ids=["eight rows", "no rows"])
def test_result_that_tma_cannot_take_is_refused(kata, device, rows):
    # b itself would do: its rows lie 16 elements apart
    a = torch.ones(rows, 8, dtype=torch.float16, device=device)
    b = torch.ones(8, 16, dtype=torch.float16, device=device)[:, :12]
    with pytest.raises(ValueError, match="^b: "):
        kata.persistent_ws_gemm(a, b)


def test_rows_with_gaps_are_read_in_place(kata, dispatch, device):
    wide = torch.ones(72, 144, dtype=torch.float16, device=device)
    with dispatch() as counted:
        c = kata.persistent_ws_gemm(wide[:, :72], wide[:, 72:])
    assert c.tolist() == [[72.0] * 72] * 72
    assert counted.allocated_bytes == 72 * 72 * 2


# ---- producer and consumers ----------------------------------------------------------------


def test_programs_stay_for_several_tiles(kata, hazards, cost):
    with hazards() as seen:
        kata.persistent_ws_gemm(*ones(m=256, n=192, k=64))
    cost.check("programs", seen.programs)


@pytest.mark.parametrize("programs", [1, 2, 5])
def test_any_number_of_programs_makes_all_tiles(kata, monkeypatch, device, seed, programs):
    monkeypatch.setattr(kata, "_programs", lambda a: programs)
    generator = torch.Generator().manual_seed(seed)
    a, b = (integers(generator, *shape).to(device) for shape in ((258, 40), (40, 136)))
    assert torch.equal(kata.persistent_ws_gemm(a, b).double(), a.double() @ b.double())


# twelve tiles, four for each of three programs
TILES = {"m": 512, "n": 192, "k": 96}


def test_loads_run_ahead_under_the_store(kata, hazards, cost):
    with hazards() as seen:
        kata.persistent_ws_gemm(*ones(**TILES))
    cost.check("store under loads", seen.overlap("TMA store", under="TMA load"))


def test_the_next_tile_does_not_wait_for_the_store(kata, hazards, cost):
    with hazards() as seen:
        kata.persistent_ws_gemm(*ones(**TILES))
    cost.check("products under a store", seen.overlap("wgmma", under="TMA store"))
    cost.check("store under a store", seen.overlap("TMA store", under="TMA store"))


def test_a_product_is_under_way_when_the_next_begins(kata, hazards, cost):
    with hazards() as seen:
        kata.persistent_ws_gemm(*ones(**TILES))
    cost.check("product under a product", seen.overlap("wgmma", under="wgmma", own=True))


def test_the_last_slot_is_free_before_the_store(kata, hazards, cost):
    found = []
    for seed in range(8):  # how far loads get depends on who has which turn
        with hazards(policy="late", seed=seed) as seen:
            kata.persistent_ws_gemm(*ones(**TILES))
        found.append(seen.bytes_in_flight)
    cost.check("bytes_in_flight", sum(found) / len(found))


def test_every_byte_travels_by_tma(kata, hazards):
    a, b = ones(m=128, n=64, k=128)
    with hazards() as seen:
        c = kata.persistent_ws_gemm(a, b)
    assert seen.amount("TMA load") == a.nbytes + b.nbytes
    assert seen.amount("TMA store") == c.nbytes


# ---- what is built for sm_90 ---------------------------------------------------------------


def test_products_are_wide_wgmma_on_sm_90(kata, compiled):
    (built,) = compiled(target="sm_90", **BUILD)
    widths = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.f16\.f16", built.ptx)
    assert widths
    assert min(map(int, widths)) >= 128


def test_a_product_stays_in_flight_on_sm_90(kata, compiled):
    (built,) = compiled(target="sm_90", **BUILD)
    assert re.search(r"wgmma\.wait_group\.sync\.aligned\s+[1-7];", built.ptx)


def test_registers_go_from_the_producer_to_the_consumers(kata, compiled):
    (built,) = compiled(target="sm_90", **BUILD)
    kept = re.findall(r"setmaxnreg\.dec\.sync\.aligned\.u32\s+(\d+)", built.ptx)
    assert min(map(int, kept), default=255) <= 40


def test_a_block_has_two_consumer_warpgroups_and_a_producer(kata, compiled):
    # warps of the partitions besides the first come in fours
    (built,) = compiled(target="sm_90", **BUILD)
    assert ".reqntid 384" in built.ptx
