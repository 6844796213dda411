"""All eigenvalues of matrices of low rank, against those they were made with."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crunode.curvature.low_rank import low_rank_spectrum


def _matrix(size, values, seed):
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(size, len(values), generator=generator, dtype=torch.float64)).Q
    return lambda v: axes @ (values * (axes.T @ v))


def _start(size, columns, seed):
    return torch.randn(size, columns, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)


@settings(max_examples=40)
@given(
    rank=st.integers(1, 40),
    spare=st.integers(1, 20),
    decades=st.floats(0.0, 6.0),
    scale=st.floats(-100.0, 100.0),
    seed=st.integers(0, 1000),
)
def test_eigenvalues_are_found_whatever_their_scale(rank, spare, decades, scale, seed):
    values = 10.0 ** (scale - torch.linspace(0, decades, rank, dtype=torch.float64))
    found = low_rank_spectrum(_matrix(120, values, seed), _start(120, rank + spare, seed))
    assert len(found) == rank + spare
    torch.testing.assert_close(found[:rank], values, rtol=1e-3, atol=0.0)
    assert float(found[rank:].max()) < 1e-10 * float(values[-1]) + 1e-13 * float(values[0])


def test_with_as_many_vectors_as_the_matrix_has_rows_nothing_is_left_out():
    values = torch.linspace(1, 2, 30, dtype=torch.float64)
    found = low_rank_spectrum(_matrix(30, values, 0), _start(30, 30, 0))
    torch.testing.assert_close(found, values.flip(0))


def test_fewer_vectors_than_eigenvalues_find_none_that_is_too_large():
    values = torch.linspace(1, 2, 30, dtype=torch.float64)
    found = low_rank_spectrum(_matrix(60, values, 0), _start(60, 10, 0))
    assert float(found.max()) <= 2 + 1e-12
    assert float(found.min()) > 0.1


@pytest.mark.parametrize("columns", [1, 5])
def test_a_matrix_of_zeros_has_none(columns):
    assert low_rank_spectrum(torch.zeros_like, _start(20, columns, 0)).tolist() == [0.0] * columns
