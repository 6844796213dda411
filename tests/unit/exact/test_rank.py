import random
from fractions import Fraction

import pytest

from crunode.errors import InputError
from crunode.exact.rank import MERSENNE, exact_rank, matrix_rank, modular_rank, numerical_rank


def product(rows, columns, rank, seed, size=9):
    """A matrix of the given rank at most, and that rank for almost all seeds."""
    draw = random.Random(seed)
    left = [[draw.randint(-size, size) for _ in range(rank)] for _ in range(rows)]
    right = [[draw.randint(-size, size) for _ in range(columns)] for _ in range(rank)]
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*right, strict=True)] for row in left
    ]


def rank_by_fractions(rows):
    work, rank = [[Fraction(x) for x in row] for row in rows], 0
    for column in range(len(work[0])):
        pivot = next((i for i in range(rank, len(work)) if work[i][column]), None)
        if pivot is None:
            continue
        work[rank], work[pivot] = work[pivot], work[rank]
        for i in range(rank + 1, len(work)):
            factor = work[i][column] / work[rank][column]
            work[i] = [x - factor * y for x, y in zip(work[i], work[rank], strict=True)]
        rank += 1
    return rank


def rank_modulo(rows, prime):
    work, rank = [[x % prime for x in row] for row in rows], 0
    for column in range(len(work[0])):
        pivot = next((i for i in range(rank, len(work)) if work[i][column]), None)
        if pivot is None:
            continue
        work[rank], work[pivot] = work[pivot], work[rank]
        inverse = pow(work[rank][column], -1, prime)
        for i in range(rank + 1, len(work)):
            factor = work[i][column] * inverse % prime
            work[i] = [(x - factor * y) % prime for x, y in zip(work[i], work[rank], strict=True)]
        rank += 1
    return rank


@pytest.mark.parametrize("seed", range(30))
def test_exact_rank_is_that_of_rational_elimination(seed):
    draw = random.Random(seed)
    rows, columns = draw.randint(1, 8), draw.randint(1, 8)
    matrix = product(rows, columns, draw.randint(1, min(rows, columns)), seed, size=draw.choice((1, 9, 10**20)))
    found = exact_rank(matrix)
    assert found.rank == found.low == found.high == rank_by_fractions(matrix)


@pytest.mark.parametrize("exponent", [13, 17, 31, 61, 127])
def test_modular_rank_is_that_of_plain_elimination(exponent):
    prime, draw = (1 << exponent) - 1, random.Random(exponent)
    for _ in range(20):
        rows, columns, rank = draw.randint(1, 12), draw.randint(1, 12), draw.randint(1, 6)
        matrix = product(rows, columns, min(rank, rows, columns), draw.random(), size=prime)
        matrix[0] = [prime * x for x in matrix[0]]  # zero modulo the prime
        assert modular_rank(matrix, exponent) == rank_modulo(matrix, prime)


def test_modular_rank_with_entries_at_the_edge_of_a_field():
    for exponent in (13, 31, 61):
        prime = (1 << exponent) - 1
        assert modular_rank([[prime - 1, prime], [1, 2 * prime], [-1, 1]], exponent) == 2
        assert modular_rank([[prime - 1] * 5] * 5, exponent) == 1
        assert modular_rank([[prime] * 3] * 2, exponent) == 0


def test_mersenne_exponents_are_those_of_primes():
    for exponent in MERSENNE[:14]:  # the Lucas–Lehmer test
        number, s = (1 << exponent) - 1, 4
        for _ in range(exponent - 2):
            s = (s * s - 2) % number
        assert s == 0, exponent


def test_multiples_of_the_first_prime_do_not_deceive():
    prime = (1 << 61) - 1
    assert modular_rank([[prime, 0], [0, 1]]) == 1
    assert exact_rank([[prime, 0], [0, 1]]).rank == 2
    assert exact_rank([[prime, prime * 2], [0, 1]]).rank == 2


