"""Scalings of weights against (K + τ)^(−1/2) by dense linear algebra, and small ranks from few products."""

import numpy as np
import pytest
import torch

from crunode.curvature.kronecker import Kronecker, Moments
from crunode.curvature.krylov import _all_counted, counted_share
from crunode.curvature.outputs import _outer_factors, _row_products, counted, largest

SHAPES = [(3, 4), (5,), (2, 3, 2), (1, 6)]
SIZES = [12, 5, 12, 6]


def rows(count=40, seed=0):
    return torch.randn(count, sum(SIZES), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def products(jacobian):
    """K as a matrix: second moments of the sides of each tensor, whose traces are the mean of |g|²."""
    whole = np.zeros((sum(SIZES), sum(SIZES)))
    start = 0
    for shape, size in zip(SHAPES, SIZES, strict=True):
        block = jacobian.numpy()[:, start : start + size]
        total = (block**2).sum() / len(block)
        if len(shape) == 1 or min(shape) == 1:
            part = np.eye(size) * total / size
        else:
            each = block.reshape(len(block), shape[0], -1)
            left, right = np.einsum("nij,nkj->ik", each, each), np.einsum("nij,nik->jk", each, each)
            part = np.kron(left / np.trace(left), right / np.trace(right)) * total
        whole[start : start + size, start : start + size] = part
        start += size
    return whole


def test_scaled_gradients_have_the_length_that_the_inverse_gives():
    jacobian = rows()
    scaling, k = Kronecker.of_rows(SHAPES, jacobian), products(jacobian)
    values = np.linalg.eigvalsh(k)
    assert scaling.top == pytest.approx(values[-1])
    g, step = rows(2, seed=1)
    for damping in (1e-2, 1e-6):
        tau = damping * values[-1]
        inverse = np.linalg.inv(k + tau * np.eye(len(k)))
        pulled = scaling.pull(g, damping)
        assert float(pulled.square().sum()) == pytest.approx(g.numpy() @ inverse @ g.numpy())
        assert scaling.push(pulled, damping).numpy() == pytest.approx(inverse @ g.numpy())
        assert float(scaling.push(step, damping) @ g) == pytest.approx(float(step @ pulled))
        both = scaling.pull(torch.stack([g, step]), damping)
        assert both[0].numpy() == pytest.approx(pulled.numpy())
        white = scaling.whitening(damping)
        assert float(white.pull(g).square().sum()) == pytest.approx(tau * (g.numpy() @ inverse @ g.numpy()))
        assert float(white.push(step) @ g) == pytest.approx(float(step @ white.pull(g)))
        assert float(white.gains.max()) <= 1
        single = white.to(torch.float32)
        assert single.push(step.float()).dtype == torch.float32
        assert single.push(step.float()).numpy() == pytest.approx(white.push(step).numpy(), rel=1e-4, abs=1e-5)


def test_gradients_that_are_taken_one_by_one_give_the_same_as_all_rows():
    jacobian = rows(48)
    drawn = iter(jacobian)
    one = Kronecker(SHAPES, lambda: next(drawn), fewest=48)
    all_rows = Kronecker.of_rows(SHAPES, jacobian)
    assert one.gradients == 48
    assert all_rows.gradients == 0
    g = rows(1, seed=2)[0]
    assert one.pull(g, 1e-3).square().sum() == pytest.approx(all_rows.pull(g, 1e-3).square().sum())
    assert one.top == pytest.approx(all_rows.top)


@pytest.mark.parametrize("shape", [(3, 50), (50, 3), (4, 4)])
def test_moments_keep_the_mean_square_of_gradients(shape):
    moments = Moments(shape)
    gradients = torch.randn(2, *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for gradient in gradients:
        moments.add(gradient.reshape(-1))
    short = moments.short()
    # Two gradients show twice the other side's directions: three for each of one's own would do.
    assert short == [2 * shape[1] < 3 * shape[0], 2 * shape[0] < 3 * shape[1]]
    axes, left, others, right = moments.factors()
    assert float(left.sum() * right.sum()) == pytest.approx(float(gradients.square().sum()) / 2)
    assert float(right.sum()) == pytest.approx(1)
    for side, values, few in ((axes, left, short[0]), (others, right, short[1])):
        assert side.T @ side == pytest.approx(np.eye(len(side)), abs=1e-12)
        # Directions that were not met are given a part of the mean, which leaves most to those that were.
        least = float(values.min() / values.mean())
        if few:
            assert 0.02 < least < 0.5
        elif shape[0] != shape[1]:
            assert float(values.min()) > 0
    moments.forget()
    assert moments.short() == [False, False]


def test_vectors_have_no_sides():
    assert not Moments((7, 1)).measured
    assert not Moments((1, 7)).measured
    assert Moments((2, 2)).measured
    moments = Moments((4, 1))
    for _ in range(3):
        moments.add(torch.full((4,), 2.0, dtype=torch.float64))
    axes, left, others, right = moments.factors()
    assert axes is others is None
    assert (left[:, None] * right).tolist() == [[pytest.approx(4.0)]] * 4  # 16 a gradient over four entries


def of_rank(rank, side, low=0.5, seed=0):
    chance = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(side, side, generator=chance, dtype=torch.float64)).Q
    values = torch.zeros(side, dtype=torch.float64)
    values[:rank] = torch.linspace(low, 1, rank, dtype=torch.float64)
    return axes * values @ axes.T


@pytest.mark.parametrize("rank", [0, 3, 20])
def test_few_directions_are_counted_by_hardly_more_vectors(rank):
    side, matrix, seen = 400, of_rank(rank, 400), []
    chance = torch.Generator().manual_seed(1)

    def product(u):
        seen.append(u.shape[1] if u.ndim == 2 else 1)
        return matrix @ u

    def drawn(size):
        return torch.randn(size, generator=chance, dtype=torch.float64)

    asked = []
    found = _all_counted(product, side, rank / side, 10.0, 10**6, lambda size: asked.append(size) or drawn(size))
    assert found == (rank, 0.0)
    assert asked == [side] * len(asked)
    # Three deviations of a binomial number, and a few to spare.
    assert rank < len(asked) < rank + 3.5 * np.sqrt(2 * rank) + 25
    assert _all_counted(product, side, rank / side, 10.0, 2 * len(asked) - 2, drawn) is None  # no room
    assert _all_counted(product, side, max(rank - 18, 0) / side, 10.0, 10**6, drawn) in (None, (rank, 0.0))


def test_a_share_is_the_weight_in_eigenvectors_that_are_not_zero():
    matrix = of_rank(30, 120)
    u = torch.randn(120, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    share, doubt = counted_share(lambda v: matrix @ v, u, 500)
    axes = torch.linalg.eigh(matrix)[1][:, -30:]
    assert share == pytest.approx(float((axes.T @ u).square().sum() / u.square().sum()), abs=1e-6)
    assert doubt < 1e-6
    # A few large eigenvalues do not hide the others.
    steep = of_rank(30, 120, low=0.5) + 700 * torch.outer(axes[:, 0], axes[:, 0])
    assert counted_share(lambda v: steep @ v, u, 500)[0] == pytest.approx(share, abs=1e-6)


def test_values_near_the_cut_are_counted_with_half_of_their_number_in_doubt():
    values = 10.0 ** -torch.linspace(0, 9, 46, dtype=torch.float64)  # five for each factor of ten
    for cut, inside in ((1e-3, 15), (1e-2, 10)):
        found, doubt = counted(values, 1.001 * cut, 10.0, 1e-9)
        assert found == inside
        assert doubt == 5
        assert counted(7.0 * values, 1.001 * cut, 10.0, 1e-9) == (found, doubt)
    assert counted(values, 1e-3 / 1.001, 100.0, 1e-9) == (16, 10)
    assert counted(values[:0], 1e-3, 10.0, 1e-9) == (0, 0)
    gap = torch.tensor([1.0, 0.5, 0.04, 0.003999, 1e-12], dtype=torch.float64)
    assert counted(gap[[0, 1, 2, 4]], 1e-3, 10.0, 1e-9) == (3, 0)
    # A gap of ten counts, one of less does not.
    assert counted(torch.tensor([1.0, 1e-5, 0.99e-6]), 1e-5, 10.0, 1e-12)[1] == 0
    assert counted(torch.tensor([1.0, 0.9e-5, 1.01e-6, 2e-7]), 1e-5, 10.0, 1e-7)[1] > 0


def test_products_of_rows_that_are_outer_products_go_by_their_factors():
    chance = torch.Generator().manual_seed(5)
    a, b, plain = (torch.randn(7, k, generator=chance, dtype=torch.float64) for k in (3, 4, 5))
    outer = torch.einsum("ra,rb->rab", a, b)
    outer[2] = 0
    both = torch.cat([outer.reshape(7, 12), plain], 1)
    assert _row_products(both, [(3, 4), (5,)]) == pytest.approx((both @ both.T).numpy(), abs=1e-12)
    left, right = _outer_factors(outer)
    assert torch.einsum("ra,rb->rab", left, right).numpy() == pytest.approx(outer.numpy())
    full = torch.randn(7, 3, 4, generator=chance, dtype=torch.float64)
    assert _outer_factors(full) is None
    mixed = torch.cat([full.reshape(7, 12), plain], 1)
    assert _row_products(mixed, [(3, 4), (5,)]).numpy() == pytest.approx((mixed @ mixed.T).numpy())


def test_the_largest_eigenvalue_is_found_from_any_signs():
    matrix = of_rank(12, 12) + 3 * torch.outer(*[torch.tensor([1.0, -1.0] * 6, dtype=torch.float64)] * 2)
    exact = float(torch.linalg.eigvalsh(matrix)[-1])
    assert largest(matrix) == pytest.approx(exact, rel=1e-3)
    assert largest(torch.zeros(4, 4)) == 0
    assert largest(torch.zeros(0, 0)) == 0
