"""Ladders that follow a known law lead back to the coefficient they were made from."""

import math

import numpy as np
import pytest
from scipy import special

from crunode.estimators.extrapolate import _fit, _Law, _laws, _limited, digamma, extrapolate, growth

T = np.array([300.0, 900.0, 2700.0, 8100.0])


@pytest.mark.parametrize(
    ("coefficient", "deficit"),
    [
        (6.0, lambda t: 0 * t),
        (6.0, lambda t: 10 * t**-0.5),
        (6.0, lambda t: 3 * t**-0.25),
        (0.5, lambda t: 1 / (np.log(t) + 2.2)),
        (1 / 6, lambda t: 1 / (np.log(t) + 7.0)),
        (6.5, lambda t: 1 / (np.log(t) - 1.8)),
    ],
    ids=["none", "root", "fourth root", "crossing", "deep crossing", "reduced rank"],
)
def test_each_law_is_undone_within_the_stated_error(coefficient, deficit):
    value = coefficient - deficit(T)
    fit = extrapolate(T, value, 0.003 * value, n=2000, noisy=False)
    total = math.hypot(fit.se, fit.spread)
    assert abs(fit.value - coefficient) < 2 * total + 0.01 * coefficient
    assert total < 0.25 * coefficient
    # Better than the best level alone wherever that is off by more than a few percent.
    worst = abs(value[-1] - coefficient)
    assert abs(fit.value - coefficient) <= max(worst, 0.03 * coefficient)


@pytest.mark.parametrize("slope", [0.0, 3.0, 8.0])
def test_label_noise_is_removed(slope):
    n, coefficient = 2000, 8.0
    t = n / math.log(n) * np.array([0.25, 0.5, 1.0, 2.0])
    value = coefficient - slope * t / n
    fit = extrapolate(t, value, np.full(4, 0.05), n=n, noisy=True)
    assert fit.value == pytest.approx(coefficient, abs=2 * math.hypot(fit.se, fit.spread))
    assert fit.noise_slope == pytest.approx(slope, abs=1.0)


def test_levels_that_no_law_fits_are_trusted_less():
    smooth = extrapolate(T, [5.0, 5.0, 5.0, 5.0], [0.01] * 4, n=2000, noisy=False)
    rough = extrapolate(T, [5.0, 5.5, 4.5, 5.0], [0.01] * 4, n=2000, noisy=False)
    assert rough.se > 10 * smooth.se


def test_scaling_all_levels_of_a_power_scales_the_answer():
    value = 6 - 10 * T**-0.5
    one = extrapolate(T, value, 0.001 * value, n=2000, noisy=False)
    ten = extrapolate(T, 100 * value, 0.1 * value, n=2000, noisy=False)
    assert ten.value == pytest.approx(100 * one.value, rel=0.02)


def test_weights_sum_to_one():
    fit = extrapolate(T, [1.0, 1.1, 1.15, 1.2], [0.02] * 4, n=2000, noisy=False)
    assert sum(fit.weights.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("x", "value"),
    [(1.0, -0.5772156649015329), (0.5, -1.9635100260214235), (1 / 6, -6.332127505374915), (44.0, 3.7728)],
)
def test_digamma(x, value):
    assert digamma(x) == pytest.approx(value, abs=1e-4 if x > 10 else 1e-9)


def test_growth_is_per_doubling():
    assert growth([1.0, 8.0], [1.0, 8.0]) == pytest.approx(2)
    assert growth([1.0, 8.0], [2.0, 2.0]) == pytest.approx(1)
    assert growth([1.0, 8.0], [-1.0, 2.0]) == math.inf
    assert growth([1.0, 8.0], [-1.0, -2.0]) == 1


def test_digamma_is_that_of_scipy():
    for x in (0.02, 0.3, 1.7, 5.0, 7.999, 8.0, 8.001, 12.5, 80.0):
        assert digamma(x) == pytest.approx(special.digamma(x), abs=2e-9)