def test_beyond_seconds_the_proof_is_left_out_and_said_so():
    found = exact_rank(product(150, 150, 60, seed=1, size=10**6))
    assert (found.rank, found.low, found.high) == (60, 60, 150)


def test_zero_and_fractions():
    assert exact_rank([[0, 0], [0, 0]]).rank == 0
    assert exact_rank([[Fraction(1, 2), Fraction(1, 3)], [3, 2]]).rank == 1
    assert matrix_rank([[1, Fraction(1, 2)]]).exact


@pytest.mark.parametrize("seed", range(10))
def test_numerical_rank_finds_the_exact_one_through_rounding(seed):
    draw = random.Random(seed)
    rows, columns = draw.randint(2, 30), draw.randint(2, 30)
    matrix = product(rows, columns, draw.randint(1, min(rows, columns)), seed)
    noisy = [[x * (1 + 1e-15 * draw.uniform(-1, 1)) / 7 for x in row] for row in matrix]
    found = numerical_rank(noisy)
    assert found.rank == exact_rank(matrix).rank
    assert not found.exact


def test_numerical_rank_of_weights_in_single_precision():
    np = pytest.importorskip("numpy")
    matrix = np.random.default_rng(0).normal(size=(20, 4)) @ np.random.default_rng(1).normal(size=(4, 15))
    assert numerical_rank(matrix.astype(np.float32)).rank == 4


def test_numerical_rank_without_a_gap_is_open():
    size = 12
    matrix = [[10.0**-i if i == j else 0.0 for j in range(size)] for i in range(size)]
    diagonal = numerical_rank(matrix)
    assert diagonal.rank == size  # scales of rows carry no rank
    vague = numerical_rank([[1.0, 1.0], [1.0, 1.0 + 2e-5]])
    assert (vague.rank, vague.low, vague.high) == (None, 1, 2)
    assert numerical_rank([[1.0, 1.0], [1.0, 1.0 + 2e-5]], noise=1e-4).rank == 1
    assert numerical_rank([[1.0, 1.0], [1.0, 1.0 + 1e-12]]).rank == 1
    hilbert = numerical_rank([[1 / (i + j + 1) for j in range(size)] for i in range(size)])
    assert hilbert.rank is None
    assert hilbert.low < hilbert.high == size
    assert numerical_rank([[0.0, 0.0]]).rank == 0
    assert numerical_rank([[1.0, 2.0, 3.0]]).rank == 1


@pytest.mark.parametrize("rows", [[], [[]], [[1, 2], [3]], [[1, "2"]], [[1, True]], [[1j]], "12", 5, [[float("nan")]]])
def test_what_is_no_matrix_is_refused(rows):
    with pytest.raises(InputError, match="expected"):
        matrix_rank(rows)


@pytest.mark.heavy
def test_sizes_beyond_seconds_are_refused_with_a_way_out():
    with pytest.raises(InputError, match="numpy"):
        numerical_rank([[1.0] * 400 for _ in range(400)])
    draw = random.Random(0)
    with pytest.raises(InputError, match="numpy"):
        exact_rank([[draw.randrange(2) for _ in range(700)] for _ in range(700)])
    with pytest.raises(InputError, match="numerical_rank"):
        exact_rank([[0.5]])
    with pytest.raises(InputError, match="Mersenne"):
        modular_rank([[1]], exponent=11)


def test_pivots_far_above_rounding_are_a_bound_where_no_gap_decides():
    np = pytest.importorskip("numpy")
    hilbert = np.array([[1 / (i + j + 1) for j in range(12)] for i in range(12)])
    values = np.linalg.svd(hilbert / hilbert.max(1, keepdims=True), compute_uv=False)
    for gap in (1e4, 1e6):
        found = numerical_rank(hilbert.tolist(), gap=gap)
        assert found.rank is None
        assert abs(found.low - (values > gap * 12 * 2.0**-48).sum()) <= 1
