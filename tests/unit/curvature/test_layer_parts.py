"""Factors of the rows of J by layers against J written out, and linear parts against the matrix."""

import math

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.activations import Layer
from crunode.curvature.captured import captured
from crunode.curvature.jacobian import Evaluation
from crunode.curvature.kronecker import Kronecker
from crunode.curvature.layered import LayeredMap, LayerPart, column_products, row_products, weighted_row_products
from crunode.curvature.outputs import DenseMap, OutputMap, _outer_factors, _row_products


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parts(examples=6, width=2):
    """Two layers of three by four and two by three weights, and a bias."""
    return [
        LayerPart(0, normal(examples, width, 3), normal(examples, 4, seed=1)),
        LayerPart(12, normal(examples, width, 2, seed=2), normal(examples, 3, seed=3)),
        LayerPart(18, normal(examples, width, 2, seed=4), torch.ones(examples, 1, dtype=torch.float64)),
    ]


def written_out(several):
    columns = [torch.einsum("nwa,nb->nwab", p.left, p.right).flatten(2) for p in several]
    return torch.cat(columns, 2).flatten(0, 1)


@pytest.mark.parametrize(("examples", "width"), [(6, 2), (1, 3), (300, 2)])
def test_products_by_factors_are_those_of_rows_written_out(examples, width):
    several = parts(examples, width)
    j = written_out(several)
    torch.testing.assert_close(row_products(several), j @ j.T)
    torch.testing.assert_close(column_products(several, 20), j.T @ j)
    weights = [normal(3, 4, seed=5).abs(), normal(2, 3, seed=6).abs(), normal(2, 1, seed=7).abs()]
    flat = torch.cat([w.reshape(-1) for w in weights])
    torch.testing.assert_close(weighted_row_products(several, weights), j * flat @ j.T)
    assert [p.columns for p in several] == [slice(0, 12), slice(12, 18), slice(18, 20)]


def test_parts_turn_into_the_axes_of_the_scaling():
    several = parts()
    j = written_out(several)
    scaling = Kronecker.of_rows([(3, 4), (2, 3), (2,)], j)
    for damping in (1e-3, 0.5):
        turned = [p.turned() for p in several]
        top = max(float(left.max() * right.max()) for _, left, right in turned)
        assert top == pytest.approx(scaling.top)
        weights = [(left[:, None] * right + damping * top).reciprocal() for _, left, right in turned]
        scaled = torch.stack([scaling.pull(row, damping) for row in j])
        torch.testing.assert_close(weighted_row_products([p for p, _, _ in turned], weights), scaled @ scaled.T)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("count", [4, 30])
def test_linear_parts_by_layers_or_by_rows_are_those_of_the_matrix(count, bias):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5, bias=bias), nn.Tanh(), nn.Linear(5, 2, bias=bias)).double()
    x = normal(30, 4)
    land = cr.Landscape(net, (x, net(x).detach()), "gaussian")
    seen, chosen = Evaluation(land), torch.arange(count)
    w = seen.center + 0.1 * normal(land.dim, seed=8)
    rows, layers = DenseMap(seen, chosen), LayeredMap(seen, chosen)
    j = torch.autograd.functional.jacobian(lambda v: rows.part(0, v), w)
    top = float(torch.linalg.eigvalsh(j.T @ j)[-1])
    others = OutputMap(seen, torch.arange(15, 30))
    residual, step = normal(len(j), seed=9), normal(land.dim, seed=10)
    gram = j.T @ j if len(j) > land.dim else j @ j.T
    missed = []
    for outputs in (rows, layers):
        before = outputs.gradients
        linear = outputs.at(w)
        assert outputs.gradients - before == 1 + 2  # one pass forward, and one backward for each output
        torch.testing.assert_close(linear.gram, gram)
        assert linear.top == pytest.approx(top, rel=1e-2)
        for damping in (1e-2, 1e-5):
            mu = damping * linear.top
            want = j.T @ torch.linalg.solve(j @ j.T + mu * torch.eye(len(j), dtype=torch.float64), residual)
            torch.testing.assert_close(linear.solve(residual, damping), want, rtol=1e-6, atol=1e-8)
        if len(j) < land.dim:
            torch.testing.assert_close(
                linear.kernel(step), step - torch.linalg.pinv(j) @ (j @ step), rtol=1e-5, atol=1e-6
            )
        assert linear.rank(1e-5, 10.0) == (float(torch.linalg.matrix_rank(j)), 0.0)
        missed.append(linear.misses(others, step))
    assert missed[0] == pytest.approx(missed[1], rel=1e-4, abs=1e-8)
    assert layers.at(w) is layers.at(w.clone())
    assert type(layers.at(w)).__name__ == "Layered"


def test_outer_products_are_found_and_others_are_not():
    left, right = normal(7, 3), normal(7, 4, seed=1)
    blocks = torch.einsum("ra,rb->rab", left, right)
    found = _outer_factors(blocks)
    torch.testing.assert_close(torch.einsum("ra,rb->rab", *found), blocks)
    blocks[3, 1, 2] += 1e-3
    assert _outer_factors(blocks) is None
    nothing = _outer_factors(torch.zeros(2, 3, 4))
    assert nothing is not None
    assert not any(part.any() for part in nothing)


def test_products_of_rows_are_the_same_with_and_without_factors():
    shapes = [(3, 4), (5,), (2, 3), (1, 4), (4, 1)]
    outer = torch.cat(
        [
            torch.einsum("ra,rb->rab", normal(6, 3), normal(6, 4, seed=1)).flatten(1),
            normal(6, 5, seed=2),
            normal(6, 6, seed=3),  # of rank two each
            normal(6, 4, seed=4),
            normal(6, 4, seed=5),
        ],
        1,
    )
    torch.testing.assert_close(_row_products(outer, shapes), outer @ outer.T)


def test_parts_of_layers_are_inputs_and_derivatives_of_outputs():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)).double()
    x = normal(6, 3)
    land = cr.Landscape(net, (x, net(x).detach()), "gaussian")
    (batch,) = land.passes()
    root = torch.tensor(1.5, dtype=torch.float64)
    (a, d), (b, e) = captured(Evaluation(land), land.center, [batch], [root])
    torch.testing.assert_close(a, x)
    torch.testing.assert_close(d, 1.5 * net[1].weight.detach())
    torch.testing.assert_close(b, net[0](x).detach())
    torch.testing.assert_close(e, 1.5 * torch.eye(2, dtype=torch.float64))


def test_a_layer_that_was_not_looked_at_holds_and_gives_nothing():
    plain = Layer(nn.Linear(2, 2), ("weight",), True, False)
    assert (plain.held, plain.gives, plain.positions) == (0, 0, 1)
    assert math.prod(plain.root(torch.ones(3, 2)).shape) == 3
