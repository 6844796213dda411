"""Correlations that are drawn toward the identity, and errors of means over levels, in closed form."""

import math

import numpy as np
import pytest
from scipy import stats

from crunode.core.result import Draws
from crunode.errors import InputError
from crunode.estimators.covariance import combination_se, exchanged, finite_losses, means_covariance, shrunk_correlation
from crunode.sampling.diagnostics import ess, mcse_mean


def signs(*patterns):
    """Columns of ±1, each pattern repeated to 24 rows."""
    return np.stack([np.tile(p, 24 // len(p)) for p in patterns], axis=1).astype(float)


def test_two_columns_of_signs_have_their_shrinkage_in_closed_form():
    # Products of signs scatter with 1 − r² alone, which makes the share of noise (1 − r²) / ((n − 1) r²).
    rows = signs([1, 1, 1, -1, -1, -1], [1, 1, -1, 1, -1, -1])
    r, n = 1 / 3, 24
    share = (1 - r**2) / ((n - 1) * r**2)
    found = shrunk_correlation(rows * [2.0, 0.1] + [5.0, -3.0])  # neither scale nor place matters
    assert found == pytest.approx(np.array([[1.0, (1 - share) * r], [(1 - share) * r, 1.0]]), rel=1e-9)


def test_correlations_without_noise_stay_and_those_of_noise_alone_go():
    same = np.repeat(signs([1, -1]), 3, axis=1) * [1.0, 2.0, -1.0]
    assert shrunk_correlation(same) == pytest.approx(np.array([[1, 1, -1], [1, 1, -1], [-1, -1, 1.0]]), abs=1e-5)
    assert np.linalg.eigvalsh(shrunk_correlation(same)).min() > 0
    apart = signs([1, -1, 1, -1, 1, 1, -1, -1], [1, 1, -1, -1, 1, -1, 1, -1])
    apart[0, 0] = 3.0
    assert np.abs(shrunk_correlation(apart) - np.eye(2)).max() < 1e-5


def test_few_rows_or_a_column_that_does_not_vary_say_nothing():
    rows = np.arange(12.0).reshape(-1, 1) * [1.0, 1.0]
    for count in (1, 2, 3):
        assert np.array_equal(shrunk_correlation(rows[:count]), np.eye(2))
    assert shrunk_correlation(rows[:4])[0, 1] > 0.5
    rows[:, 1] = 7.0
    assert np.array_equal(shrunk_correlation(rows), np.eye(2))


def test_errors_grow_beyond_autocorrelations_only_where_chains_disagree_by_more_than_one_percent_of_chance():
    rng = np.random.default_rng(0)
    noise, offsets = rng.normal(size=(10, 400)), rng.normal(size=10)
    noise -= noise.mean(axis=1, keepdims=True)
    limit = stats.chi2.ppf(0.99, 9) / 9
    ratios = []
    for size in np.linspace(0.02, 0.12, 61):
        x = noise + size * offsets[:, None]
        full, within = mcse_mean(x) ** 2, x.std(ddof=1) ** 2 / ess(x)
        ratios.append(full / within)
        if abs(ratios[-1] / limit - 1) > 0.01:  # the quantile is one of an approximation
            wanted = full if ratios[-1] > limit else within
            assert means_covariance([x], joint=False) == pytest.approx(np.array([[wanted]]))
    near = np.array(ratios) / limit
    assert near[near < 0.99].max() > 0.9
    assert near[near > 1.01].min() < 1.15


def test_one_chain_has_its_own_error():
    x = np.random.default_rng(1).normal(size=(1, 300)).cumsum(axis=1)
    assert means_covariance([x], joint=True) == pytest.approx(np.array([[mcse_mean(x) ** 2]]))


def test_series_of_one_ladder_are_correlated_and_others_are_not():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 4, 900))
    mixed = 0.6 * x + 0.8 * y
    apart, joint = (means_covariance([x, mixed], joint=flag) for flag in (False, True))
    assert np.array_equal(apart, np.diag(np.diag(apart)))
    assert np.array_equal(np.diag(joint), np.diag(apart))
    assert joint[0, 1] == pytest.approx(0.6 * math.sqrt(joint[0, 0] * joint[1, 1]), rel=0.15)
    assert joint[0, 1] == joint[1, 0]


def test_batches_are_successive_draws_of_one_chain():
    # A slow wave of each chain and a fast one: means of √draws successive draws keep the slow one and lose the fast.
    rng = np.random.default_rng(3)
    slow = np.repeat(rng.permutation(np.repeat([1.0, -1.0], 50)).reshape(5, 20), 21, axis=1)
    fast = np.tile([1.0, 1.0, -2.0], 140) * 9.0
    found = means_covariance([slow, slow + fast], joint=True)
    assert found[0, 1] / math.sqrt(found[0, 0] * found[1, 1]) == pytest.approx(1, abs=1e-3)


def test_the_error_of_a_combination_is_that_of_the_combined_series():
    x, y = np.random.default_rng(4).normal(size=(2, 4, 300))
    assert combination_se([2.0, -3.0], [x, y], joint=True) == pytest.approx(mcse_mean(2 * x - 3 * y))
    apart = math.hypot(2 * mcse_mean(x), 3 * mcse_mean(y))
    assert combination_se([2.0, -3.0], [x, y], joint=False) == pytest.approx(apart)


def test_losses_are_sorted_by_level():
    rows = np.arange(8.0).reshape(4, 2).astype(np.float32)
    draws = Draws({"excess": rows}, {}, np.array([3.0, 1.0, 3.0, 1.0]), {"kernel": "HMC"})
    assert not exchanged(draws)
    one, three = finite_losses(draws)
    assert one.tolist() == [[2.0, 3.0], [6.0, 7.0]]
    assert three.tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert one.dtype == np.float64
    with pytest.raises(InputError, match="finite"):
        finite_losses(Draws({"excess": rows + np.inf}, {}, draws.nbeta, {}))