def summed(y, sigma, shape, sizes, log_prior):
    """Posterior mean and variance of λ in y = λ − size · shape + noise, and log evidence, by sums over the grid."""
    weight = 1 / sigma**2
    means = np.array([(weight * (y + s * shape)).sum() / weight.sum() for s in sizes])
    misfit = np.array([(weight * (y + s * shape - m) ** 2).sum() for s, m in zip(sizes, means, strict=True)])
    chance = np.exp(-0.5 * misfit + log_prior)
    mean = (chance * means).sum() / chance.sum()
    spread = (chance * (means - mean) ** 2).sum() / chance.sum()
    return mean, spread + 1 / weight.sum(), misfit.min(), math.log(chance.sum())


def test_a_law_is_averaged_over_the_sizes_of_its_correction():
    rng = np.random.default_rng(0)
    y, sigma = np.array([2.0, 2.4, 2.6, 2.7]), np.array([0.05, 0.03, 0.04, 0.1])
    shape, sizes = (T / T[0]) ** -0.5, np.linspace(0, 2, 9)
    prior = np.log(rng.dirichlet(np.ones(9)))
    found = _fit(_Law(shape, sizes, prior), T / 2000, y, sigma, False)
    mean, variance, misfit, evidence = summed(y, sigma, shape, sizes, prior)
    assert (found.value, found.variance) == (pytest.approx(mean), pytest.approx(variance))
    assert (found.misfit, found.log_evidence) == (pytest.approx(misfit), pytest.approx(evidence))
    assert found.noise_slope == 0


def test_label_noise_is_a_second_slope_that_is_never_negative():
    y, sigma = np.array([2.0, 1.9, 1.5, 0.6]), np.array([0.05, 0.03, 0.04, 0.1])
    beta, one = T / 4000, np.ones(1)
    flat = _Law(0 * T, one, 0 * one)
    found = _fit(flat, beta, y, sigma, True)
    design = np.stack([np.ones(4), -beta], 1) / sigma[:, None]
    inverse = np.linalg.inv(design.T @ design)
    best = inverse @ design.T @ (y / sigma)
    assert (found.value, found.noise_slope) == (pytest.approx(best[0]), pytest.approx(best[1]))
    assert found.variance == pytest.approx(inverse[0, 0])
    assert found.misfit == pytest.approx(((y / sigma - design @ best) ** 2).sum())
    rising = _fit(flat, beta, y[::-1].copy(), sigma, True)
    assert rising.noise_slope == 0
    assert rising.value == pytest.approx((y[::-1] / sigma**2).sum() / (1 / sigma**2).sum())
    assert rising.variance == pytest.approx(1 / (1 / sigma**2).sum())


def test_a_likely_limit_and_the_levels_are_weighed_by_their_errors():
    y, sigma, one = np.array([2.0, 2.1, 1.9, 2.0]), np.full(4, 0.2), np.ones(1)
    found = _fit(_Law(0 * T, one, 0 * one, (2.3, 0.05)), T / 2000, y, sigma, False)
    weight = 1 / 0.05**2, 4 / 0.2**2
    assert found.value == pytest.approx((weight[0] * 2.3 + weight[1] * 2.0) / sum(weight))
    assert found.variance == pytest.approx(1 / sum(weight))
    assert found.misfit == pytest.approx(((y - found.value) ** 2).sum() / 0.04 + ((found.value - 2.3) / 0.05) ** 2)


def test_an_average_over_laws_has_their_spread():
    y = 3 - 1 / (np.log(T) - digamma(3.0))
    found = extrapolate(T, y, [1e-3] * 4, n=10**6, noisy=False)
    assert sum(found.weights.values()) == pytest.approx(1)
    assert found.value == pytest.approx(3, abs=2 * math.hypot(found.se, found.spread))
    logarithmic = sum(w for name, w in found.weights.items() if name.startswith("log"))
    assert logarithmic > found.weights["none"]
    level = extrapolate(T, [3.0] * 4, [1e-3] * 4, n=10**6, noisy=False)
    assert max(level.weights, key=level.weights.get) == "none"
    assert level.value == pytest.approx(3, abs=0.02)
    # The errors of levels are no less than a little of the largest value.
    exact = extrapolate(T, [3.0] * 4, [0.0] * 4, n=10**6, noisy=False)
    assert 0.0005 < exact.se < 0.02


