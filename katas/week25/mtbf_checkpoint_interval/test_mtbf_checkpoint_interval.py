"""Formulas against failures that are drawn, sums over checkpoints, and published numbers."""

import math

import pytest

YEAR_H = 365.25 * 24
LLAMA_H = 54 * 24 / 419


def cluster_of(kata, numbers):
    gpus, pcie, node, storage = numbers
    return kata.Cluster(
        gpus_per_node=gpus,
        pcie_bytes_per_s=pcie,
        node_bytes_per_s=node,
        storage_bytes_per_s=storage,
    )


# ---- how often it fails --------------------------------------------------------------------


def test_failures_of_all_parts_add_up(kata):
    for parts, expected in (
        ([(1, 50.0)], 50.0),
        ([(2, 50.0)], 25.0),
        ([(3, 60.0), (1, 30.0)], 12.0),
        ([(4, 10.0), (0, 1.0), (7, math.inf)], 2.5),
        ([], math.inf),
        ([(0, 5.0)], math.inf),
        ([(9, math.inf)], math.inf),
    ):
        for given in (parts, iter(parts)):
            found = kata.job_mtbf(given)
            assert found == pytest.approx(expected), f"{parts}: expected {expected}, found {found}"


def test_published_failure_rates(kata):
    gpu_h = 16_384 * LLAMA_H
    assert gpu_h / YEAR_H == pytest.approx(5.8, abs=0.05)
    assert kata.job_mtbf([(16_384, gpu_h)]) == pytest.approx(3.09, abs=0.005)
    assert kata.job_mtbf([(1000, gpu_h)]) == pytest.approx(50.7, abs=0.05)
    assert kata.job_mtbf([(992, 992 * 60 * 24 / 105)]) == pytest.approx(13.7, abs=0.05)


# ---- how often to save ---------------------------------------------------------------------


def test_young_and_daly(kata):
    M = LLAMA_H * 3600
    for delta, young, daly in ((60, 1156, 1116), (10, 472, 465)):
        found = kata.young(delta, M), kata.daly(delta, M)
        assert found == pytest.approx((young, daly), abs=0.6), (
            f"young and daly of delta {delta}, M {M}: {found}, expected {young}, {daly}"
        )
    for delta, M, young, daly in (
        (0, 5, 0, 0),
        (1, 2, 2, 2 * (1 + 1 / 6 + 1 / 36) - 1),
        (4, 2, 4, 2),
        (5, 2, math.sqrt(20), 2),
        (1, 0.25, math.sqrt(0.5), 0.25),
        (4 * (1 - 1e-12), 2, 4, 16 / 9),
    ):
        found = kata.young(delta, M), kata.daly(delta, M)
        assert found == pytest.approx((young, daly)), (
            f"young and daly of delta {delta}, M {M}: {found}, expected {young}, {daly}"
        )


# short and long cycles, restarts longer than the time between failures, durable late or at once
@pytest.mark.parametrize(
    "args",
    [
        (1116, 60, 11_135, 600, 0),
        (300, 1, 11_135, 600, 250),
        (300, 20, 900, 100, 300),
        (50, 50, 100, 200, 30),
        (400, 10, 100, 0, 0),
    ],
    ids=str,
)
def test_efficiency_is_that_of_drawn_failures(kata, oracle, args, seed):
    found = kata.expected_efficiency(*args)
    share, error = oracle.simulated(*args, seed=seed, failures=40_000)
    assert abs(found - share) <= 6 * error, f"{args}: {found}, simulated {share} ± {error:.2g}"
    expected = oracle.efficiency(*args)
    assert found == pytest.approx(expected, rel=1e-9), f"{args}: {found}, counted {expected}"


def test_efficiency_of_a_published_run(kata):
    M = LLAMA_H * 3600
    assert kata.expected_efficiency(1116, 60, M, 600) == pytest.approx(0.8526, abs=1e-4)
    assert kata.expected_efficiency(465, 10, M, 300) == pytest.approx(0.9327, abs=1e-4)


def test_efficiency_at_its_limits(kata):
    for args, expected in (
        ((30, 10, math.inf, 100), 0.75),
        ((30, 10, math.inf, 100, 30), 0.75),
        ((3e-5, 1e-5, 1e12, 0), 0.75),
        ((1e-3, 0, 1e13, 0), 1.0),
        ((3e-5, 1e-5, 1e300, 0), 0.75),
        ((1, 1, 1e-310, 0), 0.0),
        ((1e6, 1, 1, 0), 0.0),
        ((1, 1e6, 1, 0), 0.0),
        ((1, 1, 1, 1e6), 0.0),
        ((1e6, 1, 1, 1, 1e6), 0.0),
    ):
        found = kata.expected_efficiency(*args)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), (
            f"expected_efficiency{args}: expected {expected}, found {found}"
        )


def test_the_best_interval_is_the_best(kata, oracle):
    for delta, M in (
        (60, 11_135), (10, 11_135), (1e-6, 1000), (1, 2), (1, 1), (5, 1), (300, 1), (0.3, 86_400),
        (7, 3.5), (1e-3, 1e-3), (1e-12, 1e6),
    ):  # fmt: skip
        found, expected = kata.best_interval(delta, M), oracle.best_interval(delta, M)
        assert found == pytest.approx(expected, rel=1e-6), (
            f"best_interval({delta}, {M}): expected {expected}, found {found}"
        )
    assert kata.best_interval(0, 5) == 0


