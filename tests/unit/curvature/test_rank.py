"""Ranks of matrices whose rank is known by how they were made."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.curvature.rank import numeric_rank, rank_mod_prime


def made(rows, columns, rank, seed=0, size=50):
    rng = np.random.default_rng(seed)
    return rng.integers(-size, size, (rows, rank)) @ rng.integers(-size, size, (rank, columns))


def rational_rank(matrix):
    """Plain elimination in fractions."""
    rows = [[Fraction(int(v)) for v in row] for row in matrix]
    rank = 0
    for column in range(len(rows[0])):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for r in range(rank + 1, len(rows)):
            factor = rows[r][column] / rows[rank][column]
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[rank], strict=True)]
        rank += 1
    return rank


@pytest.mark.parametrize(
    ("rows", "columns", "rank"),
    [(5, 7, 3), (7, 5, 5), (1, 9, 1), (100, 120, 37), (300, 200, 200), (48, 48, 47), (97, 49, 49), (130, 260, 129)],
)
def test_rank_of_a_product(rows, columns, rank):
    assert rank_mod_prime(made(rows, columns, rank)) == rank


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_elimination_in_fractions(seed):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-2, 3, rng.integers(1, 9, 2))
    assert rank_mod_prime(matrix) == rational_rank(matrix)


def test_a_prime_may_lower_the_rank_but_never_raise_it():
    matrix = [[7, 0], [0, 1]]
    assert rank_mod_prime(matrix, 7) == 1
    assert rank_mod_prime(matrix) == 2
    for prime in (2, 3, 5, 8388593):
        assert rank_mod_prime(made(9, 8, 6), prime) <= 6


def test_entries_of_any_size_and_kind():
    huge = 10**40
    assert rank_mod_prime([[huge, 1], [huge * huge, huge]]) == 1
    assert rank_mod_prime([[huge, 1], [huge * huge, huge + 1]]) == 2
    assert rank_mod_prime(torch.tensor([[1, -1], [-2, 2]])) == 1
    assert rank_mod_prime(np.zeros((3, 4), dtype=np.int64)) == 0
    assert rank_mod_prime(np.zeros((0, 4), dtype=np.int64)) == 0


def test_sees_a_rank_that_doubles_do_not():
    # Differences in the last of 20 digits.
    matrix = [[10**20, 10**20 + 1], [10**20 + 1, 10**20 + 2]]
    assert rank_mod_prime(matrix) == 2
    assert np.linalg.matrix_rank(np.array(matrix, dtype=float)) == 1


@pytest.mark.parametrize("prime", [0, 1, 4, 9, True, 8388609, 2**31 - 1, 7.0, "7"])
def test_a_modulus_that_is_no_small_prime_is_refused(prime):
    with pytest.raises(cr.InputError, match="prime"):
        rank_mod_prime([[1]], prime)


@pytest.mark.parametrize("matrix", [[[1.5, 2]], [[True, 2]], [["1"]], [[1, 2], [3]], np.ones((2, 2)), np.ones(3, int)])
def test_what_is_no_integer_matrix_is_refused(matrix):
    with pytest.raises((cr.InputError, TypeError)) as caught:
        rank_mod_prime(matrix)
    assert caught.type is cr.InputError


def test_a_gap_decides():
    found = numeric_rank([2.0, 1.0, 1e-3, 1e-9, 1e-10], 5, 1e-6)
    assert (found.rank, found.low, found.high, found.decided) == (3, 3, 3, True)
    assert found.gap == pytest.approx(1e6)
    assert 1e-9 < found.tolerance < 1e-3


def test_a_smooth_decay_is_undecided_and_takes_the_low_number():
    values = 10.0 ** -np.arange(0, 12, 0.5)
    found = numeric_rank(values, 24, 1e-6)
    assert not found.decided
    assert found.rank == found.low == (values > 1e-6).sum()
    assert found.high == 24


def test_a_gap_above_the_resolution_is_no_rank():
    # A large first singular value is not a rank of one.
    found = numeric_rank([1e4, 1.0, 0.5, 0.2], 4, 1e-7)
    assert found.rank == 4


def test_order_does_not_matter_and_zero_has_rank_zero():
    assert numeric_rank([1e-12, 1.0], 2, 1e-6) == numeric_rank([1.0, 1e-12], 2, 1e-6)
    assert numeric_rank([0.0, 0.0], 2, 1e-6).rank == numeric_rank([], 0, 1e-6).rank == 0
    with pytest.raises(cr.InputError, match="finite"):
        numeric_rank([float("nan")], 1, 1e-6)


@pytest.mark.parametrize("rank", [1, 5, 20])
def test_agrees_with_the_exact_rank_of_integers(rank):
    matrix = made(30, 20, rank, seed=rank)
    found = numeric_rank(np.linalg.svd(matrix.astype(float), compute_uv=False), 30, 0.0)
    assert found.decided
    assert found.rank == rank_mod_prime(matrix) == rank
