"""Critical points of landscapes where all of them are known."""

import math

import numpy as np
import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.topology import CriticalPoints, critical_points
from crunode.topology.newton import PointBatch


def potential(function, dim):
    return Landscape.of_function(function, torch.zeros(dim, dtype=torch.float64))


def around(dim, starts=24, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(starts, dim, generator=generator, dtype=torch.float64)


def seen(found):
    """Kinds of points that were found: rounded weights, loss, index, degenerate directions."""
    return {
        (*(p.weights.round(decimals=5) + 0.0).tolist(), round(p.loss.value, 8), p.index.value, p.degenerate.value)
        for p in found
    }


def two_wells(w):
    return (w[0] ** 2 - 1) ** 2 + w[1] ** 2


def monkey(w):
    return w[0] ** 3 - 3 * w[0] * w[1] ** 2


def himmelblau(w):
    return (w[0] ** 2 + w[1] - 11) ** 2 + (w[0] + w[1] ** 2 - 7) ** 2


def test_two_wells():
    found = critical_points(potential(two_wells, 2), around(2))
    assert seen(found) == {(1, 0, 0, 0, 0), (-1, 0, 0, 0, 0), (0, 0, 1, 1, 0)}
    assert found.ok
    assert set(found.outcomes) == {"converged"}
    assert not found.findings
    assert {(p.kind, p.index.value) for p in found} == {("minimum", 0), ("saddle", 1)}


def test_product_of_quadratics():
    # x²y² − x² − y² = (x² − 1)(y² − 1) − 1: a maximum at 0 and saddles at (±1, ±1).
    found = critical_points(potential(lambda w: (w[0] ** 2 - 1) * (w[1] ** 2 - 1), 2), around(2, 40, 1.5))
    corners = {(a, b, 0, 1, 0) for a in (-1, 1) for b in (-1, 1)}
    assert seen(found) == corners | {(0, 0, 1, 2, 0)}


def test_all_nine_critical_points_of_himmelblaus_function():
    # Four minima, four saddles and one maximum; the values are Himmelblau's (1972), rounded.
    found = critical_points(potential(himmelblau, 2), around(2, 150, 4.0))
    indices = {(round(p.loss.value, 3), p.index.value) for p in found}
    assert {index for loss, index in indices if loss < 1e-6} == {0}
    saddles = {loss for loss, index in indices if index == 1}
    assert saddles == {13.312, 67.719, 104.015, 178.337}
    assert {loss for loss, index in indices if index == 2} == {181.617}
    assert len({tuple(p.weights.round(decimals=3).tolist()) for p in found}) == 9


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("function", "dim", "null"),
    [
        (monkey, 2, 2),
        (lambda w: monkey(w) + w[2] ** 2 - w[3] ** 2, 4, 2),
        (lambda w: w[0] ** 4 + w[1] ** 2, 2, 1),
        (lambda w: w[0] ** 6 - w[1] ** 2, 2, 1),
    ],
    ids=["monkey", "monkey and quadratic", "quartic", "sextic"],
)
def test_degenerate_points(function, dim, null):
    found = critical_points(potential(function, dim), around(dim, 8))
    assert len(found) == 8
    assert {p.degenerate.value for p in found} == {null}
    assert {p.index.systematic for p in found} == {0.0}
    assert all(abs(p.loss.value) < 1e-8 for p in found)


@pytest.mark.heavy
@pytest.mark.parametrize("width", [1, 2, 4])
def test_product_of_two_layers(width):
    # (v·w − 1)²: solutions form a manifold of dimension 2·width − 1; 0 is a saddle of index width with loss 1.
    land = potential(lambda w: (w[:width] @ w[width:] - 1) ** 2, 2 * width)
    found = critical_points(land, around(2 * width, 40))
    expected = {(0.0, 0.0, 2.0 * width - 1), (1.0, float(width), 0.0)}
    assert {(round(p.loss.value, 9), p.index.value, p.degenerate.value) for p in found} == expected