# ---- how to save ---------------------------------------------------------------------------


def test_checkpoints_take_as_long_as_their_bytes(kata, oracle):
    few = (10, 4, (3, 1.0, 2.0, 100.0))  # 2.5 bytes a rank
    for state_bytes, world, numbers in [few, *(case[:3] for case in oracle.CASES)]:
        cluster = cluster_of(kata, numbers)
        found = kata.checkpoint_times(state_bytes, world, cluster)
        expected = oracle.times(state_bytes, world, cluster)
        assert set(found) == set(expected), f"kinds: {set(found)}"
        for kind, pair in expected.items():
            assert found[kind] == pytest.approx(pair), (
                f"{kind}, {state_bytes} bytes, {world} ranks, {cluster}: expected {pair}, "
                f"found {found[kind]}"
            )


def test_the_policy_chosen_is_the_best(kata, oracle, cost):
    worst, kinds = 1.0, set()
    for state_bytes, world, numbers, M, R in oracle.CASES:
        case = (state_bytes, world, cluster_of(kata, numbers), M, R)
        found, policies = kata.choose_policy(*case), oracle.policies(*case)
        best = max(goodput for _, goodput in policies.values())
        tau, goodput = policies[found.kind]
        assert goodput >= best * (1 - 1e-9), f"{case}: {found}, of {policies}"
        assert found.tau == pytest.approx(tau, rel=1e-6), f"{case}: {found}, of {policies}"
        assert found.goodput == pytest.approx(goodput, rel=1e-6), f"{case}: {found}, of {policies}"
        on_the_grid = oracle.best_on_a_grid(*case)
        worst = min(worst, found.goodput / on_the_grid)
        kinds.add(found.kind)
    assert kinds == {"full", "sharded", "async"}, f"{kinds}"
    cost.check("goodput", worst)


def test_of_equal_policies_the_simplest(kata):
    one_node = kata.Cluster(
        gpus_per_node=8, pcie_bytes_per_s=1e8, node_bytes_per_s=1e9, storage_bytes_per_s=1e10
    )
    slow = kata.Cluster(
        gpus_per_node=8, pcie_bytes_per_s=1e6, node_bytes_per_s=1e9, storage_bytes_per_s=1e9
    )
    for world, cluster in ((8, one_node), (5, one_node), (64, slow)):
        found = kata.choose_policy(10**10, world, cluster, 86_400, 30)
        assert found.kind == "full", f"{world} ranks, {cluster}: {found}, sharded is as good"


def test_the_policy_is_found_without_trying_everything(kata, oracle, calls, cost):
    asked = calls("expected_efficiency", limit=2000)
    state_bytes, world, numbers, M, R = oracle.CASES[0]
    kata.choose_policy(state_bytes, world, cluster_of(kata, numbers), M, R)
    cost.check("evaluations", asked.calls)


# ---- what makes no sense -------------------------------------------------------------------


def test_what_makes_no_sense_is_refused(kata, oracle):
    cluster, nan = cluster_of(kata, oracle.CASES[0][2]), float("nan")
    efficiency, policy = kata.expected_efficiency, kata.choose_policy
    for name, call, args in (
        ("parts", kata.job_mtbf, ([(1, 0.0)],)),
        ("parts", kata.job_mtbf, ([(1, 5.0), (-1, 5.0)],)),
        ("parts", kata.job_mtbf, ([(0, -5.0)],)),
        ("parts", kata.job_mtbf, ([(1, nan)],)), ("parts", kata.job_mtbf, ([(nan, 5.0)],)),
        ("delta", kata.young, (-1, 0)), ("M", kata.young, (1, 0)), ("M", kata.young, (1, -3)),
        ("delta", kata.daly, (-1, 0)), ("M", kata.daly, (1, 0)), ("M", kata.daly, (1, nan)),
        ("delta", kata.best_interval, (-1, 0)), ("M", kata.best_interval, (0, 0)),
        ("tau", efficiency, (0, -1, 0, -1, -1)), ("tau", efficiency, (-5, 1, 10, 1)),
        ("tau", efficiency, (nan, 1, 10, 1)), ("delta", efficiency, (1, -1, 0, -1, -1)),
        ("M", efficiency, (1, 0, 0, -1, -1)), ("R", efficiency, (1, 0, 5, -1, -1)),
        ("persist", efficiency, (1, 0, 5, 0, -1)), ("persist", efficiency, (1, 0, 5, 0, 1.01)),
        ("delta", efficiency, (1, nan, 5, 0)), ("M", efficiency, (1, 0, nan, 0)),
        ("R", efficiency, (1, 0, 5, nan)), ("persist", efficiency, (1, 0, 5, 0, nan)),
        ("persist", efficiency, (1, 1, 5, 0, 1.01)),
        ("delta", kata.young, (nan, 1)), ("delta", kata.best_interval, (nan, 1)),
        ("state_bytes", kata.checkpoint_times, (0, 0, cluster)),
        ("world", kata.checkpoint_times, (1, 0, cluster)),
        ("state_bytes", policy, (0, 0, cluster, 0, -1)), ("world", policy, (1, 0, cluster, 0, -1)),
        ("M", policy, (1, 1, cluster, 0, -1)), ("R", policy, (1, 1, cluster, 1, -1)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}: "):
            call(*args)
