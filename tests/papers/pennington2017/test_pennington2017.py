"""Hessians of the recipes' networks against autograd, and what their rows would say of wrong numbers."""

import math

import numpy as np
import pytest
import torch

from crunode.jobs.recipe import Cell, Result
from crunode_papers.pennington2017 import index as by_index
from crunode_papers.pennington2017 import networks
from crunode_papers.pennington2017 import spectrum as by_spectrum


@pytest.mark.parametrize("kind", networks.KINDS)
def test_parts_of_the_hessian_add_up_to_it(kind):
    generator = torch.Generator().manual_seed(1)
    net, x = networks.initial(kind, 3, generator), networks.inputs_of(3, 7, generator)
    y = networks.inputs_of(3, 7, generator)
    h0, h1 = networks.hessian_parts(networks.landscape(net, x, y))

    def loss(w):
        first, second = w[:9].reshape(3, 3), w[9:].reshape(3, 3)
        return (net.act(x @ first.T) @ second.T - y).square().sum() / 14

    flat = torch.cat([net.first.detach().flatten(), net.second.detach().flatten()])
    whole = torch.func.jacrev(torch.func.grad(loss))(flat).numpy()
    np.testing.assert_allclose(h0 + h1, whole, atol=1e-10)
    assert np.linalg.eigvalsh(h0).min() > -1e-12
    if kind == "linear":
        block = (x @ net.first.T @ net.second.T - y).T.detach().numpy() @ x.numpy() / 7
        assert (h1**2).sum() == pytest.approx(2 * 3 * (block**2).sum())


def test_linear_networks_reach_least_squares():
    generator = torch.Generator().manual_seed(2)
    x, y = (networks.inputs_of(4, 32, generator).reshape(2, 16, 4) for _ in range(2))
    nets = [networks.initial("linear", 4, generator) for _ in range(2)]
    before = nets[0].first.detach().clone()
    ends, energies = networks.trained("linear", nets, x, y, 1500)
    for k in range(2):
        rest = y[k] - x[k] @ torch.linalg.lstsq(x[k], y[k]).solution
        assert float(energies[k]) == pytest.approx(float(rest.square().sum()) / (2 * 16 * 4), rel=1e-6)
        land = networks.landscape(ends[k], x[k], y[k])
        assert float(land.loss()) / 4 == pytest.approx(float(energies[k]))
    assert torch.equal(nets[0].first, before)


def _verdicts(recipe, cell, value):
    return {row.name: row.verdict for row in recipe.rows([Result(cell, value, 0.0)], "toy")}


def test_rows_of_untrained_networks_tell_the_two_variances_apart():
    settings = {"kind": "untrained", "model": "linear", "ratio": 0.5, "width": 8, "nets": 3, "seed": 0}
    cell = Cell("untrained", settings)
    value = by_spectrum.compute(cell)
    said = _verdicts(by_spectrum.RECIPE, cell, value)
    name = "untrained linear network, φ = 0.5: mean square of H1 over ε"
    assert said[name] == "agrees"
    assert said[f"{name}, as modelled"] == "explained"
    assert said["untrained linear network, φ = 0.5: share of zero eigenvalues of H0"] == "agrees"
    wrong = dict(value, h1_square=[2.0, 2.01, 1.99])
    assert _verdicts(by_spectrum.RECIPE, cell, wrong)[name] == "differs"


def test_rows_of_random_matrices_can_differ():
    settings = {"kind": "random", "model": "relu", "ratio": 0.5, "size": 100, "seed": 0}
    cell = Cell("random", settings)
    value = by_spectrum.compute(cell)
    assert set(_verdicts(by_spectrum.RECIPE, cell, value).values()) == {"agrees"}
    wrong = dict(value, edge=value["edge"] + 1e-5)
    assert "differs" in _verdicts(by_spectrum.RECIPE, cell, wrong).values()


def test_minimizers_of_linear_networks_have_the_exact_energy():
    settings = {"kind": "minimizers", "units": "linear", "ratio": 0.5, "width": 6, "nets": 8, "steps": 300, "seed": 3}
    cell = Cell("minimizers", settings)
    value = by_index.compute(cell)
    name = "linear network, φ = 0.5: energy of minimizers"
    said = _verdicts(by_index.RECIPE, cell, value)
    assert said[name] == "agrees"
    wrong = dict(value, energies=[0.25, 0.2501, 0.2499, 0.25])
    assert _verdicts(by_index.RECIPE, cell, wrong) == {name: "differs", f"{name}, as printed": "agrees"}
    assert by_index.linear_minimum(6, 24) == 0.375
    assert math.isclose(by_index.best_fit(0.5), 0.125)


def test_index_of_random_matrices_follows_the_model():
    settings = {"kind": "matrices", "model": "linear", "ratio": 0.25, "size": 60, "matrices": 3, "seed": 1}
    cell = Cell("matrices", settings)
    value = by_index.compute(cell)
    said = _verdicts(by_index.RECIPE, cell, value)
    assert sorted(said.values()) == ["agrees"] * 3 + ["shown"]
    wrong = dict(value, index=[v + 0.1 for v in value["index"]])
    assert "differs" in _verdicts(by_index.RECIPE, cell, wrong).values()


def test_critical_points_rows_need_points():
    settings = {"kind": "critical", "units": "tanh", "ratio": 0.75}
    cell = Cell("critical", settings)
    value = {"energy": [], "index": [], "unsure": 0, "outcomes": {"stalled": 4}, "fits": by_index._fits([], [])}
    assert list(_verdicts(by_index.RECIPE, cell, value).values()) == ["shown"]
    energy = np.linspace(0.1, 0.4, 20)
    falling = dict(value, energy=energy.tolist(), index=(0.5 - energy).tolist())
    assert "differs" in _verdicts(by_index.RECIPE, cell, falling).values()
