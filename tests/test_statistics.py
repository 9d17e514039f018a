"""Samples against a known law: the chi-square test, and tables whose every probability is exact."""

import itertools

import numpy as np
import pytest
import torch

from harness.base.errors import UsageProblem
from harness.judge import assert_follows, chi_square
from harness.simulators.ngrams import ngram_pair

# --- chi_square ---


@pytest.mark.parametrize(
    ("counts", "law", "statistic", "degrees"),
    [
        # (44 - 50)^2 / 50 twice
        ([44, 56], [0.5, 0.5], 1.44, 1),
        # (10 + 10 + 20)^2 of 90 at a third each: (30 - 30)^2, (20 - 30)^2, (40 - 30)^2 over 30
        ([30, 20, 40], [1 / 3] * 3, 200 / 30, 2),
        ([[25, 25], [20, 30]], [[0.25, 0.25], [0.25, 0.25]], 2.0, 3),
    ],
)
def test_the_statistic_is_the_one_worked_by_hand(counts, law, statistic, degrees):
    found = chi_square(counts, law)
    assert found.statistic == pytest.approx(statistic)
    assert found.degrees == degrees


@pytest.mark.parametrize(
    ("statistic", "degrees", "p"),
    [
        # quantiles of the chi-square law as printed in tables (NIST Handbook, 1.3.6.7.4)
        (3.841, 1, 0.05),
        (18.307, 10, 0.05),
        (16.266, 3, 0.001),
    ],
)
def test_p_values_are_those_of_the_tables(statistic, degrees, p):
    # one cell takes what another gives: 2 x (shift^2 / expected) is the statistic
    cells, expected = degrees + 1, 1e6
    shift = (statistic * expected / 2) ** 0.5
    counts = torch.full((cells,), expected, dtype=torch.float64)
    counts[0] += shift
    counts[1] -= shift
    found = chi_square(counts, torch.full((cells,), 1 / cells, dtype=torch.float64))
    assert found.degrees == degrees
    assert found.p == pytest.approx(p, rel=2e-3)


def test_two_degrees_have_a_closed_form():
    found = chi_square(np.array([130, 90, 80]), np.full(3, 1 / 3))
    assert found.p == pytest.approx(np.exp(-found.statistic / 2), rel=1e-12)


def test_p_is_uniform_when_the_law_is_right():
    random = np.random.Generator(np.random.PCG64(5))
    law = random.dirichlet(np.ones(12))
    found = np.array([chi_square(random.multinomial(20_000, law), law).p for _ in range(400)])
    deciles = np.bincount((found * 10).astype(int).clip(max=9), minlength=10)
    assert_follows(deciles, np.full(10, 0.1))


def test_rare_outcomes_are_pooled():
    law = [0.9, 0.07, 0.01, 0.01, 0.01]
    # of 100 the last three are one cell of 3, still below 5, so it takes the 7 in: 90 and 10
    assert chi_square([88, 8, 2, 1, 1], law).degrees == 1
    assert chi_square([88, 8, 2, 1, 1], law).statistic == pytest.approx(4 / 90 + 4 / 10)
    # of 300 they are 9 together
    assert chi_square([270, 20, 0, 10, 0], law).degrees == 2


def test_what_cannot_happen_is_refused_even_once():
    assert chi_square([999, 1], [1.0, 0.0]).p == 0.0
    assert chi_square([1000, 0], [1.0, 0.0]).p == 1.0


def test_samples_of_another_law_are_told_with_the_outcome_that_is_off():
    random = np.random.Generator(np.random.PCG64(0))
    law = np.array([[0.1, 0.2], [0.3, 0.4]])
    other = np.array([0.1, 0.2, 0.4, 0.3])
    counts = random.multinomial(20_000, other).reshape(2, 2)
    with pytest.raises(AssertionError, match="first pair: expected a chi-square p") as caught:
        assert_follows(counts, law, what="first pair")
    told = f"Outcome (1, 0) came {counts[1, 0]} times of 20000, expected 6000.0."
    assert told in str(caught.value)
    assert assert_follows(random.multinomial(20_000, law.ravel()).reshape(2, 2), law).p > 1e-4


