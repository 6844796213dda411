"""Kronecker products whose sides are each taken with the other one made even."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from crunode.curvature.balanced import Balanced, _alternated, _divided
from crunode.curvature.kronecker import Kronecker


def normal_of(left: Tensor, right: Tensor, seed: int) -> Callable[[], Tensor]:
    """Gradients AXBᵀ with second moments AAᵀ ⊗ BBᵀ."""
    chance = torch.Generator().manual_seed(seed)
    shape = left.shape[1], right.shape[1]
    return lambda: (left @ torch.randn(shape, generator=chance, dtype=torch.float64) @ right.T).reshape(-1)


def side(size: int, orders: float, seed: int) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(size, size, generator=chance, dtype=torch.float64)).Q
    return axes * torch.logspace(0, -orders / 2, size, dtype=torch.float64)


@pytest.mark.heavy
@settings(max_examples=15)
@given(st.integers(8, 20), st.integers(8, 20), st.floats(0, 8), st.integers(0, 50))
def test_a_product_is_found_over_all_its_orders_of_magnitude(a: int, b: int, orders: float, seed: int) -> None:
    left, right = side(a, orders, seed), side(b, orders, seed + 1)
    found = Balanced([(a, b)], normal_of(left, right, seed))
    # Of B K B, with K the exact second moments and B the scaling, all eigenvalues are near one.
    root = torch.kron(left, right)
    values = torch.linalg.svdvals(torch.stack([found.pull(column, 0.0) for column in root.T])) ** 2
    assert 0.2 < float(values.min()) <= float(values.max()) < 5


def test_few_loud_directions_do_not_hide_the_others() -> None:
    """One gradient direction that is 1e5 as large: plain moments see the rest of each side through it."""
    chance = torch.Generator().manual_seed(3)
    left, right = side(12, 4, 1), side(10, 4, 2)
    quiet = normal_of(left, right, 5)
    loud = torch.outer(
        torch.randn(12, generator=chance, dtype=torch.float64), torch.randn(10, generator=chance, dtype=torch.float64)
    ).reshape(-1)

    def gradient() -> Tensor:
        return quiet() + 1e5 * torch.randn((), generator=chance, dtype=torch.float64) * loud

    spread = []
    for kind in (Balanced, Kronecker):
        found = kind([(12, 10)], gradient)
        values = torch.linalg.svdvals(torch.stack([found.pull(c, 1e-16) for c in torch.kron(left, right).T]))
        # All but those that share a side with the loud one, 12 + 10 - 1.
        spread.append(float(values[0] / values[-22]))
    assert spread[0] < 40
    assert spread[1] > 1000


def test_a_point_close_by_takes_as_many_gradients() -> None:
    first = Balanced([(4, 40), (7,)], lambda: torch.randn(167, dtype=torch.float64))
    again = Balanced([(4, 40), (7,)], lambda: torch.randn(167, dtype=torch.float64), first)
    assert again.gradients == first.gradients
    assert again.top == pytest.approx(first.top, rel=0.5)


def test_wide_sides_take_as_many_gradients_as_plain_moments_do() -> None:
    def normal() -> Tensor:
        return torch.randn(604, dtype=torch.float64)

    # Of the first the moments of the wide side are no more than begun after the least there are.
    shapes = [(2, 300), (4,)]
    assert Balanced(shapes, normal).gradients == 2 * Balanced([(20, 30), (4,)], normal).gradients


def test_each_side_is_the_second_moment_with_the_other_one_taken_away() -> None:
    gradient = normal_of(side(6, 3, 1), side(5, 2, 2), 4)
    stack = torch.stack([gradient().reshape(6, 5) for _ in range(60)])
    left, right = _alternated(stack, None)
    torch.testing.assert_close(left, (stack @ right.inverse() @ stack.mT).mean(0) / 5)
    torch.testing.assert_close(right, (stack.mT @ left.inverse() @ stack).mean(0) / 6, rtol=1e-3, atol=1e-5)
    again = _alternated(stack, (left, right))
    torch.testing.assert_close(again, (left, right), rtol=1e-3, atol=1e-5)


def test_division_by_a_side_is_by_its_root() -> None:
    root = side(6, 4, 1)
    columns = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    even = _divided(root @ root.T, columns)
    torch.testing.assert_close(even.T @ even, columns.T @ (root @ root.T).inverse() @ columns, rtol=1e-6, atol=1e-6)
    flat = _divided(torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64))
    assert not flat.any()


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_entries_of_gradients_that_were_scaled_have_a_mean_square_of_one(scale: float) -> None:
    plain, given = normal_of(side(8, 3, 1), side(7, 2, 2), 4), []

    def gradient() -> Tensor:
        given.append(scale * plain())
        return given[-1]

    found = Balanced([(8, 7)], gradient)
    even = torch.stack([found.pull(g, 0.0) for g in given])
    assert float(even.square().mean()) == pytest.approx(1, rel=0.1)


def test_gradients_of_zero_are_no_failure() -> None:
    found = Balanced([(3, 4), (2,)], lambda: torch.zeros(14, dtype=torch.float64))
    assert found.top < 1e-200
