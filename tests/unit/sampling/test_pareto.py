"""Pareto-smoothed weights where tails are extreme."""

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from crunode.sampling.pareto import fit_pareto, smoothed_log_weights


def test_a_tail_over_many_orders_of_magnitude_is_fitted_without_overflow():
    k, scale = fit_pareto(np.exp(np.linspace(-60.0, 5.0, 400)))
    assert k > 1
    assert 0 < scale < 1


@pytest.mark.parametrize("spread", [1.0, 100.0, 600.0])
def test_weights_sum_to_one_however_far_apart(spread):
    logs, k = smoothed_log_weights(spread * np.random.default_rng(0).standard_normal(800))
    assert math.isclose(float(np.exp(logs).sum()), 1.0, rel_tol=1e-9)
    assert k > 0


def excesses(n=500, k=0.4, seed=0):
    return np.sort(stats.genpareto.rvs(k, scale=2.0, size=n, random_state=seed))


@pytest.mark.parametrize("n", [30, 500])
@pytest.mark.parametrize("true", [-0.3, 0.4, 0.9])
def test_the_exponent_is_that_of_the_posterior_mean_drawn_to_a_half_by_ten_draws(n, true):
    x = excesses(n, true)
    k, scale = fit_pareto(x)
    # Zhang & Stephens: of θ with σ = −k/θ, over a grid of so many points, by the profile likelihood.
    m = 30 + math.floor(math.sqrt(n))
    grid = [1 / x[-1] + (1 - math.sqrt(m / (j - 0.5))) / (3 * x[math.floor(n / 4 + 0.5) - 1]) for j in range(1, m + 1)]
    shapes = np.array([np.log(1 - b * x).mean() for b in grid])
    likelihood = n * (np.log(-np.array(grid) / shapes) - shapes - 1)
    best = float(np.array(grid) @ special.softmax(likelihood))
    own = np.log(1 - best * x).mean()
    assert scale == pytest.approx(-own / best)
    assert k == pytest.approx((n * own + 10 * 0.5) / (n + 10))
    largest = optimize.minimize(
        lambda v: -stats.genpareto.logpdf(x, v[0], scale=v[1]).sum(), [own, scale], method="Nelder-Mead"
    )
    assert own == pytest.approx(largest.x[0], abs=0.25 if n == 30 else 0.03)


def test_a_scale_is_that_of_the_values():
    x = excesses()
    k, scale = fit_pareto(x)
    again = fit_pareto(1e6 * x)
    assert again == (pytest.approx(k), pytest.approx(1e6 * scale))


def test_a_quarter_of_zeros_has_no_fit():
    k, scale = fit_pareto(np.array([0.0, 0.0, 1.0, 2.0, 3.0, 4.0]))
    assert k == math.inf
    assert math.isnan(scale)
    assert math.isfinite(fit_pareto(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]))[0])


@pytest.mark.parametrize(
    ("size", "efficiency", "tail"), [(4000, 1.0, 190), (4000, 0.25, 380), (100, 1.0, 20), (26, 1.0, 6)]
)
def test_the_tail_is_put_on_the_quantiles_of_its_fit(size, efficiency, tail):
    raw = 1.5 * np.random.default_rng(1).standard_exponential(size)
    logs, k = smoothed_log_weights(raw, efficiency=efficiency)
    order = np.argsort(raw)
    rest, top = order[:-tail], order[-tail:]
    ratios = np.exp(raw - raw.max())
    cut = ratios[order[-tail - 1]]
    k_fit, scale = fit_pareto(ratios[top] - cut)
    assert k == k_fit
    levels = (np.arange(1, tail + 1) - 0.5) / tail
    ratios[top] = np.minimum(cut + stats.genpareto.ppf(levels, k, scale=scale), 1.0)
    np.testing.assert_allclose(logs, np.log(ratios / ratios.sum()), rtol=1e-9)
    assert np.ptp((logs - raw)[rest]) < 1e-9 < np.ptp((logs - raw)[top])


def test_a_constant_beside_all_ratios_and_their_order_do_not_matter():
    raw = 2 * np.random.default_rng(2).standard_normal(300)
    logs, k = smoothed_log_weights(raw)
    moved, same = smoothed_log_weights(raw[::-1] + 700.0)
    assert same == pytest.approx(k)
    np.testing.assert_allclose(moved[::-1], logs, rtol=1e-9)
    assert smoothed_log_weights(raw, efficiency=1.0)[1] == k


def test_tails_that_are_short_or_all_the_same_are_left_as_they_are():
    few = np.random.default_rng(3).standard_normal(20)  # a fifth of them are four
    logs, k = smoothed_log_weights(few)
    assert k == math.inf
    np.testing.assert_allclose(logs, few - special.logsumexp(few))
    assert smoothed_log_weights(np.append(few, 0.0))[1] < math.inf
    flat = np.append(few, np.full(40, 5.0))
    logs, k = smoothed_log_weights(flat)
    assert k == -math.inf
    np.testing.assert_allclose(logs, flat - special.logsumexp(flat))
