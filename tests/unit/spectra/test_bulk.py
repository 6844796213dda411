"""The bulk of a spectrum: exact spectra are fitted exactly, errors are those of random matrices, edges are sharp."""

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from crunode.spectra import (
    Law,
    critical_energy,
    fit_bulk,
    hessian_law,
    index,
    index_near_critical,
    index_prefactor,
    kolmogorov_distance,
    marchenko_pastur,
    random_matrix,
    random_spectrum,
    semicircle,
)
from crunode.spectra.random_matrices import merged_at_atoms


def even(law, size):
    return law.quantile((np.arange(size) + 0.5) / size)


def codes(found):
    return [finding.code for finding in found.findings]


EXACT = {
    "marchenko-pastur": (marchenko_pastur(0.5, 2.0), {"ratio": 0.5, "variance": 2.0}),
    "semicircle": (semicircle(0.7, -2.0), {"sigma": 0.7, "center": -2.0}),
    "linear": (hessian_law(0.2, 0.3, "linear", 1.5), {"energy": 0.2, "ratio": 0.3, "variance": 1.5}),
    "relu": (hessian_law(0.5, 2.5, "relu", 0.8), {"energy": 0.5, "ratio": 2.5, "variance": 0.8}),
}


@pytest.mark.heavy
@pytest.mark.parametrize("family", EXACT)
def test_a_spectrum_spread_as_its_law_is_fitted_without_error(family):
    law, truth = EXACT[family]
    values = even(law, 60)
    known = {} if len(truth) == 2 else {"ratio": truth["ratio"]}
    found = fit_bulk(values, family, fixed=known)
    assert {n: e.value for n, e in found.parameters.items()} == pytest.approx(
        {k: truth[k] for k in truth if k not in known}, rel=1e-6
    )
    assert found.distance == pytest.approx(0.5 / 60 if not law.atoms else found.distance, rel=1e-4)
    assert found.distance == kolmogorov_distance(values, found.law)
    spec = {"family": family, "fixed": known, "n": 60, "outliers": 0, "resolution": 1e-9}
    assert all(e.spec == spec and e.name == n for n, e in found.parameters.items())
    assert not found.findings


def test_errors_and_bias_are_those_of_random_matrices_of_the_size():
    size = 30
    found = fit_bulk(even(semicircle(1.0), size), "semicircle", fixed={"center": 0.0})
    shares, steps, distances = (np.arange(size) + 0.5) / size, [], []
    x = even(semicircle(1.0), size)
    slope = -x * np.sqrt(np.clip(4 - x**2, 0, None)) / (2 * math.pi)  # of the distribution function, in log σ
    for seed in range(300):
        values = random_spectrum(semicircle(1.0), size, 1000 + seed)
        at = np.clip(values, -2, 2)
        below = 0.5 + at * np.sqrt(4 - at**2) / (4 * math.pi) + np.arcsin(at / 2) / math.pi
        steps.append(slope @ (shares - below) / (slope @ slope))
        distances.append(kolmogorov_distance(values, semicircle(1.0)))
    sigma = found.parameters["sigma"]
    assert sigma.se == pytest.approx(np.std(steps, ddof=1), rel=0.4)
    assert sigma.systematic == pytest.approx(abs(np.mean(steps)), abs=4 * np.std(steps) / math.sqrt(40))
    assert np.quantile(distances, 0.8) < found.usual < 1.1 * max(distances)


def test_errors_fall_as_the_size_beyond_two_hundred_and_distances_a_little_more_slowly():
    small, large = (fit_bulk(even(semicircle(1.0), n), "semicircle") for n in (200, 400))
    for name in ("sigma", "center"):
        a, b = small.parameters[name], large.parameters[name]
        assert (b.se, b.systematic) == pytest.approx((a.se / 2, a.systematic / 2), rel=1e-3)
    assert large.usual / small.usual == pytest.approx(math.log(400) / 400 / (math.log(200) / 200), rel=1e-3)


