"""Steps and ranks by products with vectors, against matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from crunode.core.landscape import Landscape
from crunode.curvature.captured import captured
from crunode.curvature.jacobian import Evaluation
from crunode.curvature.kronecker import Kronecker
from crunode.curvature.krylov import Krylov, KrylovMap, counted_share
from crunode.curvature.outputs import DenseMap
from crunode.curvature.product_basis import ProductBasis


def _land(*between: nn.Module, bias: bool = False) -> Landscape:
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.Linear(6, 9, bias=bias)]
    for module in between:
        parts += [module, nn.Linear(9, 9, bias=bias)]
    net = nn.Sequential(*parts, nn.Linear(9, 5, bias=bias)).double()
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Landscape(net, (x, net(x).detach()), "gaussian")


def _at(land: Landscape) -> tuple[Krylov, Tensor, Tensor]:
    """Products and the matrix J at a point near the center, and F there."""
    seen, rows = Evaluation(land), torch.arange(10)
    step = torch.randn(land.dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    w = seen.center + 0.05 * step
    outputs = KrylovMap(seen, rows)
    matrices = DenseMap(seen, rows)
    jacobian = torch.cat([matrices.jacobian(k, w) for k in range(len(matrices.batches))])
    return outputs.at(w), jacobian, outputs.residual(w)


@pytest.mark.parametrize("between", [nn.Identity(), nn.Tanh()])
def test_products_are_those_of_the_matrix(between: nn.Module) -> None:
    linear, jacobian, residual = _at(_land(between))
    step = torch.randn(jacobian.shape[1], generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert linear._pushing
    torch.testing.assert_close(linear.push(step), jacobian @ step)
    torch.testing.assert_close(linear.back(residual), jacobian.T @ residual)
    assert linear.top == pytest.approx(float(torch.linalg.eigvalsh(jacobian @ jacobian.T)[-1]), rel=0.05)


@pytest.mark.parametrize("between", [nn.Identity(), nn.Tanh()])
@pytest.mark.parametrize("damping", [1e-3, 1e-8])
def test_a_step_is_the_shortest_in_plain_weights(between: nn.Module, damping: float) -> None:
    linear, jacobian, residual = _at(_land(between))
    gram = jacobian @ jacobian.T
    exact = jacobian.T @ torch.linalg.solve(gram + damping * linear.top * torch.eye(len(gram)), residual)
    found = linear.solve(residual, damping)
    assert float((jacobian @ (found - exact)).norm()) < 0.05 * float(residual.norm())
    # Nothing of it is in the kernel, by which it would be longer.
    axes = torch.linalg.svd(jacobian, full_matrices=True)[2][int(torch.linalg.matrix_rank(jacobian)) :]
    assert float((axes @ found).norm()) < 1e-8 * float(found.norm())


def test_the_parts_of_linear_layers_give_the_whole_of_the_gram_matrix() -> None:
    land = _land(nn.Identity())
    linear, jacobian, _ = _at(land)
    outputs = linear._map
    pairs = captured(outputs.seen, linear._w, outputs.batches, outputs.roots)
    assert pairs is not None
    whole = sum(torch.kron(a @ a.T, d @ d.T) for a, d in pairs)
    torch.testing.assert_close(whole, jacobian @ jacobian.T)
    assert linear._product_basis().known


def test_parts_are_not_taken_where_a_layer_is_used_twice_or_there_is_none() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.tanh(self.layer(x)))

    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    land = Landscape(Twice(), (x, x), "gaussian")
    outputs = KrylovMap(Evaluation(land), torch.arange(8))
    assert captured(outputs.seen, land.center.double(), outputs.batches, outputs.roots) is None
    assert not outputs.at(land.center.double())._product_basis().known


def test_parts_that_are_wrong_are_found_out() -> None:
    linear, _, _ = _at(_land(nn.Identity()))
    outputs = linear._map
    pairs = captured(outputs.seen, linear._w, outputs.batches, outputs.roots)
    assert pairs is not None

    def push() -> Tensor:
        return linear.push(linear._random(len(linear._w)))

    assert ProductBasis(push, outputs.examples, 64, pairs).known
    assert not ProductBasis(push, outputs.examples, 64, pairs[:1]).known


def test_the_share_counts_eigenvalues_whatever_is_held() -> None:
    values = torch.cat([torch.logspace(-1, 0, 300), torch.full((100,), 1e-10)]).double()
    u = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    meant = float(u[:300].square().sum() / u.square().sum())
    for room in (400, 5):
        share, doubt = counted_share(lambda v: values * v, u, room)
        assert share == pytest.approx(meant, abs=3e-3)
        assert doubt < 3e-3


def test_more_gradients_are_taken_where_a_side_is_long() -> None:
    chance = torch.Generator().manual_seed(0)

    def gradient() -> Tensor:
        return torch.randn(3 * 60 + 4 * 4, generator=chance, dtype=torch.float64)

    assert Kronecker([(3, 60), (4, 4)], gradient).gradients == 96  # 60 directions from three rows each
    assert Kronecker([(14, 14)], lambda: gradient()).gradients == 12


@pytest.mark.parametrize("count", [10, 200])
def test_a_small_rank_is_counted_exactly(count: int) -> None:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(30, 3, bias=False), nn.Linear(3, 12, bias=False)).double()
    x = torch.randn(200, 30, dtype=torch.float64)
    seen = Evaluation(Landscape(net, (x, net(x).detach()), "gaussian"))
    rows = torch.arange(count)
    exact = DenseMap(seen, rows).at(seen.center).rank(1e-5, 10.0)[0]
    outputs = KrylovMap(seen, rows)
    chance = torch.Generator().manual_seed(5)
    rank, error = outputs.at(seen.center).rank(
        1e-5, 10.0, lambda size: torch.randn(size, generator=chance, dtype=torch.float64)
    )
    assert rank == exact == (min(count, 30) + 12 - 3) * 3
    assert error == 0


def test_a_rank_that_is_not_small_is_known_within_its_error() -> None:
    torch.manual_seed(6)
    net = nn.Sequential(nn.Linear(40, 34, bias=False), nn.Linear(34, 60, bias=False)).double()
    x = torch.randn(80, 40, dtype=torch.float64)
    seen = Evaluation(Landscape(net, (x, net(x).detach()), "gaussian"))
    outputs = KrylovMap(seen, torch.arange(80))
    chance = torch.Generator().manual_seed(7)
    rank, error = outputs.at(seen.center).rank(
        1e-5, 10.0, lambda size: torch.randn(size, generator=chance, dtype=torch.float64)
    )
    exact = (40 + 60 - 34) * 34
    assert error < 0.02 * exact
    assert abs(rank - exact) < 3 * error
