"""Matrices of low rank up to rounding, and steps away from them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crunode.curvature.outputs import _outer, _row_products
from crunode.curvature.rounding import unrounded
from crunode.curvature.surroundings import Surroundings


def low_rank(rows, columns, rank, seed=0):
    chance = torch.Generator().manual_seed(seed)
    a = torch.randn(rows, rank, generator=chance, dtype=torch.float64)
    b = torch.randn(rank, columns, generator=chance, dtype=torch.float64)
    return a @ b


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(2, 40), st.data())
def test_a_rank_lost_by_rounding_comes_back(rows, columns, data):
    rank = data.draw(st.integers(0, min(rows, columns) - 1))
    stored = low_rank(rows, columns, rank, seed=rows).float()
    found, [spaces] = unrounded(stored.reshape(-1), [(rows, columns)], [torch.float32])
    if spaces is None:  # the smallest singular value that counts may be as small as rounding
        assert rank > 0
        return
    values = torch.linalg.svdvals(found.reshape(rows, columns))
    assert int((values > 1e-12 * max(float(values[0]), 1e-300)).sum()) == rank
    assert float((found - stored.reshape(-1)).abs().max()) <= 1e-6 * max(float(stored.abs().max()), 1e-300)
    assert spaces.columns.shape == (rows, rank)
    assert spaces.rows.shape == (columns, rank)


def test_full_rank_other_precisions_and_vectors_are_left_as_they_are():
    chance = torch.Generator().manual_seed(0)
    full, bias = torch.randn(5, 4, generator=chance), torch.randn(4, generator=chance)
    point = torch.cat([full.reshape(-1), bias])
    found, spaces = unrounded(point, [(5, 4), (4,)], [torch.float32] * 2)
    assert torch.equal(found, point.double())
    assert spaces == [None, None]
    exact = low_rank(6, 5, 2).reshape(-1)
    found, [seen] = unrounded(exact, [(6, 5)], [torch.float64])
    assert torch.equal(found, exact)
    assert seen.rows.shape[1] == 2


def test_a_step_outside_adds_its_own_rank():
    matrix = low_rank(9, 7, 3)
    _, [spaces] = unrounded(matrix.reshape(-1), [(9, 7)], [torch.float64])
    step = torch.randn(63, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outside = spaces.outside(step).reshape(9, 7)
    assert float((matrix.T @ outside).abs().max()) < 1e-12
    assert float((outside @ matrix.T).abs().max()) < 1e-12
    assert int(torch.linalg.matrix_rank(matrix + outside)) == 7


@pytest.mark.parametrize("reach", [0.0, 0.5])
def test_the_reach_moves_only_what_matrices_have_nothing_in(reach):
    matrix, other = low_rank(9, 7, 3), torch.ones(5, dtype=torch.float64)
    center = torch.cat([matrix.reshape(-1), other])
    _, spaces = unrounded(center, [(9, 7), (5,)], [torch.float64] * 2)
    around = Surroundings(center, [(9, 7), (5,)], spaces)
    chance = torch.Generator().manual_seed(2)

    def random(size):
        return torch.randn(size, generator=chance, dtype=torch.float64)

    step = around.step(0.1, torch.ones(2), random, reach)
    inside = step[:63] - spaces[0].outside(step[:63])
    assert float(inside.norm()) < 0.11 * around.unit
    assert float(step[63:].norm()) < 0.11 * around.unit
    outside = float(torch.linalg.matrix_norm(spaces[0].outside(step[:63]).reshape(9, 7), 2))
    assert (outside > 0.3 * reach * spaces[0].size) if reach else float(step.norm()) == pytest.approx(0.1 * around.unit)


def test_products_of_rows_by_their_factors():
    chance = torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.randn(*shape, generator=chance, dtype=torch.float64)

    outer = torch.einsum("ra,rb->rab", random(90, 4), random(90, 3)).reshape(90, 12)
    outer[5] = 0
    plain, bias = random(90, 10), random(90, 2)
    rows = torch.cat([outer, plain, bias], dim=1)
    found = _row_products(rows, [(4, 3), (2, 5), (2,)])
    assert torch.allclose(found, _outer(rows), rtol=1e-12, atol=1e-12)
    assert math.isclose(float(found[5, 5]), float(rows[5] @ rows[5]))
