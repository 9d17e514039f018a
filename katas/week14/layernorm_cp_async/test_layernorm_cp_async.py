"""What is copied when, what a launch needs, and what the variance survives."""

from itertools import product

import pytest
import torch

from harness.judge import assert_matches

H200 = {
    "sms": 132,
    "smem_per_sm_bytes": 233_472,
    "smem_per_block_bytes": 232_448,
    "bandwidth": 4.8e12,
}
A100 = {
    "sms": 108,
    "smem_per_sm_bytes": 167_936,
    "smem_per_block_bytes": 166_912,
    "bandwidth": 2.04e12,
}
RTX_4090 = {
    "sms": 128,
    "smem_per_sm_bytes": 102_400,
    "smem_per_block_bytes": 101_376,
    "bandwidth": 1.008e12,
}
GPUS = {"h200": H200, "a100": A100, "rtx_4090": RTX_4090}
# with rows of 1 KiB two blocks of seven stages, or one of eight; its memory is never kept busy
NARROW = {
    "sms": 2,
    "smem_per_sm_bytes": 17_408,
    "smem_per_block_bytes": 16_384,
    "bandwidth": 1e12,
}
gpus = pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)


def resident(threads, shared_bytes, gpu):
    """Blocks of a multiprocessor."""
    by_registers = 65_536 // (128 * threads)
    return min(by_registers, gpu["smem_per_sm_bytes"] // (shared_bytes + 1024))


def plain(x):
    return torch.ones_like(x[0]), torch.zeros_like(x[0])


# ---- results -----------------------------------------------------------------------------------


def test_layernorm_by_hand(kata, device):
    # mean 5, distances 1 and 3, so a variance of 5; with eps = 11 a deviation of 4
    x = torch.tensor([[2.0, 4.0, 6.0, 8.0] * 2] * 3, device=device).half()
    gamma = torch.arange(8.0, device=device).half()
    y = kata.layernorm_cp_async(x, gamma, 2 * gamma, 11.0, grid=2)
    scaled = torch.tensor([-0.75, -0.25, 0.25, 0.75] * 2) * torch.arange(8.0)
    assert_matches(y, (scaled + 2 * torch.arange(8.0)).expand(3, 8))


def test_a_mean_far_from_zero_leaves_the_variance(kata, device):
    # E[x²] is 10^6, which float32 holds to within 0.06, and the variance 0.25
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0], device=device)
    x = (1000 + 0.5 * signs.repeat(3, 64)).half()
    y = kata.layernorm_cp_async(x, *plain(x), 1e-5, grid=2)
    assert_matches(y, 2 * (x.cpu().double() - 1000) * (0.25 / (0.25 + 1e-5)) ** 0.5)


def test_nothing_is_rounded_before_the_shift(kata, device):
    # 0.5002 lies between two numbers of float16, of which 64 are 32 and 32.03
    x = torch.tensor([[-1.0, 1.0] * 8], device=device).half()
    gamma, beta = torch.full_like(x[0], 64), torch.full_like(x[0], -32)
    y = kata.layernorm_cp_async(x, gamma, beta, 1 / 0.5002**2 - 1, grid=1)
    assert y[0, 1::2].tolist() == pytest.approx([64 * 0.5002 - 32] * 8, rel=0.01)


def test_a_constant_row_is_beta(kata, device):
    # float32 holds the sum of 56 of each, and the quotient; 3 * 56 * (1 / 56) it rounds
    x = torch.tensor([0.0, 3.0, 0.1, -512.0], device=device)[:, None].repeat(1, 56).half()
    gamma, beta = torch.randn(2, 56, device=device).half()
    y = kata.layernorm_cp_async(x, gamma, beta, 1e-12, grid=2)
    assert y.tolist() == beta.expand(4, 56).tolist()


def test_a_nan_spoils_only_its_row(kata, device):
    x = torch.randn(6, 64, device=device).half()
    x[1, 5], x[4, 63] = float("nan"), float("inf")
    y = kata.layernorm_cp_async(x, *plain(x), grid=2, stages=2)
    assert y.isnan().all(dim=1).tolist() == [False, True, False, False, True, False]
    assert y.isfinite().all(dim=1).tolist() == [True, False, True, True, False, True]