@pytest.mark.parametrize(
    ("counts", "law", "told"),
    [
        ([1, 2, 3], [0.5, 0.5], r"shape \(3,\) and probabilities of shape \(2,\)"),
        ([0, 0], [0.5, 0.5], "none counted"),
        ([1, 2], [0.5, 0.6], r"a sum of 1\.1"),
        ([1, 2], [1.5, -0.5], r"a least of -0\.5"),
        ([1, 2], [float("nan"), 1.0], "a sum of nan"),
    ],
)
def test_what_is_no_law_is_refused(counts, law, told):
    with pytest.raises(UsageProblem, match=told):
        chi_square(counts, law)


# --- n-gram tables ---


def test_the_same_seed_draws_the_same_tables():
    one, other = ngram_pair(3), ngram_pair(3)
    assert np.array_equal(one.target, other.target)
    assert np.array_equal(one.draft, other.draft)
    assert not np.array_equal(one.target, ngram_pair(4).target)
    assert one.target.shape == (32, 32, 32)


@pytest.mark.parametrize("vocab", [2, 5, 32])
def test_every_row_is_a_law(vocab):
    pair = ngram_pair(0, vocab)
    for table in (pair.target, pair.draft):
        assert table.min() > 0
        np.testing.assert_allclose(table.sum(-1), 1.0, rtol=1e-12)


def test_confidence_varies_by_context():
    most_likely = ngram_pair(0).target.max(-1)
    assert most_likely.min() < 0.05
    assert most_likely.max() > 0.99


def test_a_draft_without_noise_is_the_target():
    pair = ngram_pair(0, vocab=5, noise=0.0)
    np.testing.assert_allclose(pair.draft, pair.target, rtol=1e-12)
    np.testing.assert_allclose(pair.acceptance(), 1.0, rtol=1e-12)


def test_acceptance_is_what_the_two_laws_share():
    pair = ngram_pair(1, vocab=4)
    apart = np.abs(pair.target - pair.draft).sum(-1) / 2
    np.testing.assert_allclose(pair.acceptance(), 1 - apart, rtol=1e-12)
    assert 0.6 < ngram_pair(0).acceptance().mean() < 0.8


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_the_joint_law_is_the_product_along_each_sequence(length):
    pair = ngram_pair(2, vocab=3)
    joint = pair.law(pair.target, (2, 1), length)
    assert joint.shape == (3,) * length
    for tokens in itertools.product(range(3), repeat=length):
        a, b, product = 2, 1, 1.0
        for token in tokens:
            product *= pair.target[a, b, token]
            a, b = b, token
        assert joint[tokens] == pytest.approx(product, rel=1e-12)


def test_rows_are_what_a_forward_gives():
    pair = ngram_pair(2, vocab=4)
    rows = pair.rows(pair.draft, [3, 1, 2])
    expected = [pair.draft[0, 3], pair.draft[3, 1], pair.draft[1, 2]]
    np.testing.assert_array_equal(rows, expected)
    assert pair.rows(pair.draft, []).shape == (0, 4)


def accepted_chains(pair, random, rounds, resample):
    """Two tokens of speculative decoding with one draft token a round, by Leviathan's rule."""
    counts = np.zeros((pair.vocab,) * 2)
    for _ in range(rounds):
        context, emitted = (0, 1), []
        while len(emitted) < 2:
            p, q = pair.target[context], pair.draft[context]
            guess = random.choice(pair.vocab, p=q)
            if random.random() * q[guess] > p[guess]:
                guess = random.choice(pair.vocab, p=resample(p, q))
            emitted.append(guess)
            context = (context[1], guess)
        counts[tuple(emitted)] += 1
    return counts


def residual(p, q):
    left = np.maximum(p - q, 0)
    return left / left.sum()


def test_the_test_tells_speculative_sampling_from_its_usual_mistake():
    pair = ngram_pair(0, vocab=4)
    law = pair.law(pair.target, (0, 1), 2)
    random = np.random.Generator(np.random.PCG64(1))
    assert_follows(accepted_chains(pair, random, 5_000, residual), law)
    with pytest.raises(AssertionError, match="chi-square"):
        assert_follows(accepted_chains(pair, random, 5_000, lambda p, q: p), law)


@pytest.mark.parametrize(("vocab", "noise"), [(1, 1.0), (4, -1.0)])
def test_impossible_pairs_are_refused(vocab, noise):
    with pytest.raises(UsageProblem, match=f"found {vocab} and {noise}"):
        ngram_pair(0, vocab, noise)


def test_an_empty_sequence_has_no_joint_law():
    pair = ngram_pair(0, vocab=2)
    with pytest.raises(UsageProblem, match="found 0"):
        pair.law(pair.target, (0, 0), 0)
