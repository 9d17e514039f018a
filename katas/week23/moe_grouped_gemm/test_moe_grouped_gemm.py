"""The list of tiles, what a group must not touch of its neighbours, and what the host waits for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

BUILD = {"rows": 32768, "experts": 8, "k": 4096, "n": 14336, "dtype": "bfloat16"}


# ---- the schedule --------------------------------------------------------------------------


def by_hand(counts, block_m):
    """Expert and first row of each tile."""
    tiles, row = [], 0
    for expert, count in enumerate(counts):
        tiles += [(expert, row + at) for at in range(0, count, block_m)]
        row += count
    return tiles


def assert_scheduled(kata, device, counts, block_m):
    offsets = [sum(counts[:at]) for at in range(len(counts) + 1)]
    offsets = torch.tensor(offsets, dtype=torch.int32, device=device)
    expert, row, num = kata.tile_schedule(offsets, sum(counts), block_m)
    want = by_hand(counts, block_m)
    rest = sum(counts) // block_m + len(counts) - len(want)
    for name, x in (("tile_expert", expert), ("tile_row", row), ("num_tiles", num)):
        assert x.dtype == torch.int32, f"{name}: expected int32, found {x.dtype}"
        assert x.device == offsets.device, f"{name}: found it on {x.device}"
    found = (expert.tolist(), row.tolist(), num.item())
    want = (
        [one for one, _ in want] + [-1] * rest, [at for _, at in want] + [-1] * rest, len(want)
    )  # fmt: skip
    assert found == want, f"groups of {counts}, block_m {block_m}: {found}, expected {want}"


@settings(max_examples=25)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=7), block_m=st.integers(1, 5))
def test_no_tile_has_rows_of_two_experts(kata, device, counts, block_m):
    assert_scheduled(kata, device, counts, block_m)


@pytest.mark.parametrize(
    "counts",
    [[0, 0, 0], [0, 128, 0], [127, 128, 129], [1] * 40, [128] * 8],
    ids=["nothing", "one expert", "around a tile", "a row each", "whole tiles"],
)
def test_groups_around_the_size_of_a_tile(kata, device, counts):
    assert_scheduled(kata, device, counts, 128)


@pytest.mark.parametrize("counts", [[2**31 - 2, 1], [0, 2**30 + 1, 3]], ids=str)
def test_as_many_rows_as_int32_counts(kata, device, counts):
    assert_scheduled(kata, device, counts, 2**20)


def test_the_host_does_not_wait(kata, oracle, device, seed, dispatch, cost):
    inputs = oracle.make_inputs(
        rows=40, experts=4, k=16, n=16, skew=1.0, dtype=torch.float16, device=device, seed=seed
    )
    with dispatch() as seen:
        kata.tile_schedule(inputs["offsets"], 40, 16)
        kata.moe_grouped_gemm(**inputs)
    cost.check("host_waits", seen.host_syncs)


def test_as_many_operators_for_any_number_of_experts(kata, device, dispatch):
    used = []
    for experts in (2, 60):
        offsets = torch.arange(experts + 1, dtype=torch.int32, device=device)
        with dispatch() as seen:
            kata.tile_schedule(offsets, experts, 16)
        used.append(sum(seen.calls.values()))
    assert used[0] == used[1], f"2 experts: {used[0]}, 60: {used[1]} operators of PyTorch"


# ---- products ------------------------------------------------------------------------------


def test_nothing_is_launched_for_an_empty_product(kata, device, traffic):
    offsets = torch.zeros(3, dtype=torch.int32, device=device)
    x, w = torch.ones(0, 8, device=device).half(), torch.ones(2, 8, 16, device=device).half()
    with traffic() as seen:
        assert kata.moe_grouped_gemm(x, w, offsets).shape == (0, 16)
    assert seen.launches == 0, f"no rows: {seen.launches} launches, expected none"


def test_weights_may_lie_past_31_bits(kata, device):
    # what lies between is never touched, and takes no memory on a CPU
    room = torch.empty(2 * (2**30 + 8) + 32, dtype=torch.float16, device=device)
    for stride in (2**30 + 8, 2**30 + 7):  # one that descriptors hold, one that they do not
        w = room.as_strided((3, 4, 8), (stride, 8, 1))
        w.copy_(torch.tensor([1.0, 2.0, 4.0]).view(3, 1, 1).expand(3, 4, 8))
        x = torch.ones(3, 4, dtype=torch.float16, device=device)
        offsets = torch.tensor([0, 1, 1, 3], dtype=torch.int32, device=device)
        found = kata.moe_grouped_gemm(x, w, offsets)
        assert found[:, 0].tolist() == [4.0, 16.0, 16.0], f"experts {stride} elements apart"


def test_sums_are_float32(kata, device):
    # 2049 terms of 10^4, then 2047 of -10^4: far past float16 on the way
    a = torch.full((16, 4096), 100.0, dtype=torch.float16, device=device)
    b = torch.full((4096, 8), 100.0, dtype=torch.float16, device=device)
    b[2049:] *= -1
    offsets = torch.tensor([0, 16], dtype=torch.int32, device=device)
    assert kata.moe_grouped_gemm(a, b[None], offsets).unique().tolist() == [20000.0]
    offsets = torch.tensor([0, 4096], dtype=torch.int32, device=device)
    assert kata.grouped_gemm_dw(a.T, b, offsets).unique().tolist() == [20000.0]


def test_a_gradient_of_no_rows_is_zero(kata, device):
    x = torch.full((4, 8), float("inf"), dtype=torch.float16, device=device)
    offsets = torch.tensor([0, 0, 4, 4], dtype=torch.int32, device=device)
    found = kata.grouped_gemm_dw(x, x, offsets)
    assert found[[0, 2]].unique().tolist() == [0.0], "experts 0 and 2 of 3 have no rows"


@pytest.mark.parametrize("name", ["x", "dy"])
def test_rows_of_the_next_expert_do_not_reach_back(kata, device, name):
    # they are in the same step of the sum; a zero of the other operand does not hide them
    operands = {key: torch.ones(6, 8, dtype=torch.float16, device=device) for key in ("x", "dy")}
    operands[name][3:] = float("inf")
    offsets = torch.tensor([0, 3, 6], dtype=torch.int32, device=device)
    found = kata.grouped_gemm_dw(**operands, offsets=offsets)[0].unique().tolist()
    assert found == [3.0], f"3 rows of ones, then 3 with {name} infinite: {found}, expected 3"


def test_products_run_on_tensor_cores(compiled):
    ptx = "".join(kernel.ptx for kernel in compiled(target="sm_90", **BUILD))
    assert "wgmma.mma_async" in ptx, "expected wgmma in the build for sm_90"


@pytest.mark.parametrize("k", [24, 19], ids=["by descriptor", "by pointers"])
def test_weights_of_the_next_expert_do_not_reach_back(kata, device, k):
    # they lie past the k of this one, where x has zeros
    x = torch.ones(20, k, dtype=torch.float16, device=device)
    w = torch.ones(2, k, 8, dtype=torch.float16, device=device)
    w[1] = float("nan")
    offsets = torch.tensor([0, 20, 20], dtype=torch.int32, device=device)
    found = kata.moe_grouped_gemm(x, w, offsets)
    assert found.unique().tolist() == [float(k)], f"weights of ones, then NaN: {found.unique()}"
