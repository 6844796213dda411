"""Criteria against closed forms: linear regression with a Gaussian prior, whose tempered posteriors are Gaussian.

With r = y − xᵀw normal of mean μ and variance s, ℓ = r²/2 has Var ℓ = s²/2 + μ² s and
E exp(−c ℓ) = (1 + c s)^(−1/2) exp(−c μ² / (2 (1 + c s))), which gives every criterion at every temperature.
"""

import math

import numpy as np
import pytest

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators import criteria

NAMES = ("gibbs_training_loss", "bayes_training_loss", "functional_variance", "waic", "loo", "singular_fluctuation")


class Regression:
    """y = xᵀw + ε with unit noise, prior N(0, 1/γ)."""

    def __init__(self, n=60, d=4, beta=1.0, gamma=2.0, seed=0):
        rng = np.random.default_rng(seed)
        self.n, self.beta, self.gamma = n, beta, gamma
        self.x = rng.standard_normal((n, d))
        self.y = self.x @ rng.standard_normal(d) + rng.standard_normal(n)
        self.cov = np.linalg.inv(gamma * np.eye(d) + beta * self.x.T @ self.x)
        self.mean = beta * self.cov @ self.x.T @ self.y
        self.mu = self.y - self.x @ self.mean
        self.s = np.einsum("ni,ij,nj->n", self.x, self.cov, self.x)

    def log_mean(self, c):
        return -0.5 * np.log1p(c * self.s) - 0.5 * c * self.mu**2 / (1 + c * self.s)

    def exact(self):
        b = self.beta
        spread = float((self.s**2 / 2 + self.mu**2 * self.s).sum())
        training = float(-self.log_mean(1.0).mean())
        return {
            "gibbs_training_loss": float(((self.mu**2 + self.s) / 2).mean()),
            "bayes_training_loss": training,
            "functional_variance": spread,
            "waic": training + b * spread / self.n,
            "loo": float((self.log_mean(-b) - self.log_mean(1 - b)).mean()),
            "singular_fluctuation": b * spread / 2,
        }

    def draws(self, seed=0, chains=4, draws=2000):
        rng = np.random.default_rng((99, seed))
        w = rng.multivariate_normal(self.mean, self.cov, (chains, draws))
        losses = 0.5 * (self.y - w @ self.x.T) ** 2
        spec = {"n": self.n, "asked": {"seed": seed, "prior": {"precision": self.gamma, "mean": "origin"}}}
        arrays = {"excess": losses.mean(2), "distance2": (w**2).sum(2), "pointwise": losses}
        return Draws(arrays, {}, np.full(chains, self.beta * self.n), spec)


