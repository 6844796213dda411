"""Errors, scores and times of chains against their formulas, written out plainly or taken from scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from crunode.sampling.diagnostics import drift, ess, integrated_time, mcse_mean, mcse_variance


def plain_ess(x):
    """Geyer's pairs of pooled autocorrelations over halves, by sums over draws."""
    half = x.shape[1] // 2
    y = np.concatenate([x[:, :half], x[:, -half:]])
    m, n = y.shape
    means = y.mean(1)
    lagged = [
        np.mean([((r[: n - t] - a) * (r[t:] - a)).sum() / n for r, a in zip(y, means, strict=True)]) for t in range(n)
    ]
    within = lagged[0] * n / (n - 1)
    total = within * (n - 1) / n + means.var(ddof=1)
    rho = [1.0] + [1 - (within - c) / total for c in lagged[1:]]
    pairs = [rho[2 * k] + rho[2 * k + 1] for k in range((n - 3) // 2 + 1)]
    end = next((k for k, pair in enumerate(pairs) if k and pair <= 0), len(pairs) - 1)
    kept = [min(pairs[: k + 1]) for k in range(max(end, 1))]
    time = -1 + 2 * sum(kept) + max(rho[2 * end], 0)
    return m * n / max(time, 1 / math.log10(m * n))


@pytest.mark.parametrize(("rho", "draws"), [(0.9, 60), (0.9, 61), (0.5, 200), (-0.6, 80), (0.0, 24)])
def test_effective_sizes_are_sums_of_pairs_of_autocorrelations(rho, draws):
    x = chains_of(rho, 3, draws)
    assert ess(x) == pytest.approx(plain_ess(x))
    apart = x + np.array([[0.0], [0.5], [1.0]])
    assert ess(apart) == pytest.approx(plain_ess(apart))
    assert integrated_time(x) == pytest.approx(3 * (draws // 2 * 2) / ess(x))


def chains_of(rho, chains, draws, seed=0):
    noise = np.random.default_rng(seed).standard_normal((chains, draws))
    for t in range(1, draws):
        noise[:, t] += rho * noise[:, t - 1]
    return noise


def test_the_error_of_chains_that_mix_is_the_larger_of_two():
    for seed in range(6):
        x = chains_of(0.3, 4, 300, seed)
        alone, between = x.std(ddof=1) / math.sqrt(ess(x)), x.mean(1).std(ddof=1) / 2
        assert mcse_mean(x) == pytest.approx(max(alone, between))
    one = chains_of(0.3, 1, 300)
    assert mcse_mean(one) == pytest.approx(one.std(ddof=1) / math.sqrt(ess(one)))
    x = chains_of(0.3, 4, 300)
    assert mcse_variance(7 * x) == pytest.approx(49 * mcse_mean((x - x.mean()) ** 2))


@pytest.mark.parametrize("chains", [2, 3, 4, 8])
def test_chains_that_do_not_mix_count_once_each_by_students_factor(chains):
    means = np.random.default_rng(1).standard_normal((chains, 1))
    x = 100 * means + chains_of(0.0, chains, 50)
    student = stats.t.ppf(stats.norm.cdf(1), chains - 1)
    spread = x.mean(1).std(ddof=1) / math.sqrt(chains)
    assert mcse_mean(x) == pytest.approx(student * spread, rel=0.02)


@pytest.mark.parametrize("chains", [3, 4, 8])
def test_chains_differ_beyond_the_last_hundredth_of_chi_squared(chains):
    """Offsets that grow until means of chains are too far apart for the error within."""
    noise, steps = chains_of(0.0, chains, 4000), np.linspace(-1, 1, chains)[:, None]
    noise -= noise.mean(1, keepdims=True)

    def ratio(size):
        x = noise + size * steps
        within = x.var(ddof=1) / ess(x)
        return (chains - 1) * x.mean(1).var(ddof=1) / chains / within, mcse_mean(x) / math.sqrt(
            max(within, x.mean(1).var(ddof=1) / chains)
        )

    found = [ratio(size) for size in np.linspace(0.01, 0.2, 60)]
    limit = stats.chi2.ppf(0.99, chains - 1)
    for chi, factor in found:
        if chi < 0.97 * limit:
            assert factor == pytest.approx(1)
        elif chi > 1.03 * limit:
            assert factor == pytest.approx(stats.t.ppf(stats.norm.cdf(1), chains - 1), rel=0.01)
    assert min(chi for chi, _ in found) < 0.97 * limit < 1.03 * limit < max(chi for chi, _ in found)


@pytest.mark.parametrize("chains", [1, 2, 5])
@pytest.mark.parametrize("rise", [-3.0, 0.2, 1.5])
def test_a_drift_is_the_normal_score_of_students_ratio_of_coefficients(chains, rise):
    chance, n = np.random.default_rng(chains), 64
    a = chance.standard_normal((chains, 9))
    a[:, 0] -= rise * math.sqrt(9 / chains)
    t = np.arange(n)
    x = sum(a[:, k - 1 : k] * np.cos(math.pi * k * (t + 0.5) / n) for k in range(1, 10))
    mean = a.mean(0)
    square = ((a - mean) ** 2).sum() + chains / 2 * sum((mean[2 * j - 1] - mean[2 * j]) ** 2 for j in range(1, 5))
    dof = 9 * (chains - 1) + 4
    ratio = -mean[0] * math.sqrt(chains * dof / square)
    expected = math.copysign(stats.norm.isf(stats.t.sf(abs(ratio), dof)), ratio)
    assert drift(3 + x) == pytest.approx(expected, rel=0.02)
    assert drift(-x) == pytest.approx(-drift(x))
