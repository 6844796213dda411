"""Traces against dense second derivatives, the choice of method, and error bars that cover."""

import math

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import crunode as cr
from crunode.curvature.traces import ggn_trace, hessian_trace
from crunode.errors import InputError


@pytest.fixture(autouse=True)
def _double():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def dense(land):
    """The trace of the Hessian by plain autodiff."""
    whole = next(land.passes(10**9))
    return float(torch.autograd.functional.hessian(lambda w: land.batch_loss(w, whole), land.center).trace())


def dense_ggn(land):
    whole, w = next(land.passes(10**9)), land.center
    rows = torch.autograd.functional.jacobian(lambda w: land.batch_outputs(w, whole), w)
    outputs = land.batch_outputs(w, whole).detach()
    second = torch.autograd.functional.hessian(lambda f: land.loss_form.fn(f, whole[-1]).sum(), outputs)
    count = len(outputs)
    return float(sum((second[i, :, i] @ rows[i] * rows[i]).sum() for i in range(count))) / count


def landscape(model, inputs, loss="cross-entropy", outputs=3):
    target = torch.randint(0, outputs, (len(inputs),)) if loss == "cross-entropy" else torch.randn(len(inputs), outputs)
    return cr.Landscape(model.eval(), (inputs, target), loss)


def mlp(activation):
    return nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 5), activation, nn.Linear(5, 3))


def cnn(activation, pool):
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), activation, pool, nn.Conv2d(4, 4, 3, groups=2), activation),
        *(nn.Flatten(), nn.Linear(16, 3)),
    )


def lenet():
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
    )


def normalized():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True), nn.Linear(5, 3))
    with torch.no_grad():
        net[1].weight.normal_()
        net[1].running_mean.normal_()
        net[1].running_var.uniform_(0.5, 2)
    return net