@pytest.mark.heavy
def test_index_equals_dense_eigenvalues_of_another_derivative():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(20, 1, generator=generator, dtype=torch.float64)
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()
    start = 0.7 * torch.randn(16, 16, generator=generator, dtype=torch.float64)
    found = critical_points(Landscape(net, (x, y), "gaussian"), start)
    assert len(found) >= 3

    def loss(w):
        hidden = torch.tanh(x @ w[:9].reshape(3, 3).T + w[9:12])
        return 0.5 * (hidden @ w[12:15, None] + w[15] - y).square().mean()

    for p in found:
        hessian = torch.autograd.functional.hessian(loss, p.weights)
        values = np.linalg.eigvalsh(hessian.numpy())
        assert np.allclose(values, p.eigenvalues, atol=1e-9)
        signed = np.abs(values) > 10 * p.error
        assert (values[signed] < 0).sum() == (p.eigenvalues[signed] < 0).sum()
        low, high = p.index.value - p.index.systematic, p.index.value + p.index.systematic
        assert low <= (values < -p.error).sum() <= high
        (slope,) = torch.autograd.grad(loss(q := p.weights.clone().requires_grad_()), q)
        assert float(slope.norm()) == pytest.approx(p.gradient, abs=1e-12)
        assert p.gradient < 1e-8


