"""AIC and BIC of linear regression against closed forms."""

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
