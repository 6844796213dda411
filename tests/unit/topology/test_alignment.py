"""Alignment: hidden symmetries are found and taken out, and the function stays."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.topology import align, barrier
from crunode.topology.assignment import least_assignment

ACTIVATIONS = {nn.Tanh: ("permutation", "sign"), nn.ReLU: ("permutation", "scale"), nn.GELU: ("permutation",)}


def moved(net, symmetries, seed=0):
    """A copy of a network of linear layers, with units permuted, turned and scaled."""
    random = np.random.default_rng(seed)
    weights = {name: value.detach().clone() for name, value in net.named_parameters()}
    layers = [str(k) for k, layer in enumerate(net) if isinstance(layer, nn.Linear)]
    for here, after in itertools.pairwise(layers):
        width = len(weights[f"{here}.bias"])
        order = torch.from_numpy(random.permutation(width))
        factor = torch.ones(width, dtype=torch.float64)
        if "sign" in symmetries:
            factor *= torch.from_numpy(random.choice([-1.0, 1.0], width))
        if "scale" in symmetries:
            factor *= torch.from_numpy(random.uniform(0.2, 3.0, width))
        weights[f"{here}.weight"] = weights[f"{here}.weight"][order] * factor[:, None]
        weights[f"{here}.bias"] = weights[f"{here}.bias"][order] * factor
        weights[f"{after}.weight"] = weights[f"{after}.weight"][:, order] / factor
    return weights


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_barrier_of_a_moved_copy_vanishes_after_alignment(activation):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 10), activation(), nn.Linear(10, 8), activation(), nn.Linear(8, 2)).double()
    x = torch.randn(40, 3, dtype=torch.float64)
    land = Landscape(net, (x, net(x).detach()), "gaussian")
    other = moved(net, ACTIVATIONS[activation])
    assert float(barrier(land, net, other, "line")) > 1e-3
    found = align(land, net, other)
    assert found.symmetries == (ACTIVATIONS[activation],) * 2
    assert found.change <= 1e-6
    assert found.after < 1e-6 < found.before
    assert float(barrier(land, net, found.weights, "line")) < 1e-12
    torch.testing.assert_close(land.at(found.weights).loss(), land.at(other).loss(), rtol=1e-9, atol=1e-12)


def test_permutations_and_factors_say_what_was_done():
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 1)).double()
    land = Landscape(
        net, (torch.randn(30, 2, dtype=torch.float64), torch.randn(30, 1, dtype=torch.float64)), "gaussian"
    )
    other = moved(net, ("scale",), seed=4)
    found = align(land, net, other)
    rebuilt = other["0.weight"][found.permutations[0]] * torch.from_numpy(found.factors[0])[:, None]
    torch.testing.assert_close(rebuilt, land.packing.unravel(found.weights)["0.weight"])


def test_convolutions_before_a_linear_layer():
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    land = Landscape(net, (torch.randn(12, 1, 4, 4), torch.randn(12, 2)), "gaussian")
    weights = {name: value.detach().clone() for name, value in net.named_parameters()}
    order = torch.tensor([2, 0, 3, 1])
    weights["0.weight"], weights["0.bias"] = weights["0.weight"][order], weights["0.bias"][order]
    weights["3.weight"] = weights["3.weight"].view(2, 4, 4)[:, order].reshape(2, 16)
    found = align(land, net, weights)
    assert found.after < 1e-5 < found.before
    assert found.permutations[0].tolist() == np.argsort(order.numpy()).tolist()


def test_independent_networks_come_nearer_and_keep_their_function():
    nets = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        nets.append(nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 1)))
    land = Landscape(nets[0], (torch.randn(50, 3), torch.randn(50, 1)), "gaussian")
    found = align(land, *nets)
    assert found.after < 0.95 * found.before
    assert found.change <= 1e-6
    again = align(land, *nets)
    assert torch.equal(found.weights, again.weights)


def test_dead_units_are_left_as_they_are():
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        net[0].weight[1] = 0.0
        net[0].bias[1] = 0.0
    land = Landscape(net, (torch.randn(9, 2, dtype=torch.float64), torch.randn(9, 1, dtype=torch.float64)), "gaussian")
    found = align(land, net, moved(net, ("scale",)))
    assert torch.isfinite(found.weights).all()
    assert found.change <= 1e-6


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.second(x + torch.relu(self.first(x)))


def test_networks_without_the_symmetry_are_refused():
    data = torch.randn(10, 3), torch.randn(10, 1)
    skip = Skip()
    with pytest.raises(InputError, match="exchanged"):
        align(Landscape(skip, data, "gaussian"), skip, skip)
    norm = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    with pytest.raises(InputError, match="linear or convolutional"):
        align(Landscape(norm, data, "gaussian"), norm, norm)
    wider = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    narrow = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))
    with pytest.raises(InputError, match="shape"):
        align(Landscape(wider, data, "gaussian"), wider, narrow)


@pytest.mark.parametrize("kind", ["normal", "ties"])
def test_assignment_is_the_least(kind):
    optimize = pytest.importorskip("scipy.optimize")
    random = np.random.default_rng(0)
    for n in (1, 2, 3, 8, 40):
        for _ in range(8):
            cost = random.normal(size=(n, n)) if kind == "normal" else random.integers(0, 3, (n, n)).astype(float)
            found = least_assignment(cost)
            assert sorted(found) == list(range(n))
            best = cost[optimize.linear_sum_assignment(cost)].sum()
            assert cost[np.arange(n), found].sum() == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("cost", [np.zeros((2, 3)), np.array([[np.nan]]), np.zeros(4)])
def test_assignment_of_no_square_matrix(cost):
    with pytest.raises(InputError, match="square"):
        least_assignment(cost)
