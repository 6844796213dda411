"""Free energies against closed forms: Gaussian integrals, a normal crossing by quadrature."""

import math

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.core.result import Draws

stats = pytest.importorskip("scipy.integrate")


def ladder(levels, sampler, chains=4, draws=1500, seed=0, prior=None):
    """Draws of losses at each level, from a function of (rng, t, shape)."""
    rng = np.random.default_rng(seed)
    losses = np.concatenate([sampler(rng, t, (chains, draws)) for t in levels])
    spec = {"n": 100, "asked": {"seed": seed, "prior": prior or {"precision": 1.0, "mean": "center"}}}
    return Draws({"excess": losses, "distance2": losses}, {}, np.repeat(np.asarray(levels, float), chains), spec)


def bowl(d):
    """L = |w|²/2 under a standard normal prior: Z(t) = (1 + t)^(-d/2)."""
    return lambda rng, t, shape: rng.chisquare(d, shape) / (2 * (1 + t))


GEOMETRIC = [4.0**k for k in range(-4, 7)]


@pytest.mark.parametrize("d", [1, 5, 20])
@pytest.mark.parametrize("upto", [1.0, 4.0**6])
def test_gaussian_integrals(d, upto):
    levels = [2.0**k for k in range(-10, 13)]
    est = cr.free_energy(ladder(levels, bowl(d), seed=d), nbeta=upto)
    assert est.ok
    assert abs(est.value - d / 2 * math.log1p(upto)) < 4 * est.se
    assert est.se < 0.1


def test_the_integral_agrees():
    est = cr.free_energy(ladder([2.0**k for k in range(-8, 9)], bowl(4)))
    assert est.diagnostics["integral"] == pytest.approx(est.value, abs=4 * est.se + 0.01)
    values = [row["value"] for row in est.diagnostics["curve"]]
    assert values == sorted(values)


def test_the_stated_error_is_the_spread_over_repeats():
    found = [cr.free_energy(ladder(GEOMETRIC, bowl(3), draws=200, seed=k)) for k in range(60)]
    spread = np.std([e.value for e in found], ddof=1)
    assert 0.7 < spread / np.mean([e.se for e in found]) < 1.4  # 60 repeats know the spread to 9 %


def test_conjugate_regression_sampled():
    """The evidence of linear regression, from HMC on a ladder."""
    rng = np.random.default_rng(2)
    x, gamma = rng.standard_normal((40, 3)), 2.0
    y = x @ rng.standard_normal(3) + rng.standard_normal(40)
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    net = torch.nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor(best)[None])
    land = cr.Landscape(net, (torch.tensor(x), torch.tensor(y)[:, None]), "gaussian")
    levels = tuple(40 * 2.0**-k for k in range(12, -1, -1))
    posterior = cr.Posterior(land, levels, cr.Gaussian(gamma, mean="origin"))
    est = cr.free_energy(cr.sample(posterior, cr.HMC(), chains=4, draws=400, warmup=200, seed=3))
    # −log of the integral of N(w; 0, 1/γ) exp(−Σ (r_i(w)² − r_i(best)²) / 2).
    covariance = np.eye(40) + x @ x.T / gamma
    exact = 0.5 * np.linalg.slogdet(covariance)[1] + 0.5 * y @ np.linalg.solve(covariance, y)
    exact -= 0.5 * ((y - x @ best) ** 2).sum()
    assert est.ok, est.findings
    assert abs(est.value - exact) < 4 * est.se
    assert est.se < 0.2


def test_normal_crossing_grows_with_its_coefficient():
    """L = x² y² under a normal prior: increments approach λ log 4 − log log terms, here against quadrature."""

    def energy(t):
        def inner(y):
            return math.exp(-y * y / 2) / math.sqrt(2 * math.pi) / math.sqrt(1 + 2 * t * y * y)

        return -math.log(2 * stats.quad(inner, 0, 12, limit=400, points=[1e-4, 1e-2, 0.1, 1])[0])

    def sampler(rng, t, shape):
        # y from its marginal by rejection from the prior, x given y is normal.
        y = np.empty(0)
        while y.size < shape[0] * shape[1]:
            draw = rng.standard_normal(200_000)
            y = np.append(y, draw[rng.random(draw.size) < 1 / np.sqrt(1 + 2 * t * draw**2)])
        y = y[: shape[0] * shape[1]].reshape(shape)
        x = rng.standard_normal(shape) / np.sqrt(1 + 2 * t * y**2)
        return x**2 * y**2

    est = cr.free_energy(ladder([4.0**k for k in range(-5, 8)], sampler))
    assert est.ok
    for row in est.diagnostics["curve"]:
        assert abs(row["value"] - energy(row["nbeta"])) < 4 * row["se"]


def test_levels_too_far_apart_are_an_error():
    est = cr.free_energy(ladder([0.01, 1e5], bowl(20)))
    assert not est.ok
    assert "CRIT703" in [f.code for f in est.findings]


def test_a_ladder_that_begins_too_cold_is_an_error():
    est = cr.free_energy(ladder([100.0, 200.0], bowl(10)))
    assert not est.ok
    assert "CRIT704" in [f.code for f in est.findings]


def test_chains_that_disagree_are_reported():
    draws = ladder(GEOMETRIC, bowl(3))
    moved = draws.arrays["excess"] * np.where(np.arange(draws.chains) % 4 == 0, 3.0, 1.0)[:, None]
    est = cr.free_energy(Draws({"excess": moved, "distance2": moved}, {}, draws.nbeta, draws.spec))
    assert "MC201" in [f.code for f in est.findings]


def test_a_flat_prior_is_refused_for_sampled_draws():
    land = cr.Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=100)
    draws = cr.sample(cr.Posterior(land, (1.0, 10.0), cr.Flat()), cr.HMC(step=0.01), chains=2, draws=20, warmup=5)
    with pytest.raises(cr.InputError, match="normalised"):
        cr.free_energy(draws)


def test_bad_input():
    with pytest.raises(cr.InputError, match="Draws"):
        cr.free_energy(1.0)
    with pytest.raises(cr.InputError, match="normalised"):
        cr.free_energy(ladder(GEOMETRIC, bowl(2), prior="flat"))
    with pytest.raises(cr.InputError, match="sampled nbeta"):
        cr.free_energy(ladder(GEOMETRIC, bowl(2)), nbeta=3.0)
