"""R-hat and ESS against arviz-stats, the chi-squared and Student approximations against scipy."""

import math

import numpy as np
import pytest

from crunode.sampling import diagnostics

arviz_stats = pytest.importorskip("arviz_stats")
stats = pytest.importorskip("scipy.stats")


def chains(kind, shape, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if kind.startswith("rho"):
        for t in range(1, shape[1]):
            x[:, t] += float(kind[3:]) * x[:, t - 1]
    return {
        "cauchy": lambda: np.tan(np.pi * (rng.random(shape) - 0.5)),
        "shifted": lambda: x + np.arange(shape[0])[:, None],
        "scaled": lambda: x * np.arange(1, shape[0] + 1)[:, None],
        "walk": lambda: x.cumsum(axis=1),
        "ties": lambda: np.round(x),
        "offset": lambda: 1e6 + x,
        "trend": lambda: x + np.linspace(0, 3, shape[1]),
    }.get(kind, lambda: x)()


KINDS = [
    "white",
    "rho0.5",
    "rho0.95",
    "rho-0.7",
    "cauchy",
    "shifted",
    "scaled",
    "walk",
    "ties",
    "offset",
    "trend",
]
SHAPES = [(4, 1000), (2, 101), (8, 50), (3, 10), (4, 13)]
cases = pytest.mark.parametrize("shape", SHAPES, ids=str)
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@cases
def test_rhat_agrees(kind, shape):
    for seed in range(5):
        x = chains(kind, shape, seed)
        assert diagnostics.split_rhat(x) == pytest.approx(float(arviz_stats.rhat(x, method="rank")), rel=1e-9)


@kinds
@pytest.mark.parametrize("shape", [*SHAPES, (1, 200)], ids=str)
def test_ess_agrees(kind, shape):
    for seed in range(5):
        x = chains(kind, shape, seed)
        assert diagnostics.ess(x) == pytest.approx(float(arviz_stats.ess(x, method="mean")), rel=1e-6)
        assert diagnostics.ess_bulk(x) == pytest.approx(float(arviz_stats.ess(x, method="bulk")), rel=1e-6)


@kinds
def test_error_of_the_mean_is_at_least_that_of_arviz(kind):
    x = chains(kind, (4, 1000), 0)
    assert diagnostics.mcse_mean(x) >= float(arviz_stats.mcse(x, method="mean")) * (1 - 1e-9)


# Where they differ on purpose. Below 10 draws arviz-stats adds no autocorrelation and returns S log10(S)
# whatever the chains do; here the first one counts. And one chain has an R-hat here, of its halves.
def test_short_chains_differ():
    x = chains("walk", (4, 8), 0)
    assert float(arviz_stats.ess(x, method="mean")) == pytest.approx(32 * math.log10(32))
    assert diagnostics.ess(x) < 32


def test_one_chain_is_split():
    x = chains("rho0.5", (1, 200), 0)
    assert math.isnan(float(arviz_stats.rhat(x, method="rank")))
    halves = np.stack([x[0, :100], x[0, 100:]])
    scores = stats.norm.ppf((stats.rankdata(halves) - 0.375) / 200.25).reshape(2, 100)
    plain = math.sqrt(0.99 + scores.mean(axis=1).var(ddof=1) / scores.var(axis=1, ddof=1).mean())
    assert diagnostics.split_rhat(x) >= plain * (1 - 1e-12)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_drift_is_the_normal_score_of_a_student_ratio(count):
    draws = 300
    x = chains("trend", (count, draws), 1)
    waves = np.sqrt(2 / draws) * np.cos(np.pi * np.outer(np.arange(draws) + 0.5, np.arange(1, 10)) / draws)
    a = x @ waves
    mean = a.mean(axis=0)
    square = ((a - mean) ** 2).sum() + count / 2 * ((mean[1::2] - mean[2::2]) ** 2).sum()
    dof = 9 * (count - 1) + 4
    t = -math.sqrt(count) * mean[0] / math.sqrt(square / dof)
    assert diagnostics.drift(x) == pytest.approx(stats.norm.isf(stats.t.sf(t, dof)), rel=0.02)


@pytest.mark.parametrize("count", [2, 3, 4, 8, 30])
def test_unmixed_chains_get_the_student_factor(count):
    x = np.repeat(np.random.default_rng(count).standard_normal((count, 1)), 100, axis=1)
    factor = stats.t.isf(stats.norm.sf(1), count - 1)
    spread = x[:, 0].std(ddof=1) / math.sqrt(count)
    assert diagnostics.mcse_mean(x) == pytest.approx(factor * spread, rel=0.02)