def test_a_limit_that_is_known_draws_the_value_to_it():
    y = 3 - 4 * T**-0.25
    free = extrapolate(T, y, 0.01 * y, n=10**6, noisy=False)
    tied = extrapolate(T, y, 0.01 * y, n=10**6, noisy=False, limit=(3.0, 0.05))
    assert abs(tied.value - 3) < abs(free.value - 3) + 0.01
    assert math.hypot(tied.se, tied.spread) < math.hypot(free.se, free.spread)
    bound = sum(w for name, w in tied.weights.items() if name not in free.weights)
    assert bound > 0.6
    far = extrapolate(T, y, 0.01 * y, n=10**6, noisy=False, limit=(30.0, 0.05))
    assert far.value == pytest.approx(free.value, abs=0.05)


def test_laws_of_logarithms_follow_the_density_of_states():
    laws = _laws(T, 1.5, 2.0, False)
    assert [law.shape.tolist() for law in laws[1:3]] == [
        pytest.approx(((T / T[0]) ** -p).tolist()) for p in (0.5, 0.25)
    ]
    plain = 1 / (np.log(T) - digamma(1.5))
    assert any(np.allclose(law.shape, plain) for law in laws)
    assert not laws[0].shape.any()
    for law in laws:
        assert np.exp(law.log_prior).sum() == pytest.approx(1)
        assert law.sizes.min() >= 0
    shapes = [law.shape for law in laws[3:]]
    for shape in shapes:  # shifted by as much to both sides
        other = 1 / (2 / plain - 1 / shape)
        assert any(np.allclose(other, x) for x in shapes)
    limited = _limited(T, 2.0, 0.1)
    assert all(law.limit == (2.0, 0.1) for law in limited)
    assert all(law.shape[0] in (0.0, 1.0) for law in limited)
    assert limited[-1].shape == pytest.approx((np.log(T[0]) - digamma(2.0)) / (np.log(T) - digamma(2.0)))
    # No correction takes away more than all there is.
    assert all(law.sizes.max() <= 2.0 + 1e-12 or not law.shape.any() for law in limited)


def test_levels_that_say_nothing_leave_laws_as_likely_as_before():
    vague = extrapolate(T, [1.0] * 4, [1e6] * 4, n=10**6, noisy=False).weights
    kinds = [sum(w for name, w in vague.items() if name.startswith(kind)) for kind in ("none", "t^", "log")]
    assert kinds == pytest.approx([1 / 3] * 3, rel=1e-3)
    assert vague["t^-1/2"] == pytest.approx(vague["t^-1/4"])
    assert vague["log-"] == pytest.approx(vague["log"]) == pytest.approx(vague["log+"])
    tied = extrapolate(T, [1.0] * 4, [1e6] * 4, n=10**6, noisy=False, limit=(1.0, 0.1)).weights
    bound = [w for name, w in tied.items() if name not in vague]
    assert len(set(np.round(bound, 6))) == 1
    free = [tied[name] / vague[name] for name in vague]
    assert free == pytest.approx([free[0]] * len(free))
    assert len(bound) == 4


def test_logarithms_are_shifted_as_by_a_box_of_half_or_twice_the_area():
    # (xy)² over a box of area A, where z = |xy| has the density log(A/z)/A.
    t = np.array([1e5, 1e7])
    shapes = [law.shape for law in _laws(t, 0.5, 0.5, False)[3:]]
    for shape, area in zip(shapes, (1 / 2, 1, 2), strict=True):
        for level, deficit in zip(t, shape, strict=True):
            grid = np.exp(np.linspace(math.log(1e-12), math.log(area), 20_001))
            weight = grid * np.log(area / grid) * np.exp(-level * grid**2)  # in log z
            exact = 0.5 - level * (weight * grid**2).sum() / weight.sum()
            assert 1 / deficit == pytest.approx(1 / exact, abs=0.25)


def test_most_corrections_are_small():
    for law in _laws(T, 1.5, 2.0, False)[1:3]:  # half of them are less than a twentieth of the estimate
        chance = np.exp(law.log_prior)
        assert chance[law.sizes < 0.05 * 2.0].sum() == pytest.approx(0.5, abs=0.03)
    for law in _laws(T, 1.5, 2.0, True)[1:3]:  # with noise in the labels a tenth is their standard deviation
        assert np.exp(law.log_prior) @ law.sizes**2 == pytest.approx((0.1 * 2.0) ** 2, rel=0.05)
