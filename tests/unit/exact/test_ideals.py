"""Monomial ideals: published values, size, bad input."""

import random
import time
from fractions import Fraction

import pytest

from crunode.errors import InputError
from crunode.exact.algebra.ideals import monomial_ideal
from crunode.exact.combine import product_of, sum_of


@pytest.mark.parametrize(
    ("exponents", "h", "value", "m"),
    [
        ([[1, 0], [0, 1]], None, 1, 1),
        ([[1, 2]], None, Fraction(1, 4), 1),
        ([[1, 1, 0], [0, 1, 1], [1, 0, 1]], None, Fraction(3, 4), 1),
        ([[3, 0], [1, 1], [0, 3]], None, Fraction(1, 2), 2),
        ([[2, 0], [0, 3]], [1, 0], Fraction(2, 3), 1),
        ([[2, 1, 0], [0, 1, 2]], None, Fraction(1, 2), 2),
        ([[1, 1, 0, 0], [0, 0, 1, 1]], None, 1, 3),
        ([[4, 0], [2, 1], [0, 3]], None, Fraction(1, 3), 1),
        ([[1, 1, 1]], [0, 0, 1], Fraction(1, 2), 2),
        ([[1, 1, 1]], [Fraction(-1, 2), 0, 0], Fraction(1, 4), 1),
        ([[5]], [4], Fraction(1, 2), 1),
    ],
)
def test_known_values(exponents, h, value, m):
    found = monomial_ideal(exponents, h)
    assert (found.value, found.multiplicity, found.status) == (value, m, "exact")


def test_normal_crossing_is_the_minimum_of_its_ratios():
    source = random.Random(3)
    for _ in range(60):
        size = source.randint(1, 5)
        powers = [source.randint(1, 5) for _ in range(size)]
        h = [source.randint(0, 4) for _ in range(size)]
        ratios = [Fraction(a + 1, 2 * k) for a, k in zip(h, powers, strict=True)]
        found = monomial_ideal([powers], h)
        assert (found.value, found.multiplicity) == (min(ratios), ratios.count(min(ratios)))


def test_sums_and_products_in_different_variables():
    source = random.Random(4)
    for _ in range(40):
        one = [[source.randint(0, 3), source.randint(0, 3)] for _ in range(2)]
        two = [[source.randint(1, 3), source.randint(0, 3)] for _ in range(2)]
        if not all(map(any, one)):
            continue
        together = monomial_ideal([[*a, 0, 0] for a in one] + [[0, 0, *b] for b in two])
        parts = sum_of(monomial_ideal(one), monomial_ideal(two))
        assert (together.value, together.multiplicity) == (parts.value, parts.multiplicity)
        together = monomial_ideal([[*a, *b] for a in one for b in two])
        parts = product_of(monomial_ideal(one), monomial_ideal(two))
        assert (together.value, together.multiplicity) == (parts.value, parts.multiplicity)


@pytest.mark.parametrize(("count", "largest", "density"), [(60, 5, 0.2), (200, 9, 0.5), (200, 3, 0.1), (100, 50, 0.9)])
def test_forty_variables_answer_at_once(count, largest, density):
    source = random.Random(0)
    rows = [[source.randint(1, largest) if source.random() < density else 0 for _ in range(40)] for _ in range(count)]
    start = time.process_time()
    found = monomial_ideal([row for row in rows if any(row)])
    assert time.process_time() - start < 1
    assert found.status == "exact"
    weights = [Fraction(w) for w in found.details["weights"]]
    assert sum(weights) / 2 == found.value
    assert all(sum(a * w for a, w in zip(row, weights, strict=True)) >= 1 for row in rows if any(row))


@pytest.mark.parametrize(
    "exponents",
    [
        [],
        [[]],
        "xy",
        None,
        3,
        [3],
        ["xy"],
        [[1, 0], [1]],
        [[0, 0], [1, 1]],
        [[-1, 2]],
        [[1.0, 2]],
        [[True, 1]],
        [["1"]],
    ],
)
def test_bad_exponents_raise(exponents):
    with pytest.raises(InputError):
        monomial_ideal(exponents)


@pytest.mark.parametrize("h", [[0], [0, 0, 0], "00", [0, -1], [0, 0.5], [0, True], [0, None], 3])
def test_bad_weights_raise(h):
    with pytest.raises(InputError):
        monomial_ideal([[1, 1]], h)
