"""Laws, energies, distances and small searches against closed forms and other libraries."""

import math

import numpy as np
import pytest

from crunode.spectra import (
    Law,
    critical_energy,
    edge_energy,
    free_poisson,
    hessian_law,
    index,
    index_limit,
    index_near_critical,
    index_prefactor,
    kolmogorov_distance,
    linear_network_residual,
    marchenko_pastur,
    point_mass,
    random_matrix,
    residual_law,
    semicircle,
)
from crunode.spectra.least_squares import jacobian_at, least_squares
from crunode.spectra.random_matrices import merged_at_atoms


@pytest.mark.parametrize("rate", [0.3, 1.7])
@pytest.mark.parametrize("jump", [0.5, -2.0])
def test_free_poisson_cumulants_are_rate_times_powers_of_the_jump(rate, jump):
    law = free_poisson(rate, jump) + semicircle(0.3, 1.0)
    expected = [rate * jump**k for k in range(1, 6)]
    expected[0], expected[1] = expected[0] + 1.0, expected[1] + 0.09
    assert [law.cumulant(k) for k in range(1, 6)] == pytest.approx(expected, rel=1e-12)
    z = np.array([0.1, -0.2 + 0.1j])
    np.testing.assert_allclose(
        (law.inverse(1 / z) - 1 / z), 1.0 + 0.09 * z + rate * jump / (1 - jump * z), rtol=1e-12, atol=1e-13
    )


def test_moments_of_marchenko_pastur_are_narayana_sums():
    ratio, order = 0.4, 6
    expected = [
        sum(math.comb(k, r) * math.comb(k - 1, r) / (r + 1) * ratio**r for r in range(k)) for k in range(1, order + 1)
    ]
    assert marchenko_pastur(ratio).moments(order).tolist() == pytest.approx(expected, rel=1e-12)


def test_edges_of_a_symmetric_sum_of_two_poisson_laws():
    """H(w) = w + 2c w/(w² − t²): its turns solve a quadratic in w²."""
    law = Law(rates=(0.2, 0.2), jumps=(3.0, -3.0))
    c, t2 = 2 * 0.2 * 9.0, 9.0  # H'(w) = 1 − c (u + t²)/(u − t²)² at u = w²
    roots = np.sort(np.sqrt(np.roots([1.0, -(2 * t2 + c), t2 * t2 - c * t2])))
    turns = np.array([-roots[1], -roots[0], roots[0], roots[1]])
    edges = np.sort(turns + c * turns / (turns**2 - t2))
    np.testing.assert_allclose(np.sort(law.edges.ravel()), edges, rtol=1e-12)
    assert law.edges.shape == (2, 2)
    np.testing.assert_allclose(law.masses, [0.2, 0.2], rtol=1e-12)
    assert law.atoms == ((0.0, pytest.approx(0.6)),)
    x = np.array([edges[0] - 1, 0.5 * edges[1], 0.0, edges[3]])
    np.testing.assert_allclose(law.cdf(x), [0, 0.2, 0.8, 1], atol=1e-12)


def test_slopes_at_the_edges_of_marchenko_pastur():
    """Density √((x − a)(b − x))/(2πφx): √(b − a)/(2φx) at either edge x, over π."""
    for ratio in (0.25, 3.0):
        low, high = marchenko_pastur(ratio).edges[0]
        expected = math.sqrt(high - low) / (2 * ratio * np.array([low, high]))
        np.testing.assert_allclose(marchenko_pastur(ratio).edge_slopes[0], expected, rtol=1e-6)
    assert semicircle(2.0).edge_slopes[0].tolist() == pytest.approx([2**-1.5] * 2, rel=1e-6)
    assert np.isinf(marchenko_pastur(1.0).edge_slopes[0, 0])


