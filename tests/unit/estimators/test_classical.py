"""AIC and BIC from their definitions on a linear model."""

import numpy as np
import pytest
import torch

import crunode as cr

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 2)), RNG.normal(size=30)


def loss(w):
    return 0.5 * ((Y - X @ w) ** 2).mean()


def test_aic_and_bic_count_parameters_against_examples():
    net = torch.nn.Linear(2, 1, bias=False).double()
    land = cr.Landscape(net, (torch.tensor(X), torch.tensor(Y)[:, None]), "gaussian")
    here = loss(net.weight.detach().numpy()[0])
    aic, bic = cr.aic(land), cr.bic(land)
    assert aic.value == pytest.approx(here + 2 / 30)
    assert bic.value == pytest.approx(30 * here + np.log(30))
    assert (aic.name, bic.name) == ("aic", "bic")
    assert (aic.spec["n"], aic.spec["dim"], aic.se) == (30, 2, 0.0)
