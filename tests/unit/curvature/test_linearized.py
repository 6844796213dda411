"""Linearized networks against dense autograd and least squares; descent against its closed form; bad input."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import crunode as cr
from crunode.curvature import linearized as module
from crunode.curvature.gauss_newton import gauss_newton_step, linearized_descent
from crunode.curvature.jacobian import NoOutputs
from crunode.curvature.lazy import gradient_change_bound, lazy_diagnostics, linearization_error, width_exponent
from crunode.curvature.linearized import linearize


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def mlp(inputs=3, hidden=16, outputs=2, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()


def regression(rows=8, net=None, loss="gaussian", seed=0):
    x, y = torch.randn(2, rows, 3, generator=generator(seed), dtype=torch.float64)
    return cr.Landscape(net or mlp(), (x, y[:, :2]), loss)


def linear_net(rows=5, columns=5, seed=0, condition=50.0):
    """A linear regression whose inputs have a given spectrum."""
    q, _ = torch.linalg.qr(torch.randn(rows, rows, generator=generator(seed), dtype=torch.float64))
    p, _ = torch.linalg.qr(torch.randn(columns, columns, generator=generator(seed + 1), dtype=torch.float64))
    count = min(rows, columns)
    x = q[:, :count] @ torch.diag(torch.logspace(0, -np.log10(condition) / 2, count, dtype=torch.float64)) @ p[:count]
    net = nn.Linear(columns, 1, bias=False).double()
    nn.init.normal_(net.weight, generator=generator(seed + 2))
    y = torch.randn(rows, 1, generator=generator(seed + 3), dtype=torch.float64)
    return net, x, y


def dense_jacobian(land):
    def outputs(w):
        return torch.cat([land.batch_outputs(w, batch).reshape(-1) for batch in land.passes()])

    return torch.func.jacrev(outputs)(land.center), outputs(land.center)


def test_jacobian_kernel_and_products_are_those_of_dense_autograd():
    land = regression()
    linear = linearize(land)
    jacobian, outputs = dense_jacobian(land)
    u, v = torch.randn(len(outputs), generator=generator(), dtype=torch.float64), torch.ones_like(land.center)
    torch.testing.assert_close(linear.jacobian, jacobian, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(linear.outputs, outputs, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(linear.kernel(), jacobian @ jacobian.T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(linear.push(v), jacobian @ v, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(linear.pull(u), jacobian.T @ u, rtol=1e-12, atol=1e-12)


def no_layers(land):
    raise NoOutputs("planted")


@pytest.mark.parametrize("layers", [True, False])
@pytest.mark.parametrize("loss", ["gaussian", F.cross_entropy])
def test_a_jacobian_that_is_not_held_gives_the_same(monkeypatch, loss, layers):
    land = regression() if loss == "gaussian" else classes()
    held, step = linearize(land), gauss_newton_step(land, damping=1e-3)
    monkeypatch.setattr(module, "_ENTRIES", 0)
    monkeypatch.setattr(module, "_CHUNK", 1)  # one example in each block
    if not layers:
        monkeypatch.setattr(module, "tangent_kernel", no_layers)
    linear = linearize(land)
    assert linear.jacobian is None
    v = torch.randn(land.dim, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(linear.kernel(), held.kernel(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(linear.push(v), held.push(v), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(linear.pull(held.outputs), held.pull(held.outputs), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gauss_newton_step(land, damping=1e-3).step, step.step, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("loss", ["gaussian", F.mse_loss])
@pytest.mark.parametrize("rows", [8, 60])
def test_gauss_newton_step_is_that_of_least_squares(loss, rows):
    """Wide (16 outputs, 98 weights) and tall (120 outputs); mse_loss is another multiple of the same errors."""
    land = regression(rows, loss=loss)
    jacobian, outputs = dense_jacobian(land)
    wanted = torch.cat([batch[-1].reshape(-1) for batch in land.passes()]) - outputs
    step = torch.linalg.lstsq(jacobian, wanted[:, None], driver="gelsd").solution[:, 0]
    found = gauss_newton_step(land)
    assert (found.step - step).norm() <= 1e-10 * step.norm()
    assert found.distance.value == pytest.approx(float(step.norm()), rel=1e-10)
    assert found.distance.se == 0
    assert found.rank.rank == min(jacobian.shape)
    assert any(f.code == "CURV842" for f in found.findings) == (rows == 60)
    if rows == 8:
        assert found.predicted.value < 1e-20  # it can fit all examples


def test_damped_step_is_that_of_ridge_regression():
    land = regression()
    jacobian, outputs = dense_jacobian(land)
    wanted = next(iter(land.passes()))[-1].reshape(-1) - outputs
    normal = jacobian.T @ jacobian / land.n + 0.3 * torch.eye(land.dim, dtype=torch.float64)
    step = torch.linalg.solve(normal, jacobian.T @ wanted / land.n)
    torch.testing.assert_close(gauss_newton_step(land, 0.3).step, step, rtol=1e-9, atol=1e-11)


def classes():
    x = torch.randn(12, 3, generator=generator(), dtype=torch.float64)
    return cr.Landscape(mlp(outputs=3), (x, torch.arange(12) % 3), F.cross_entropy)


def test_step_for_cross_entropy_is_that_of_the_generalized_gauss_newton_matrix():
    land = classes()
    jacobian, outputs = dense_jacobian(land)
    p = outputs.reshape(12, 3).softmax(1)
    second = torch.block_diag(*(torch.diag_embed(p) - p[:, :, None] * p[:, None]))
    slope = (p - F.one_hot(torch.arange(12) % 3, 3)).reshape(-1)
    matrix = jacobian.T @ second @ jacobian / 12 + 1e-2 * torch.eye(land.dim, dtype=torch.float64)
    expected = -torch.linalg.solve(matrix, jacobian.T @ slope / 12)
    torch.testing.assert_close(gauss_newton_step(land, 1e-2).step, expected, rtol=1e-8, atol=1e-10)
    found = gauss_newton_step(land, 1.0)
    assert float(land.loss(found.weights)) == found.loss.value < float(land.loss())


def test_repeated_examples_are_found_and_left_out():
    net, x, y = linear_net(4, 6)
    x, y = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
    found = gauss_newton_step(cr.Landscape(net, (x, y), "gaussian"))
    assert "CURV841" in [f.code for f in found.findings]
    assert found.rank.rank == 4
    step = torch.linalg.pinv(x) @ (y - net(x).detach())
    torch.testing.assert_close(found.step, step[:, 0], rtol=1e-9, atol=1e-11)


def test_a_kernel_near_singular_is_told():
    """A condition number of J of 10⁹, so that JJᵀ is singular in double precision and J is not."""
    net, x, y = linear_net(5, 5, condition=1e18)
    found = gauss_newton_step(cr.Landscape(net, (x, y), "gaussian"))
    assert found.rank.rank == 5
    assert "CURV841" in [f.code for f in found.findings]
    net, x, y = linear_net(5, 5)
    assert not gauss_newton_step(cr.Landscape(net, (x, y), "gaussian")).findings


def test_a_step_that_the_network_does_not_follow_is_told():
    net = mlp(hidden=8)
    x = torch.randn(8, 3, generator=generator(), dtype=torch.float64)
    land = cr.Landscape(net, (x, 100 * torch.randn(8, 2, generator=generator(1), dtype=torch.float64)), "gaussian")
    found = gauss_newton_step(land)
    assert found.loss.value > float(land.loss())
    assert "CURV843" in [f.code for f in found.findings]


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (4, 7), (9, 4)])
def test_descent_of_a_linear_network_is_the_predicted_one(rows, columns):
    """Plain torch SGD, step by step, against losses, weights and contraction of the linearized descent."""
    net, x, y = linear_net(rows, columns)
    land = cr.Landscape(net, (x, y), "gaussian")
    found = linearized_descent(land, 60)
    trained = copy.deepcopy(net)
    optimizer = torch.optim.SGD(trained.parameters(), lr=found.rate)
    for k in range(60):
        loss = 0.5 * (trained(x) - y).square().mean()
        assert float(loss.detach()) == pytest.approx(found.losses[k], rel=1e-8)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(found.weights, trained.weight.detach()[0], rtol=1e-8, atol=1e-10)
    eigen = torch.linalg.svdvals(x) ** 2 / rows
    kappa = float(eigen[0] / eigen[-1])
    assert found.condition.value == pytest.approx(kappa, rel=1e-8)
    assert found.rate == found.best_rate == pytest.approx(float(2 / (eigen[0] + eigen[-1])), rel=1e-10)
    assert found.contraction.value == pytest.approx((kappa - 1) / (kappa + 1), rel=1e-8)
    assert (found.losses <= found.bounds * (1 + 1e-9)).all()


def test_residual_in_the_slowest_direction_contracts_as_predicted():
    net, x, y = linear_net(5, 5)
    slow = torch.linalg.svd(x).U[:, -1:]
    y = net(x).detach() + slow
    for share in (1.0, 0.3, 1.5):
        best = linearized_descent(cr.Landscape(net, (x, y), "gaussian"), 1).best_rate
        rate = min(share * best, 1.99 / float(torch.linalg.svdvals(x)[0] ** 2 / 5))
        found = linearized_descent(cr.Landscape(net, (x, y), "gaussian"), 20, rate)
        factor = 1 - rate * float(torch.linalg.svdvals(x)[-1] ** 2 / 5)
        assert found.measured.value == pytest.approx(factor, abs=1e-8)
        assert found.losses[1:] / found.losses[:-1] == pytest.approx(np.full(20, factor**2), abs=1e-8)
        if share <= 1:
            assert found.contraction.value == pytest.approx(factor, abs=1e-8)


def test_measured_contraction_reaches_the_prediction():
    net, x, y = linear_net(6, 8, condition=9.0)
    found = linearized_descent(cr.Landscape(net, (x, y), "gaussian"), 200)
    assert found.contraction.value == pytest.approx(0.8, abs=1e-8)
    assert found.measured.value == pytest.approx(0.8, abs=1e-8)
    assert found.best_contraction.value == pytest.approx(0.8, abs=1e-8)


def test_limit_of_descent_is_the_gauss_newton_step():
    net, x, y = linear_net(4, 7, condition=9.0)
    land = cr.Landscape(net, (x, y), "gaussian")
    end, step = linearized_descent(land, 200), gauss_newton_step(land)
    torch.testing.assert_close(end.weights, step.weights, rtol=1e-9, atol=1e-11)
    null = torch.linalg.svd(x).Vh[4:]
    assert (null @ step.step).norm() < 1e-12 * step.step.norm()


def test_floor_is_what_weights_cannot_change():
    net, x, y = linear_net(9, 4, condition=9.0)
    found = linearized_descent(cr.Landscape(net, (x, y), "gaussian"), 200)
    rest = y - x @ torch.linalg.lstsq(x, y).solution
    assert found.floor == pytest.approx(float(rest.square().sum() / 18), rel=1e-9)
    assert found.losses[-1] == pytest.approx(found.floor, rel=1e-9)
    assert found.measured.value == pytest.approx(0.8, abs=1e-6)  # from losses above a floor, known to rounding


class Quadratic(nn.Module):
    """f(x; w) = (w·x)², whose difference from its linearization is ((w − w0)·x)²."""

    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(w)

    def forward(self, x):
        return (x @ self.w).square()


def test_linearization_error_of_a_quadratic_network_in_closed_form():
    w, step = torch.randn(2, 4, generator=generator(), dtype=torch.float64)
    x = torch.randn(6, 4, generator=generator(1), dtype=torch.float64)
    land = cr.Landscape(Quadratic(w), (x, torch.zeros(6, dtype=torch.float64)), "gaussian")
    off = (x @ step).square()
    for there in (w + step, {"w": w + step}, Quadratic(w + step)):
        found = linearization_error(land, there)
        assert found.value == pytest.approx(float(off.square().mean().sqrt()), rel=1e-12)
        assert found.diagnostics["largest"] == pytest.approx(float(off.max()), rel=1e-12)
        assert found.diagnostics["distance"] == pytest.approx(float(step.norm()), rel=1e-12)
    seen = lazy_diagnostics(land, w + step)
    before, after = (4 * (x @ v)[:, None] * (x @ v) * (x @ x.T) for v in (w, w + step))
    assert seen.kernel_change.value == pytest.approx(float((after - before).norm() / before.norm()), rel=1e-10)
    assert seen.largest.value == pytest.approx(float(step.abs().max()), rel=1e-12)
    assert seen.per_coordinate.value == pytest.approx(float(step.norm()) / 2, rel=1e-12)
    assert [f.code for f in seen.findings] == ["CURV844"]
    assert not lazy_diagnostics(land, w + 1e-4 * step).findings


def test_exponent_covers_the_truth():
    """Noise of 20 % on ten networks at each of five widths: 200 exponents, 2σ intervals, at least 93 % cover.

    With systematic errors on top coverage is above 95.4 %; below 93 % has a probability under 5 %.
    """
    rng = np.random.default_rng(0)
    widths, inside = (64, 128, 256, 512, 1024), 0
    for _ in range(200):
        found = width_exponent({p: p**-0.5 * np.exp(0.2 * rng.standard_normal(10)) for p in widths})
        inside += abs(found.value + 0.5) <= 2 * found.error
    assert inside >= 186


def test_values_off_a_power_are_told():
    values = {p: [p**-0.5 + 0.1, (p**-0.5 + 0.1) * 1.001] for p in (64, 256, 1024, 4096)}
    assert [f.code for f in width_exponent(values).findings] == ["CURV845"]


def test_gradient_change_is_below_its_bound():
    x = torch.randn(5, 4, generator=generator(), dtype=torch.float64)
    one = torch.randn(50, 4, generator=generator(1), dtype=torch.float64)
    for size in (1e-3, 1.0):
        two = one + size * torch.randn(50, 4, generator=generator(2), dtype=torch.float64)
        slopes = [torch.cos(x @ w.T) for w in (one, two)]  # φ = sin, L = 1
        change = (slopes[0] - slopes[1]).square().sum(1) * x.square().sum(1) / 50
        assert (change <= gradient_change_bound(x, 50, 1.0, float((two - one).norm()))).all()


def test_single_precision_and_subsets_of_parameters():
    net = mlp().float()
    x, y = torch.randn(2, 8, 3, generator=generator())
    land = cr.Landscape(net, (x, y[:, :2]), "gaussian").restrict("2.*")
    found = gauss_newton_step(land)
    assert found.weights.dtype == torch.float64
    assert len(found.weights) == land.dim == 34
    assert found.predicted.value < 1e-12


def test_nothing_is_changed_by_looking():
    net = mlp()
    before = copy.deepcopy(net.state_dict())
    land = regression(net=net)
    state = torch.get_rng_state()
    gauss_newton_step(land)
    linearized_descent(land, 3)
    lazy_diagnostics(land, land.center + 0.1)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def whole(model, batch):
    return model(batch[0]).square().mean(1)


def absolute(output, target):
    return (output - target).abs().sum(1)


def scalar(output, target):
    return (output - target).square().mean()


BAD = {
    "loss of the whole model": (lambda: linearize(regression(loss=whole)), "outputs of its own"),
    "no second derivative": (lambda: gauss_newton_step(regression(loss=absolute)), "level or kinked"),
    "scalar loss": (lambda: gauss_newton_step(regression(loss=scalar)), "one loss per example"),
    "negative damping": (lambda: gauss_newton_step(regression(), -1.0), "damping"),
    "damping nan": (lambda: gauss_newton_step(regression(), float("nan")), "damping"),
    "descent of cross-entropy": (lambda: linearized_descent(classes(), 3), "squared errors"),
    "descent of Huber": (lambda: linearized_descent(regression(loss=nn.SmoothL1Loss(beta=50.0)), 3), "squared errors"),
    "no steps": (lambda: linearized_descent(regression(), 0), "steps"),
    "rate too large": (lambda: linearized_descent(regression(), 3, 1e3), "below 2/σ_max"),
    "rate nan": (lambda: linearized_descent(regression(), 3, float("nan")), "below 2/σ_max"),
    "wrong weights": (lambda: linearization_error(regression(), torch.ones(3)), "flat vector"),
    "weights that are not finite": (
        lambda: linearization_error(regression(), torch.full((98,), float("inf"))),
        "finite weights",
    ),
    "two widths": (lambda: width_exponent({4: [1.0], 8: [1.0]}), "three"),
    "a value of zero": (lambda: width_exponent({4: [1.0], 8: [0.0], 16: [1.0]}), "positive"),
    "inputs of one axis": (lambda: gradient_change_bound(torch.ones(3), 4, 1.0, 1.0), "matrix"),
    "width of zero": (lambda: gradient_change_bound(torch.ones(1, 3), 0, 1.0, 1.0), "positive width"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name):
    call, message = BAD[name]
    with pytest.raises(cr.InputError, match=message):
        call()


def test_too_many_outputs_for_a_kernel(monkeypatch):
    monkeypatch.setattr(module, "_SIDE", 10)
    with pytest.raises(cr.InputError, match="at most 10 outputs"):
        lazy_diagnostics(regression(), regression().center)


def test_outputs_without_weights_are_refused():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        net[0].bias.fill_(-100.0)
    land = regression(net=net).restrict("0.weight", "2.weight")
    with pytest.raises(cr.InputError, match="Jacobian of zeros"):
        gauss_newton_step(land)
