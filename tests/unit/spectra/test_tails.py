"""Tails and power laws against scipy: likelihood, Kolmogorov distance, Vuong's statistic, weighted least squares."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from crunode.errors import InputError
from crunode.spectra import fit_index, tail_exponent
from crunode.spectra.least_squares import jacobian_at, least_squares


def pareto(count, exponent, seed=0):
    return (1 - np.random.default_rng(seed).random(count)) ** (-1 / (exponent - 1))


def codes(estimate):
    return [finding.code for finding in estimate.findings]


def nearest(values):
    """The tail whose power law is nearest to it, by all starts in turn, or a hundred of them from end to end."""
    values = np.sort(values)
    best, last = (math.inf,), len(values) - 10
    for k in range(last + 1) if last < 100 else (k * last // 99 for k in range(100)):
        if values[k] < values[-1]:
            logs = np.log(values[k:] / values[k])
            law, n = 1 - np.exp(-logs * len(logs) / logs.sum()), len(logs)
            away = max((np.arange(1, n + 1) / n - law).max(), (law - np.arange(n) / n).max())
            best = min(best, (away, 1 + n / logs.sum(), values[k], n))
    return best


def test_a_tail_with_a_start_is_the_fit_of_greatest_likelihood():
    values, start = 3 * pareto(60, 2.7), 4.0
    tail = values[values >= start]
    found = tail_exponent(values, start)
    shape = stats.pareto.fit(tail, floc=0, fscale=start)[0]
    assert found.exponent.value == pytest.approx(1 + shape)
    assert found.exponent.se == pytest.approx(shape / math.sqrt(len(tail)))
    assert (found.start, found.count) == (start, len(tail))
    assert found.distance == pytest.approx(stats.kstest(tail, stats.pareto(shape, scale=start).cdf).statistic)
    power = stats.pareto(shape, scale=start).logpdf(tail)
    gaps = power - stats.expon(start, (tail - start).mean()).logpdf(tail)
    assert found.against_exponential == pytest.approx(gaps.sum() / (math.sqrt(len(tail)) * gaps.std()))


def test_an_eigenvalue_at_the_start_is_in_the_tail_and_all_count_for_the_density_at_the_start():
    values = np.array([1.0, *(2 * pareto(30, 2.5)), 2.0])
    found = tail_exponent(values, 2.0)
    assert found.count == 31
    assert found.exponent.value == pytest.approx(1 + 31 / np.log(values[1:] / 2).sum())


def test_without_a_start_the_power_law_is_nearest_of_all_starts():
    values = np.concatenate([pareto(60, 2.5, 1), np.random.default_rng(2).random(30)])
    found = tail_exponent(values)
    away, exponent, start, count = nearest(values)
    assert (found.distance, found.exponent.value) == pytest.approx((away, exponent))
    assert (found.start, found.count) == (start, count)
    rng = np.random.default_rng(3)
    again = [nearest(rng.choice(values, len(values)))[1] for _ in range(60)]
    # Both spreads are of a hundred resamples or fewer: known to about a tenth.
    assert found.exponent.se == pytest.approx(np.std(again, ddof=1), rel=0.35)


def test_of_many_eigenvalues_a_hundred_are_tried_as_starts():
    values = np.concatenate([pareto(300, 2.5, 1), np.random.default_rng(2).random(407)])
    found = tail_exponent(values)
    assert (found.distance, found.exponent.value, found.start, found.count) == pytest.approx(nearest(values))


def test_ten_eigenvalues_are_a_tail_and_fifty_are_not_few():
    assert tail_exponent(pareto(10, 2.5), 1.0).count == 10
    assert tail_exponent(pareto(11, 2.5)).count >= 10
    with pytest.raises(InputError, match="at least 10"):
        tail_exponent(pareto(9, 2.5), 1.0)
    assert "SPEC1004" in codes(tail_exponent(pareto(49, 2.5), 1.0).exponent)
    assert "SPEC1004" not in codes(tail_exponent(pareto(50, 2.5), 1.0).exponent)


def test_a_power_law_has_to_be_better_at_five_percent():
    level = stats.norm.ppf(0.95)
    for seed in range(6):
        found = tail_exponent(pareto(60, 2.5, seed), 1.0)
        assert ("SPEC1003" in codes(found.exponent)) == (found.against_exponential < level)
    seen = [tail_exponent(pareto(40, 3.0, seed), 1.0).against_exponential for seed in range(40)]
    assert min(seen) < level < max(seen)


def law(x, critical, prefactor, exponent):
    return prefactor * np.clip(x / critical - 1, 0, None) ** exponent


def near(x, y, critical):
    """The nearer half of the range, with six indices above 0 at least."""
    return x <= max((critical + x.max()) / 2, np.sort(x[y > 0])[5])


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("exponent", [None, 1.5])
def test_index_is_fitted_as_by_weighted_least_squares(weighted, exponent):
    rng = np.random.default_rng(5)
    x = np.linspace(0.15, 0.4, 26)
    se = 0.0005 * (1 + x) if weighted else np.full(len(x), 0.0005)
    y = np.clip(law(x, 0.2, 0.2, 1.5) + se * rng.standard_normal(len(x)), 0, 1)
    names = ["critical_energy", "prefactor", "exponent"][: 3 if exponent is None else 2]
    shape = law if exponent is None else lambda x, c, a: law(x, c, a, exponent)
    fits = []
    found = fit_index(x, y, se if weighted else None, exponent)
    for kept in (x > 0, near(x, y, found.critical_energy.value)):
        first = [0.2, 0.2, 1.5][: len(names)]
        fits.append(optimize.curve_fit(shape, x[kept], y[kept], first, sigma=se[kept], absolute_sigma=weighted))
    for k, name in enumerate(names):
        estimate = getattr(found, name)
        assert estimate.value == pytest.approx(fits[0][0][k], rel=1e-4)
        assert estimate.se == pytest.approx(math.sqrt(fits[0][1][k, k]), rel=0.01)
        assert estimate.systematic == pytest.approx(3 * abs(fits[0][0][k] - fits[1][0][k]), rel=0.02)
        assert estimate.name == name.replace("_", " ")
        assert estimate.spec == {"pairs": 26, "exponent": exponent}
    if exponent:
        assert (found.exponent.value, found.exponent.se, found.exponent.systematic) == (1.5, 0, 0)


def test_an_exponent_that_the_range_moves_by_more_than_its_error_is_told():
    x = np.linspace(0.205, 0.4, 24)
    y = law(x, 0.2, 0.2, 1.5) * (1 - 0.3 * (x / 0.2 - 1))
    told = set()
    for size in np.geomspace(1e-5, 1e-2, 12):
        exponent = fit_index(x, y, np.full(len(x), size)).exponent
        moved = exponent.systematic / 3
        assert ("SPEC1005" in codes(exponent)) == (moved > exponent.se)
        told.add(moved > exponent.se)
    assert told == {True, False}


def test_of_several_minima_the_lowest_is_taken():
    x = np.linspace(0.05, 0.4, 12)
    y = np.array([0, 0, 53, 47, 224, 46, 257, 439, 756, 1126, 1687, 2023]) / 1e4
    found = fit_index(x, y)
    fitted = (found.critical_energy.value, found.prefactor.value, found.exponent.value)
    squares = [np.sum((law(x, *fitted) - y) ** 2)]
    for critical in (0.05, 0.1, 0.15, 0.2):
        try:
            point = optimize.curve_fit(law, x, y, [critical, 0.1, 1.5], maxfev=2000)[0]
        except RuntimeError:
            continue
        squares.append(np.nansum((law(x, *point) - y) ** 2))
    assert len(squares) > 1
    assert squares[0] <= min(squares) * (1 + 1e-6)


def test_six_indices_above_zero_are_enough_and_five_are_not():
    x = np.array([0.1, 0.15, 0.21, 0.22, 0.24, 0.26, 0.28, 0.3])
    assert fit_index(x, law(x, 0.2, 0.1, 1.5)).critical_energy.value == pytest.approx(0.2)
    with pytest.raises(InputError, match="at least 6"):
        fit_index(x[:-1], law(x[:-1], 0.2, 0.1, 1.5))


def test_difference_quotients_are_those_of_scipy():
    def curve(p):
        return np.array([p[0] ** 3 * p[1], np.sin(p[1]), p[0] - p[1] ** 2, 7.0])

    at = np.array([2.0, -1.3])
    exact = [[3 * 4 * -1.3, 8], [0, math.cos(-1.3)], [1, 2.6], [0, 0]]
    np.testing.assert_allclose(jacobian_at(curve, at), exact, atol=1e-8)


def test_least_squares_finds_what_scipy_finds_with_its_covariance():
    x = np.linspace(0, 3, 20)
    y = 2 * np.exp(-1.3 * x) + 0.1 * np.cos(7 * x)

    def gaps(p):
        return p[0] * np.exp(-p[1] * x) - y

    found, known = least_squares(gaps, np.array([1.0, 0.1])), optimize.least_squares(gaps, [1.0, 0.1], xtol=1e-14)
    assert found.converged
    np.testing.assert_allclose(found.at, known.x, rtol=1e-6)
    np.testing.assert_allclose(found.residuals, gaps(found.at))
    np.testing.assert_allclose(found.covariance, np.linalg.inv(known.jac.T @ known.jac), rtol=1e-4)


def test_least_squares_goes_down_a_curved_valley_and_around_what_is_not_finite():
    def valley(p):
        return np.array([10 * (p[1] - p[0] ** 2), 1 - p[0]])

    np.testing.assert_allclose(least_squares(valley, np.array([-1.2, 1.0])).at, [1, 1], atol=1e-8)
    with np.errstate(invalid="ignore"):
        found = least_squares(lambda p: np.log(p) - 3, np.array([0.5]))
    np.testing.assert_allclose(found.at, [math.exp(3)], rtol=1e-8)


def whole(found, gaps):
    """Residuals and derivatives are those at the point."""
    np.testing.assert_allclose(found.residuals, gaps(found.at))
    np.testing.assert_allclose(found.jacobian, jacobian_at(gaps, found.at))
    return found


def test_what_is_found_is_whole_wherever_the_search_ends():
    def flat(p):
        return np.array([1.0, 2.0]) + 0 * p

    assert not whole(least_squares(flat, np.array([3.0])), flat).converged  # no influence

    def idle(p):
        return np.array([p[0] - 2, 1.0])

    found = whole(least_squares(idle, np.array([1.0, 5.0])), idle)  # of one of two
    assert found.converged
    np.testing.assert_allclose(found.at, [2, 5])

    def far(p):
        return np.exp(-p) + np.array([0.0, 0.0])

    found = whole(least_squares(far, np.array([0.0])), far)  # each step is 1, and there are 200
    assert not found.converged
    assert found.at[0] == pytest.approx(200, abs=1)

    def low(p):
        return np.array([1.0, 2.0]) + np.where(p > 0, 2 * p, -p)

    found = whole(least_squares(low, np.array([0.0])), low)  # a kink, where no step goes down
    assert found.converged
    assert found.at[0] == 0


def test_a_difference_quotient_spans_two_millionths_of_a_parameter():
    for at in (0.0, 0.5, -1.0):
        assert jacobian_at(lambda p: (p - at) ** 3, np.array([at]))[0, 0] == pytest.approx(1e-12, rel=1e-6)  # noqa: B023
