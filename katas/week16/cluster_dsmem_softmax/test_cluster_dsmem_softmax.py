"""How rows are divided, what crosses between blocks, and what infinities become."""

import pytest
import torch

from harness.judge import assert_matches

HOPPER = (233_472, 232_448)  # shared memory of a multiprocessor, and of a block
INF = float("inf")


def in_shared(cols, itemsize, cluster):
    """Bytes of a block: 512 of scratch, and its share in whole pieces."""
    share = -(-cols // cluster)
    return 512 + -(-share * itemsize // 16) * 16


def chosen(cols, itemsize, per_sm, per_block):
    """Blocks of a cluster, by trying all; None where none holds the row."""
    for cluster in (1, 2, 4, 8):
        bytes_ = in_shared(cols, itemsize, cluster)
        if bytes_ <= per_block and 2 * (bytes_ + 1024) <= per_sm:
            return cluster
    for cluster in (1, 2, 4, 8, 16):
        if in_shared(cols, itemsize, cluster) <= per_block:
            return cluster
    return None


# ---- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", [1, 4])
def test_rows_sum_to_one(kata, device, cluster):
    x = torch.randn(3, 500, device=device) * 10
    sums = kata.cluster_dsmem_softmax(x, cluster).double().sum(dim=1)
    assert sums.tolist() == pytest.approx([1] * 3, abs=1e-5)


@pytest.mark.parametrize("shift", [1e4, -1e4], ids=["large", "small"])
def test_logits_far_from_zero_stay_finite(kata, device, oracle, shift):
    x = (torch.randn(2, 300, device=device) + shift).contiguous()
    y = kata.cluster_dsmem_softmax(x, 4)
    assert_matches(y, oracle.reference(x=x), same_precision=oracle.same_precision(x=x))


def test_shares_far_apart_are_merged_around_one_maximum(kata, device, oracle):
    # each of four shares has a maximum of its own, up to 60 below that of the row
    steps = torch.tensor([-60.0, -3.0, 0.0, -20.0], device=device).repeat_interleave(64)
    x = torch.randn(2, 256, device=device) + steps
    y = kata.cluster_dsmem_softmax(x, 4)
    assert_matches(y, oracle.reference(x=x), same_precision=oracle.same_precision(x=x))


@pytest.mark.parametrize("cluster", [1, 4])
def test_masked_rows(kata, device, cluster):
    x = torch.full((3, 256), -INF, device=device)
    x[0, 200] = -5.0
    x[1, 3], x[1, 255] = 7.0, 7.0
    y = kata.cluster_dsmem_softmax(x, cluster)
    assert y[0].nonzero().tolist() == [[200]]
    assert [y[0, 200].item(), y[1, 3].item(), y[1, 255].item(), y[1].sum().item()] == [
        1,
        0.5,
        0.5,
        1,
    ]
    assert y[2].isnan().all(), f"a row of -inf alone: expected NaN, found {y[2]}"


def test_a_nan_in_a_masked_share_spoils_the_row(kata, device):
    x = torch.randn(2, 256, device=device)
    x[:, :64] = -INF  # the first of four shares
    x[0, 10] = float("nan")
    assert kata.cluster_dsmem_softmax(x, 4).isnan().sum(dim=1).tolist() == [256, 0]


def test_the_result_is_rounded_once(kata, device, oracle):
    x = torch.randn(2, 256, device=device).half()
    y, truth = kata.cluster_dsmem_softmax(x, 2).cpu().double(), oracle.reference(x=x).cpu()
    ulp = 2.0 ** (truth.log2().floor() - 10).clamp(min=-24)
    off = ((y - truth).abs() / ulp).max().item()
    assert off <= 0.52, f"expected each result within half an ulp of float16, found {off:.2f} ulp"


def test_a_single_column_may_have_any_stride(kata, device):
    x = torch.randn(1, 5, device=device).T
    assert kata.cluster_dsmem_softmax(x).tolist() == [[1.0]] * 5


def test_a_tensor_may_begin_anywhere(kata, device, oracle):
    x = torch.randn(1025, device=device)[1:].reshape(2, 512)
    y = kata.cluster_dsmem_softmax(x, 2)
    assert_matches(y, oracle.reference(x=x), same_precision=oracle.same_precision(x=x))


def test_nan_and_infinity_spoil_their_row_alone(kata, device):
    x = torch.randn(4, 256, device=device)
    x[1, 70], x[2, 250] = float("nan"), INF
    y = kata.cluster_dsmem_softmax(x, 4)
    assert y.isnan().all(dim=1).tolist() == [False, True, True, False]
    assert y.isfinite().all(dim=1).tolist() == [True, False, False, True]


def test_warps_and_blocks_may_run_in_any_order(kata, oracle, ptx, seed):
    inputs = oracle.make_inputs(
        rows=2, cols=520, dtype=torch.float32, device="cpu", seed=seed, cluster=4
    )
    with ptx(schedule=seed):
        y = kata.cluster_dsmem_softmax(**inputs)
    assert_matches(y, oracle.reference(**inputs), same_precision=oracle.same_precision(**inputs))


# ---- between blocks ----------------------------------------------------------------------------


def test_one_exchange_for_each_row(kata, ptx, cost):
    x = torch.randn(2, 1024)
    with ptx() as p:
        kata.cluster_dsmem_softmax(x, 4)
    warps = 2 * 4 * p.launched[0].config.block[0] // 32
    cost.check("cluster_barriers", p.counters["cluster_barriers"] / warps)
    cost.check("dsmem_bytes", p.counters["dsmem_bytes"] / 2)


def test_a_row_is_one_cluster(kata, ptx):
    with ptx() as p:
        kata.cluster_dsmem_softmax(torch.randn(3, 1000), 4)
        kata.cluster_dsmem_softmax(torch.randn(3, 1000))
    grids = [(one.config.grid[0], one.config.cluster) for one in p.launched]
    assert grids == [(12, 4), (3, 1)]
    plan, config = kata.cluster_plan(1000, 4, kata.this_gpu(), 4), p.launched[0].config
    assert (config.block[0], config.shared_bytes) == (plan.threads, plan.shared_bytes)


def test_the_plan_is_that_of_this_gpu(kata, ptx, monkeypatch):
    small = kata.Gpu(40_960, 39_936)
    monkeypatch.setattr(kata, "this_gpu", lambda: small)
    with ptx() as p:
        kata.cluster_dsmem_softmax(torch.randn(1, 9000))
    plan, config = kata.cluster_plan(9000, 4, small), p.launched[0].config
    assert plan.cluster == 2
    assert (config.cluster, config.block[0], config.shared_bytes) == plan[:3]


def test_aligned_rows_go_by_16_bytes(kata, ptx):
    with ptx() as p:
        kata.cluster_dsmem_softmax(torch.randn(1, 1024), 2)
    requests = p.counters["global_load_requests"] + p.counters["global_store_requests"]
    assert requests == 16, f"4096 bytes in and out, 512 a warp: {requests} requests"


# ---- the plan ----------------------------------------------------------------------------------


@pytest.mark.parametrize("itemsize", [2, 4])
def test_the_plan_is_the_best_of_all(kata, itemsize):
    # around each size at which another cluster is chosen
    edges = [
        edge
        for cluster in (1, 2, 4, 8, 16)
        for room in (233_472 // 2 - 1024 - 512, 232_448 - 512)
        for edge in (cluster * room // itemsize // 8 * 8 + step for step in (-8, -1, 0, 1, 8))
    ]
    for cols in (1, 100, 1000, 131_072, 200_000, *edges):
        want = chosen(cols, itemsize, *HOPPER)
        if want is None:
            with pytest.raises(ValueError, match="^cols: "):
                kata.cluster_plan(cols, itemsize, kata.Gpu(*HOPPER))
            continue
        plan = kata.cluster_plan(cols, itemsize, kata.Gpu(*HOPPER))
        assert plan.cluster == want, f"{cols} columns of {itemsize} bytes: {plan}"
        assert plan.shared_bytes == in_shared(cols, itemsize, want), f"{cols} columns: {plan}"
        assert plan.portable == (want <= 8), f"{cols} columns: {plan}"


def test_the_plan_is_for_the_gpu_that_is_given(kata):
    small = kata.Gpu(102_400, 101_376)
    found = [
        kata.cluster_plan(cols, 4, small).cluster for cols in (12_000, 13_000, 100_000, 200_000)
    ]
    assert found == [chosen(cols, 4, *small) for cols in (12_000, 13_000, 100_000, 200_000)]
    # two blocks would find room in a multiprocessor, but a block may not have so much
    assert kata.cluster_plan(20_000, 4, kata.Gpu(233_472, 49_152)).cluster == 2
    with pytest.raises(ValueError, match="^cols: "):
        kata.cluster_plan(200_000, 4, kata.Gpu(233_472, 49_152))


def test_a_share_gets_a_thread_for_each_piece(kata):
    asked = [(8, 2), (256, 2), (264, 2), (1000, 4), (131_072, 4)]
    threads = [kata.cluster_plan(*one, kata.Gpu(*HOPPER)).threads for one in asked]
    assert threads == [32, 32, 64, 256, 512], f"1, 32, 33, 250 and 4096 pieces: {threads}"


def test_a_cluster_that_is_asked_for(kata):
    plan = kata.cluster_plan(1000, 4, kata.Gpu(*HOPPER), 16)
    assert plan == (16, 32, 512 + 256, False)
    assert kata.cluster_plan(57_000, 4, kata.Gpu(*HOPPER), 1).cluster == 1
    with pytest.raises(ValueError, match="^cols: "):
        kata.cluster_plan(59_000, 4, kata.Gpu(*HOPPER), 1)
