"""What a configuration needs, which ones are worth timing, and what a tuner does to its inputs."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

GPUS = ["a100", "rtx_4090", "l40s", "h100"]
SIZES = {
    "square": (4096, 4096, 4096),
    "deep": (512, 512, 32768),
    "flat": (16, 16384, 4096),
    "small": (256, 128, 64),
}


# ---- shared memory -------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90"])
def test_shared_memory_is_that_of_the_build(kata, oracle, arch):
    builds = oracle.builds(kata, arch)
    for one in kata.CONFIGS:
        found, want = kata.shared_bytes(one, 2, arch), builds[oracle.tile_of(one)].shared_bytes
        assert found == want, f"{one} on {arch}: expected {want} bytes, found {found}"


def test_shared_memory_of_other_configurations(kata, oracle):
    for (*tile, itemsize), (sm_80, sm_90) in oracle.COMPILED.items():
        for arch, want in (("sm_80", sm_80), ("sm_89", sm_80), ("sm_90", sm_90)):
            one = oracle.config(*tile)
            found = kata.shared_bytes(one, itemsize, arch)
            assert found == want, (
                f"{one}, {itemsize} bytes an element, on {arch}: expected {want} bytes, "
                f"found {found}"
            )


# ---- what is worth timing ------------------------------------------------------------------


def assert_pruned(kata, oracle, configs, sizes, limits, builds):
    """The right ones are kept, in the right order, and no more is compiled than has to be."""
    before = list(configs)
    compiler = oracle.Compiler(builds)
    found = [oracle.tile_of(one) for one in kata.prune(configs, *sizes, limits, compiler)]
    want = oracle.worth_timing(kata, before, sizes, limits, builds)
    assert found == want, f"prune for {sizes} on {limits}: expected {want}, found {found}"
    assert list(configs) == before, "configs: expected as it was, found changed"
    assert len(set(compiler.asked)) == len(compiler.asked), "a configuration was compiled twice"
    return compiler


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("gpu", GPUS)
def test_the_first_twelve_that_do_not_spill(kata, oracle, gpu, sizes):
    limits = kata.LIMITS[gpu]
    builds = oracle.builds(kata, limits.arch)
    assert_pruned(kata, oracle, kata.CONFIGS, sizes, limits, builds)


@given(
    sizes=st.tuples(*[st.sampled_from([1, 16, 64, 128, 1024, 4096, 8192])] * 3),
    sms=st.integers(1, 200),
    shared=st.sampled_from([36_864, 49_151, 49_152, 65_536, 98_303, 98_304, 232_448]),
    spilling=st.sets(st.integers(0, 39), max_size=39),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=20)
def test_any_kernel_on_any_gpu(kata, oracle, sizes, sms, shared, spilling, order):
    # other kernels spill elsewhere: only their code can tell
    limits = replace(kata.LIMITS["h100"], sms=sms, shared_bytes=shared)
    builds = {
        tile: replace(build, spills=64 * (place in spilling))
        for place, (tile, build) in enumerate(oracle.builds(kata, "sm_90").items())
    }
    if not oracle.worth_timing(kata, kata.CONFIGS, sizes, limits, builds):
        return
    configs = order.sample(kata.CONFIGS, k=40)
    assert_pruned(kata, oracle, configs, sizes, limits, builds)


def test_few_are_compiled(kata, oracle, cost):
    limits = kata.LIMITS["h100"]
    builds = oracle.builds(kata, "sm_90")
    compiler = assert_pruned(kata, oracle, kata.CONFIGS, SIZES["square"], limits, builds)
    cost.check("builds", len(compiler.asked))


@pytest.mark.parametrize(("room", "kept"), [(49_152, True), (49_151, False)], ids=["as", "under"])
def test_an_exact_fit_can_be_launched(kata, oracle, room, kept):
    # 3 stages of (32 + 64) * 128 * 2 bytes on sm_90, one of them in registers
    one, small = oracle.config(32, 64, 128, 3, 4), oracle.config(32, 64, 32, 4, 4)
    limits = replace(kata.LIMITS["h100"], shared_bytes=room)
    compiler = oracle.Compiler(oracle.builds(kata, "sm_90"))
    found = kata.prune([one, small], 512, 512, 512, limits, compiler)
    assert (one in found) == kept, f"{one} in {room} bytes: expected {kept}, found {one in found}"


def test_equal_predictions_keep_their_order(kata, oracle):
    tiles = [(64, 64, 64, stages, warps) for stages in (2, 3, 4) for warps in (4, 8)]
    builds = dict.fromkeys(tiles, kata.Build(registers=100, spills=0, shared_bytes=65_536))
    for order in (tiles, tiles[::-1]):
        configs = tuple(oracle.config(*tile) for tile in order)
        found = kata.prune(configs, 512, 512, 512, kata.LIMITS["h100"], oracle.Compiler(builds))
        assert [oracle.tile_of(one) for one in found] == order


def test_one_is_left_where_all_spill(kata, oracle):
    limits, sizes = kata.LIMITS["a100"], (4096, 4096, 4096)
    builds = {
        tile: replace(build, spills=0) for tile, build in oracle.builds(kata, "sm_80").items()
    }
    want = oracle.worth_timing(kata, kata.CONFIGS, sizes, limits, builds)[:1]
    # the others spill less
    compiler = oracle.Compiler(
        {tile: replace(one, spills=64 if tile in want else 8) for tile, one in builds.items()}
    )
    found = kata.prune(kata.CONFIGS, *sizes, limits, compiler)
    assert [oracle.tile_of(one) for one in found] == want
    assert len(set(compiler.asked)) == len(compiler.asked), "a configuration was compiled twice"


def test_what_no_program_may_have_is_told(kata, oracle):
    limits = replace(kata.LIMITS["h100"], shared_bytes=18_431)
    compiler = oracle.Compiler(oracle.builds(kata, "sm_90"))
    with pytest.raises(ValueError, match=r"^configs: .*\b18432\b.*\b18431\b"):
        kata.prune(tuple(reversed(kata.CONFIGS)), 4096, 4096, 4096, limits, compiler)
    assert compiler.asked == [], "compiled what cannot be launched"


# ---- the tuner -----------------------------------------------------------------------------


class Tuned:
    """A tuned kernel on a virtual GPU, whose fastest configuration a test may choose."""

    def __init__(self, kata, oracle, gpu="h100", spares=None, **limits):
        self.limits = replace(kata.LIMITS[gpu], **limits)
        self.builds = oracle.builds(kata, self.limits.arch)
        if spares:  # all others spill
            self.builds = {
                tile: replace(build, spills=0 if tile in spares else 64)
                for tile, build in self.builds.items()
            }
        self.compiler = oracle.Compiler(self.builds)
        self.virtual = oracle.VirtualKernel(kata.accumulate_kernel, self.builds, self.limits)
        self.fastest = None
        self.bench = oracle.Bench(
            self.virtual, lambda tile: 1.0 if tile == self.fastest else 2.0 + sum(tile)
        )
        self.kernel = kata.triton_autotune(
            self.virtual, kata.CONFIGS, self.limits, self.compiler, self.bench
        )
        self.kata, self.oracle = kata, oracle

    def add(self, m, n, k, fastest=None, dtype=torch.float16):
        """Add a product to c; return what was timed for it, and what it was added with."""
        self.fastest = fastest
        timed = len(self.bench.timed)
        c, a, b = self.oracle.operands(m, n, k, dtype=dtype)
        want = c + (a.double() @ b.double()).float()
        self.kata.add_matmul_(c, a, b, self.kernel)
        assert torch.equal(c, want), (
            f"c after c += a @ b of {m} x {n} x {k}: expected the product added once, found "
            f"{(c != want).sum()} of {c.numel()} elements off, by up to {(c - want).abs().max()}"
        )
        return self.bench.timed[timed:], self.virtual.log[-1]


@pytest.fixture
def tuned(kata, oracle):
    return lambda *gpu, **limits: Tuned(kata, oracle, *gpu, **limits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_tuning_adds_once(tuned, dtype):
    gpu = tuned()
    gpu.add(100, 70, 50, dtype=dtype)
    gpu.add(100, 70, 50, dtype=dtype)


def test_each_tile_has_a_program(tuned):
    gpu = tuned()
    gpu.add(300, 70, 50)
    for tile, grid in zip(gpu.virtual.log, gpu.virtual.grids, strict=True):
        want = (-(-300 // tile[0]), -(-70 // tile[1]))
        assert grid == want, f"grid of {tile} for 300 x 70: expected {want}, found {grid}"


@pytest.mark.parametrize("gpu", GPUS)
def test_the_fastest_is_found(kata, oracle, tuned, cost, gpu):
    virtual = tuned(gpu)
    sizes = (512, 256, 128)
    want = oracle.worth_timing(kata, kata.CONFIGS, sizes, virtual.limits, virtual.builds)
    timed, used = virtual.add(*sizes, fastest=want[-1])
    assert sorted(timed) == sorted(want)
    assert used == want[-1]
    cost.check("benches", len(timed))
    cost.check("refused", len(virtual.virtual.refused))


@pytest.mark.parametrize(
    "again",
    [(128, 128, 128), (65, 128, 128), (128, 65, 128), (128, 128, 65), (65, 66, 67)],
    ids=["the same", "other rows", "other columns", "another sum", "all"],
)
def test_a_bucket_is_tuned_once(tuned, cost, again):
    gpu = tuned()
    gpu.add(100, 100, 100)
    timed, _ = gpu.add(*again)
    cost.check("benches_again", len(timed))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((128, 128, 128), (129, 128, 128)),
        ((128, 128, 128), (128, 129, 128)),
        ((128, 128, 128), (128, 128, 129)),
        ((128, 128, 128), (64, 128, 128)),
        ((2, 2, 2), (1, 2, 2)),
        ((4, 4, 4), (4, 4, 3)),
    ],
    ids=["more rows", "more columns", "a longer sum", "fewer rows", "one row", "the same"],
)
def test_each_bucket_has_a_fastest_of_its_own(kata, oracle, tuned, one, other):
    gpu = tuned()
    first, second = oracle.worth_timing(kata, kata.CONFIGS, one, gpu.limits, gpu.builds)[:2]
    assert gpu.add(*one, fastest=first)[1] == first
    _, used = gpu.add(*other, fastest=second)
    assert used == (first if other == (4, 4, 3) else second)
    assert gpu.add(*one, fastest=second)[1] == first


def test_what_is_timed_does_not_depend_on_who_comes_first(tuned):
    # 129 rows are 3 tiles of 64, 256 are 4: their bucket is the same
    one, other = tuned(sms=5), tuned(sms=5)
    assert one.add(129, 129, 65)[0] == other.add(256, 256, 128)[0]


def test_each_bucket_is_pruned_for_its_own_sizes(kata, oracle, tuned):
    gpu = tuned(sms=5)
    for sizes in ((64, 64, 64), (256, 32, 128), (32, 256, 64)):
        timed, _ = gpu.add(*sizes)
        want = oracle.worth_timing(kata, kata.CONFIGS, sizes, gpu.limits, gpu.builds)
        assert sorted(timed) == sorted(want)


def test_a_configuration_is_compiled_once(tuned):
    gpu = tuned()
    for sizes in ((100, 100, 100), (300, 100, 100), (100, 1000, 20)):
        gpu.add(*sizes)
    asked = gpu.compiler.asked
    assert len(set(asked)) == len(asked), "a configuration was compiled again for another bucket"


def test_builds_differ_by_stages_and_by_warps(tuned):
    # each has a twin of the same blocks, which comes before it and spills
    spares = [(64, 64, 32, 5, 4), (64, 64, 128, 2, 8)]
    timed, _ = tuned(spares=spares).add(100, 100, 100)
    assert sorted(timed) == spares


def test_the_kernel_gets_what_was_given(kata, oracle, tuned):
    gpu = tuned()
    wide = oracle.operands(40, 40, 40)
    c, a, b = wide[0][:, :20], wide[1][:, :30], wide[2][:30, :20]
    kata.add_matmul_(c, a, b, gpu.kernel)
    for name, found, want in zip("cab", gpu.virtual.given, (c, a, b), strict=True):
        assert found.data_ptr() == want.data_ptr(), f"{name}: expected no copy, found one"


def test_two_gpus_know_nothing_of_each_other(kata, oracle, tuned):
    one, other = tuned("h100"), tuned("rtx_4090")
    one.add(256, 256, 256)
    timed, _ = other.add(256, 256, 256)
    want = oracle.worth_timing(kata, kata.CONFIGS, (256, 256, 256), other.limits, other.builds)
    assert sorted(timed) == sorted(want)
    assert other.compiler.asked, "expected the other GPU's builds to be read, found none were"


# ---- the real kernel -----------------------------------------------------------------------


@pytest.fixture
def add(kata, oracle, device):
    """Call `add_matmul_` with the real kernel, tuned over three small configurations."""

    def bench(call, quantiles):
        call()
        call()
        return [1.0] * 3

    configs = [oracle.config(*tile) for tile in ((32, 16, 16, 2, 4), (16, 16, 32, 2, 4))]
    configs.append(oracle.config(16, 32, 16, 2, 4))

    def call(c, a, b):
        build = kata.Build(registers=64, spills=0, shared_bytes=8192)
        tuned = kata.triton_autotune(
            kata.accumulate_kernel, configs, kata.LIMITS["h100"], lambda one: build, bench
        )
        return kata.add_matmul_(c, a, b, tuned)

    return call


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (16, 16, 16), (33, 20, 35)], ids=["one", "a tile", "ragged"]
)
def test_the_kernel_adds_once(oracle, device, add, m, n, k):
    c, a, b = oracle.operands(m, n, k, device=device)
    want = c + (a.double() @ b.double()).float()
    assert add(c, a, b) is c, "expected c itself to be returned"
    assert torch.equal(c, want), f"c: expected {want.tolist()}, found {c.tolist()}"


def test_strided_rows_are_added_in_place(oracle, device, add):
    wide = list(oracle.operands(40, 40, 40, device=device))
    before = [x.clone() for x in wide]
    c, a, b = wide[0][:18, :20], wide[1][:18, :9], wide[2][:9, :20]
    want = c + (a.double() @ b.double()).float()
    add(c, a, b)
    assert torch.equal(c, want)
    wide[0][:18, :20] = before[0][:18, :20]
    assert all(torch.equal(x, old) for x, old in zip(wide, before, strict=True)), (
        "wrote beside c, or into a or b"
    )


@pytest.mark.parametrize("sizes", [(0, 5, 5), (5, 0, 5), (5, 5, 0)], ids=["m", "n", "k"])
def test_nothing_is_added(kata, oracle, tuned, sizes):
    gpu = tuned()
    c, a, b = oracle.operands(*sizes)
    before = c.clone()
    assert kata.add_matmul_(c, a, b, gpu.kernel) is c
    assert torch.equal(c, before)
    assert gpu.virtual.log == gpu.bench.timed == [], "expected nothing to be launched"


def test_columns_with_one_element_may_have_any_stride(oracle, device, add):
    c, a, b = (x.as_strided(x.shape, (1, 7)) for x in oracle.operands(5, 1, 1, device=device))
    want = c + a.float() * b.float()
    add(c, a, b)
    assert torch.equal(c, want)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("a", torch.ones(4, 2)),
        ("a", torch.ones(4, 2, dtype=torch.int16)),
        ("a", torch.ones(2).half()),
        ("a", torch.ones(4, 4).half()[:, ::2]),
        ("b", torch.ones(2, 6).bfloat16()),
        ("b", torch.ones(1, 6).half()),
        ("b", torch.ones(2).half()),
        ("b", torch.ones(6, 2).half().T),
        ("c", torch.ones(4, 6).half()),
        ("c", torch.ones(4, 6).double()),
        ("c", torch.ones(4, 5)),
        ("c", torch.ones(1, 6)),
        ("c", torch.ones(6, 4)),
        ("c", torch.ones(6, 4).T),
    ],
    ids=[
        *("a float32", "a int16", "a 1-D", "a strided", "b bfloat16", "b too short", "b 1-D"),
        *("b transposed", "c float16", "c float64", "c too narrow", "c one row", "c turned"),
        "c transposed",
    ],
)
def test_operands_are_checked(kata, tuned, name, wrong):
    gpu = tuned()
    operands = {"c": torch.ones(4, 6), "a": torch.ones(4, 2).half(), "b": torch.ones(2, 6).half()}
    operands[name] = wrong
    with pytest.raises(ValueError, match=f"^{name}: "):
        kata.add_matmul_(**operands, tuned=gpu.kernel)
    assert gpu.virtual.log == [], "launched before it was refused"


@pytest.mark.parametrize(("m", "k"), [(0, 5), (4, 0)], ids=["no rows", "no terms"])
def test_operands_of_nothing_are_checked(kata, tuned, m, k):
    c, a, b = torch.ones(m, 6).half(), torch.ones(m, k).half(), torch.ones(k, 6).half()
    with pytest.raises(ValueError, match="^c: "):
        kata.add_matmul_(c, a, b, tuned().kernel)