@pytest.mark.parametrize("beta", [0.1, 0.3, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("name", NAMES)
def test_closed_forms_at_five_temperatures(name, beta):
    # Thirty tests at four standard errors: a false alarm in one of 500 sets of seeds.
    case = Regression(beta=beta)
    est = getattr(criteria, name)(case.draws())
    assert est.ok
    assert abs(est.value - case.exact()[name]) < 4 * est.se
    assert est.se < 0.05 * abs(case.exact()[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_stated_error_is_the_spread_over_repeats(name):
    case = Regression(n=30)
    found = [getattr(criteria, name)(case.draws(seed=k, draws=300)) for k in range(60)]
    spread = np.std([e.value for e in found], ddof=1)
    # 60 repeats know the spread to 9 %.
    assert 0.7 < spread / np.mean([e.se for e in found]) < 1.4


def test_plain_importance_sampling_agrees():
    case = Regression()
    est = criteria.loo(case.draws(), smooth=False)
    assert abs(est.value - case.exact()["loo"]) < 4 * est.se


def test_waic_and_cross_validation_approach_each_other_as_the_square_of_n():
    """Of the closed forms and of the estimates, which share their draws."""
    gaps, seen = [], []
    for n in (40, 160):
        case = Regression(n=n, d=3, gamma=1.0, seed=5)
        gaps.append(case.exact()["loo"] - case.exact()["waic"])
        draws = case.draws(draws=10_000)
        seen.append(criteria.loo(draws).value - criteria.waic(draws).value)
    assert 8 < gaps[0] / gaps[1] < 32
    assert seen[0] == pytest.approx(gaps[0], rel=0.3)
    assert seen[1] == pytest.approx(gaps[1], rel=0.6)


def test_normal_mean_has_the_sign_of_the_variance_right():
    """WAIC of a normal mean with a flat prior has the closed form of cross-validation, which a minus would miss."""
    rng = np.random.default_rng(3)
    n = 100
    y = rng.standard_normal(n)
    mu, s = y - y.mean(), 1 / n
    w = y.mean() + rng.standard_normal((4, 20_000)) / math.sqrt(n)
    losses = 0.5 * (y - w[..., None]) ** 2
    draws = Draws(
        {"excess": losses.mean(2), "distance2": w**2, "pointwise": losses},
        {},
        np.full(4, float(n)),
        {"n": n, "asked": {"seed": 0}},
    )
    cross = float((-0.5 * np.log1p(-s) + 0.5 * mu**2 / (1 - s)).mean())
    assert n * criteria.waic(draws).value == pytest.approx(n * cross, abs=0.05)


def test_sampled_posterior_of_a_landscape():
    """The whole way: a landscape, HMC, criteria, against the closed form."""
    import torch

    case = Regression(n=50, d=3)
    net = torch.nn.Linear(3, 1, bias=False).double()
    data = (torch.tensor(case.x), torch.tensor(case.y)[:, None])
    land = cr.Landscape(net, data, "gaussian")
    posterior = cr.Posterior(land, land.n, cr.Gaussian(case.gamma, mean="origin"))
    draws = cr.sample(posterior, cr.HMC(), chains=8, draws=500, warmup=200, seed=1, keep=("pointwise",))
    for name in NAMES:
        est = getattr(cr, name)(draws)
        assert est.ok, est
        assert abs(est.value - case.exact()[name]) < 4 * est.se


def test_wbic_is_the_mean_loss_at_its_temperature():
    n = 60
    case = Regression(n=n, beta=1 / math.log(n))
    est = criteria.wbic(case.draws())
    assert abs(est.value - n * case.exact()["gibbs_training_loss"]) < 4 * est.se


def test_bad_input_is_refused_or_reported():
    case = Regression()
    good = case.draws(draws=200)
    with pytest.raises(cr.InputError, match="n / log n"):
        criteria.wbic(good)
    with pytest.raises(cr.InputError, match="pointwise"):
        criteria.waic(Draws({k: v for k, v in good.arrays.items() if k != "pointwise"}, {}, good.nbeta, good.spec))
    with pytest.raises(cr.InputError, match="Draws"):
        criteria.waic(3.0)
    with pytest.raises(cr.InputError, match="levels"):
        criteria.waic(Draws(good.arrays, {}, np.array([1.0, 1.0, 2.0, 2.0]), good.spec))
    broken = dict(good.arrays) | {"pointwise": np.where(np.arange(case.n) == 3, np.nan, good.arrays["pointwise"])}
    with pytest.raises(cr.InputError, match="finite"):
        criteria.loo(Draws(broken, {}, good.nbeta, good.spec))
    asked = {"seed": 0, "prior": {"precision": 1.0, "mean": "center"}}
    local = Draws(good.arrays, {}, good.nbeta, {**good.spec, "asked": asked})
    assert "CRIT702" in [f.code for f in criteria.waic(local).findings]
    few = case.draws(draws=10)
    assert {"MC202"} <= {f.code for f in criteria.waic(few).findings}


def test_a_prior_around_the_weights_is_reported_for_sampled_draws():
    import torch

    net = torch.nn.Linear(1, 1)
    x = torch.randn(30, 1, generator=torch.Generator().manual_seed(0))
    land = cr.Landscape(net, (x, x), "gaussian")
    draws = cr.sample(cr.Posterior(land, 30.0), cr.HMC(), chains=2, draws=50, warmup=20, keep=("pointwise",))
    assert "CRIT702" in [f.code for f in cr.waic(draws).findings]


def test_chains_in_different_modes_are_reported():
    case = Regression()
    good = case.draws(draws=400)
    moved = good.arrays["pointwise"] + np.array([0.0, 0.0, 1.0, 1.0])[:, None, None]
    est = criteria.waic(Draws(dict(good.arrays) | {"pointwise": moved}, {}, good.nbeta, good.spec))
    assert "MC201" in [f.code for f in est.findings]


def test_an_example_that_the_others_do_not_foresee_is_reported():
    case = Regression(n=12, d=4, gamma=0.01)
    case.y[3] += 15.0
    case = _refit(case)
    est = criteria.loo(case.draws())
    assert "CRIT701" in [f.code for f in est.findings]
    assert int(np.argmax(est.diagnostics["pareto_k"])) == 3


def _refit(case):
    case.mean = case.beta * case.cov @ case.x.T @ case.y
    case.mu = case.y - case.x @ case.mean
    return case