def test_warps_may_run_in_any_order(kata, oracle, ptx, seed):
    inputs = oracle.make_inputs(
        rows=6, cols=520, dtype=torch.float16, device="cpu", seed=seed, grid=1, stages=3
    )
    with ptx(schedule=seed):
        y = kata.layernorm_cp_async(**inputs)
    assert_matches(y, oracle.reference(**inputs), same_precision=oracle.same_precision(**inputs))


# ---- copies ------------------------------------------------------------------------------------


def test_each_row_is_copied_once_and_ahead(kata, ptx, cost):
    x = torch.randn(12, 512).bfloat16()
    with ptx() as p:
        kata.layernorm_cp_async(x, *plain(x), grid=1, stages=4)
    copied = p.counters["cp_async_bytes"]
    assert copied == 12 * 1024, f"12 rows of 1024 bytes: {copied} bytes by cp.async"
    cost.check("left_in_flight", p.bytes_left_in_flight)


@pytest.mark.parametrize("grid", [2, 7], ids=["fewer than rows", "more than rows"])
def test_grid_and_stages_are_those_asked_for(kata, ptx, grid):
    x = torch.randn(5, 512).half()
    with ptx() as p:
        kata.layernorm_cp_async(x, *plain(x), grid=grid, stages=5)
    config = p.launched[0].config
    assert (config.grid[0], config.shared_bytes) == (grid, 5 * 1024 + 64)


@pytest.mark.parametrize("rows", [1, 9], ids=["one row", "nine rows"])
def test_without_them_launch_config_says_for_this_gpu(kata, ptx, monkeypatch, rows):
    small = kata.Gpu(sms=2, smem_per_sm_bytes=9216, smem_per_block_bytes=8192, bandwidth=1e9)
    monkeypatch.setattr(kata, "this_gpu", lambda: small)
    x = torch.randn(rows, 512).half()
    with ptx() as p:
        kata.layernorm_cp_async(x, *plain(x))
    config, asked = p.launched[0].config, kata.launch_config(rows, 512, 2, small)
    found = config.grid[0], config.block[0], config.shared_bytes
    assert found == (asked.grid, asked.threads, asked.shared_bytes)


def test_stages_may_fill_the_shared_memory(kata, ptx, monkeypatch):
    # seven rows of 1024 bytes and the scratch, to the byte
    small = kata.Gpu(sms=2, smem_per_sm_bytes=9216, smem_per_block_bytes=7232, bandwidth=1e9)
    monkeypatch.setattr(kata, "this_gpu", lambda: small)
    x = torch.randn(1, 512).half()
    with ptx() as p:
        kata.layernorm_cp_async(x, *plain(x), stages=7)
    assert p.launched[0].config.shared_bytes == 7232
    with pytest.raises(ValueError, match="^stages: "):
        kata.layernorm_cp_async(x, *plain(x), stages=8)


def test_without_rows_nothing_is_launched(kata, ptx):
    x = torch.empty(0, 64).half()
    with ptx() as p:
        y = kata.layernorm_cp_async(x, torch.ones(64).half(), torch.zeros(64).half())
    assert (tuple(y.shape), p.launches) == ((0, 64), 0)


@pytest.mark.parametrize("name", ["x", "gamma", "beta"])
def test_pieces_begin_at_multiples_of_16_bytes(kata, device, name):
    given = {"x": torch.ones(1, 64), "gamma": torch.ones(64), "beta": torch.ones(64)}
    given = {key: one.to(device).half() for key, one in given.items()}
    shifted = torch.ones(68, device=device).half()[4:]
    given[name] = shifted.reshape(given[name].shape)
    with pytest.raises(ValueError, match=f"^{name}: .*16"):
        kata.layernorm_cp_async(**given)


