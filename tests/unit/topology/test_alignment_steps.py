"""Parts of alignment: units of layers of all kinds, what counts as a symmetry, and how long is searched."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.topology import align, alignment
from crunode.topology.alignment import _balance, _fit_scales, _Stack


def random(seed=0):
    return np.random.default_rng(seed)


def stack(*shapes, seed=0, biases=True):
    draw = random(seed).normal
    weights = [draw(size=shape) for shape in shapes]
    widths = [len(w) for w in weights]
    return _Stack(
        weights,
        [draw(size=n) if biases else None for n in widths],
        [np.arange(n) for n in widths[:-1]],
        [np.ones(n) for n in widths[:-1]],
    )


CONVOLUTIONS = (3, 2, 3, 3), (4, 3, 2, 2), (2, 4 * 5)  # two convolutions, and a linear layer over five places


def test_units_are_a_filter_with_its_bias_and_all_that_is_done_with_its_output():
    given = stack(*CONVOLUTIONS)
    into, out = given.units(0)
    assert (into.shape, out.shape) == ((3, 2 * 3 * 3 + 1), (3, 4 * 2 * 2))
    for unit in range(3):
        np.testing.assert_array_equal(into[unit], [*given.weights[0][unit].ravel(), given.biases[0][unit]])
        np.testing.assert_array_equal(out[unit], given.weights[1][:, unit].ravel())
    into, out = given.units(1)
    for unit in range(4):
        np.testing.assert_array_equal(into[unit], [*given.weights[1][unit].ravel(), given.biases[1][unit]])
        np.testing.assert_array_equal(out[unit], given.weights[2].reshape(2, 4, 5)[:, unit].ravel())
    bare = stack(*CONVOLUTIONS, biases=False)
    np.testing.assert_array_equal(bare.units(0)[0], bare.weights[0].reshape(3, -1))
    assert (given.hidden, bare.hidden) == (2, 2)


@pytest.mark.parametrize("layer", [0, 1])
def test_changed_units_are_the_old_ones_in_another_order_and_scaled(layer):
    given = stack(*CONVOLUTIONS)
    moved = given.copy()
    width = len(given.weights[layer])
    order, factor = random(1).permutation(width), random(2).uniform(0.5, 2, width)
    moved.change(layer, order, factor)
    for (old_into, old_out), (into, out) in [(given.units(layer), moved.units(layer))]:
        np.testing.assert_allclose(into, factor[:, None] * old_into[order])
        np.testing.assert_allclose(out, old_out[order] / factor[:, None])
    np.testing.assert_array_equal(moved.order[layer], order)
    np.testing.assert_array_equal(moved.factors[layer], factor)
    again = random(3).permutation(width)
    moved.change(layer, again, 2 * factor)
    np.testing.assert_array_equal(moved.order[layer], order[again])
    np.testing.assert_allclose(moved.factors[layer], 2 * factor * factor[again])
    into, _ = moved.units(layer)
    np.testing.assert_allclose(into, moved.factors[layer][:, None] * given.units(layer)[0][order[again]])
    assert moved.distance(given) == pytest.approx(
        math.sqrt(
            sum(
                ((x - y) ** 2).sum()
                for x, y in zip(
                    [*moved.weights, *moved.biases], [*given.weights, *given.biases], strict=True
                )
            )
        )
    )  # fmt: skip


def test_balanced_units_have_equal_norms_and_dead_ones_are_left():
    given = stack((4, 2), (5, 4), (3, 5), (1, 3))
    given.weights[1][:, 2] = 0.0  # nothing comes out of unit 2 of the first layer
    given.weights[2][1], given.biases[2][1] = 0.0, 0.0  # and nothing goes into unit 1 of the last
    before = given.copy()
    _balance(given, [0, 1, 2])
    for k in range(3):
        into, out = (np.linalg.norm(part, axis=1) for part in given.units(k))
        alive = np.ones(len(into), dtype=bool)
        if k in (0, 2):
            alive[2 if k == 0 else 1] = False
        np.testing.assert_allclose(into[alive], out[alive], rtol=1e-6)
        np.testing.assert_array_equal(given.factors[k][~alive], 1.0)
    _balance(before, [])
    assert all((f == 1).all() for f in before.factors)
    _balance(before, [1])
    assert [bool((f == 1).all()) for f in before.factors] == [True, False, True]


def test_scales_are_fitted_in_the_given_layers_only():
    target, given = stack((4, 2), (5, 4), (1, 5)), stack((4, 2), (5, 4), (1, 5), seed=1)
    moved = given.copy()
    _fit_scales(target, moved, [1])
    assert (moved.factors[0] == 1).all()
    assert (moved.factors[1] > 0).all()
    assert moved.distance(target) < given.distance(target)
    for unit in range(5):
        for factor in (0.99, 1.01):
            other = moved.copy()
            scales = np.ones(5)
            scales[unit] = factor
            other.change(1, np.arange(5), scales)
            assert other.distance(target) > moved.distance(target)


def layers(*widths, activation=nn.Tanh, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    parts = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(*parts[:-1]).to(dtype)


def scene(net, count=20, dtype=torch.float64):
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(dtype)
    return Landscape(net, (x, x[:, :1]), "gaussian")


class Nearly(nn.Module):
    """An odd activation but for a constant, in single precision only."""

    def __init__(self, off=0.0):
        super().__init__()
        self.off = off

    def forward(self, x):
        return (torch.tanh(x) + self.off) @ torch.eye(1, dtype=torch.float32)


@pytest.mark.parametrize(("share", "kinds"), [(0.7, ("permutation", "sign")), (1.5, ("permutation",))])
def test_in_single_precision_a_symmetry_changes_no_output_by_more_than_a_ten_thousandth(share, kinds):
    net = layers(2, 1, 1, activation=Nearly, dtype=torch.float32)
    place = scene(net, dtype=torch.float32)
    with torch.no_grad():
        largest = max(float(net(x).abs().max()) for x, _ in place.passes(99))
    net[1].off = share * 1e-4 * largest / 2 / float(net[2].weight.detach().abs())
    assert align(scene(net, dtype=torch.float32), net, net).symmetries == (kinds,)


class Late(nn.Module):
    """A skip connection that is open where inputs are above ten."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 6), nn.Linear(6, 1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)) + torch.arange(6).to(x) * (x[:, :1] > 10))


