"""Weights against fractions, and the distance from them after every single sample."""

import numpy as np
import pytest

HUGE = [
    853 * 10**9,
    198 * 10**9,
    98 * 10**9,
    25_700_000_000,
    28_300_000_000,
    33 * 10**9,
    27_200_000_000,
]
LLAMA = [67, 15, 4.5, 4.5, 4.5, 2.5, 2]


# ---- weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0, 0.3, 0.7, 1, 2.5], ids=str)
def test_weights_are_powers_of_sizes(kata, alpha):
    for sizes in ([5], [1, 3, 4], [0, 2, 0, 7], HUGE, [10**15, 1]):
        powers = [size**alpha if size else 0.0 for size in sizes]
        expected = [power / sum(powers) for power in powers]
        found = kata.temperature_weights(sizes, alpha)
        assert found.dtype == np.float64
        assert found.tolist() == pytest.approx(expected, rel=1e-12), (
            f"temperature_weights({sizes}, {alpha}): expected {expected}, found {found}"
        )


def test_sizes_may_be_in_an_array_and_stay(kata):
    for dtype in (np.int32, np.int64, np.uint8, np.float64):
        sizes = np.array([200, 100, 0], dtype)
        assert kata.temperature_weights(sizes, 2).tolist() == pytest.approx([0.8, 0.2, 0])
        assert sizes.tolist() == [200, 100, 0], f"the sizes that were given have become {sizes}"
        w, sizes = np.array([1, 1, 1], dtype), np.array([200, 100, 50], dtype)
        found = kata.cap_epochs(w, sizes, 600, 2)
        assert found.tolist() == pytest.approx([0.5, 1 / 3, 1 / 6]), f"{dtype}: {found}"
        assert (w.tolist(), sizes.tolist()) == ([1, 1, 1], [200, 100, 50]), (
            f"the arrays that were given have become {w} and {sizes}"
        )


def test_a_steep_temperature_does_not_overflow(kata):
    found = kata.temperature_weights([10**13, 10**13, 10**6], 60)
    assert found.tolist() == pytest.approx([0.5, 0.5, 0]), f"found {found}"


def test_no_dataset_is_seen_too_often(kata, oracle, seed):
    for draw in range(150):
        args = oracle.drawn_mixture(seed + draw)
        found, expected = kata.cap_epochs(*args), oracle.capped(*args)
        assert found.dtype == np.float64
        assert found.tolist() == pytest.approx(expected, rel=1e-9), (
            f"cap_epochs{args}: expected {expected}, found {found}"
        )


def test_llama_with_two_epochs_at_most(kata):
    found = kata.cap_epochs(LLAMA, HUGE, 1.4e12, 2)
    rest = (1.4e12 - 2 * HUGE[3] - 2 * HUGE[4]) / (1.4e12 * 0.91)
    expected = [share / 100 * rest for share in LLAMA]
    expected[3], expected[4] = 2 * HUGE[3] / 1.4e12, 2 * HUGE[4] / 1.4e12
    assert found.tolist() == pytest.approx(expected, rel=1e-9), f"expected {expected}, {found}"


def test_all_there_is_just_lasts(kata):
    for w, sizes, total, max_epochs in (
        ([1, 2, 3], [30, 10, 20], 120, 2),
        ([1, 0, 1], [7, 1000, 3], 10, 1),
        ([1e20, 1, 1], [1, 1, 2], 4, 1),
        ([1, 1, 1], [7, 11, 12], 9, 0.3),
        ([1, 1], [0.25, 0.5], 0.75, 1),
    ):
        found = kata.cap_epochs(w, sizes, total, max_epochs)
        expected = [
            size * max_epochs / total * (weight > 0) for weight, size in zip(w, sizes, strict=True)
        ]
        assert found.tolist() == pytest.approx(expected, rel=1e-9), (
            f"cap_epochs({w}, {sizes}, {total}, {max_epochs}): expected {expected}, found {found}"
        )


def test_weights_without_enough_tokens_are_refused(kata):
    for w, sizes, total, max_epochs in (
        ([1, 2], [30, 10], 81, 2), ([1, 0], [7, 1000], 8, 1), ([1], [5], 5, 0.5),
        ([1], [5], 5, 0), ([1], [5], 5, -1), ([1], [10**12], 10**12 + 1, 1),
        ([1, 1], [5, 5], 5, float("nan")),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="^max_epochs: "):
            kata.cap_epochs(w, sizes, total, max_epochs)


# ---- the order -----------------------------------------------------------------------------


