"""The online low-rank natural gradient against its recursion written with dense matrices."""

import math

import pytest
import torch
from torch import Tensor

from crunode.curvature.online_fisher import OnlineFisher, online_direction

ETA, DELTA = 0.1, 5e-4


class Dense:
    """The published recursion with D × D matrices: eigenvalues of Z = YYᵀ, inverses by solving."""

    def __init__(self, first: Tensor, alpha: float, epsilon: float) -> None:
        self.alpha, self.epsilon, self.size = alpha, epsilon, first.shape[1]
        self.rank, self.steps = (self.size + 1) // 2, 0
        rows = torch.zeros(self.rank, self.size, dtype=torch.float64)
        for j in range(self.size):
            rows[j % self.rank, j] = 1.1 if j < self.rank else 1.0
        self.r = rows / rows.norm(dim=1, keepdim=True)
        self.d = torch.full((self.rank,), epsilon, dtype=torch.float64)
        self.rho = epsilon
        for _ in range(3):
            self.update(first)

    def fisher(self) -> Tensor:
        return self.r.T @ torch.diag(self.d) @ self.r + self.rho * torch.eye(self.size, dtype=torch.float64)

    def update(self, x: Tensor) -> None:
        mixed = ETA * x.T @ x / len(x) + (1 - ETA) * self.fisher()
        y = self.r @ mixed
        c, u = torch.linalg.eigh(y @ y.T)
        c, u = c.flip(0).clamp(min=((1 - ETA) * self.rho) ** 2), u.flip(1)
        rho = float((mixed.trace() - c.sqrt().sum()) / (self.size - self.rank))
        least = max(self.epsilon, DELTA * math.sqrt(float(c[0])))
        self.r = torch.diag(c.rsqrt()) @ u.T @ y
        self.d, self.rho = (c.sqrt() - rho).clamp(min=least), max(rho, least)

    def step(self, x: Tensor) -> Tensor:
        f = self.fisher()
        smoothed = f + self.alpha / self.size * max(float(f.trace()), self.epsilon) * torch.eye(self.size).double()
        found = torch.linalg.solve(smoothed, x.T).T
        if self.steps < 10 or self.steps % 4 == 0:
            self.update(x)
        self.steps += 1
        return found * x.norm() / found.norm()


def gradients(count: int, rows: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    scale = torch.linspace(2.0, 0.1, size, dtype=torch.float64)
    return torch.randn(count, rows, size, generator=generator, dtype=torch.float64) * scale


@pytest.mark.parametrize(("alpha", "epsilon"), [(4.0, 1e-10), (1e-2, 1e-10), (0.1, 0.3)])
def test_it_is_the_published_recursion(alpha: float, epsilon: float) -> None:
    given = gradients(22, 9, 5)
    dense, fisher = Dense(given[0], alpha, epsilon), OnlineFisher(5, alpha=alpha, epsilon=epsilon)
    for x in given:  # beyond the beginning, so that steps without an update are among them
        torch.testing.assert_close(fisher.precondition(x), dense.step(x), rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(fisher.dense(), dense.fisher(), rtol=1e-6, atol=1e-8)


def test_f_follows_the_second_moment() -> None:
    """With gradients of one distribution, F has its trace and its largest eigenvalue."""
    given = gradients(400, 200, 6)
    fisher = OnlineFisher(6, alpha=1.0, epsilon=1e-10)
    for x in given:
        fisher.precondition(x)
    moment = torch.diag(torch.linspace(2.0, 0.1, 6, dtype=torch.float64) ** 2)
    assert float(fisher.dense().trace()) == pytest.approx(float(moment.trace()), rel=0.05)
    assert float(torch.linalg.eigvalsh(fisher.dense())[-1]) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("shape", [(7,), (1, 6), (4, 5), (3, 2, 4), (1,), ()])
def test_the_norm_is_kept(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    states = [{} for _ in shape]
    for _ in range(12):
        gradient = torch.randn(shape, generator=generator)
        found = online_direction(gradient, states, alpha=1e-2, epsilon=1e-10)
        assert found.shape == gradient.shape
        torch.testing.assert_close(found.norm(), gradient.norm())


def test_much_smoothing_leaves_the_gradient_as_it_is() -> None:
    gradient = gradients(1, 4, 5)[0]
    far = online_direction(gradient, [{}, {}], alpha=1e9, epsilon=1e-10)
    torch.testing.assert_close(far, gradient, rtol=1e-7, atol=1e-9)
    near = online_direction(gradient, [{}, {}], alpha=1e-3, epsilon=1e-10)
    assert float((near - gradient).norm()) > 0.1 * float(gradient.norm())


def test_it_points_downhill() -> None:
    states = [{}, {}]
    for gradient in gradients(20, 6, 5):
        found = online_direction(gradient, states, alpha=1e-2, epsilon=1e-10)
        assert float((found * gradient).sum()) > 0


def test_zero_gradients_and_then_others_are_met() -> None:
    states = [{}, {}]
    zero = torch.zeros(4, 5)
    for _ in range(15):
        assert torch.equal(online_direction(zero, states, alpha=1e-2, epsilon=1e-10), zero)
    found = online_direction(torch.full((4, 5), 1e4), states, alpha=1e-2, epsilon=1e-10)
    assert torch.isfinite(found).all()
    assert all(torch.isfinite(state["values"]).all() for state in states)


def test_rows_stay_orthonormal_where_gradients_have_rank_one() -> None:
    fisher = OnlineFisher(40, alpha=1e-2, epsilon=1e-10)
    generator = torch.Generator().manual_seed(2)
    for k in range(40):
        fisher.precondition(10.0 ** (k % 7 - 3) * torch.randn(1, 40, generator=generator))
    rows = fisher.state["rows"]
    assert rows.shape == (20, 40)
    torch.testing.assert_close(rows @ rows.T, torch.eye(20), rtol=0, atol=1e-5)


def test_the_rank_is_at_most_eighty() -> None:
    fisher = OnlineFisher(300, alpha=1e-2, epsilon=1e-10)
    fisher.precondition(torch.randn(3, 300, generator=torch.Generator().manual_seed(0)))
    assert fisher.state["rows"].shape == (80, 300)