def test_errors_come_from_forty_matrices_of_at_most_two_hundred_rows(monkeypatch):
    asked = []

    def drawn(law, size, seed):
        asked.append(size)
        return random_spectrum(law, size, seed)

    monkeypatch.setattr("crunode.spectra.fitting.random_spectrum", drawn)
    fit_bulk(even(semicircle(1.0), 300), "semicircle")
    fit_bulk(even(semicircle(1.0), 50), "semicircle")
    assert asked == [200] * 40 + [50] * 40


def test_scale_is_part_of_errors_of_what_is_positive_and_of_a_center():
    small = fit_bulk(even(semicircle(1.0, 0.5), 40), "semicircle").parameters
    large = fit_bulk(even(semicircle(10.0, 5.0), 40), "semicircle").parameters
    for name in small:
        a, b = small[name], large[name]
        assert (b.value, b.se, b.systematic) == pytest.approx((10 * a.value, 10 * a.se, 10 * a.systematic), rel=1e-3)


def tracy_widom(x):
    """How often the largest eigenvalue of symmetric matrices exceeds x, for small chances: half of the tail of Ai."""
    return 0.5 * integrate.quad(lambda t: special.airy(t)[0], x, x + 20)[0]


@pytest.mark.heavy
@pytest.mark.parametrize(("size", "family"), [(40, "semicircle"), (80, "semicircle"), (50, "marchenko-pastur")])
def test_an_outlier_is_what_random_matrices_have_once_in_a_thousand(size, family):
    law = {"semicircle": semicircle(1.0), "marchenko-pastur": marchenko_pastur(0.3)}[family]
    assert tracy_widom(3.1) > 1.2e-3 > 1e-3 > 0.8e-3 > tracy_widom(3.5)
    for k, side in enumerate((-1, 1)):
        told = set()
        for far in (3.2, 4.2, 4.8):
            there = law.edges[0, k] + side * far * (law.edge_slopes[0, k] * size) ** (-2 / 3)
            found = fit_bulk([*even(law, size), there], family)
            # What the law that was found says to it, which is a little wider for the value beyond the edge.
            away = side * (there - found.law.edges[0, k]) * (found.law.edge_slopes[0, k] * (size + 1)) ** (2 / 3)
            assert list(found.outliers) == ([there] if tracy_widom(away) < 1e-3 else [])
            told.add(len(found.outliers))
            assert all(e.spec["outliers"] == len(found.outliers) for e in found.parameters.values())
        assert told == {0, 1}


def test_gaps_inside_the_support_and_atoms_hold_no_outliers():
    law = hessian_law(0.02, 4.0, "relu")
    values = np.sort([*even(law, 60), *np.zeros(5)])
    found = fit_bulk(values, "relu", fixed={"ratio": 4.0, "energy": 0.02})
    assert len(found.outliers) == 0
    assert kolmogorov_distance(values, found.law) == found.distance


def test_a_distance_well_beyond_the_largest_of_random_matrices_is_another_law():
    values = even(semicircle(1.0), 40)
    for bend, ratio in ((0.6, 1.2), (1.0, 1.9)):
        found = fit_bulk(values + bend * np.sin(2 * values) / 2, "semicircle", fixed={"center": 0.0})
        assert found.distance / found.usual == pytest.approx(ratio, abs=0.1)
        assert codes(found) == (["SPEC1001"] if ratio > 1.5 else [])


def test_twenty_eigenvalues_are_a_bulk_with_an_outlier_beside_them():
    values = even(semicircle(1.0), 20)
    assert not fit_bulk(values, "semicircle").findings
    found = fit_bulk([*values, 50.0], "semicircle")
    assert list(found.outliers) == [50.0]
    assert not found.findings
    found = fit_bulk([*values[1:], 50.0], "semicircle")
    assert codes(found) == ["SPEC1002"]
    assert not found.ok