def test_laws_are_shifted_scaled_and_added_in_every_part():
    law = Law(0.5, 0.3, (0.2,), (3.0,))
    assert law + law == Law(1.0, 0.6, (0.4,), (3.0,))
    assert -2.0 * law == Law(-1.0, 4 * 0.3, (0.2,), (-6.0,))
    assert law - 1.5 == Law(-1.0, 0.3, (0.2,), (3.0,))
    assert -law == Law(-0.5, 0.3, (0.2,), (-3.0,))


@pytest.mark.parametrize("order", [1, 2, 5])
def test_there_are_as_many_moments_as_asked_for(order):
    """Catalan numbers for a semicircle; a shift of one gives their binomial sums."""
    catalan = [1.0, 0, 1, 0, 2, 0]
    expected = [sum(math.comb(k, j) * catalan[j] for j in range(k + 1)) for k in range(1, order + 1)]
    assert semicircle(1.0, 1.0).moments(order).tolist() == pytest.approx(expected)


def test_density_is_that_of_marchenko_pastur_on_and_off_its_support():
    law, x = marchenko_pastur(0.25), np.array([0.1, 0.25001, 1.0, 2.2, 2.25, 5.0])
    low, high = 0.25, 2.25
    expected = np.sqrt(np.clip((x - low) * (high - x), 0, None)) / (2 * math.pi * 0.25 * x)
    np.testing.assert_allclose(law.density(x), expected, atol=1e-12)
    np.testing.assert_allclose(law.density(x[:, None])[:, 0], expected, atol=1e-12)


def test_density_at_the_ends_of_the_support():
    assert semicircle(1.0).density([-2.0, 2.0]).tolist() == [0, 0]
    square = marchenko_pastur(1.0)
    assert square.density(float(square.edges[0, 0])) == math.inf
    assert square.density(float(square.edges[0, 1])) == 0


def test_quantiles_of_a_law_with_an_atom_wait_there():
    law = marchenko_pastur(4.0)
    low, high = law.edges[0]
    found = law.quantile([0.0, 0.3, 0.75, 0.76, 1.0])
    np.testing.assert_allclose(found[:3], 0, atol=1e-12)
    assert low < found[3] < found[4] == pytest.approx(high, rel=1e-9)
    assert law.cdf(found[3]) == pytest.approx(0.76, abs=1e-12)


def test_plain_laws_begin_at_nothing():
    assert Law() == point_mass(0.0)
    assert Law(1.5).atoms == ((1.5, 1.0),)
    assert (Law().mean, Law().variance) == (0.0, 0.0)
    assert semicircle(2.0).mean == 0.0
    assert marchenko_pastur(0.5).mean == 1.0


def test_models_at_no_energy_are_marchenko_pastur():
    for model in ("linear", "relu"):
        assert hessian_law(0.0, 0.5, model, 2.0) == marchenko_pastur(0.5, 2.0)
        assert hessian_law(0.3, 0.5, model) - residual_law(0.3, 0.5, model) != marchenko_pastur(0.5)
        assert hessian_law(0.3, 0.5, model).variance == pytest.approx(0.5 + residual_law(0.3, 0.5, model).variance)