def test_counts_stay_within_a_sample_of_their_shares(kata, oracle, seed, cost):
    worst = 0.0
    for weights in oracle.WEIGHTS + oracle.drawn_weights(seed, 100):
        n = 2 * sum(weights) if sum(weights) < 200 else 400
        dataset, _ = kata.interleave(weights, n)
        drift = oracle.drift(weights, dataset)
        assert drift < sum(weights), (
            f"interleave({weights}, {n}): a count is {drift / sum(weights):.4f} samples from its "
            "share, expected less than 1"
        )
        worst = max(worst, drift / sum(weights))
    cost.check("drift", worst)


def test_counts_stay_within_a_sample_for_long(kata, oracle):
    for weights in ([3, 7], [1, 2, 4], [67, 15, 5, 5, 5, 3]):
        dataset, _ = kata.interleave(weights, 20_000)
        drift = oracle.drift(weights, dataset)
        assert drift < sum(weights), f"{weights}: {drift / sum(weights):.4f} samples from a share"


def test_a_dataset_is_read_in_order(kata, oracle):
    for weights in oracle.WEIGHTS:
        dataset, index = kata.interleave(weights, 100)
        assert (dataset.dtype, index.dtype) == (np.int16, np.int64)
        assert len(dataset) == len(index) == 100
        for i in range(len(weights)):
            found = index[dataset == i].tolist()
            assert found == [*range(len(found))], f"{weights}, samples of dataset {i}: {found}"


def test_datasets_of_no_weight_are_not_read(kata):
    for weights in ([0, 1, 0, 2], [0, 0, 0.3], [0, 1e-9, 1]):
        dataset, _ = kata.interleave(weights, 50)
        unused = {i for i, weight in enumerate(weights) if not weight}
        assert not unused & set(dataset.tolist()), f"{weights}: {dataset.tolist()}"


def test_fewer_samples_are_the_first_of_more(kata, oracle):
    for weights in oracle.WEIGHTS:
        whole = kata.interleave(weights, 120)
        for n in (0, 1, 2, 17, 60, 119):
            for found, all_of_them in zip(kata.interleave(weights, n), whole, strict=True):
                assert found.tolist() == all_of_them[:n].tolist(), f"{weights}, {n} samples"
                assert found.dtype == all_of_them.dtype


def test_weights_are_in_any_unit(kata, oracle):
    weights = [1, 2, 5, 13]
    for unit in (1e-12, 0.1, 1e15):
        dataset, _ = kata.interleave([weight * unit for weight in weights], 210)
        drift = oracle.drift(weights, dataset)
        assert drift < sum(weights), f"{weights} times {unit}: {drift / sum(weights):.4f} samples"
    given = np.array(weights, np.float64)
    kata.interleave(given, 10)
    assert given.tolist() == weights, f"the weights that were given have become {given}"


def test_many_datasets_take_no_longer(kata, lines, cost):
    with lines(limit=400_000) as counted:
        kata.interleave(range(1, 301), 2000)
    cost.check("lines_per_sample", counted.lines / 2000)


# ---- what makes no sense -------------------------------------------------------------------


def test_what_makes_no_sense_is_refused(kata):
    nan, inf = float("nan"), float("inf")
    for name, call, args in (
        ("sizes", kata.temperature_weights, ([], 1)),
        ("sizes", kata.temperature_weights, ([0, 0], -1)),
        ("sizes", kata.temperature_weights, ([3, -1], -1)),
        ("alpha", kata.temperature_weights, ([3, 1], -0.1)),
        ("alpha", kata.temperature_weights, ([3, 1], nan)),
        ("alpha", kata.temperature_weights, ([3, 1], inf)),
        ("w", kata.cap_epochs, ([1, -1], [0], 0, 0)),
        ("w", kata.cap_epochs, ([0, 0], [0], 0, 0)),
        ("sizes", kata.cap_epochs, ([1, 1], [1, -1], 0, 0)),
        ("sizes", kata.cap_epochs, ([1, 1], [1], 0, 0)),
        ("total", kata.cap_epochs, ([1, 1], [1, 1], 0, 0)),
        ("total", kata.cap_epochs, ([1, 1], [1, 1], -5, 1)),
        ("total", kata.cap_epochs, ([1, 1], [1, 1], nan, 1)),
        ("w", kata.interleave, ([], 0)),
        ("w", kata.interleave, ([0, 0], -1)),
        ("w", kata.interleave, ([2, -1], -1)),
        ("w", kata.interleave, ([2, nan], 5)),
        ("w", kata.interleave, ([2, inf], 5)),
        ("n", kata.interleave, ([2, 1], -1)),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            call(*args)
