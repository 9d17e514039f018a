"""Times of virtual kernels, whose truth is known; what measuring them took; on a GPU, Triton's."""

import math

import pytest


@pytest.fixture
def bench(kata, oracle):
    """Time a kernel on a device of its own; return the timing and the device."""

    def run(kernel, l2_mib=40, **options):
        dev = oracle.VirtualDevice(kernel, l2_mib * oracle.MIB)
        return kata.do_bench(dev.launch, dev, **options), dev

    return run


@pytest.fixture
def each(bench, oracle):
    """Every virtual kernel, its timing and its device."""
    return lambda: [(kernel, *bench(kernel)) for kernel in oracle.KERNELS.values()]


def test_median_is_the_time_with_a_cold_cache(each, cost):
    errors = [
        abs(timing.median_ms - kernel.cold_ms) / kernel.cold_ms for kernel, timing, _ in each()
    ]
    cost.check("error", max(errors))


def test_device_is_not_kept_longer_than_asked(each, cost):
    cost.check("device_time", max(dev.busy_ms for *_, dev in each()) / (25 + 100))


def test_time_is_used(each, oracle):
    for kernel, timing, dev in each():
        round_ms = kernel.cold_ms + 2 * dev.l2_bytes / oracle.WRITE_BYTES_PER_MS
        assert timing.n * round_ms >= 0.2 * 100, f"{timing.n} launches of {kernel.cold_ms} ms"


def test_host_seldom_waits(each, cost):
    cost.check("host_syncs", max(dev.syncs for *_, dev in each()))


def test_clock_is_up_before_it_counts(bench, oracle):
    timing, _ = bench(oracle.KERNELS["fits in the cache"], rep_ms=5)
    assert math.isclose(timing.median_ms, 0.1, rel_tol=0.02)


@pytest.mark.parametrize(("warmup_ms", "rep_ms"), [(0, 20), (300, 20), (20, 300)])
def test_times_are_those_asked_for(bench, oracle, warmup_ms, rep_ms):
    kernel = oracle.Kernel(cold_ms=1.0, warm_ms=1.0, disturbed=0.0)  # so that the sums are exact
    timing, dev = bench(kernel, warmup_ms=warmup_ms, rep_ms=rep_ms)
    timed_ms = timing.n * (1.0 + 2 * dev.l2_bytes / oracle.WRITE_BYTES_PER_MS)
    assert timed_ms >= 0.2 * rep_ms
    assert dev.busy_ms - timed_ms >= warmup_ms / 3
    assert dev.busy_ms <= 1.3 * (warmup_ms + rep_ms)


@pytest.mark.parametrize("launch", [2, 3])
def test_one_disturbed_launch_does_not_cut_it_short(bench, oracle, launch):
    kernel = oracle.Kernel(cold_ms=1.0, warm_ms=1.0, disturbed=0.0, disturbs=launch)
    timing, dev = bench(kernel)
    timed_ms = timing.n * (1.0 + 2 * dev.l2_bytes / oracle.WRITE_BYTES_PER_MS)
    assert timed_ms >= 0.2 * 100
    assert dev.busy_ms - timed_ms >= 25 / 3


@pytest.mark.parametrize("l2_mib", [4, 400])
def test_cache_of_any_size_is_emptied(bench, oracle, l2_mib):
    timing, dev = bench(oracle.KERNELS["fits in the cache"], l2_mib=l2_mib)
    assert math.isclose(timing.median_ms, 0.1, rel_tol=0.02)
    assert dev.written_bytes <= dev.launches * 2 * dev.l2_bytes


@pytest.mark.parametrize(
    ("flush_mib", "expected_ms"),
    [
        (0, 0.02),
        (30, 0.06),  # half of what empties this cache
        (200, 0.1),
    ],
)
def test_bytes_to_flush(bench, oracle, flush_mib, expected_ms):
    kernel = oracle.KERNELS["fits in the cache"]
    timing, _ = bench(kernel, flush_bytes=flush_mib * oracle.MIB)
    assert math.isclose(timing.median_ms, expected_ms, rel_tol=0.02)


def test_percentiles(bench, oracle):
    """Evenly spread from 0.5 to 1.5 ms; 3000 samples tell a quantile to within 1 % or so."""
    kernel = oracle.Kernel(cold_ms=1.0, warm_ms=1.0, jitter=0.5, disturbed=0.0)
    timing, _ = bench(kernel, rep_ms=4000)
    assert math.isclose(timing.p20_ms, 0.7, rel_tol=0.04)
    assert math.isclose(timing.median_ms, 1.0, rel_tol=0.04)
    assert math.isclose(timing.p80_ms, 1.3, rel_tol=0.04)


