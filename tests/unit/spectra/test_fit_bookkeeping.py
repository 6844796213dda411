"""What fits state beside their parameters: errors, outliers, counts and findings, against other ways to them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from crunode.core.result import Finding
from crunode.errors import InputError
from crunode.spectra import (
    fit_bulk,
    fit_index,
    fitting,
    hessian_law,
    kolmogorov_distance,
    marchenko_pastur,
    random_spectrum,
    semicircle,
)


def even(law, count):
    """A spectrum as near to a law as there is."""
    return law.quantile((np.arange(count) + 0.5) / count)


def codes(fit):
    return [f.code for f in fit.findings]


@pytest.fixture
def few_replicas(monkeypatch):
    """Fits without the cost of their random matrices."""
    monkeypatch.setattr(fitting, "_REPLICAS", 3)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "law", "truth", "fixed"),
    [
        ("marchenko-pastur", marchenko_pastur(0.5, 2.0), {"ratio": 0.5, "variance": 2.0}, {}),
        ("marchenko-pastur", marchenko_pastur(3.0, 0.2), {"ratio": 3.0}, {"variance": 0.2}),
        ("semicircle", semicircle(1.5, -3.0), {"sigma": 1.5, "center": -3.0}, {}),
        ("linear", hessian_law(0.2, 0.5, "linear", 1.3), {"energy": 0.2, "ratio": 0.5}, {"variance": 1.3}),
        ("relu", hessian_law(0.6, 0.5, "relu"), {"energy": 0.6, "variance": 1.0}, {"ratio": 0.5}),
    ],
)
def test_a_spectrum_that_is_the_law_gives_its_parameters(few_replicas, family, law, truth, fixed):
    fit = fit_bulk(even(law, 150), family, fixed=fixed)
    assert {name: e.value for name, e in fit.parameters.items()} == pytest.approx(truth, rel=3e-3)
    assert fit.distance == pytest.approx(kolmogorov_distance(even(law, 150), fit.law), abs=1e-12)
    assert fit.distance < 1.2 / 300
    assert codes(fit) == []
    spec = next(iter(fit.parameters.values())).spec
    assert (spec["family"], spec["fixed"], spec["n"], spec["outliers"]) == (family, fixed, 150, 0)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "law", "truth", "fixed"),
    [
        ("marchenko-pastur", marchenko_pastur(0.3, 2.0), {"ratio": 0.3, "variance": 2.0}, {}),
        ("semicircle", semicircle(1.5, -3.0), {"sigma": 1.5, "center": -3.0}, {}),
        ("linear", hessian_law(0.8, 0.3, "linear", 1.3), {"energy": 0.8, "variance": 1.3}, {"ratio": 0.3}),
        ("relu", hessian_law(4.0, 0.3, "relu", 1.3), {"energy": 4.0, "variance": 1.3}, {"ratio": 0.3}),
    ],
)
def test_searches_begin_near_to_what_the_moments_tell(family, law, truth, fixed):
    values = even(law, 2000)
    found = fitting._start(family, values, fixed)
    for name, value in truth.items():
        assert found[name] == pytest.approx(value, rel=0.4)
    moved = fitting._start(family, 7 * values, {})
    assert moved["sigma"] == pytest.approx(7 * found["sigma"], rel=1e-9)
    assert moved["center"] == pytest.approx(7 * found["center"], rel=1e-9)
    far = fitting._start(family, np.append(values, 1e6), fixed)  # one in two thousand is cut away
    assert {name: far[name] for name in truth} == pytest.approx({name: found[name] for name in truth}, rel=0.02)


def test_without_a_known_ratio_energy_has_a_share_of_the_variance():
    values = even(hessian_law(0.2, 0.5), 400)
    for family, of_variance in (("linear", lambda e, r: 2 * e), ("relu", lambda e, r: e * r / 2)):
        found = fitting._start(family, values, {})
        whole = found["variance"] ** 2 * found["ratio"] + of_variance(found["energy"], found["ratio"])
        assert whole == pytest.approx(found["sigma"] ** 2, rel=1e-4)


def test_what_is_too_far_from_the_edge_is_an_outlier(few_replicas):
    """Once in a thousand the largest of n eigenvalues is 3.27 (s n)^(−2/3) past the edge; s = σ^(−3/2) here."""
    count, sigma = 400, 0.5
    room = 3.27 * (sigma**-1.5 * count) ** (-2 / 3)
    near, far = 0.9 * room, 1.12 * room
    values = np.concatenate([even(semicircle(sigma), count), [1 + near, -1 - near, 1 + far, -1 - far]])
    fit = fit_bulk(values, "semicircle", fixed={"sigma": sigma})
    np.testing.assert_allclose(fit.outliers, [-1 - far, 1 + far])
    spec = fit.parameters["center"].spec
    assert (spec["n"], spec["outliers"]) == (count + 4, 2)
    assert "2 outliers" in str(fit)


def test_eigenvalues_at_an_atom_and_in_a_gap_are_none_of_the_outliers(few_replicas):
    law = marchenko_pastur(4.0)
    values = np.concatenate([np.zeros(150), even(marchenko_pastur(0.25, 4.0), 50), [0.3], [-2.0]])
    fit = fit_bulk(values, fixed={"variance": 1.0})
    assert fit.law.atoms[0][1] == pytest.approx(law.atoms[0][1], abs=0.02)
    assert fit.outliers.tolist() == [-2.0]


def test_twenty_eigenvalues_are_enough_and_nineteen_beside_an_outlier_are_not(few_replicas):
    values = even(semicircle(1.0), 20)
    assert codes(fit_bulk(values, "semicircle")) == []
    assert codes(fit_bulk([*even(semicircle(1.0), 20), 50.0], "semicircle")) == []
    short = fit_bulk([*even(semicircle(1.0), 19), 50.0], "semicircle")
    assert "SPEC1002" in codes(short)
    assert fit_bulk(values, "semicircle").ok
    with pytest.raises(InputError, match="at least 20"):
        fit_bulk(values[:19], "semicircle")


@pytest.mark.heavy
def test_another_law_is_told_from_half_more_than_the_usual_distance(few_replicas):
    part = (np.arange(200) + 0.5) / 200
    seen = set()
    for share in (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        values = (1 - share) * semicircle(1.0).quantile(part) + share * 2 * (2 * part - 1)
        fit = fit_bulk(values, "semicircle")
        told = "SPEC1001" in codes(fit)
        assert told == (fit.distance > 1.5 * fit.usual)
        seen.add((told, fit.distance > fit.usual))
    assert seen == {(False, False), (False, True), (True, True)}


def test_errors_are_those_of_forty_matrices_of_at_most_200_rows(monkeypatch):
    sizes = []

    def drawn(law, size, seed):
        sizes.append(size)
        return random_spectrum(law, size, seed)

    monkeypatch.setattr(fitting, "random_spectrum", drawn)
    fit_bulk(even(semicircle(1.0), 30), "semicircle")
    assert sizes == [30] * 40
    monkeypatch.setattr(fitting, "_REPLICAS", 2)
    fit_bulk(even(semicircle(1.0), 500), "semicircle")
    assert sizes[40:] == [200] * 2


def test_stated_error_of_a_semicircle_is_that_of_its_trace():
    """The mean eigenvalue of matrices of variance σ²/n has the standard deviation √2 σ/n, their size about σ/n."""
    sigma, count = 1.5, 60
    fit = fit_bulk(even(semicircle(sigma, -3.0), count), "semicircle")
    assert fit.parameters["center"].se == pytest.approx(math.sqrt(2) * sigma / count, rel=0.35)
    assert fit.parameters["sigma"].se == pytest.approx(sigma / count, rel=0.5)
    assert fit.parameters["center"].systematic < fit.parameters["center"].se
    wide = fit_bulk(even(semicircle(10 * sigma), count), "semicircle")
    assert wide.parameters["sigma"].se == pytest.approx(10 * fit.parameters["sigma"].se, rel=0.02)
    many = fit_bulk(even(semicircle(sigma, -3.0), 400), "semicircle")
    assert many.parameters["center"].se == pytest.approx(math.sqrt(2) * sigma / 400, rel=0.35)
    assert many.usual < 0.3 * fit.usual


def test_fit_with_errors_among_its_findings_is_not_ok():
    fit = fit_bulk(even(semicircle(1.0), 20), "semicircle")
    warning, error = (Finding.of(code, "") for code in ("SPEC1001", "SPEC1002"))
    assert warning.severity == "warning"
    for findings in ((warning,), (error,), (warning, error)):
        severe = "error" in [f.severity for f in findings]
        assert replace(fit, findings=findings).ok == (not severe)


def test_eigenvalues_near_an_atom_lie_on_it_as_far_as_resolved(few_replicas):
    """Rounding of a matrix in single precision moves null eigenvalues by more than that of one in double."""
    law = marchenko_pastur(4.0)
    moved = np.concatenate([4e-7 * np.linspace(-1, 1, 150), even(marchenko_pastur(0.25, 4.0), 50)])
    resolved = fit_bulk(moved, fixed={"variance": 1.0}, resolution=1e-5)
    assert resolved.distance < 0.01
    assert resolved.parameters["ratio"].value == pytest.approx(4, rel=0.02)
    assert law.atoms[0][1] == 0.75
    assert fit_bulk(moved, fixed={"variance": 1.0}).distance > 0.2


def test_usual_distance_is_the_largest_among_matrices_of_the_law():
    values = even(semicircle(1.0), 100)
    fit = fit_bulk(values, "semicircle")
    others = [kolmogorov_distance(random_spectrum(fit.law, 100, seed=k), fit.law) for k in range(40)]
    assert fit.usual == pytest.approx(max(others), rel=0.3)
    assert fit.usual > np.mean(others)


def power(x, critical, exponent, prefactor):
    return prefactor * np.clip(x / critical - 1, 0, None) ** exponent


def noisy(seed=0, size=0.003):
    x = np.linspace(0.15, 0.4, 26)
    rng = np.random.default_rng(seed)
    return x, np.clip(power(x, 0.2, 1.4, 0.2) + size * rng.standard_normal(26), 0, 1)


@pytest.mark.parametrize("known", [True, False])
def test_index_fit_has_the_errors_of_scipy(known):
    optimize = pytest.importorskip("scipy.optimize")
    x, y = noisy()
    errors = 0.002 + 0.01 * (x - 0.15)
    given = errors if known else np.ones_like(errors)
    best, spread = optimize.curve_fit(power, x, y, [0.2, 1.4, 0.2], given, absolute_sigma=known)
    fit = fit_index(x, y, errors if known else None)
    for found, value, se in zip(
        (fit.critical_energy, fit.exponent, fit.prefactor), best, np.sqrt(np.diag(spread)), strict=True
    ):
        assert found.value == pytest.approx(value, rel=1e-4)
        assert found.se == pytest.approx(se, rel=0.02)
        assert found.spec == {"pairs": 26, "exponent": None}
    assert (fit.critical_energy.name, fit.exponent.name, fit.prefactor.name) == (
        "critical energy",
        "exponent",
        "prefactor",
    )


def test_index_fit_with_a_known_exponent_has_the_errors_of_scipy():
    optimize = pytest.importorskip("scipy.optimize")
    x, y = noisy(1)
    best, spread = optimize.curve_fit(lambda x, c, a: power(x, c, 1.4, a), x, y, [0.2, 0.2], np.full(26, 0.003), True)
    fit = fit_index(x, y, np.full(26, 0.003), exponent=1.4)
    assert (fit.exponent.value, fit.exponent.error) == (1.4, 0.0)
    assert fit.critical_energy.value == pytest.approx(best[0], rel=1e-4)
    assert fit.prefactor.value == pytest.approx(best[1], rel=1e-4)
    assert [fit.critical_energy.se, fit.prefactor.se] == pytest.approx(np.sqrt(np.diag(spread)).tolist(), rel=0.02)
    assert fit.exponent.spec["exponent"] == 1.4


def test_systematic_error_is_three_times_the_change_without_the_farther_half():
    x = np.linspace(0.205, 0.6, 30)
    y = power(x, 0.2, 1.5, 0.1) * (1 - 0.2 * (x / 0.2 - 1))
    full = fit_index(x, y)
    near = x <= (full.critical_energy.value + x.max()) / 2
    half = fit_index(x[near], y[near])
    for name in ("critical_energy", "exponent", "prefactor"):
        one, other = getattr(full, name), getattr(half, name)
        assert one.systematic == pytest.approx(3 * abs(one.value - other.value), rel=1e-5)
    assert "SPEC1005" in codes(full.exponent)
    assert "SPEC1002" not in codes(full.exponent)


def test_the_nearer_half_has_six_energies_at_least():
    x = np.array([0.21, 0.22, 0.23, 0.5, 0.55, 0.6, 0.65, 0.7])
    y = power(x, 0.2, 1.5, 0.05) * (1 - 0.1 * (x / 0.2 - 1))
    full, half = fit_index(x, y), fit_index(x[:6], y[:6])
    assert full.exponent.systematic == pytest.approx(3 * abs(full.exponent.value - half.exponent.value), rel=1e-4)
    with pytest.raises(InputError, match="at least 6"):
        fit_index(x[:5], y[:5])
    with pytest.raises(InputError, match="at least 6"):
        fit_index(np.append(x[:5], x[4]), np.append(y[:5], y[4]))


def test_a_range_that_matters_less_than_the_errors_is_not_told():
    x = np.linspace(0.205, 0.4, 30)
    fit = fit_index(x, noisy_index(x), np.full(30, 0.01))
    assert fit.exponent.systematic < 9 * fit.exponent.se
    assert codes(fit.exponent) == []


def noisy_index(x):
    return np.clip(power(x, 0.2, 1.5, 0.1) + 0.001 * np.sin(40 * x), 0, 1)


def test_where_the_mean_is_zero_the_first_size_has_the_unit_of_eigenvalues():
    values = np.linspace(-1, 1, 101)
    one, other = (fitting._start("linear", scale * values, {}) for scale in (1.0, 100.0))
    assert one["variance"] > 0
    assert other["variance"] == pytest.approx(100 * one["variance"])
    assert other["sigma"] == pytest.approx(100 * one["sigma"])


def test_a_spectrum_is_compared_at_200_of_its_eigenvalues():
    values = np.linspace(0, 1, 1001)
    at, shares = fitting._picked(values)
    assert len(at) == 200
    assert at[[0, -1]].tolist() == [0, 1]
    assert shares == pytest.approx((at * 1000 + 0.5) / 1001)
    assert len(fitting._picked(values[:50])[0]) == 50