def test_values_within_the_resolution_lie_on_an_atom():
    law = marchenko_pastur(4.0)
    assert list(merged_at_atoms(np.array([-0.9e-9, 0.9e-9, 1.1e-9, 1.0]), law)) == [0, 0, 1.1e-9, 1.0]
    assert list(merged_at_atoms(np.array([0.3, 2.0]), law + 0.2, resolution=0.05)) == [0.2, 2.0]
    assert list(merged_at_atoms(np.array([0.31, 2.0]), law + 0.2, resolution=0.05)) == [0.31, 2.0]
    zeros = np.linspace(-1, 1, 90) * 1e-9 * law.edges[0, 1]
    values = np.sort([*0.9 * zeros, *even(law, 120)[90:]])
    assert kolmogorov_distance(values, law) < 0.01
    assert kolmogorov_distance(np.sort([*1.5 * zeros, *even(law, 120)[90:]]), law) > 0.1
    assert kolmogorov_distance(np.sort([*1.5 * zeros, *even(law, 120)[90:]]), law, resolution=2e-9) < 0.01


def test_distance_is_that_of_kolmogorov_and_smirnov():
    rng = np.random.default_rng(0)
    values, other = rng.normal(size=15), rng.normal(0.5, 1, size=22)
    assert kolmogorov_distance(values, other) == pytest.approx(stats.ks_2samp(values, other).statistic)
    law = semicircle(0.8, 0.3)
    exact = stats.semicircular(0.3, 1.6)
    assert kolmogorov_distance(values, law) == pytest.approx(stats.kstest(values, exact.cdf).statistic)
    # An atom that no eigenvalue lies on, at either side of all of them.
    assert kolmogorov_distance([5.0, 6.0, 7.0], marchenko_pastur(4.0)) == pytest.approx(
        max(0.75, *np.abs(marchenko_pastur(4.0).cdf([5.0, 6.0, 7.0]) - [0, 1 / 3, 2 / 3]))
    )
    assert kolmogorov_distance([-1.0, -2.0], Law()) == 1
    assert kolmogorov_distance([1.0, 2.0], Law()) == 1
    assert kolmogorov_distance([0.0, 0.0], Law()) == 0


def test_random_matrices_have_the_variances_of_their_parts():
    size = 400
    for law in (semicircle(1.5, 2.0), Law(rates=(0.7, 0.2), jumps=(0.5, -2.0))):
        matrix = random_matrix(law, size, 3)
        np.testing.assert_array_equal(matrix, matrix.T)
        trace = np.trace(matrix) / size
        square = np.trace(matrix @ matrix) / size
        assert trace == pytest.approx(law.mean, abs=0.05)
        assert square == pytest.approx(law.mean**2 + law.variance, rel=0.05)
    assert np.linalg.matrix_rank(random_matrix(Law(rates=(0.35,), jumps=(1.0,)), 10)) == 4
    np.testing.assert_array_equal(random_matrix(Law(2.5), 3), 2.5 * np.eye(3))


def test_what_is_left_out_of_a_law_is_nothing():
    assert (Law().mean, Law().variance) == (0, 0)
    assert Law(rates=(2.0,), jumps=(3.0,)).mean == 6
    assert (marchenko_pastur(0.3).mean, hessian_law(0.1, 0.3).mean, semicircle(2.0).mean) == pytest.approx((1, 1, 0))
    assert [semicircle(2.0, 1.0).cumulant(k) for k in (1, 2, 3, 4)] == [1, 4, 0, 0]
    assert [Law(1.0, 2.0, (3.0,), (-0.5,)).cumulant(k) for k in (1, 2, 3)] == [-0.5, 2.75, -0.375]


@pytest.mark.parametrize("model", ["linear", "relu"])
def test_energies_scale_with_the_square_of_the_mean_eigenvalue_which_is_one(model):
    at = np.array([0.5, 1.2, 3.0]) * critical_energy(0.4, model)
    assert critical_energy(0.4, model, 3.0) == pytest.approx(9 * critical_energy(0.4, model))
    for function in (index, index_near_critical):
        np.testing.assert_allclose(function(9 * at, 0.4, model, 3.0), function(at, 0.4, model), atol=1e-9)
        np.testing.assert_array_equal(function(at, 0.4, model, 1.0), function(at, 0.4, model))
    np.testing.assert_allclose(
        index_near_critical(at, 0.4, model), index_prefactor(0.4, model) * np.array([0, 0.2, 2.0]) ** 1.5, rtol=1e-6
    )
