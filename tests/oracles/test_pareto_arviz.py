"""Pareto-smoothed weights against arviz-stats."""

import numpy as np
import pytest

from crunode.sampling.pareto import smoothed_log_weights

array_stats = pytest.importorskip("arviz_stats.base").array_stats


@pytest.mark.parametrize("power", [0.1, 0.3, 0.6, 0.9, 1.2])
# Sizes for which the length of the tail is a whole number: one rounds it up, the other down.
@pytest.mark.parametrize(("size", "efficiency"), [(100, 1.0), (900, 1.0), (10_000, 1.0), (2500, 0.25), (400, 0.25)])
def test_weights_and_exponent(power, size, efficiency):
    ratios = np.random.default_rng(size).pareto(1 / power, size) + 1
    ours, k = smoothed_log_weights(np.log(ratios), efficiency=efficiency)
    theirs, other = array_stats.psislw(-np.log(ratios), r_eff=efficiency)
    assert k == pytest.approx(float(other), abs=1e-9)
    np.testing.assert_allclose(ours, theirs, atol=1e-9)
