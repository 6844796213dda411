"""AIC, BIC and DIC of linear regression against closed forms."""

import math

import numpy as np
import pytest
import torch

import crunode as cr


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((80, 3))
    y = x @ rng.standard_normal(3) + rng.standard_normal(80)
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    net = torch.nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor(best)[None])
    land = cr.Landscape(net, (torch.tensor(x), torch.tensor(y)[:, None]), "gaussian")
    return x, y, best, land


def test_aic_and_bic(case):
    x, y, best, land = case
    loss = 0.5 * ((y - x @ best) ** 2).mean()
    assert cr.aic(land).value == pytest.approx(loss + 3 / 80)
    assert cr.bic(land).value == pytest.approx(80 * loss + 1.5 * math.log(80))
    assert cr.aic(land).ok


def test_dic(case):
    x, y, _, land = case
    gamma = 2.0
    posterior = cr.Posterior(land, 80.0, cr.Gaussian(gamma, mean="origin"))
    draws = cr.sample(posterior, cr.HMC(), chains=8, draws=600, warmup=200, seed=0, keep=("positions",))
    covariance = np.linalg.inv(gamma * np.eye(3) + x.T @ x)
    mean = covariance @ x.T @ y
    there = 0.5 * ((y - x @ mean) ** 2).mean()
    spread = 0.5 * np.einsum("ni,ij,nj->n", x, covariance, x).mean()
    est = cr.dic(draws, land)
    assert abs(est.value - (there + 2 * spread)) < 4 * est.se
    assert est.diagnostics["parameters"] == pytest.approx(80 * spread, abs=0.2)


def test_bad_input(case):
    *_, land = case
    posterior = cr.Posterior(land, 80.0, cr.Gaussian(1.0))
    without = cr.sample(posterior, cr.HMC(step=1e-3), chains=2, draws=10, warmup=5)
    with pytest.raises(cr.InputError, match="positions"):
        cr.dic(without, land)
    drawn = cr.sample(posterior, cr.HMC(step=1e-3), chains=2, draws=10, warmup=5, keep=("positions",))
    other = cr.Landscape(
        torch.nn.Linear(3, 1, bias=False).double(), (torch.ones(5, 3).double(), torch.ones(5, 1).double()), "gaussian"
    )
    assert "MC202" in [f.code for f in cr.dic(drawn, land).findings]
    with pytest.raises(cr.InputError, match="another one"):
        cr.dic(drawn, other)
