"""Linear parts of outputs: dense ones against plain derivatives, matrix-free ones against dense ones."""

import math

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.jacobian import Evaluation
from crunode.curvature.kronecker import Kronecker
from crunode.curvature.krylov import KrylovMap, counted_share
from crunode.curvature.outputs import Dense, DenseMap, _smoothly_counted, counted, dense_rows


def landscape(width=3, n=30, inputs=4, loss=None):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, width)).double()
    x = torch.randn(n, inputs, dtype=torch.float64)
    target = net(x).detach()
    if loss == "categorical":
        return cr.Landscape(net, (x, target.softmax(1)), nn.CrossEntropyLoss())
    return cr.Landscape(net, (x, target), "gaussian")


def random(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return lambda size: torch.randn(size, generator=generator, dtype=torch.float64)


def pair(loss=None, examples=30, **options):
    land = landscape(loss=loss, **options)
    seen, chosen = Evaluation(land), torch.arange(examples)
    return land, seen, DenseMap(seen, chosen), KrylovMap(seen, chosen)


@pytest.mark.parametrize("loss", [None, "categorical"])
def test_the_map_is_half_the_loss_to_second_order(loss):
    land, seen, dense, _ = pair(loss)
    step = random()(land.dim)
    base = float(seen.landscape.loss(seen.center))
    for size in (1e-3, 1e-4):
        above = float(land.loss(seen.center + size * step)) - base
        half = float(dense.residual(seen.center + size * step).square().sum()) / 2 / land.data.rows
        assert half == pytest.approx(above, rel=30 * size)


@pytest.mark.parametrize("examples", [3, 30])  # fewer rows than weights, and more
@pytest.mark.parametrize("loss", [None, "categorical"])
def test_dense_solves_are_those_of_the_definition(examples, loss):
    land, seen, dense, _ = pair(loss, examples)
    w = seen.center + 0.1 * random()(land.dim)
    linear = dense.at(w)
    full = torch.func.jacrev(lambda v: torch.cat([dense.part(k, v) for k in range(len(dense.batches))]))(w)
    residual = dense.residual(w)
    top = float(torch.linalg.matrix_norm(full, 2)) ** 2
    assert linear.top == pytest.approx(top, rel=0.02)
    mu = 1e-3 * linear.top
    wanted = full.T @ torch.linalg.solve(full @ full.T + mu * torch.eye(dense.rows), residual)
    torch.testing.assert_close(linear.solve(residual, 1e-3), wanted, rtol=1e-8, atol=1e-10)
    if examples == 3:
        rest = linear.kernel(random(1)(land.dim))
        assert float((full @ rest).norm()) < 1e-6 * math.sqrt(top) * float(rest.norm())
    assert linear.rank(1e-5, 10.0)[0] == int(torch.linalg.matrix_rank(full, rtol=1e-5))


def test_the_last_point_is_kept():
    _, seen, dense, free = pair()
    for kind in (dense, free):
        first = kind.at(seen.center)
        spent = kind.gradients
        assert kind.at(seen.center.clone()) is first
        assert kind.gradients == spent


def test_products_are_those_of_the_matrix():
    land, seen, dense, free = pair("categorical", 3)
    matrix, products = dense.at(seen.center).rows, free.at(seen.center)
    u, v = random()(free.rows), random()(land.dim)
    torch.testing.assert_close(products.back(u), matrix.T @ u)
    torch.testing.assert_close(products.push(v), matrix @ v)
    torch.testing.assert_close(products.gram(u), matrix @ (matrix.T @ u))
    assert products.top == pytest.approx(dense.at(seen.center).top, rel=0.02)


def test_steps_without_matrices_close_the_residual():
    land, seen, _, free = pair(None, 3)
    w = seen.center + 0.02 * random()(land.dim)
    for damping in (1e-3, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9):
        w = w - free.at(w).solve(free.residual(w), damping)
    assert float(free.residual(w).norm()) < 1e-6
    assert float((w - seen.center).norm()) < 0.06 * land.dim**0.5


def test_other_rows_show_what_few_rows_miss():
    land, seen, _, _ = pair()
    few, many, rest = (KrylovMap(seen, torch.arange(a, b)) for a, b in ((0, 3), (0, 20), (20, 30)))
    dense_few, dense_many = (DenseMap(seen, torch.arange(k)) for k in (3, 20))
    step = random()(land.dim)
    assert few.at(seen.center).misses(rest, step) > few.missed
    assert many.at(seen.center).misses(rest, step) <= many.missed
    assert dense_few.at(seen.center).misses(rest, step) > dense_few.missed
    assert dense_many.at(seen.center).misses(rest, step) <= dense_many.missed


@pytest.mark.parametrize("ranks", [(7, 3), (2, 9)])
def test_ranks_without_matrices(ranks):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 10, bias=False), nn.Linear(10, 11, bias=False)).double()
    with torch.no_grad():
        for layer, rank in zip(net, ranks, strict=True):
            u, s, v = torch.linalg.svd(layer.weight, full_matrices=False)
            s = torch.logspace(0, -4, len(s), dtype=torch.float64)  # a spectrum that needs thousands of plain steps
            layer.weight.copy_(u * torch.where(torch.arange(len(s)) < rank, s, 0.0) @ v)
    x = torch.randn(15, 12, dtype=torch.float64)
    land = cr.Landscape(net, (x, net(x).detach()), "gaussian")
    free = KrylovMap(Evaluation(land), torch.arange(15))
    found, error = free.at(free.seen.center).rank(1e-5, 10.0, random(2))
    exact = ranks[1] * 12 + (11 - ranks[1]) * ranks[0]
    assert error <= 1.2 * math.sqrt(2 * exact * (1 - exact / 165) / 6)
    assert abs(found - exact) <= 3 * error
    assert free.gradients < 1500


