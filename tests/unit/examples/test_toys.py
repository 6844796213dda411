import itertools
import pickle
from fractions import Fraction

import pytest
import torch

from crunode.errors import InputError
from crunode.examples.toys import (
    Monomial,
    Quadratic,
    exact_normal_crossing,
    exact_reduced_rank,
    normal_crossing,
    orthants,
    quadratic,
    reduced_rank,
    scalar_chain,
    units_potential,
)


@pytest.mark.parametrize(
    ("widths", "rank", "value"),
    [
        ((6, 4, 6), 2, Fraction(27, 2)),
        ((3, 2, 3), 1, Fraction(7, 2)),
        ((4, 3, 4), 1, Fraction(6)),
        ((6, 2, 2), 1, Fraction(4)),
        ((2, 2, 6), 1, Fraction(4)),
        ((2, 6, 2), 1, Fraction(2)),
        ((2, 2, 2), 0, Fraction(3, 2)),
    ],
)
def test_published_values_of_reduced_rank_regression(widths, rank, value):
    assert exact_reduced_rank(*widths, rank) == value


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_most_singular_point_has_the_coefficient_of_the_model(rank):
    # At factors of rank r the local value is a regular part plus a network of rank 0 with r less in each width.
    for m, h, n in itertools.product(range(3, 7), repeat=3):
        regular = Fraction(rank * m + (n - rank) * rank, 2)
        assert exact_reduced_rank(m, h, n, rank) == regular + exact_reduced_rank(m - rank, h - rank, n - rank, 0)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_center_of_reduced_rank_is_a_minimum_of_the_right_rank(rank):
    land = reduced_rank(5, 4, 6, rank, n=50)
    first, second = land.packing.unravel(land.center).values()
    assert float(land.loss()) < 1e-10
    for layer in (first, second, second @ first):
        assert int(torch.linalg.matrix_rank(layer.double(), tol=1e-5)) == rank


def test_noise_raises_the_loss_by_half_its_variance_per_output():
    assert float(reduced_rank(3, 2, 4, 1, n=4000, noise=0.5).loss()) == pytest.approx(0.5 * 4 * 0.25, rel=0.1)


def test_seed_decides_data_and_weights():
    prints = [reduced_rank(3, 2, 3, 1, n=20, seed=seed).fingerprint() for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("widths", [(3, 2, 3, 3), (3, 0, 3, 0), (3, 2, 3, -1), (3.0, 2, 3, 1), (3, True, 3, 1)])
def test_widths_that_make_no_network_are_refused(widths):
    with pytest.raises(InputError, match="rank"):
        reduced_rank(*widths)


@pytest.mark.parametrize(("a", "b", "value"), [(1, 1, Fraction(1, 2)), (1, 2, Fraction(1, 4)), (3, 0, Fraction(1, 6))])
def test_normal_crossing(a, b, value):
    land = normal_crossing(a, b)
    assert exact_normal_crossing(a, b) == value
    assert float(land.loss(torch.tensor([2.0, 3.0]))) == pytest.approx(2 ** (2 * a) * 3 ** (2 * b))


@pytest.mark.parametrize("exponents", [(0, 0), (-1, 1), (0.5, 1)])
def test_exponents_that_make_no_crossing_are_refused(exponents):
    with pytest.raises(InputError, match="exponents"):
        normal_crossing(*exponents)


@pytest.mark.parametrize("dim", [0, 2.5, True])
def test_quadratic_refuses_a_dimension_that_is_none(dim):
    with pytest.raises(InputError, match="dim"):
        quadratic(dim)


def test_landscapes_can_be_sent_to_other_processes():
    for land in (normal_crossing(1, 2), quadratic(3), reduced_rank(3, 2, 3, 1, n=20)):
        assert pickle.loads(pickle.dumps(land)).fingerprint() == land.fingerprint()


def test_potentials_name_themselves():
    assert [repr(p) for p in (Monomial(1, 2), Quadratic())] == ["Monomial(1, 2)", "Quadratic()"]


def test_two_units_at_the_saddle_lose_one_example():
    for n in (1, 2, 3):
        w = torch.cat([torch.ones(2), torch.ones(n), -torch.ones(n)]).double()
        assert float(units_potential(2, n)(w)) == 0.0
        w[2] = 0.0
        assert float(units_potential(2, n)(w)) == 1 / (2 * n)


def test_a_chain_loses_the_square_of_what_is_missing():
    w = torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=torch.float64)  # 1 · 0.5 + 2 · 1 = 2.5
    assert float(scalar_chain(2)(w)) == 1.5**2
    assert float(scalar_chain(2)(-w)) == 1.5**2


def test_orthants_are_the_unit_vectors_and_their_negatives():
    assert orthants(2).tolist() == [[1, 0], [0, 1], [-1, 0], [0, -1]]