def test_linear_network_has_known_energies_and_strict_saddles():
    # Critical points of ½‖W2 W1 − A‖² select singular values of A: twice the loss is the sum of squares of those left
    # out (Baldi & Hornik 1989), and all but the global minima have negative eigenvalues.
    singular = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q for _ in range(2))
    target = left @ torch.diag(singular) @ right.T
    land = potential(lambda w: 0.5 * (w[:6].reshape(3, 2) @ w[6:].reshape(2, 3) - target).square().sum(), 12)
    found = critical_points(land, around(12, 48))
    kept = [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    energies = [7.0 - 0.5 * float(singular[list(k)].square().sum()) for k in kept]
    assert len(found) > 20
    assert all(min(abs(p.loss.value - e) for e in energies) < 1e-8 for p in found)
    assert len({round(p.loss.value, 6) for p in found}) >= 4
    for p in found:
        assert (p.index.value == 0) == (abs(p.loss.value - 0.5) < 1e-8)
        assert p.degenerate.value >= 4 or p.loss.value > 2  # GL(2) acts on the minima


def test_the_way_to_infinity_is_no_critical_point():
    found = critical_points(potential(lambda w: torch.exp(-w[0]) + w[1] ** 2, 2), around(2, 6))
    assert len(found) == 0
    assert not found.ok
    assert set(found.outcomes) == {"escaping"}
    assert [f.code for f in found.findings] == ["TOPO1103"]


def test_minimum_of_the_gradient_norm_is_no_critical_point():
    # w³/3 + w has no critical point; its gradient is least at 0.
    found = critical_points(potential(lambda w: w[0] ** 3 / 3 + w[0] + w[1] ** 2, 2), around(2, 6))
    assert len(found) == 0
    assert set(found.outcomes) <= {"stalled", "unfinished"}


def test_few_steps_leave_searches_unfinished():
    found = critical_points(potential(himmelblau, 2), around(2, 12, 4.0), steps=2)
    assert "unfinished" in found.outcomes
    assert len(found) == found.outcomes.count("converged")


def test_krylov_steps_find_the_same_point(monkeypatch):
    start = around(6, 4, 0.3)
    weights = torch.tensor([1.0, -2.0, 3.0, -0.5, 1.5, 2.5], dtype=torch.float64)
    land = potential(lambda w: (weights * w.square()).sum() + 0.1 * w.pow(3).sum() * w[0], 6)
    dense = critical_points(land, start)
    monkeypatch.setattr("crunode.topology.newton._DENSE", 2)
    products = critical_points(land, start)
    assert len(dense) == len(products) == 4
    for one, other in zip(dense, products, strict=True):
        assert torch.allclose(one.weights, other.weights, atol=1e-9)
        assert one.index.value == other.index.value


def test_a_model_that_cannot_be_batched_is_evaluated_point_by_point():
    def odd(w):
        return two_wells(w) if float(w.detach().sum()) < 1e9 else w.sum()  # a number: torch.func cannot batch it

    found = critical_points(potential(odd, 2), around(2, 6))
    assert seen(found) <= {(1, 0, 0, 0, 0), (-1, 0, 0, 0, 0), (0, 0, 1, 1, 0)}
    assert len(found) == 6


def test_level_brings_starts_there_first():
    land = potential(two_wells, 2)
    found = critical_points(land, around(2, 12), level=0.99)
    assert found.ok
    assert found.spec["level"] == 0.99
    low = critical_points(land, around(2, 12), level=0.05)
    assert {round(p.loss.value, 6) for p in low} == {0.0}  # below the saddle only the wells are near


@pytest.mark.heavy
@pytest.mark.parametrize("level", [-1.0, -1e-3])
def test_level_below_all_losses_is_unknown(level):
    found = critical_points(potential(two_wells, 2), around(2, 5), level=level)
    assert len(found) == 0
    assert not found.ok
    assert set(found.outcomes) == {"level not reached"}
    assert [f.code for f in found.findings] == ["TOPO1102", "TOPO1103"]


def test_starts_with_a_loss_that_is_not_finite_are_told():
    start = torch.tensor([[0.5, 0.1], [-1.0, 0.1]], dtype=torch.float64)
    land = Landscape.of_function(lambda w: w[0].log() ** 2 + w[1] ** 2, start[0])
    found = critical_points(land, start)
    assert found.outcomes == ("converged", "not finite")
    assert [f.code for f in found.findings] == ["TOPO1101"]


def test_drawn_starts_depend_on_the_seed_only():
    land = Landscape.of_function(two_wells, torch.tensor([0.5, 0.0], dtype=torch.float64))
    state = torch.get_rng_state()
    one, same, other = (critical_points(land, 6, seed=s) for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert one.to_dict() == same.to_dict()
    assert not np.array_equal(one.ends["scale"], other.ends["scale"])


def test_single_precision_models_are_seen_in_double():
    land = Landscape.of_function(two_wells, torch.zeros(2))
    found = critical_points(land, around(2, 6).float())
    assert found.spec["dtype"] == "torch.float64"
    assert all(p.gradient < 1e-12 for p in found)


def test_written_and_read_back(tmp_path):
    found = critical_points(potential(two_wells, 2), around(2, 4))
    again = CriticalPoints.load(found.save(tmp_path / "points.json"))
    assert again.to_dict() == found.to_dict()
    assert again.losses.tolist() == found.losses.tolist()
    assert str(again) == str(found)


@pytest.mark.parametrize(
    ("starts", "options"),
    [
        (torch.zeros(3, 5), {}),
        (torch.zeros(2), {}),
        (torch.zeros(0, 2), {}),
        (torch.zeros(3, 2, dtype=torch.int64), {}),
        (torch.tensor([[1.0, math.nan]]), {}),
        (0, {}),
        (True, {}),
        ("many", {}),
        (3, {"level": math.inf}),
        (3, {"level": "low"}),
        (3, {"steps": 0}),
        (3, {"tolerance": 0.0}),
        (3, {"seed": -1}),
    ],
    ids=str,
)
def test_bad_input(starts, options):
    with pytest.raises(InputError, match="expected"):
        critical_points(potential(two_wells, 2), starts, **options)


def test_more_parameters_than_eigenvalues_can_be_had_for():
    with pytest.raises(InputError, match="at most 4096"):
        critical_points(potential(lambda w: w @ w, 5000), 1)


def test_hessians_and_products_agree_with_autodiff():
    land = potential(himmelblau, 2)
    points = PointBatch(land)
    at, vectors = around(2, 5), around(2, 5, seed=1)
    dense = torch.stack([torch.autograd.functional.hessian(himmelblau, w) for w in at])
    assert torch.allclose(points.hessians(at), dense)
    assert torch.allclose(points.products(at, vectors), (dense @ vectors[:, :, None])[..., 0])