def test_a_zero_jacobian_has_rank_zero():
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False)).double()
    for p in net.parameters():
        nn.init.zeros_(p)
    x = torch.randn(6, 3, dtype=torch.float64)
    land = cr.Landscape(net, (x, 0 * net(x).detach()), "gaussian")
    for kind in (DenseMap, KrylovMap):
        linear = kind(Evaluation(land), torch.arange(6)).at(torch.zeros(land.dim, dtype=torch.float64))
        assert linear.rank(1e-5, 10.0, random()) == (0.0, 0.0)


def test_counting_wants_a_gap_down_to_rounding():
    values = torch.tensor([1.0, 0.5, 1e-3, 1e-8], dtype=torch.float64)
    assert counted(values, 1e-5, 10.0, 1e-7) == (3.0, 0.0)
    scales = torch.logspace(0, -8, 17, dtype=torch.float64)  # two for each factor of ten, no gap anywhere
    assert counted(scales, 0.9e-5, 10.0, 1e-7) == (11.0, 2.0)
    steps = torch.tensor([1.0, 1e-2, 1e-4, 2e-6, 3e-7], dtype=torch.float64)  # gaps, but also something below each
    assert counted(steps, 1e-5, 10.0, 1e-7)[1] > 0


def test_a_cholesky_count_is_that_of_eigenvalues():
    _, seen, dense, _ = pair(None, 3)
    linear = dense.at(seen.center)
    rank, doubt = _smoothly_counted(linear.gram, 1e-5, 10.0)
    assert rank == linear.rank(1e-5, 10.0)[0]
    assert doubt < 0.01


def test_an_indefinite_matrix_is_damped_more():
    _, seen, dense, _ = pair(None, 3)
    linear = dense.at(seen.center)
    assert isinstance(linear, Dense)
    linear.gram[:] = linear.gram[0, 0] * torch.ones_like(linear.gram)  # rank one: others are zero
    linear.gram.diagonal().sub_(1e-9 * linear.top)
    assert torch.isfinite(linear.solve(dense.residual(seen.center + 0.1), 1e-12)).all()


def test_shares_of_a_known_spectrum():
    values = torch.cat([torch.logspace(-1, 1, 60, dtype=torch.float64), torch.zeros(40, dtype=torch.float64)])
    u = torch.randn(100, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    share, doubt = counted_share(lambda v: values * v, u, 300)
    assert share == pytest.approx(float((u[:60] ** 2).sum() / (u**2).sum()), abs=2e-3)
    assert doubt <= 2e-3
    soft = torch.logspace(0, -8, 100, dtype=torch.float64)  # nothing tells zero from the rest
    assert counted_share(lambda v: soft * v, torch.ones(100, dtype=torch.float64), 300)[1] > 0.05


def test_the_scaling_keeps_the_rank_and_evens_out_the_rest():
    chance = torch.Generator().manual_seed(0)
    a, b = (torch.randn(9, 6, generator=chance, dtype=torch.float64) for _ in range(2))
    a = a * torch.logspace(0, -3, 6, dtype=torch.float64)
    a[:, 4:] = 0
    part = torch.kron(a, b)
    scaling = Kronecker([(6, 6)], lambda: torch.randn(81, generator=chance, dtype=torch.float64) @ part)
    values = torch.linalg.svdvals(torch.stack([scaling.pull(row, 1e-9) for row in part]))
    assert int((values > 1e-3 * values[0]).sum()) == 24 == int(torch.linalg.matrix_rank(part))
    assert values[0] / values[23] < 10 < 1e2 < torch.linalg.svdvals(part)[0] / torch.linalg.svdvals(part)[23]
    u, v = (torch.randn(36, generator=chance, dtype=torch.float64) for _ in range(2))
    assert float(scaling.push(u, 1e-3) @ v) == pytest.approx(float(u @ scaling.pull(v, 1e-3)))


def test_matrices_stay_within_the_memory():
    small, wide = landscape(), landscape(inputs=2000, n=4)
    assert dense_rows(small) > 10**6  # JᵀJ is small whatever the rows
    assert dense_rows(wide) * wide.dim * 8 <= 2**28
