"""Ladders that follow a known law lead back to the coefficient they were made from."""

import math

import numpy as np
import pytest

from crunode.estimators.extrapolate import digamma, extrapolate, growth

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
