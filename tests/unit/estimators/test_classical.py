"""DIC of given draws, from its definition on a linear model."""

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.core.result import Draws
from crunode.sampling.diagnostics import ess, mcse_mean, split_rhat

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 2)), RNG.normal(size=30)


def loss(w):
    return 0.5 * ((Y - X @ w) ** 2).mean()


def test_dic_is_twice_the_mean_loss_less_that_of_the_mean():
    net = torch.nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.3, -0.2]]))
    land = cr.Landscape(net, (torch.tensor(X), torch.tensor(Y)[:, None]), "gaussian")
    center = loss(np.array([0.3, -0.2]))
    places = np.array([0.1, 0.4]) + 0.3 * np.random.default_rng(1).normal(size=(4, 60, 2))
    each = np.array([[loss(w) for w in chain] for chain in places])
    arrays = {"excess": each - center, "distance2": each, "positions": places}
    draws = Draws(arrays, {}, np.full(4, 30.0), {"n": 30, "asked": {"seed": 6}})
    found = cr.dic(draws, land)
    mean = places.mean((0, 1))
    assert found.value == pytest.approx(2 * each.mean() - loss(mean))
    assert found.diagnostics["parameters"] == pytest.approx(30 * (each.mean() - loss(mean)))
    assert found.diagnostics["ess"] == pytest.approx(ess(each - center))
    assert found.diagnostics["rhat"] == pytest.approx(split_rhat(each - center))
    # To first order a draw moves the value by twice its loss, and by the slope at the mean times where it is.
    slope = -X.T @ (Y - X @ mean) / 30
    assert found.se == pytest.approx(mcse_mean(2 * each - places @ slope))
    assert found.seed == 6
    assert found.name == "dic"
    one, two = (cr.dic(Draws(arrays, {}, np.repeat([30.0, 60.0], 2), draws.spec), land, nbeta=t) for t in (30.0, 60.0))
    assert one.value == pytest.approx(2 * each[:2].mean() - loss(places[:2].mean((0, 1))))
    assert two.value == pytest.approx(2 * each[2:].mean() - loss(places[2:].mean((0, 1))))


def test_aic_and_bic_count_parameters_against_examples():
    net = torch.nn.Linear(2, 1, bias=False).double()
    land = cr.Landscape(net, (torch.tensor(X), torch.tensor(Y)[:, None]), "gaussian")
    here = loss(net.weight.detach().numpy()[0])
    aic, bic = cr.aic(land), cr.bic(land)
    assert aic.value == pytest.approx(here + 2 / 30)
    assert bic.value == pytest.approx(30 * here + np.log(30))
    assert (aic.name, bic.name) == ("aic", "bic")
    assert (aic.spec["n"], aic.spec["dim"], aic.se) == (30, 2, 0.0)
