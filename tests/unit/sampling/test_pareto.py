"""Pareto-smoothed weights where tails are extreme."""

import math

import numpy as np
import pytest

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