@pytest.mark.parametrize("energy", [0.1, 0.6])
@pytest.mark.parametrize("ratio", [0.25, 3.0])
def test_residual_laws_have_their_r_transforms(energy, ratio):
    """R(z) = H(1/z) − 1/z, to the rounding of 1/z."""
    z = np.array([0.05, -0.1])
    relu = energy * ratio * z / (2 - energy * ratio**2 * z**2)
    np.testing.assert_allclose(
        (residual_law(energy, ratio, "relu").inverse(1 / z) - 1 / z), relu, rtol=1e-12, atol=1e-13
    )
    np.testing.assert_allclose(
        (residual_law(energy, ratio).inverse(1 / z) - 1 / z), 2 * energy * z, rtol=1e-12, atol=1e-13
    )
    np.testing.assert_allclose(
        (linear_network_residual(energy, ratio).inverse(1 / z) - 1 / z), 2 * relu, rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("model", ["linear", "relu"])
def test_energies_scale_with_the_square_of_the_variance(model):
    at = critical_energy(0.4, model)
    assert critical_energy(0.4, model, 3.0) == pytest.approx(9 * at, rel=1e-12)
    energies = np.array([0.5, 1.5, 4.0]) * at
    np.testing.assert_allclose(index(9 * energies, 0.4, model, 3.0), index(energies, 0.4, model), atol=1e-10)
    near = index_near_critical(9 * energies, 0.4, model, 3.0)
    np.testing.assert_allclose(near, index_near_critical(energies, 0.4, model), rtol=1e-10)
    np.testing.assert_allclose(near[1:], index_prefactor(0.4, model) * np.array([0.5, 3.0]) ** 1.5, rtol=1e-10)


def test_index_leaves_out_what_lies_at_zero():
    assert index(0.0, 4.0).shape == ()
    assert index([[0.0, 0.5], [1.0, 2.0]], 0.5).shape == (2, 2)
    assert float(index(0.0, 4.0)) == 0.0
    # Rank 1/φ of the ReLU model's second part leaves an atom of half of the directions at 0.
    law = hessian_law(5.0, 4.0, "relu")
    assert float(index(5.0, 4.0, "relu")) == pytest.approx(float(law.cdf(0.0)) - 0.5, abs=1e-12)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.5, 2.0, 8.0])
def test_limit_of_the_index(ratio):
    null = max(1 - 1 / ratio, 0)
    assert index_limit(ratio) == null / 2
    assert index_limit(ratio, "relu") == min(null, 1 / ratio) / 2


def test_edge_energy_of_a_shifted_semicircle():
    """The edge at c − 2√(2ε) crosses 0 at ε = c²/8."""
    found = edge_energy(lambda e: semicircle(math.sqrt(2 * e), 1.5), 0.01, 5.0)
    assert found == pytest.approx(1.5**2 / 8, rel=1e-12)
    assert edge_energy(lambda e: point_mass(0.7 - e), 0.0, 2.0) == pytest.approx(0.7, rel=1e-12)


def test_edge_energy_is_that_of_the_lowest_of_several_parts():
    parts = Law(rates=(0.2, 0.2), jumps=(3.0, -3.0))
    found = edge_energy(lambda e: parts + (10 - e), 0.0, 9.0)
    assert found == pytest.approx(10 + parts.edges.min(), rel=1e-12)


def test_distance_of_two_spectra_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=30), rng.normal(0.4, 1.0, 17)
    assert kolmogorov_distance(one, other) == pytest.approx(stats.ks_2samp(one, other).statistic, abs=1e-12)
    other[:3] = one[:3]
    assert kolmogorov_distance(one, other) == pytest.approx(stats.ks_2samp(one, other).statistic, abs=1e-12)
    law = semicircle(0.7)
    assert kolmogorov_distance(one, law) == pytest.approx(stats.kstest(one, law.cdf).statistic, abs=1e-12)


def test_distance_from_a_point_mass_counts_what_is_elsewhere():
    values = [0.0, 0.0, 0.0, 1.0, 1.0]
    assert kolmogorov_distance(values, point_mass(0.0)) == pytest.approx(2 / 5)
    assert kolmogorov_distance(values, point_mass(1.0)) == pytest.approx(3 / 5)
    assert kolmogorov_distance(values, point_mass(0.5)) == pytest.approx(3 / 5)
    assert kolmogorov_distance(values, point_mass(-1.0)) == pytest.approx(1.0)
    assert kolmogorov_distance([-1.0, -1.0, 2.0], point_mass(0.0)) == pytest.approx(2 / 3)