def test_disturbed_launches_are_part_of_the_spread(bench, oracle):
    """Three in ten take ten times as long; some 400 samples tell that share to within 0.03."""
    kernel = oracle.Kernel(cold_ms=1.0, warm_ms=1.0, disturbed=0.3)
    timing, _ = bench(kernel, rep_ms=2000)
    assert math.isclose(timing.p20_ms, 1.0, rel_tol=0.04)
    assert math.isclose(timing.median_ms, 1.0, rel_tol=0.04)
    assert math.isclose(timing.p80_ms, 10.0, rel_tol=0.04)


def test_early_and_late_launches_count_alike(bench, oracle):
    """Each takes 0.2 % of a millisecond more than the last, so that n span n times that."""
    kernel = oracle.Kernel(cold_ms=1.0, warm_ms=1.0, jitter=0.0, disturbed=0.0, drift=0.002)
    timing, _ = bench(kernel, rep_ms=400)
    # between the percentiles lie three fifths of them, give or take one at either end
    assert math.isclose(timing.p80_ms - timing.p20_ms, 0.6 * timing.n * 0.002, rel_tol=0.05)


def test_all_of_the_fewest_launches_are_timed(bench, oracle):
    """Each takes 0.4 ms more than the last, and five are timed, whatever went before them."""
    kernel = oracle.Kernel(cold_ms=40.0, warm_ms=40.0, jitter=0.0, disturbed=0.0, drift=0.01)
    timing, dev = bench(kernel)
    slowest_ms, tick_ms = 40.0 * (1 + 0.01 * dev.launches), 1e-3
    assert timing.median_ms == pytest.approx(slowest_ms - 2 * 0.4, abs=tick_ms)
    # a percentile is one of the two samples it lies between, or between them
    assert slowest_ms - 4 * 0.4 - tick_ms <= timing.p20_ms <= slowest_ms - 3 * 0.4 + tick_ms
    assert slowest_ms - 0.4 - tick_ms <= timing.p80_ms <= slowest_ms + tick_ms


@pytest.mark.parametrize("options", [{}, {"rep_ms": 1e-3}, {"warmup_ms": 0}])
def test_long_kernel(bench, oracle, options):
    timing, dev = bench(oracle.Kernel(cold_ms=40.0, warm_ms=40.0, disturbed=0.0), **options)
    assert timing.n == 5
    assert dev.launches <= 8
    assert math.isclose(timing.median_ms, 40.0, rel_tol=0.02)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rep_ms", 0), ("rep_ms", -1.0), ("warmup_ms", -1.0), ("flush_bytes", -1)],
)
def test_negative_amounts_are_refused(kata, oracle, name, value):
    dev = oracle.VirtualDevice(oracle.KERNELS["streams"])
    with pytest.raises(ValueError, match=name):
        kata.do_bench(dev.launch, dev, **{name: value})
    assert dev.launches == 0


def test_result_of_a_launch_is_no_launch(kata, oracle):
    dev = oracle.VirtualDevice(oracle.KERNELS["streams"])
    for result in (dev.launch(), "a kernel"):
        with pytest.raises(ValueError, match="launch"):
            kata.do_bench(result, dev)


def workload(name, device):
    import torch

    if name == "matmul":
        a, b = (torch.randn(4096, 4096, device=device, dtype=torch.float16) for _ in range(2))
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=out)
    source = torch.randn(2**28 if name == "copy_1_gib" else 2**18, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


@pytest.mark.parametrize("name", ["copy_1_gib", "copy_1_mib", "matmul"])
def test_agrees_with_triton(kata, device, name):
    if device == "cpu":
        pytest.skip("Triton's do_bench needs a GPU")
    from triton import testing

    launch = workload(name, device)

    def theirs_ms():
        return testing.do_bench(launch, warmup=25, rep=100, return_mode="median")

    # before and after: a GPU's clock may change in between
    before_ms = theirs_ms()
    mine = kata.do_bench(launch, kata.CudaDevice(device))
    both = (before_ms, theirs_ms())
    tick_ms = 1.5e-3  # three steps of the events' clock: a copy of 1 MiB takes ten
    assert 0.95 * min(both) - tick_ms <= mine.median_ms <= 1.05 * max(both) + tick_ms