def test_a_single_row_has_a_stride_as_well(kata, device):
    x = torch.ones(80, device=device).half().as_strided((1, 64), (68, 1))
    with pytest.raises(ValueError, match="^x: .*16"):
        kata.layernorm_cp_async(x, *plain(x))


def test_rows_may_lie_apart(kata, device):
    wide = torch.randn(4, 88, device=device).half()  # 11 pieces
    near = wide[:, 8:72].contiguous()
    found = kata.layernorm_cp_async(wide[:, 8:72], *plain(near), grid=2)
    assert torch.equal(found, kata.layernorm_cp_async(near, *plain(near), grid=2))


# ---- the launch --------------------------------------------------------------------------------


# from a row of 1 KiB to the longest of which two fit
@gpus
def test_enough_bytes_are_in_flight(kata, gpu):
    for cols in (512, 776, 2048, 4096, 6152, 12000, 25000):
        config = kata.launch_config(10**6, cols, 2, kata.Gpu(**gpu))
        flying = config.grid * (config.stages - 1) * cols * 2
        wanted = gpu["bandwidth"] * 1e-6
        assert flying >= wanted, (
            f"{cols} columns, {config}: {flying} bytes in flight, expected at least {wanted:.0f}"
        )


@pytest.mark.parametrize("gpu", [*GPUS.values(), NARROW], ids=[*GPUS, "narrow"])
def test_the_fewest_stages_that_do(kata, gpu):
    for cols in (8, 256, 512, 776, 2048):
        config = kata.launch_config(10**6, cols, 2, kata.Gpu(**gpu))
        flying = {}
        for stages in range(2, 9):
            shared_bytes = 64 + stages * cols * 2
            if shared_bytes <= gpu["smem_per_block_bytes"]:
                blocks = gpu["sms"] * resident(config.threads, shared_bytes, gpu)
                flying[stages] = blocks * (stages - 1) * cols * 2
        wanted = gpu["bandwidth"] * 1e-6
        enough = [stages for stages, amount in flying.items() if amount >= wanted]
        want = enough[0] if enough else max(flying, key=flying.get)
        assert config.stages == want, (
            f"{cols} columns: {config.stages} stages, expected {want}; {wanted:.0f} bytes are "
            f"wanted in flight, with so many stages there are {flying}"
        )


@gpus
def test_all_blocks_fit_and_have_rows(kata, gpu):
    for rows, cols in product((1, 100, 257, 10**6), (8, 248, 256, 4096, 25000)):
        config = kata.launch_config(rows, cols, 2, kata.Gpu(**gpu))
        told = f"{rows} rows of {cols} columns: {config}"
        assert 2 <= config.stages <= 8, told
        assert config.shared_bytes == config.stages * cols * 2 + 64, told
        assert config.shared_bytes <= gpu["smem_per_block_bytes"], told
        assert config.threads in range(32, 257, 32), told
        room = gpu["sms"] * resident(config.threads, config.shared_bytes, gpu)
        assert min(rows, gpu["sms"]) <= config.grid <= min(rows, room), (
            f"{told}: {room} blocks fit at once"
        )


def test_a_row_gets_a_thread_for_each_piece(kata):
    threads = [kata.launch_config(9, cols, 2, kata.Gpu(**H200)).threads for cols in (8, 256, 264)]
    assert threads == [32, 32, 64], f"1, 32 and 33 pieces: {threads} threads"


def test_the_longest_row_has_two_stages(kata):
    gpu = kata.Gpu(**{**A100, "smem_per_block_bytes": 2 * 4096 + 64})
    assert kata.launch_config(9, 2048, 2, gpu).stages == 2
    assert kata.launch_config(9, 1024, 4, gpu).stages == 2
    for cols, itemsize in ((2056, 2), (1028, 4)):
        with pytest.raises(ValueError, match="^cols: "):
            kata.launch_config(9, cols, itemsize, gpu)


def test_no_rows_have_no_launch(kata):
    with pytest.raises(ValueError, match="^rows: "):
        kata.launch_config(0, 512, 2, kata.Gpu(**H200))
