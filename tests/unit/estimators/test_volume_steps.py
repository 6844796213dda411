"""Steps of particles keep the prior inside a level, whatever their kind, and volumes under a Gaussian are exact."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

import crunode as cr
from crunode.estimators import volume_law
from crunode.estimators.volume import _Splitting
from crunode.estimators.volume_law import _noise, _regress, fit_law

QUICK = {"levels": 16, "particles": 300, "replicas": 8, "moves": 8}


def crossing(w):
    return (w[:, 0] * w[:, 1]) ** 2


def quick(target, at, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cr.DiagnosticWarning)
        return cr.volume_scaling(target, at, **{**QUICK, **options})


def splitting(prior, dim, radius, potential=crossing, particles=4000):
    return _Splitting(potential, torch.zeros(dim, dtype=torch.float64), radius, prior, particles, 2, 0, 0.0)


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
@pytest.mark.parametrize(("prior", "radius"), [("box", 0.5), ("gaussian", 0.4), ("gaussian", 3.0)])
def test_steps_of_each_kind_keep_the_prior(kind, prior, radius):
    run = splitting(prior, 3, radius)
    x = start = run._start(8000)
    k = run._values(x)
    for _ in range(12):
        x, k = run._moved(x, k, math.inf, kind, 1.0)
    assert float((x != start).any(1).double().mean()) > 0.5
    assert torch.equal(k, crossing(x))
    # Means of |u|, u² and u⁴ for u in units of the radius, within five standard deviations of a mean of so many.
    powers = {p: (x.abs() / radius) ** p for p in (1, 2, 4)}
    exact = {1: math.sqrt(2 / math.pi), 2: 1.0, 4: 3.0} if prior == "gaussian" else {1: 1 / 2, 2: 1 / 3, 4: 1 / 5}
    for p, values in powers.items():
        assert (values.mean(0) - exact[p]).abs().max() < 5 * float(values.std()) / math.sqrt(len(x)), p
    assert (x.mean(0) / radius).abs().max() < 5 / math.sqrt(len(x))
    products = x[:, 0] * x[:, 1] / radius**2
    assert abs(float(products.mean())) < 5 * float(products.std()) / math.sqrt(len(x))


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_steps_stay_below_the_level_and_inside_the_box(kind):
    run = splitting("box", 2, 1.0)
    x = run._start(2000)
    x = x[crossing(x) < 0.01]
    y, k = run._moved(x, crossing(x), 0.01, kind, 2.0)
    assert bool((k < 0.01).all())
    assert torch.equal(k, crossing(y))
    assert float(y.abs().max()) <= 1
    moved = float((y != x).any(1).double().mean())
    assert 0.1 < moved <= run.accepted[-1] < 1


def test_one_coordinate_moves_alone_and_a_single_one_always_does():
    run = splitting("box", 3, 1.0)
    x = run._start(500)
    y, _ = run._moved(x, crossing(x), math.inf, 2, 1.0)
    assert int((x != y).sum(1).max()) == 1
    assert bool((x != y).any(0).all())
    line = splitting("box", 1, 1.0, lambda w: w[:, 0] ** 2)
    x = 1e-3 * line._start(2000)  # far from the ends of the box, so that all that grow are taken
    y, _ = line._moved(x, x[:, 0] ** 2, math.inf, 0, 1.0)
    assert float((x != y).double().mean()) > 0.55


def test_survivors_are_copied_equally_often():
    run = splitting("box", 2, 1.0, particles=12)
    alive = torch.zeros(2, 12, dtype=torch.bool)
    alive[0, [1, 5, 7]] = True
    alive[1, :5] = True
    first, second = run._survivors(alive).view(2, 12).sort(1).values.tolist()
    assert first == [1] * 4 + [5] * 4 + [7] * 4
    assert {second.count(12 + k) for k in range(5)} == {2, 3}
    assert len(second) == sum(second.count(12 + k) for k in range(5))


@pytest.mark.parametrize("radius", [0.25, 1.0, 2.0])
def test_volumes_of_a_crossing_under_a_gaussian_prior(radius):
    # The product of two normal numbers has the density K0(|z|)/π.
    found = quick(crossing, torch.zeros(2), prior="gaussian", radius=radius)
    t, logs, se = (np.array(found.diagnostics[name]) for name in ("t", "log_volume", "log_volume_se"))
    exact = np.log(2 / math.pi * np.array([special.iti0k0(math.sqrt(x) / radius**2)[1] for x in t]))
    assert (np.abs(logs - exact) / np.maximum(se, 1e-3)).max() < 4.5


def test_the_scale_of_a_gaussian_prior_changes_nothing():
    one, four = (quick(crossing, torch.zeros(2), prior="gaussian", radius=r) for r in (1.0, 4.0))
    assert four.value == pytest.approx(one.value, rel=1e-9)
    assert four.diagnostics["t"][0] == pytest.approx(4**4 * one.diagnostics["t"][0])
    assert four.diagnostics["log_volume_se"] == pytest.approx(one.diagnostics["log_volume_se"])


def test_the_curve_is_what_was_counted():
    found = quick(crossing, torch.zeros(2))
    t = np.array(found.diagnostics["t"])
    assert t[:-1] / t[1:] == pytest.approx(2)
    assert len(t) == 17
    assert found.spec["highest"] == pytest.approx(t[0])
    assert found.diagnostics["log_volume"][0] == pytest.approx(math.log(0.5), abs=0.1)  # from the median on
    assert 0 < found.diagnostics["acceptance"] < 1
    # The least mean acceptance of a level is the lowest, at which hardly any steps are still of the right size.
    assert 0.05 < found.diagnostics["acceptance"] < 0.6
    assert found.systematic == pytest.approx(math.hypot(*found.terms.values()))


def test_a_known_line_in_the_depth_is_found_by_least_squares():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    covariance, data = root @ root.T + np.eye(6), rng.normal(size=6) + 1
    ones = np.full(6, math.log(2))
    evidence, value, variance, chi2, gain = _regress(data, covariance, 5)
    inverse = np.linalg.inv(covariance)
    assert variance == pytest.approx(1 / (ones @ inverse @ ones))
    assert value == pytest.approx(variance * (ones @ inverse @ data)) == pytest.approx(gain @ data)
    rest = data - value * ones
    assert chi2 == pytest.approx(rest @ inverse @ rest)
    # Its evidence is the integral over the slope, up to a constant, and a fifth of it for one of five choices.
    marginal = -0.5 * (np.linalg.slogdet(covariance)[1] + chi2) + 0.5 * math.log(variance)
    assert evidence == pytest.approx(marginal - math.log(5))


def test_noise_of_independent_levels_is_binomial():
    rng = np.random.default_rng(1)
    p, particles, replicas = 0.4, 2000, 64
    found = _noise(rng.binomial(particles, p, (40, replicas)) / particles, particles)
    assert np.diag(found) == pytest.approx((1 - p) / p / (replicas * particles), rel=0.45)
    assert np.linalg.eigvalsh(found).min() > 0


def test_noise_has_the_variance_of_the_mean_over_replicas():
    rng = np.random.default_rng(2)
    common = rng.normal(size=(1, 64))  # all levels err alike
    shares = 0.5 * np.exp(0.01 * common + 0.001 * rng.normal(size=(20, 64)))
    found = _noise(shares, 10**7)
    total = np.var(np.log(shares).sum(0), ddof=1) / 64
    assert found.sum() == pytest.approx(total, rel=0.25)
    assert found[0, -1] == pytest.approx(0.01**2 / 64, rel=0.5)
    assert found == pytest.approx(found.T)


def test_noise_of_certain_levels_is_that_of_one_particle():
    found = _noise(np.ones((10, 8)), 50)
    assert np.diag(found) == pytest.approx(1 / 50 / (8 * 50))


def test_the_parts_of_the_error_add_up_and_the_law_of_one_m_is_exact():
    depth = np.arange(61) * math.log(2)
    shares = np.exp(np.diff(-0.75 * depth))[:, None] * np.ones((60, 4))
    found = fit_law(shares, 10**9, 1)
    assert found.value == pytest.approx(0.75, abs=1e-4) == found.by_multiplicity[1]
    assert found.weights == {1: pytest.approx(1)}
    assert found.terms["multiplicity"] == pytest.approx(0)
    assert found.misfit < 1
    assert found.surprise == pytest.approx((found.misfit - 1) * math.sqrt(59 / 2))
    both = fit_law(shares, 10**9, 3)
    between = sum(w * (both.by_multiplicity[m] - both.value) ** 2 for m, w in both.weights.items())
    assert both.terms["multiplicity"] == pytest.approx(math.sqrt(between))
    assert both.value == pytest.approx(sum(w * both.by_multiplicity[m] for m, w in both.weights.items()))


def one_law(y, noise, gap, size, m, scale):
    """λ, its error from noise, its variance, χ² and the evidence, each unknown being written out as a parameter."""
    depth = np.arange(len(y) + 1) * math.log(2)
    shifted = y + (m - 1) * np.diff(np.log(depth + scale))
    unknown = [size * np.diff(np.exp(-gap * depth))]
    if m > 2:  # the constant of a polynomial in the depth, beside its leading power
        unknown.append(np.diff(scale**2 / (depth + scale) ** 2))
    design = np.stack([np.full(len(y), math.log(2)), *unknown], axis=1)
    inverse = np.linalg.inv(noise)
    posterior = np.linalg.inv(design.T @ inverse @ design + np.diag([0.0, *np.ones(len(unknown))]))
    gain = posterior[0] @ design.T @ inverse
    whole = stats.multivariate_normal(cov=noise + sum(np.outer(u, u) for u in unknown))
    value, sd = gain @ shifted, math.sqrt(posterior[0, 0])

    def density(law):
        return math.exp(whole.logpdf(shifted - law * math.log(2)) - whole.logpdf(shifted - value * math.log(2)))

    area = integrate.quad(density, value - 12 * sd, value + 12 * sd, points=[value])[0]
    rest = shifted - value * math.log(2)
    chi2 = rest @ np.linalg.solve(whole.cov_object.covariance, rest)
    peak = whole.logpdf(shifted - value * math.log(2))
    return value, math.sqrt(gain @ noise @ gain), posterior[0, 0], chi2, math.exp(peak) * area


def test_a_law_is_the_average_over_all_that_is_unknown(monkeypatch):
    gap, sizes, scales = 0.4, (0.5, 2.0), np.array([0.7, 4.0])
    monkeypatch.setattr(volume_law, "_GAPS", np.array([gap]))
    monkeypatch.setattr(volume_law, "_SIZES", sizes)
    monkeypatch.setattr(volume_law, "_SCALES", scales)
    depth = np.arange(15) * math.log(2)
    logs = 0.4 * math.log(2) - np.diff(np.log(depth + 4.0))
    shares = np.random.default_rng(3).binomial(40, np.exp(-logs)[:, None], (14, 4)) / 40
    found = fit_law(shares, 40, 4)
    y, noise = -np.log(shares.mean(1)), _noise(shares, 40)
    rows = [
        (m, 1 / len(tried), *one_law(y, noise, gap, size, m, scale))
        for m in range(1, 5)
        for size in sizes
        for tried in ((1.0,) if m == 1 else tuple(scales),)
        for scale in tried
    ]
    m, share, values, errors, variances, chi2, evidence = map(np.array, zip(*rows, strict=True))
    p = share * evidence / (share * evidence).sum()
    assert found.value == pytest.approx(p @ values, rel=1e-6)
    assert found.se == pytest.approx(p @ errors, rel=1e-6)
    assert found.weights == pytest.approx({k: p[m == k].sum() for k in range(1, 5)}, rel=1e-5)
    assert all(0.01 < w < 0.9 for w in found.weights.values())  # so that each has a say
    alone = {k: p[m == k] @ values[m == k] / p[m == k].sum() for k in range(1, 5)}
    assert found.by_multiplicity == pytest.approx(alone, rel=1e-6)
    assert found.multiplicity == max(alone, key=lambda k: p[m == k].sum())
    between = sum(p[m == k].sum() * (alone[k] - p @ values) ** 2 for k in alone)
    assert found.terms["multiplicity"] == pytest.approx(math.sqrt(between), rel=1e-5)
    everything = p @ (variances + (values - p @ values) ** 2)
    assert found.terms["corrections"] == pytest.approx(math.sqrt(everything - between - (p @ errors) ** 2), rel=1e-4)
    best = chi2[p.argmax()]
    assert found.misfit == pytest.approx(best / 13, rel=1e-6)
    assert found.surprise == pytest.approx((best - 13) / math.sqrt(26), rel=1e-5)


def test_gaps_are_those_between_poles_of_powers():
    # ∫ x^(2kz) φ has poles at −j/2k, of which an even φ keeps every second one.
    gaps = set(volume_law._GAPS.tolist())
    assert gaps >= {j / (2 * k) for k in (1, 2, 3, 4, 6) for j in (1, 2)} | {3 / 2, 3 / 4}
    # Corrections of order one: as much below one as above, and the scales of the logarithm go to both sides as well.
    assert math.prod(volume_law._SIZES) == pytest.approx(1, rel=0.2)
    assert volume_law._SCALES[0] < 1 < volume_law._SCALES[-1]
    assert np.diff(np.log(volume_law._SCALES)) == pytest.approx(np.diff(np.log(volume_law._SCALES))[0])


def test_a_level_that_scatters_more_tells_of_its_neighbours_on_both_sides_alike():
    rng = np.random.default_rng(4)
    scatter = rng.normal(size=(31, 400)) * np.where(np.arange(31) == 15, 0.1, 1e-5)[:, None]
    shares = 0.5 * np.exp(scatter - scatter.mean(1, keepdims=True))
    variances = np.diag(_noise(shares, 10**9))
    assert variances.sum() == pytest.approx(shares[15].var(ddof=1) / (400 * shares[15].mean() ** 2), rel=0.3)
    wide = np.flatnonzero(variances > variances.max() / 2)
    assert wide.tolist() == list(range(wide[0], 31 - wide[0]))  # as many before it as after
    assert 3 <= len(wide) < 16