class Residual(nn.Module):
    """Functional operations and a skip connection."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = nn.functional.leaky_relu(self.a(x), 0.2)
        h = h + nn.functional.hardtanh(self.b(h))
        return self.c(h)


ROWS, IMAGES = (16, 4), (9, 2, 8, 8)


@pytest.mark.heavy
@pytest.mark.parametrize("loss", ["cross-entropy", "gaussian"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda: mlp(nn.ReLU()), ROWS),
        (lambda: mlp(nn.LeakyReLU(0.1)), ROWS),
        (lambda: cnn(nn.ReLU(), nn.MaxPool2d(2)), IMAGES),
        (lambda: cnn(nn.LeakyReLU(), nn.AvgPool2d(2)), IMAGES),
        (lenet, IMAGES),
        (normalized, ROWS),
        (Residual, ROWS),
    ],
    ids=["relu", "leaky", "cnn", "leaky-cnn", "lenet", "batch-norm", "residual"],
)
def test_piecewise_linear_networks_are_exact(model, shape, loss):
    land = landscape(model(), torch.randn(shape), loss)
    found = hessian_trace(land, method="exact")
    assert found.value == pytest.approx(dense(land), rel=1e-8)
    assert (found.se, found.systematic, found.terms) == (0, 0, {})
    assert found.diagnostics["method"] == "exact"
    assert found.diagnostics["conditions"]["piecewise linear"]
    assert ggn_trace(land).value == pytest.approx(found.value, rel=1e-12)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda: mlp(nn.Tanh()), ROWS),
        (lambda: mlp(nn.GELU()), ROWS),
        (lambda: cnn(nn.SiLU(), nn.AvgPool2d(2)), IMAGES),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3)), ROWS),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.PReLU(), nn.Linear(5, 3)), ROWS),
    ],
    ids=["tanh", "gelu", "silu-cnn", "layer-norm", "prelu"],
)
def test_other_networks_are_right_within_their_errors(model, shape):
    """At a coarse tolerance random parts stay random; beyond 4.5 standard errors by chance: 7 in 10⁶ each."""
    land = landscape(model(), torch.randn(shape))
    truth = dense(land)
    found = hessian_trace(land, tolerance=0.2)
    assert abs(found.value - truth) <= 4.5 * found.se + 1e-8 * abs(truth)
    assert found.diagnostics["method"] != "exact"
    fine = hessian_trace(land, tolerance=1e-4)  # takes a product for each coordinate, which is less work
    assert fine.value == pytest.approx(truth, rel=1e-8)
    assert fine.se <= 1e-8 * abs(truth)
    outside = any(f.code == "CURV821" for f in found.findings)
    assert outside == bool(found.diagnostics["rest"])
    with pytest.raises(InputError, match="exact trace"):
        hessian_trace(land, method="exact")
    ggn = ggn_trace(land, tolerance=0.05)
    assert abs(ggn.value - dense_ggn(land)) <= 4.5 * ggn.se + 1e-8 * ggn.value


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("method", "activation", "width", "tolerance"),
    [("auto", nn.Tanh(), 60, 0.02), ("hutchinson", nn.ReLU(), 24, 0.15)],
    ids=["activations", "products"],
)
def test_error_bars_cover(method, activation, width, tolerance):
    """Errors over their stated size for 60 seeds; normal ones would leave the bounds in about 1 of 1000 cases.

    More than 10 beyond 1.96: 0.02 %. A mean square outside of 0.4 to 1.9: 0.004 %. A mean beyond 0.45: 0.05 %.
    """
    net = nn.Sequential(nn.Linear(6, width), activation, nn.Linear(width, width), activation, nn.Linear(width, 3))
    land = landscape(net, torch.randn(40, 6), "gaussian")
    truth = hessian_trace(land, tolerance=1e-6)  # held against dense second derivatives above
    assert truth.se == 0
    found = [hessian_trace(land, tolerance=tolerance, method=method, seed=seed) for seed in range(60)]
    assert all(0 < f.se <= tolerance * abs(f.value) for f in found)
    z = np.array([(f.value - truth.value) / f.error for f in found])
    assert np.sum(np.abs(z) > 1.96) <= 10
    assert 0.4 < np.mean(np.square(z)) < 1.9
    assert abs(np.mean(z)) < 0.45


def test_parts_add_up_over_parameters():
    land = landscape(lenet(), torch.randn(IMAGES))
    whole = hessian_trace(land).value
    parts = [hessian_trace(land.restrict(f"{k}.{p}")) for k in (0, 3, 7, 9) for p in ("weight", "bias")]
    assert sum(p.value for p in parts) == pytest.approx(whole, rel=1e-10)
    assert parts[1].value == pytest.approx(dense(land.restrict("0.bias")), rel=1e-8)


def test_only_some_layers_are_sampled():
    land = landscape(mlp(nn.Tanh()), torch.randn(ROWS)).restrict("4.*")
    found = hessian_trace(land)
    assert found.diagnostics["method"] == "exact"
    assert found.value == pytest.approx(dense(land), rel=1e-8)


def test_a_loss_of_the_whole_model_needs_no_outputs():
    def loss(model, batch):
        x, y = batch
        return torch.log1p((model(x) - y).square().sum(1))  # not convex in the outputs

    net, data = mlp(nn.ReLU()), (torch.randn(ROWS), torch.randn(16, 3))
    land = cr.Landscape(net, data, loss)
    found = hessian_trace(land, tolerance=0.05)
    assert found.diagnostics["method"].endswith("layers")
    assert abs(found.value - dense(land)) <= 4.5 * found.se + 1e-9
    with pytest.raises(InputError, match="Gauss-Newton"):
        ggn_trace(land)


def test_a_loss_that_is_not_convex_in_the_outputs_is_sampled_as_a_whole():
    def loss(outputs, target):
        return torch.log1p((outputs - target).square().sum(1))

    land = cr.Landscape(mlp(nn.ReLU()), (torch.randn(ROWS), 3 * torch.randn(16, 3)), loss)
    found = hessian_trace(land, tolerance=0.05)
    assert abs(found.value - dense(land)) <= 4.5 * found.se + 1e-9
    assert not found.diagnostics["conditions"]["convex loss of outputs"]


def test_many_outputs_are_sampled_where_few_signs_do():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 100))
    land = landscape(net, torch.randn(300, 4), outputs=100)
    found = hessian_trace(land, tolerance=0.02)
    exact = hessian_trace(land, method="exact")
    assert found.diagnostics["method"] == "sampled classes"
    assert 0 < found.se <= 0.02 * found.value
    assert abs(found.value - exact.value) <= 4.5 * found.se
    assert exact.se == 0


def test_coupled_examples_and_scalar_losses_take_products():
    def loss(model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    land = cr.Landscape(mlp(nn.ReLU()), (torch.randn(ROWS), torch.randn(16, 3)), loss)
    found = hessian_trace(land, tolerance=0.3)
    assert [f.code for f in found.findings if f.code.startswith("CURV")] == ["CURV823"]
    assert abs(found.value - dense(land)) <= 4.5 * found.se + 1e-9


def test_a_function_of_a_vector():
    land = cr.Landscape.of_function(lambda w: (w[0] * w[1]) ** 2, torch.tensor([1.0, 2.0]))
    assert hessian_trace(land).value == pytest.approx(10.0)


def test_batches_do_not_matter(monkeypatch):
    land = landscape(cnn(nn.ReLU(), nn.MaxPool2d(2)), torch.randn(IMAGES))
    whole = hessian_trace(land).value
    monkeypatch.setattr("crunode.curvature.trace_terms._HELD", 1)
    assert hessian_trace(land).value == pytest.approx(whole, rel=1e-12)


def test_a_batch_of_one():
    land = landscape(mlp(nn.ReLU()), torch.randn(1, 4))
    assert hessian_trace(land).value == pytest.approx(dense(land), rel=1e-8)


def test_zeros_at_kinks_are_told():
    net = mlp(nn.ReLU())
    nn.init.zeros_(net[0].weight)
    nn.init.zeros_(net[0].bias)
    assert "CURV822" in {f.code for f in hessian_trace(landscape(net, torch.randn(ROWS))).findings}
    assert "CURV822" not in {f.code for f in hessian_trace(landscape(mlp(nn.ReLU()), torch.randn(ROWS))).findings}


def test_a_tolerance_that_is_not_reached_is_told():
    net = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 60), nn.Tanh(), nn.Linear(60, 3))
    found = hessian_trace(landscape(net, torch.randn(4, 40)), tolerance=1e-5, probes=101)
    assert "CURV811" in {f.code for f in found.findings}
    assert found.se > 0


def test_the_seed_decides_and_nothing_else_is_touched():
    net = mlp(nn.Tanh())
    land = landscape(net, torch.randn(ROWS))
    state = torch.get_rng_state()
    weights = [p.detach().clone() for p in net.parameters()]
    first, again, other = (hessian_trace(land, tolerance=0.3, seed=s).value for s in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, q) and p.grad is None for p, q in zip(net.parameters(), weights, strict=True))
    assert not any(m._forward_hooks for m in land._module.modules())


@pytest.mark.parametrize(
    "wrong", [{"tolerance": 0.0}, {"tolerance": math.nan}, {"method": "fast"}, {"probes": 3}, {"probes": 50.0}]
)
def test_arguments_out_of_range(wrong):
    with pytest.raises(InputError, match="expected"):
        hessian_trace(landscape(mlp(nn.ReLU()), torch.randn(ROWS)), **wrong)


def test_second_derivatives_that_are_not_finite_give_no_number():
    def loss(outputs, target):
        return (outputs - target).abs().pow(1.5).sum(1)

    net = nn.Linear(4, 3, bias=False)
    nn.init.zeros_(net.weight)
    land = cr.Landscape(net, (torch.randn(ROWS), torch.zeros(16, 3)), loss)
    with pytest.raises(InputError, match="finite second derivatives"):
        hessian_trace(land)


def test_half_precision_is_near_double():
    x, y = torch.randn(64, 4), torch.randint(0, 3, (64,))
    for activation in (nn.ReLU(), nn.Tanh()):
        net = mlp(activation).bfloat16()
        found = hessian_trace(cr.Landscape(net, (x.bfloat16(), y), "cross-entropy"), tolerance=0.05)
        wide = hessian_trace(cr.Landscape(net.double(), (x.bfloat16().double(), y), "cross-entropy"), tolerance=1e-6)
        assert found.value == pytest.approx(wide.value, rel=0.05 + 4.5 * found.se / wide.value)


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        hidden = torch.utils.checkpoint.checkpoint(lambda t: torch.relu(self.a(t)), x, use_reentrant=False)
        return self.c(hidden)


def test_a_model_that_does_not_run_with_hooks_takes_products():
    land = landscape(Recomputed(), torch.randn(ROWS))
    found = hessian_trace(land, tolerance=1e-4)
    assert found.value == pytest.approx(dense(land), rel=1e-8)
