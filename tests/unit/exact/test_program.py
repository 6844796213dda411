"""The exact linear program against enumeration of all vertices."""

import random
from fractions import Fraction
from itertools import combinations, product

import pytest

from crunode.exact.algebra.ideals import minimal_exponents, newton_cover
from crunode.exact.algebra.program import cover, nullspace, rank


def _solved(matrix, right):
    size = len(matrix)
    rows = [[Fraction(a) for a in row] + [Fraction(b)] for row, b in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = next((i for i in range(column, size) if rows[i][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [a / rows[column][column] for a in rows[column]]
        for i in range(size):
            if i != column and rows[i][column]:
                factor = rows[i][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[column], strict=True)]
    return tuple(row[-1] for row in rows)


def _by_enumeration(rows, costs):
    """The least cost over all vertices of {ω ≥ 0, ω·a ≥ 1}, and the dimension of the hull of the cheapest ones."""
    size = len(costs)
    walls = [(row, 1) for row in rows] + [([int(i == j) for i in range(size)], 0) for j in range(size)]
    vertices = set()
    for chosen in combinations(walls, size):
        point = _solved([row for row, _ in chosen], [b for _, b in chosen])
        if point is not None and min(point) >= 0:
            inside = all(sum(a * w for a, w in zip(row, point, strict=True)) >= 1 for row in rows)
            if inside:
                vertices.add(point)
    value = {v: sum(c * w for c, w in zip(costs, v, strict=True)) for v in vertices}
    best = min(value.values())
    optimal = [v for v in vertices if value[v] == best]
    return best, rank([[a - b for a, b in zip(v, optimal[0], strict=True)] for v in optimal])


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(8))
def test_agrees_with_all_vertices(seed):
    source = random.Random(seed)
    checked = 0
    while checked < 25:
        size = source.randint(1, 4)
        rows = [[source.randint(0, 3) for _ in range(size)] for _ in range(source.randint(1, 6))]
        rows = [row for row in rows if any(row)]
        if not rows:
            continue
        costs = [source.choice([1, 1, 2, Fraction(1, 2), 3]) for _ in range(size)]
        found = cover(rows, costs)
        assert (found.value, found.dimension) == _by_enumeration(rows, costs)
        assert sum(c * w for c, w in zip(costs, found.weights, strict=True)) == found.value
        assert all(sum(a * w for a, w in zip(row, found.weights, strict=True)) >= 1 for row in rows)
        checked += 1


def test_the_dual_solution_proves_the_value():
    rows, costs = [(3, 0), (1, 1), (0, 3)], (1, 1)
    found = cover(rows, costs)
    assert sum(found.shares) == found.value
    assert all(sum(y * row[j] for y, row in zip(found.shares, rows, strict=True)) <= costs[j] for j in range(2))


def test_variables_without_use_do_not_count():
    assert newton_cover([(1, 0, 1, 0)], (1, 1, 1, 1)).dimension == 1
    assert newton_cover([(1, 0, 1, 0)], (1, 1, 1, 1)).zeros == (1, 3)


def test_many_rows_that_all_are_tight():
    size = 12
    rows = [[int(k in (i, j)) for k in range(size)] for i in range(size) for j in range(i)]
    found = cover(rows, [1] * size)
    assert (found.value, found.dimension) == (size // 2, 0)
    cycle = [[int(k in (i, (i + 1) % size)) for k in range(size)] for i in range(size)]
    # Weights t and 1 − t in turn around an even cycle.
    assert (cover(cycle, [1] * size).value, cover(cycle, [1] * size).dimension) == (size // 2, 1)


def test_minimal_exponents_are_those_nothing_divides():
    rows = list(product(range(3), repeat=3))[1:]
    expected = [r for r in rows if not any(o != r and all(a <= b for a, b in zip(o, r, strict=True)) for o in rows)]
    assert sorted(minimal_exponents(rows * 2)) == sorted(expected)


def test_nullspace_and_rank():
    matrix = [[1, 2, 3, 4], [2, 4, 6, 8], [0, 1, 1, Fraction(1, 2)]]
    basis = nullspace(matrix, 4)
    assert rank(matrix) == 2
    assert rank(basis) == 2
    assert all(sum(a * v for a, v in zip(row, vector, strict=True)) == 0 for row in matrix for vector in basis)