def test_symmetries_are_tried_on_256_examples():
    torch.manual_seed(0)
    net = Late().double()
    for place, refused in ((255, True), (256, False)):
        x = torch.randn(300, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        x[place] = torch.tensor([20.0, -50.0])
        land = Landscape(net, (x, x[:, :1]), "gaussian")
        if refused:
            with pytest.raises(InputError, match="exchanged"):
                align(land, net, net, seed=1)
        else:
            assert "permutation" in align(land, net, net, seed=1).symmetries[0]


def test_the_best_of_four_orders_is_taken_and_each_ends_after_fifty_sweeps(monkeypatch):
    real, calls = alignment.least_assignment, []
    for widths in ((2, 3, 1), (2, 3, 3, 1)):
        net, other = layers(*widths), layers(*widths, seed=1)
        hidden = len(widths) - 2
        monkeypatch.setattr(alignment, "least_assignment", lambda cost: calls.append(1) or np.roll(np.arange(3), 1))
        calls.clear()
        align(scene(net), net, other)  # units move for ever
        assert len(calls) == 50 * hidden * (4 if hidden > 1 else 1)
        monkeypatch.setattr(alignment, "least_assignment", lambda cost: calls.append(1) or real(cost))
        calls.clear()
        align(scene(net), net, other)
        assert len(calls) >= 2 * hidden * (4 if hidden > 1 else 1)
    tried, match = [], alignment._match

    def noted(model, stack, kinds, generator):
        match(model, stack, kinds, generator)
        tried.append(stack.copy())

    monkeypatch.setattr(alignment, "_match", noted)
    net, other = layers(2, 6, 6, 1), layers(2, 6, 6, 1, seed=1)
    place = scene(net)
    found = align(place, net, other)
    target = found.weights.new_tensor(np.concatenate([p.detach().numpy().ravel() for p in net.parameters()]))
    assert float((found.weights - target).norm()) == pytest.approx(found.after)
    distances = []
    for each in tried:
        flat = np.concatenate([part.ravel() for pair in zip(each.weights, each.biases, strict=True) for part in pair])
        distances.append(float(np.linalg.norm(flat - target.numpy())))
    assert len(distances) == 4
    assert found.after == pytest.approx(min(distances))


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_convolutions_one_after_the_other_are_brought_back(activation):
    torch.manual_seed(4)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 2), activation(), nn.Conv2d(3, 4, 2, bias=False), activation(), nn.Flatten(), nn.Linear(16, 2)
    ).double()
    x = torch.randn(10, 1, 4, 4, dtype=torch.float64)
    land = Landscape(net, (x, torch.zeros(10, 2, dtype=torch.float64)), "gaussian")
    weights = {name: value.detach().clone() for name, value in net.named_parameters()}
    first = torch.tensor([-1.0, 1, -1] if activation is nn.Tanh else [2.0, 0.3, 1]).double()
    second = torch.tensor([1.0, -1, -1, 1] if activation is nn.Tanh else [0.5, 1, 3, 4]).double()
    order, other = [2, 0, 1], [1, 3, 0, 2]
    weights["0.weight"] = (weights["0.weight"] * first.view(-1, 1, 1, 1))[order]
    weights["0.bias"] = (weights["0.bias"] * first)[order]
    weights["2.weight"] = (weights["2.weight"] / first.view(-1, 1, 1))[:, order]
    weights["2.weight"] = (weights["2.weight"] * second.view(-1, 1, 1, 1))[other]
    weights["5.weight"] = (weights["5.weight"].view(2, 4, 4) / second.view(-1, 1))[:, other].reshape(2, 16)
    found = align(land, net, weights)
    kind = ("permutation", "sign" if activation is nn.Tanh else "scale")
    assert found.symmetries == (kind, kind)
    assert found.after < 1e-6 < found.before
    assert [p.tolist() for p in found.permutations] == [np.argsort(order).tolist(), np.argsort(other).tolist()]
    for factors, made in zip(found.factors, (first, second), strict=True):
        np.testing.assert_allclose(factors, 1 / made.numpy(), rtol=1e-6)


def test_what_layers_are_made_of_is_told_where_it_does_not_fit():
    data = torch.ones(4, 2), torch.ones(4, 1)
    single = nn.Linear(2, 1)
    with pytest.raises(InputError, match="two or more"):
        align(Landscape(single, data, "gaussian"), single, single)

    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(3, 5), nn.Linear(2, 3)

        def forward(self, x):
            return self.last(self.first(x))

    crossed = Crossed()  # named in another order than they are used in
    with pytest.raises(InputError, match="one after the other"):
        align(Landscape(crossed, (data[0], torch.ones(4, 5)), "gaussian"), crossed, crossed)
    net = layers(2, 3, 1)
    for seed in (-1, 1.0, True):
        with pytest.raises(InputError, match="seed"):
            align(scene(net), net, net, seed=seed)
