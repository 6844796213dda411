"""Zero-loss sets and symmetries whose geometry is known: equations, walks, scales, orders and signs."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.topology import align, alignment, solution_dimension, walk
from crunode.topology.alignment import _nearest_scale
from crunode.topology.equations import SquaredErrors, positive, solved


def rows(*points):
    return torch.tensor(points, dtype=torch.float64)


class Equations(nn.Module):
    """Outputs that are given functions of the weights, one row for each example."""

    def __init__(self, function, start):
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x):
        return x[:, :1] * self.function(self.w)


def equations(function, start, targets, examples=1, loss="gaussian"):
    y = torch.tensor([targets] * examples, dtype=torch.float64)
    return Landscape(Equations(function, start), (torch.ones(examples, 1).double(), y), loss)


@pytest.mark.parametrize("loss", ["gaussian", nn.functional.mse_loss])
def test_equations_have_the_loss_and_derivatives_of_the_landscape(loss):
    land = equations(lambda w: torch.stack([w[0] * w[1], w[2] ** 2]), [1.0, 2.0, 3.0], [1.0, 4.0], 3, loss)
    fit = SquaredErrors(land)
    w = rows([0.5, -1.0, 2.5])[0]
    assert fit.loss(fit.residual(w)) == pytest.approx(float(land.loss(w)), rel=1e-12)
    assert fit.shape == (6, 3)
    found = fit.factors(w)
    moves = 1e-6 * torch.eye(3, dtype=torch.float64)
    dense = torch.stack([(fit.residual(w + e) - fit.residual(w - e)) / 2e-6 for e in moves], 1)
    torch.testing.assert_close(found.left @ torch.diag(found.values) @ found.right, dense, atol=1e-8, rtol=0)
    assert found.rank.rank == len(found.values) == 2
    residual = fit.residual(w)
    torch.testing.assert_close(found.back(residual), torch.linalg.pinv(dense, rtol=1e-6) @ residual, atol=1e-6, rtol=0)
    damped = dense.T @ torch.linalg.solve(dense @ dense.T + 0.3 * torch.eye(6).double(), residual)
    torch.testing.assert_close(found.back(residual, 0.3), damped, atol=1e-6, rtol=0)
    v = rows([1.0, 2.0, 3.0])[0]
    tangent = found.tangent(v)
    torch.testing.assert_close(dense @ tangent, torch.zeros(6).double(), atol=1e-7, rtol=0)
    assert float(tangent @ (v - tangent)) == pytest.approx(0, abs=1e-9)


def test_loss_that_counts_as_zero_is_not_below_rounding():
    for size in (1.0, 100.0):
        fit = SquaredErrors(equations(lambda w, s=size: w * s, [1.0, 0.01], [2.0 * size, 0.0]))
        assert fit.limit(1e-3) == 1e-3
        assert fit.limit(1e-300) == pytest.approx((30 * 2.0**-52 * 2 * size) ** 2, rel=1e-9)
    outputs = SquaredErrors(equations(lambda w: w, [7.0, 1.0], [2.0, 0.0]))
    assert outputs.limit(1e-300) == pytest.approx((30 * 2.0**-52 * 7) ** 2, rel=1e-9)
    assert (positive(1), positive(0), positive(math.inf), positive(True), positive("1")) == (1, 0, 0, 0, 0)


def test_steps_of_levenberg_and_marquardt_by_hand():
    """From J = diag(2, 1): damping begins at a thousandth of the largest squared value, and falls tenfold."""
    fit = SquaredErrors(equations(lambda w: w * rows([2.0, 1.0])[0], [0.0, 0.0], [4.0, 3.0]))
    w, loss, taken = solved(fit, 1, 1e-30)
    mu = 1e-3 * 4
    torch.testing.assert_close(w, rows([2 * 4 / (4 + mu), 3 / (1 + mu)])[0], rtol=1e-12, atol=0)
    assert taken == 1
    assert loss == pytest.approx(fit.loss(fit.residual(w)))
    w, _, taken = solved(fit, 2, 1e-30)
    left = rows([4 * mu / (4 + mu), 3 * mu / (1 + mu)])[0]
    mu /= 10
    torch.testing.assert_close(
        rows([4.0, 3.0])[0] - w * rows([2.0, 1.0])[0], left * rows([mu / (4 + mu), mu / (1 + mu)])[0], rtol=1e-6, atol=0
    )
    w, loss, taken = solved(fit, 50, 1e-6)
    assert taken <= 4
    assert loss < 1e-25  # the step after the last takes away what is left


def test_dimension_says_how_it_was_found():
    land = equations(lambda w: torch.stack([w[0] ** 2 + w[1] ** 2, w[2]]), [2.0, 0.3, 1.0, 5.0], [1.0, 3.0])
    found = solution_dimension(land, steps=30, tolerance=1e-18)
    assert (found.dimension.value, found.dimension.systematic) == (2.0, 0.0)
    assert (found.parameters, found.equations, found.expected) == (4, 2, 2)
    spec = found.dimension.spec
    assert [spec[k] for k in ("n", "dim", "outputs", "steps", "tolerance")] == [1, 4, 2, 30, 1e-18]
    assert 2 <= spec["taken"] <= 10
    assert (found.dimension.name, found.loss.name) == ("dimension of the zero-loss manifold", "loss")
    torch.testing.assert_close(found.weights[:2].norm(), torch.tensor(1.0).double())


def ring(start=(1.0, 0.0)):
    return equations(lambda w: w.square().sum()[None], list(start), [1.0])


def test_walk_without_a_stride_takes_a_fiftieth_of_the_weights():
    path = walk(ring((3.0, 4.0)), 5)
    steps = path.path.diff(dim=0).norm(dim=1)
    torch.testing.assert_close(steps, torch.full((5,), 2 * math.sin(math.asin(0.02) / 2)).double(), rtol=1e-6, atol=0)
    assert path.length.value == pytest.approx(float(steps.sum()), rel=1e-12)
    assert path.distance.value == pytest.approx(float((path.path[-1] - path.path[0]).norm()), rel=1e-12)
    assert path.largest.value == path.losses.max()
    assert len(path.losses) == len(path.dimensions) == 6
    assert path.dimensions.tolist() == [1.0] * 6
    assert path.ok
    assert path.length.spec["stride"] == pytest.approx(0.02)
    assert (path.length.spec["steps"], path.length.spec["dim"]) == (5, 2)
    assert (path.largest.name, path.length.name) == ("largest loss of a walk", "length of a walk")


def test_losses_of_a_walk_are_surely_below_the_tolerance():
    path = walk(ring(), 6, stride=0.3, tolerance=1e-6)
    assert path.losses.max() <= 1e-8
    assert path.losses[0] < 1e-20
    assert path.length.spec["tolerance"] == 1e-6


def test_a_long_stride_is_halved_until_it_can_be_brought_back():
    """A stride of four leaves the circle for where corrections along the old normal do not converge."""
    path = walk(ring(), 2, stride=4.0)
    assert len(path.path) == 3
    steps = path.path.diff(dim=0).norm(dim=1)
    assert (steps < 1.5).all()
    assert (steps > 0.2).all()


def test_a_point_is_no_place_for_a_walk():
    """|w|² = 0 has a null space of the Jacobian, along which no step however small can be brought back."""
    land = equations(lambda w: torch.stack([w[0] - w[1] ** 2, w[0] + w[1] ** 2]), [0.0, 0.0], [0.0, 0.0])
    path = walk(land, 4, stride=0.5, direction=rows([0.0, 1.0])[0], tolerance=1e-28)
    assert path.findings[-1].code == "TOPO1109"
    assert "of 4 steps" in path.findings[-1].message


@pytest.mark.parametrize("seed", range(4))
def test_nearest_scale_is_the_minimum_of_a_fine_grid(seed):
    random = np.random.default_rng(seed)
    u, v, u0, v0 = (random.normal(size=n) for n in (3, 4, 3, 4))
    s = np.geomspace(1e-3, 1e3, 400_001)[:, None]
    costs = np.square(s * u - u0).sum(1) + np.square(v / s - v0).sum(1)
    assert _nearest_scale(u, v, u0, v0) == pytest.approx(float(s[costs.argmin(), 0]), rel=1e-4)
    assert _nearest_scale(0 * u, v, u0, v0) == 1.0


def two_layers(activation, width, seed=0, outputs=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, width), activation, nn.Linear(width, outputs)).double()


def scene(net, count=20, dtype=torch.float64):
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(dtype)
    return Landscape(net, (x, x[:, :1]), "gaussian")


@pytest.mark.parametrize("seed", range(6))
def test_one_unit_without_a_sign_has_none(seed):
    net = two_layers(nn.GELU(), 1)
    assert align(scene(net), net, net, seed=seed).symmetries == (("permutation",),)
    odd = two_layers(nn.Tanh(), 1)
    assert align(scene(odd), odd, odd, seed=seed).symmetries == (("permutation", "sign"),)


class Nearly(nn.Module):
    """An odd activation but for a constant."""

    def __init__(self, off):
        super().__init__()
        self.off = off

    def forward(self, x):
        return torch.tanh(x) + self.off


def test_a_symmetry_changes_no_output_by_more_than_a_millionth():
    for share, kinds in ((0.7, ("permutation", "sign")), (1.5, ("permutation",))):
        net = two_layers(Nearly(0.0), 1)
        with torch.no_grad():
            largest = max(float(net(x).abs().max()) for x, _ in scene(net).passes(99))
        # Turned, the unit gives −v(tanh(−z) + c) = v tanh(z) − vc: outputs move by 2vc.
        net[1].off = share * 1e-6 * largest / 2 / float(net[2].weight.detach().abs())
        assert align(scene(net), net, net).symmetries == (kinds,)


def test_one_hidden_layer_is_matched_once(monkeypatch):
    calls, real = [], alignment.least_assignment
    monkeypatch.setattr(alignment, "least_assignment", lambda cost: calls.append(1) or real(cost))
    net, other = two_layers(nn.Tanh(), 5, 0), two_layers(nn.Tanh(), 5, 1)
    align(scene(net), net, other)
    assert len(calls) == 2  # the second time nothing moves


@pytest.mark.parametrize("kind", ["permutation", "sign"])
def test_alignment_of_few_units_is_the_best_of_all_orders_and_signs(kind):
    activation = nn.Tanh() if kind == "sign" else nn.GELU()
    net, other = two_layers(activation, 3, 3, 2), two_layers(activation, 3, 4, 2)
    data = torch.randn(9, 2, generator=torch.Generator().manual_seed(2)).double(), torch.zeros(9, 2).double()
    found = align(Landscape(net, data, "gaussian"), net, other)
    best = math.inf
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((1.0, -1.0) if kind == "sign" else (1.0,), repeat=3):
            s, o = torch.tensor(signs).double(), list(order)
            parts = [
                other[0].weight[o] * s[:, None] - net[0].weight, other[0].bias[o] * s - net[0].bias,
                other[2].weight[:, o] * s - net[2].weight, other[2].bias - net[2].bias,
            ]  # fmt: skip
            best = min(best, math.sqrt(sum(float(p.detach().square().sum()) for p in parts)))
    assert found.after == pytest.approx(best, rel=1e-9)
    whole = torch.cat([(p - q).flatten() for p, q in zip(net.parameters(), other.parameters(), strict=True)])
    assert found.before == pytest.approx(float(whole.detach().norm()), rel=1e-12)
    land_weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    assert float((found.weights - land_weights).norm()) == pytest.approx(found.after, rel=1e-9)
    assert found.change <= 1e-12


def test_scaled_units_come_to_the_nearest_scale():
    net = two_layers(nn.ReLU(), 4, 5)
    other = {k: v.detach().clone() for k, v in net.named_parameters()}
    factor = torch.tensor([0.1, 3.0, 1.0, 20.0]).double()
    other["0.weight"], other["0.bias"] = other["0.weight"] * factor[:, None], other["0.bias"] * factor
    other["2.weight"] = other["2.weight"] / factor
    found = align(scene(net), net, other)
    assert found.after < 1e-9 < 1 < found.before
    np.testing.assert_allclose(found.factors[0], 1 / factor.numpy(), rtol=1e-9)
    assert found.permutations[0].tolist() == [0, 1, 2, 3]


def test_a_stride_a_million_times_too_long_is_given_up():
    assert len(walk(ring(), 1, stride=2.0**17).path) == 2  # halved to a quarter or more
    lost = walk(ring(), 2, stride=2.0**26)
    assert [f.code for f in lost.findings] == ["TOPO1109"]
    assert "after 0 of 2 steps" in lost.findings[0].message
    assert (len(lost.path), lost.length.value, lost.distance.value) == (1, 0.0, 0.0)


def test_rank_that_rounding_leaves_open_is_told():
    """Equations of sizes that fall by tens through the rounding of doubles: no gap shows which are none."""
    for sizes, codes in (
        ([1.0, 1e-2, 1.0], []),
        ([1.0, 1e-30, 1.0], ["TOPO1106"]),
        ([10.0**-k for k in (0, 12, 13, 14, 15)], ["TOPO1107"]),
    ):
        start = [1.0] + [0.0] * (len(sizes) - 1)
        scale = torch.tensor(sizes, dtype=torch.float64)
        found = solution_dimension(equations(lambda w, scale=scale: scale * w, start, start))
        assert [f.code for f in found.findings] == codes
        low, high = (len(sizes) - found.dimension.value + s * found.dimension.systematic for s in (-1, 1))
        assert (low, high) == (found.rank.low, found.rank.high)
        assert found.full_rank == (codes == [])
        assert found.rank.decided == (codes != ["TOPO1107"])
