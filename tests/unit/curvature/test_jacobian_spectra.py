"""Spectra of Jacobians and Hessians and losses of outputs to second order, against dense derivatives."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import crunode as cr
from crunode.curvature.jacobian import Evaluation, NoOutputs, output_roots, selected
from crunode.curvature.lanczos import Eigenvalues
from crunode.curvature.linearized import linearize
from crunode.curvature.loss_factors import loss_factors, softmax_factors
from crunode.curvature.spectrum import spectrum


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def net(*widths):
    torch.manual_seed(0)
    parts = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*parts[:-1]).double()


def landscape(rows=9, loss="gaussian", batches=False):
    x, model = normal(rows, 3), net(3, 4, 3)
    y = torch.arange(rows) % 3 if loss in ("cross-entropy", F.cross_entropy) else normal(rows, 3, seed=1)
    data = [(x[:4], y[:4]), (x[4:], y[4:])] if batches else (x, y)
    return cr.Landscape(model, data, loss)


def dense(land):
    """Outputs and their derivatives, examples first."""

    def outputs(w):
        return torch.cat([land.batch_outputs(w, batch) for batch in land.passes()])

    return outputs(land.center).detach(), torch.func.jacrev(outputs)(land.center).detach()


def seconds(outputs, loss):
    if loss == "gaussian":
        return torch.eye(3, dtype=torch.float64).expand(len(outputs), 3, 3)
    if loss == F.mse_loss:
        return 2 / 3 * torch.eye(3, dtype=torch.float64).expand(len(outputs), 3, 3)
    p = outputs.softmax(1)
    return torch.diag_embed(p) - p[:, :, None] * p[:, None]


@pytest.mark.parametrize("loss", ["gaussian", F.mse_loss, "cross-entropy"])
def test_curvatures_are_eigenvalues_of_the_gauss_newton_matrix(loss):
    land = landscape(loss=loss)
    outputs, j = dense(land)
    whole = torch.einsum("nip,nij,njq->pq", j, seconds(outputs, loss), j) / 9
    values = torch.linalg.eigvalsh(whole).flip(0).numpy()
    found = spectrum(land)
    count = len(found.curvatures)
    assert found.curvatures == pytest.approx(values[:count], abs=1e-12)
    assert values[count:] == pytest.approx(0, abs=1e-12)
    seen = 18 if loss == "cross-entropy" else 27  # a common shift of logits is not seen
    assert (found.rows, found.of, found.seen, found.examples) == (27, 27, seen, 9)
    assert found.complete
    assert found.rank.rank == int(torch.linalg.matrix_rank(whole))
    assert (found.method, found.exact, found.unused.sum()) == ("jacobian", False, 0)


def test_the_slope_is_that_of_the_losses_beside_their_curvature():
    land = landscape(loss="gaussian")
    outputs, _ = dense(land)
    residual = outputs - normal(9, 3, seed=1)
    expected = float(residual.abs().max()) / float(outputs.abs().max())
    assert spectrum(land).slope == pytest.approx(expected)


def test_chosen_rows_are_a_part_of_all():
    land = landscape(rows=12)
    sizes = dense(land)[1].square().sum((1, 2)).tolist()
    found = spectrum(land, rows=14, seed=3)
    assert (found.rows, found.of, found.examples, found.complete) == (12, 36, 4, False)
    means = (sum(part) / 4 for part in itertools.combinations(sizes, 4))
    assert sum(abs(mean - found.curvatures.sum()) < 1e-9 for mean in means) == 1
    assert spectrum(land, rows=1).examples == 1
    assert spectrum(land, rows=36).complete


def test_weights_that_nothing_depends_on_are_told():
    land = landscape()
    with torch.no_grad():
        model = net(3, 4, 3)
        model[2].weight[:, 1] = 0.0
    unused = spectrum(cr.Landscape(model, (normal(9, 3), normal(9, 3, seed=1)), "gaussian")).unused
    assert np.flatnonzero(unused).tolist() == [3, 4, 5, 13]  # weights and bias of the second hidden unit
    assert not spectrum(land).unused.any()


def test_a_sketch_has_the_size_of_the_whole(monkeypatch):
    land = landscape(rows=60)
    whole = spectrum(land)
    monkeypatch.setattr("crunode.curvature.spectrum._MEMORY", 10)
    found = spectrum(land)
    assert (found.method, found.rows, found.of, found.seen, found.examples) == ("jacobian sketch", 180, 180, 180, 60)
    assert found.rank.rank == whole.rank.rank
    # J Ω for normal Ω of variance one over its columns keeps squared lengths in the mean.
    assert 0.5 < found.curvatures.sum() / whole.curvatures.sum() < 2
    assert math.isnan(found.slope)


def test_a_hessian_stands_in_where_outputs_cannot_be_seen():
    def function(w):
        return 3 * w[0] ** 2 + 0.5 * w[1] ** 2 + 0.25 * w[2]

    center = torch.tensor([0.0, 2.0, -1.0], dtype=torch.float64)
    found = spectrum(cr.Landscape.of_function(function, center))
    assert found.method == "hessian"
    assert found.curvatures == pytest.approx([6, 1, 0], abs=1e-12)
    assert (found.rank.rank, found.rows, found.of, found.seen) == (2, 3, 3, 3)
    assert found.slope == pytest.approx(2 / (6 * math.sqrt(5 / 3)))
    assert found.reason
    with pytest.raises(NoOutputs):
        spectrum(cr.Landscape.of_function(function, center), outputs_only=True)
    part = spectrum(cr.Landscape.of_function(function, center), rows=2)
    assert (part.method, part.rows, part.of) == ("hessian sketch", 2, 3)
    flat = spectrum(cr.Landscape.of_function(lambda w: w[0] ** 2, torch.zeros(2, dtype=torch.float64)))
    assert flat.slope == 0


@pytest.mark.parametrize("loss", ["gaussian", F.mse_loss, "cross-entropy"])
@pytest.mark.parametrize("batches", [False, True])
def test_a_loss_of_outputs_is_known_to_second_order(loss, batches):
    land = landscape(loss=loss, batches=batches)
    outputs, j = dense(land)
    second = seconds(outputs, loss)
    linear = linearize(land)
    flat = j.reshape(27, -1)
    assert linear.shape == (27, land.dim)
    assert linear.width == 3
    torch.testing.assert_close(linear.outputs, outputs.reshape(-1))
    near = linear.output_loss()
    assert near.squared == (loss != "cross-entropy")
    free = outputs.clone().requires_grad_()
    y = torch.cat([batch[-1] for batch in land.passes()])
    values = {
        "gaussian": lambda: (free - y).square().sum() / 2,
        F.mse_loss: lambda: (free - y).square().mean(1).sum(),
        "cross-entropy": lambda: F.cross_entropy(free, y, reduction="sum"),
    }[loss]()
    (slope,) = torch.autograd.grad(values, free)
    torch.testing.assert_close(near.slope, slope.reshape(-1))
    # RᵀR is the second derivative; R of the best change of outputs is what takes the slope away.
    u = normal(len(near.weighted(flat)), seed=2)
    torch.testing.assert_close(near.weighted(near.back(u)[:, None])[:, 0], near.weighted(near.weighted(eye(27)).T) @ u)
    torch.testing.assert_close(near.weighted(eye(27)).T @ near.weighted(eye(27)), torch.block_diag(*second))
    torch.testing.assert_close(near.back(near.residual()), -slope.reshape(-1))
    factors = linear.factors(near)
    spread = torch.linalg.svdvals(near.weighted(flat))
    torch.testing.assert_close(factors.values, spread[: factors.rank.rank])
    assert factors.condition == pytest.approx(float((spread[0] / spread[factors.rank.rank - 1]) ** 2))
    assert factors.shape == (len(u), land.dim)
    there = land.center + 0.1 * normal(land.dim, seed=3)
    moved = outputs.reshape(-1) + flat @ (there - land.center)
    torch.testing.assert_close(linear.at(there), moved)
    shown = moved.reshape(9, 3)
    expected = {
        "gaussian": lambda: (shown - y).square().sum(1) / 2,
        F.mse_loss: lambda: (shown - y).square().mean(1),
        "cross-entropy": lambda: F.cross_entropy(shown, y, reduction="none"),
    }[loss]()
    assert linear.loss(there) == pytest.approx(float(expected.mean()))


def eye(size):
    return torch.eye(size, dtype=torch.float64)


def test_roots_of_squared_errors_are_one_number():
    for loss, root in (("gaussian", 1.0), (F.mse_loss, math.sqrt(2 / 3))):
        land = landscape(loss=loss)
        (batch,) = land.passes()
        found = output_roots(Evaluation(land), batch)
        assert (found.ndim, float(found)) == (0, pytest.approx(root))
        assert float(loss_factors(land, dense(land)[0], batch)) == pytest.approx(root)


def weighted(outputs, target):
    return (torch.tensor([1.0, 2.0, 2.0]).to(outputs) * (outputs - target).square()).sum(1)


def test_roots_of_other_losses_are_one_matrix_for_each_example():
    land = landscape(loss=weighted)
    (batch,) = land.passes()
    want = torch.diag(torch.tensor([2.0, 4.0, 4.0], dtype=torch.float64)).expand(9, 3, 3)
    root = output_roots(Evaluation(land), batch)
    torch.testing.assert_close(root.mT @ root, want)
    factors = loss_factors(land, dense(land)[0], batch)
    torch.testing.assert_close(factors.mT @ factors, want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_factors_of_a_softmax_are_taken_for_losses_that_have_them(dtype):
    def by_hand(outputs, target):
        return outputs.logsumexp(1) - (outputs * target).sum(1)

    outputs = normal(9, 3, seed=4).to(dtype)
    model = nn.Linear(3, 3).to(dtype)
    y = F.one_hot(torch.arange(9) % 3, 3).to(dtype)
    land = cr.Landscape(model, (normal(9, 3).to(dtype), y), by_hand)
    (batch,) = land.passes()
    p = outputs.softmax(1)
    factors = loss_factors(land, outputs, batch)
    assert factors.shape == (9, 2, 3)
    torch.testing.assert_close(factors.mT @ factors, torch.diag_embed(p) - p[:, :, None] * p[:, None])
    torch.testing.assert_close(factors, softmax_factors(outputs))


def test_a_loss_that_is_nearly_that_of_a_softmax_has_its_own_factors():
    def near(outputs, target):
        return outputs.logsumexp(1) - (outputs * target).sum(1) + 1e-6 * outputs.square().sum(1)

    land = cr.Landscape(net(3, 4, 3), (normal(9, 3), F.one_hot(torch.arange(9) % 3, 3).double()), near)
    (batch,) = land.passes()
    outputs, _ = dense(land)
    factors = loss_factors(land, outputs, batch)
    want = seconds(outputs, "cross-entropy") + 2e-6 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(factors.mT @ factors, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("size", [1, 3, 9])
@pytest.mark.parametrize("batches", [False, True])
def test_chosen_examples_come_in_their_order(size, batches):
    land = landscape(batches=batches)
    chosen = torch.tensor([0, 2, 3, 4, 8])
    parts = list(selected(land, chosen, size))
    assert all(len(part[0]) <= size for part in parts)
    assert torch.equal(torch.cat([part[0] for part in parts]), normal(9, 3)[chosen])


def test_eigenvalues_may_be_without_vectors():
    assert len(Eigenvalues("eigenvalues", np.ones(2), np.zeros(2)).vectors) == 0
