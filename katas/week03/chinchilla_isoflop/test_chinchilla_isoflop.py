"""The closed form, the fit on made-up and on noisy runs, and a prediction a thousandfold ahead."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

CONSTANT, POWER = st.floats(10, 5000), st.floats(0.2, 0.6)
# a dozen powers and products of floats
ROUNDING = 1e-12


def bowl(kata, flops, best, factors):
    """Runs around the size `best` whose losses are a parabola over log N, exactly."""
    sizes = [best * factor for factor in factors]
    return [kata.Run(flops, params, 2 + 0.1 * math.log(params / best) ** 2) for params in sizes]


def two_budgets(kata):
    """N = 0.1 · C ** 0.5 by hand; the best size is never among those tried."""
    low = bowl(kata, 1e18, 1e8, [0.5, 1.5, 4.0])
    high = bowl(kata, 1e20, 1e9, [0.2, 0.4, 1.5])
    return [run for pair in zip(low, high, strict=True) for run in pair]


# ---- the closed form -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "params", "tokens"),
    [("HOFFMANN", 32.2e9, 2.98e12), ("BESIROGLU", 72.2e9, 1.33e12)],
)
def test_published_optima_of_chinchillas_budget(kata, law, params, tokens):
    found = kata.optimal_nd(5.76e23, getattr(kata, law))
    assert found == pytest.approx((params, tokens), rel=0.01)  # three digits are published


@given(a=CONSTANT, b=CONSTANT, alpha=POWER, beta=POWER, flops=st.floats(1e18, 1e25))
def test_optimum_spends_the_budget_and_nothing_beside_it_is_better(
    kata, oracle, a, b, alpha, beta, flops
):
    law = kata.Law(e=1.0, a=a, b=b, alpha=alpha, beta=beta)
    params, tokens = kata.optimal_nd(flops, law)
    assert math.isclose(6 * params * tokens, flops, rel_tol=ROUNDING)
    # the derivative along the constraint is zero: both terms pull equally
    assert math.isclose(alpha * a / params**alpha, beta * b / tokens**beta, rel_tol=1e-9)
    beside = [
        oracle.loss((1.0, a, b, alpha, beta), params * factor, tokens / factor)
        for factor in (0.1, 0.5, 0.99, 1.01, 2.0, 10.0)
    ]
    assert min(beside) >= law.loss(params, tokens)


def test_equal_exponents_grow_both_with_the_square_root(kata):
    law = kata.Law(e=1.0, a=300.0, b=300.0, alpha=0.3, beta=0.3)
    # N and D play the same part here, so both are the root of C / 6
    assert kata.optimal_nd(6e20, law) == pytest.approx((1e10, 1e10), rel=ROUNDING)
    assert kata.optimal_nd(6e24, law) == pytest.approx((1e12, 1e12), rel=ROUNDING)


# ---- the fit -------------------------------------------------------------------------------


def test_minimum_lies_between_the_sizes_tried(kata):
    law = kata.isoflop_fit(iter(two_budgets(kata)))
    # solving for three coefficients costs some digits
    assert math.isclose(law.exponent, 0.5, rel_tol=1e-9)
    assert math.isclose(law.at(1e18), 1e8, rel_tol=1e-9)
    assert math.isclose(law.at(1e22), 1e10, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("noise", "allowed"), [(0.0, 0.02), (0.01, 0.04)], ids=["exact losses", "1 % of noise"]
)
def test_fit_recovers_how_a_law_grows(kata, oracle, seed, noise, allowed):
    for at, (name, law) in enumerate(oracle.LAWS.items()):
        lab = oracle.Lab(law, noise=noise, seed=seed + at)
        budgets = [1e18, 1e19, 1e20, 1e21, 1e22]
        runs = oracle.isoflop_runs(lab, law, budgets, sizes=31, spread=8.0)
        found = kata.isoflop_fit([kata.Run(*run) for run in runs])
        assert abs(found.exponent - law[4] / (law[3] + law[4])) <= allowed, name
        # a parabola over this range is off by up to 5 % where alpha and beta differ most
        off_by = math.log(found.at(1e20) / oracle.best_size(law, 1e20))
        assert abs(off_by) <= (0.06 if noise == 0 else 0.15), name


def test_all_runs_of_a_budget_share_in_its_parabola(kata):
    def budget(flops, centre):
        # no parabola goes through these losses; two of the sizes were trained twice
        at = [(-3, 6.0), (-1, 1.1), (-1, 1.5), (1, 1.8), (1, 1.6), (3, 5.0)]
        return [kata.Run(flops, centre * math.exp(x), loss) for x, loss in at]

    # by hand, n = 6: Σx² = 22, Σx⁴ = 166, Σy = 17, Σxy = -2.2, Σx²y = 105, so the slope is
    # -2.2 / 22 = -0.1 and the curvature (6 · 105 - 22 · 17) / (6 · 166 - 22²) = 0.5
    law = kata.isoflop_fit(budget(1e18, 1e8) + budget(1e20, 1e9))
    assert math.isclose(law.at(1e18), 1e8 * math.exp(0.1), rel_tol=1e-9)
    assert math.isclose(law.at(1e20), 1e9 * math.exp(0.1), rel_tol=1e-9)


def test_sizes_a_few_percent_apart_are_different(kata):
    close = bowl(kata, 1e22, 1e10, [0.95, 1.01, 1.04])
    law = kata.isoflop_fit([*two_budgets(kata), *close])
    # so near each other a parabola over log N itself, not centred, loses half of the digits
    assert math.isclose(law.at(1e22), 1e10, rel_tol=1e-5)


def test_all_budgets_share_in_the_line(kata):
    many = bowl(kata, 1e22, 8e10, [0.25, 0.5, 0.7, 1.5, 2.0, 4.0])  # one budget, however many runs
    law = kata.isoflop_fit([*two_budgets(kata), *many])
    # minima 1e8, 1e9, 8e10 at equal distances: the line's middle is their geometric mean, and
    # its slope that from the first to the last
    assert math.isclose(law.at(1e20), 2e9, rel_tol=1e-9)
    assert math.isclose(law.exponent, math.log10(800) / 4, rel_tol=1e-9)


@pytest.mark.parametrize("more", [5, -1.5])  # to losses above 7, to some below 1
def test_irreducible_loss_moves_nothing(kata, more):
    runs = two_budgets(kata)
    moved = [run._replace(loss=run.loss + more) for run in runs]
    before, after = kata.isoflop_fit(runs), kata.isoflop_fit(moved)
    assert math.isclose(before.at(1e24), after.at(1e24), rel_tol=1e-6)


@pytest.mark.parametrize("factors", [[1.5, 2.0, 4.0], [0.2, 0.4, 0.9]], ids=["above", "below"])
def test_budget_whose_minimum_was_not_tried_is_left_out(kata, factors):
    stray = bowl(kata, 1e22, 3e12, factors)
    law = kata.isoflop_fit([*two_budgets(kata), *stray])
    assert math.isclose(law.exponent, 0.5, rel_tol=1e-9)


def test_budget_that_bends_downward_is_left_out(kata):
    hill = [run._replace(loss=4 - run.loss) for run in bowl(kata, 1e22, 3e12, [0.5, 1.5, 4.0])]
    law = kata.isoflop_fit([*two_budgets(kata), *hill])
    assert math.isclose(law.exponent, 0.5, rel_tol=1e-9)


# ---- the experiment ------------------------------------------------------------------------


def test_prediction_is_near_and_cheap_under_every_law(kata, oracle, cost, seed):
    errors, spent = [], []
    targets = (3e22, 1e23, 3e23, 1e23, 3e22)
    for at, (law, target) in enumerate(zip(oracle.hidden_laws(seed), targets, strict=True)):
        lab = oracle.Lab(law, noise=0.0005, seed=seed + at)
        found = kata.plan_and_predict(lab.train, target)
        errors.append(abs(math.log(found / oracle.best_size(law, target))))
        spent.append(lab.flops / target)
    cost.check("prediction", max(errors))
    cost.check("experiments", max(spent))


# ---- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["flops", "params", "loss"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_runs_that_cannot_have_been_are_refused(kata, field, value):
    runs = two_budgets(kata)
    runs[3] = runs[3]._replace(**{field: value})
    with pytest.raises(ValueError, match=field):
        kata.isoflop_fit(runs)


def test_fewer_than_three_sizes_are_refused(kata):
    twice = bowl(kata, 1e22, 1e10, [0.5, 1.5, 1.5])  # the same size again is no third size
    with pytest.raises(ValueError, match="sizes"):
        kata.isoflop_fit([*two_budgets(kata), *twice])


def test_a_line_needs_two_budgets(kata):
    useless = bowl(kata, 1e20, 1e9, [1.5, 2.0, 4.0])
    with pytest.raises(ValueError, match="budgets"):
        kata.isoflop_fit([*bowl(kata, 1e18, 1e8, [0.5, 1.5, 4.0]), *useless])
    with pytest.raises(ValueError, match="budgets"):
        kata.isoflop_fit([])