def test_values_within_rounding_of_an_atom_lie_on_it():
    law, size = marchenko_pastur(4.0), 50.0
    given = np.array([-1.5e-9, -0.7e-9, 0.7e-9, 1.5e-9, -1.0]) * size
    expected = [-1.5e-9 * size, 0.0, 0.0, 1.5e-9 * size, -size]
    assert merged_at_atoms(given, law).tolist() == pytest.approx(expected, abs=0)
    assert merged_at_atoms(given, law, 2e-9)[:4].tolist() == [0.0] * 4
    # Four values on either side of the atom of three quarters, nearly on it: the share is right once they are merged.
    values = np.array([-0.7e-9, 0.7e-9, 0.0, 1.0]) * 4.5
    assert kolmogorov_distance(values, law) == pytest.approx(kolmogorov_distance([0.0, 0.0, 0.0, 4.5], law), abs=1e-12)
    wide = np.array([-1.5e-9, 1.5e-9, 0.0, 1.0]) * 4.5
    assert kolmogorov_distance(wide, law) > kolmogorov_distance(wide, law, 2e-9) + 0.05


def test_random_matrices_have_the_moments_of_their_law():
    law = 0.5 + semicircle(0.8) + free_poisson(0.5, -2.0)
    size = 120
    found = [random_matrix(law, size, seed=k) for k in range(6)]
    means = np.mean([[np.trace(m), np.trace(m @ m), np.trace(m @ m @ m)] for m in found], axis=0) / size
    np.testing.assert_allclose(means, law.moments(3), rtol=0.05)
    assert all((m == m.T).all() for m in found)
    assert not np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], random_matrix(law, size, seed=0))


def test_differences_are_a_millionth_of_each_parameter_to_both_sides():
    at, seen = np.array([5.0, -0.1]), []

    def cube(p):
        seen.append(p - at)
        return p**3

    found = jacobian_at(cube, at)
    np.testing.assert_allclose(found, np.diag(3 * at**2), atol=1e-8)
    assert sorted(float(d[0]) for d in seen) == pytest.approx([-5e-6, 0, 0, 5e-6], rel=1e-8)
    assert sorted(float(d[1]) for d in seen) == pytest.approx([-1e-6, 0, 0, 1e-6], rel=1e-8)
    assert jacobian_at(lambda p: np.array([p[0] * p[1], p[0], 2 * p[1]]), at).shape == (3, 2)


def test_least_squares_of_lines_are_those_of_linear_algebra():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=20)
    found = least_squares(lambda p: x @ p - y, np.zeros(3))
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(found.at, best, atol=1e-8)
    np.testing.assert_allclose(found.residuals, x @ best - y, atol=1e-8)
    np.testing.assert_allclose(found.jacobian, x, atol=1e-8)
    np.testing.assert_allclose(found.covariance, np.linalg.inv(x.T @ x), rtol=1e-6)
    assert found.converged


def test_least_squares_of_a_curved_valley_are_those_of_scipy():
    optimize = pytest.importorskip("scipy.optimize")

    def gaps(p):
        return np.array([10 * (p[1] - p[0] ** 2), 1 - p[0], 0.3 * p[0] * p[1] - 1])

    start = np.array([-1.2, 1.0])
    found = least_squares(gaps, start)
    best = optimize.least_squares(gaps, start, xtol=1e-14, ftol=1e-14, gtol=1e-14)
    np.testing.assert_allclose(found.at, best.x, atol=1e-6)
    np.testing.assert_allclose(found.jacobian, best.jac, atol=1e-5)


def test_least_squares_never_step_to_where_there_is_nothing():
    def gaps(p):
        return np.array([p[0] - 2.0, math.log(p[1]) if p[1] > 0 else math.nan])

    found = least_squares(gaps, np.array([0.0, 8.0]))
    np.testing.assert_allclose(found.at, [2.0, 1.0], atol=1e-8)
    assert found.converged
    lost = least_squares(lambda p: np.array([1.0, 1.0, 1.0]) + 0 * p.sum(), np.array([1.0, 2.0]))
    assert not lost.converged
    assert lost.at.tolist() == [1.0, 2.0]
    assert lost.residuals.tolist() == [1.0] * 3
