"""Codimensions of sets of minima that are known in closed form."""

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.minima import nearby_minima
from crunode.recipes import toys


@pytest.mark.parametrize("case", [(2, 2, 2, 0), (3, 2, 3, 1), (5, 3, 5, 0), (4, 3, 8, 0), (6, 4, 6, 2)])
def test_linear_networks(case):
    inputs, hidden, outputs, rank = case
    # Where the factors have ranks b (out) and a (in), rank J is bM + (N − b)a; generic points of {BA = T} have as large
    # ranks as a + b ≤ H + r allows.
    strata = [
        b * inputs + (outputs - b) * a
        for a in range(rank, min(inputs, hidden) + 1)
        for b in range(rank, min(outputs, hidden) + 1)
        if a + b == hidden + rank
        or (a == inputs and a + b <= hidden + rank)
        or (b == outputs and a + b <= hidden + rank)
    ]
    found = nearby_minima(toys.reduced_rank(*case, n=60))
    assert found is not None
    assert found.codimension == min(strata)
    assert found.distance < 0.1


def test_an_isolated_minimum_has_full_codimension():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(3, 1)
    assert nearby_minima(cr.Landscape(model, (x, model(x).detach()), "gaussian")).codimension == 4


def test_a_set_that_is_not_smooth_where_it_is_met_gives_no_codimension():
    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(3, dtype=torch.float64))

        def forward(self, x):
            return x * self.w.square().sum()  # zero at one point, with a Jacobian of rank 0: codimension 3, not 0 or 1

    x = torch.ones(4, 1, dtype=torch.float64)
    found = nearby_minima(cr.Landscape(Square(), (x, 0 * x), "gaussian"))
    assert found is None or found.codimension == 3


def test_losses_without_outputs_and_large_models_are_left_alone(monkeypatch):
    assert nearby_minima(toys.quadratic(2)) is None
    monkeypatch.setattr("crunode.curvature.minima._ENTRIES", 10)
    assert nearby_minima(toys.reduced_rank(2, 2, 2, 0, n=20)) is None
